"""Runs the program with a fault in one process: `faulty_process.py FAULT RANK STEP ARGUMENTS...`.

Faults, all in that process at that step: `memory` runs out; `nan` in the loss from then on; `kill`
is SIGKILL, and `stop` SIGSTOP, of the process; `bug` is an exception that nobody expects; `parent`
is SIGKILL of the launcher. `disk` is a disk that is full from the start.
"""

import errno
import os
import signal
import sys

from transformer_mt import cli
from transformer_mt.training import trainer
from transformer_mt.training.engine import Engine


def main() -> None:
    """Patches the engine if this process is meant, and runs the command line."""
    fault, rank, step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    sys.argv = ["transformer-mt", *sys.argv[4:]]
    first_attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if int(os.environ["RANK"]) == rank and first_attempt:
        if fault == "disk":
            trainer.save_checkpoint = no_space
        else:
            break_engine(fault, step)
    cli.main()


def no_space(*arguments: object) -> None:
    """Stands for a save on a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def break_engine(fault: str, at_step: int) -> None:
    """Makes a training step fail."""
    compute_loss, take_step = Engine._loss, Engine.train_step
    signals = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}

    def loss(engine, batch):
        if engine.current_step == at_step and fault == "memory":
            raise MemoryError
        if engine.current_step == at_step and fault == "bug":
            raise LookupError("a bug")
        value = compute_loss(engine, batch)
        return value * float("nan") if engine.current_step >= at_step and fault == "nan" else value

    def train_step(engine, step, micro_batches):
        engine.current_step = step
        if step == at_step and fault in signals:
            os.kill(os.getpid(), signals[fault])
        if step == at_step and fault == "parent":
            os.kill(os.getppid(), signal.SIGKILL)
        take_step(engine, step, micro_batches)

    Engine.current_step = 0
    Engine._loss, Engine.train_step = loss, train_step


if __name__ == "__main__":
    main()
