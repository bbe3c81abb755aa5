"""All errors that a user can cause, in one hierarchy; any other that reaches the user is a bug.

* TransformerMTError
  + ConfigError
  + DataError
    - NotTextError
  + OutputError
    - FullDiskError
  + FailedFilesError
  + CheckpointError
  + DeviceError
  + ForkError
  + LostProcessError
  + TrainingError
* Interrupted: not an error, and no Exception

`cli/program.py` makes of them a line on stderr and an exit code.
"""


class TransformerMTError(Exception):
    """An error that the user can correct: a line that says what to do, and an exit code."""

    exit_code = 2


class ConfigError(TransformerMTError):
    """A configuration key, value or combination that cannot be used."""


class DataError(TransformerMTError):
    """A corpus, text file or vocabulary that is missing or malformed."""


class NotTextError(DataError):
    """A file that holds something else than text, such as a picture."""


class OutputError(TransformerMTError):
    """An output that cannot be written: a missing folder, a full disk, another process."""


class FullDiskError(OutputError):
    """An output that cannot be written, as no other could be: the disk or the quota is full."""


class FailedFilesError(TransformerMTError):
    """Files of a job could not be translated; all others were."""

    exit_code = 3


class CheckpointError(TransformerMTError):
    """A run or checkpoint directory that is missing, damaged or has a different configuration."""


class DeviceError(TransformerMTError):
    """A device, precision or amount of memory that this machine does not have."""


class ForkError(TransformerMTError):
    """A model that is used in a process that was forked after it was loaded."""


class LostProcessError(TransformerMTError):
    """One of several processes has ended or does not answer."""


class TrainingError(TransformerMTError):
    """A training run that cannot continue, since its gradients stay non-finite."""


class Interrupted(BaseException):
    """SIGINT or SIGTERM ended the program after everything worth keeping was saved.

    Not an Exception, so that no library takes it for a failure of its own.

    Args:
        signum: Number of the signal; the exit code is 128 more, as in a shell.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)  # the argument that unpickling passes
        self.exit_code = 128 + signum

    def __str__(self) -> str:
        return f"stopped by signal {self.args[0]}"
