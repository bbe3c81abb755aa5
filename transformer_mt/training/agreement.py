"""Decisions that the processes of a training run make together."""

from dataclasses import dataclass

from transformer_mt.system.processes import Processes


@dataclass(frozen=True)
class Agreement:
    """The information that all processes share after a step.

    Attributes:
        signum: Number of the signal that any of them has received; 0 if none.
        seconds: Training time so far, by the main process's clock.
        save_is_due: Whether a checkpoint is due by that clock.
    """

    signum: int = 0
    seconds: float = 0.0
    save_is_due: bool = False


def agree(processes: Processes, own: Agreement) -> Agreement:
    """Combines what each process knows, so that all make the same decisions."""
    seconds, save_is_due = (own.seconds, own.save_is_due) if processes.is_main else (0.0, False)
    signum, seconds, due = processes.max(own.signum, seconds, save_is_due)
    return Agreement(int(signum), seconds, bool(due))
