"""All errors that a user can cause, in one hierarchy.

    TransformerMTError        one line on stderr, exit code 2
    ├── ConfigError           a key, a value or a combination of values
    ├── DataError             a corpus, a text file or a vocabulary
    ├── OutputError           a file that cannot be written or is in use
    ├── CheckpointError       a run or checkpoint directory
    ├── DeviceError           a device, precision or amount of memory that is not available
    │   └── CompileError      torch.compile does not work
    └── TrainingError         a run that cannot continue, since its gradients stay non-finite
    Interrupted               SIGINT or SIGTERM, after the work was saved; exit code 130 or 143

Any other exception that reaches the user is a bug in this program.
"""


class TransformerMTError(Exception):
    """An error that the user can correct; the message names its cause and says what to do."""


class ConfigError(TransformerMTError):
    """A configuration key, value or combination that cannot be used."""


class DataError(TransformerMTError):
    """A corpus, text file or vocabulary that is missing or malformed."""


class OutputError(TransformerMTError):
    """An output that cannot be written: a missing folder, a full disk, another process."""


class CheckpointError(TransformerMTError):
    """A run or checkpoint directory that is missing, damaged or has a different configuration."""


class DeviceError(TransformerMTError):
    """A device, precision or amount of memory that this machine does not have."""


class CompileError(DeviceError):
    """torch.compile does not work on this machine."""


class TrainingError(TransformerMTError):
    """A training run that cannot continue."""


class Interrupted(BaseException):
    """A signal ended the program after everything worth keeping was saved.

    Not an Exception, so that no library takes it for a failure of its own.

    Args:
        signum: Number of the signal; the exit code is 128 more, as in a shell.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by signal {signum}")
        self.exit_code = 128 + signum
