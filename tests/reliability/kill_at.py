"""Runs the program and kills it at a chosen line: `kill_at.py save|step N ARGUMENTS...`.

Counts the lines that run inside writing and pruning, or inside training, logging and validating;
before the Nth of them the process sends itself SIGKILL. With an N of 0 it runs to its end and
writes their number to stdout.
"""

import os
import signal
import sys

from transformer_mt.checkpoints import checkpoint, run_directory
from transformer_mt.cli import program
from transformer_mt.system import files
from transformer_mt.training import engine, run_log, trainer

_count = 0


def trace(function, sources, limit):
    """Wraps a function so that its lines, in these files, are counted."""

    def on_line(frame, event, argument):
        global _count
        _count += event == "line"
        if _count == limit:
            os.kill(os.getpid(), signal.SIGKILL)
        return on_line

    def on_call(frame, event, argument):
        return on_line if frame.f_code.co_filename in sources else None

    def wrapped(*arguments, **options):
        sys.settrace(on_call)
        try:
            return function(*arguments, **options)
        finally:
            sys.settrace(None)

    return wrapped


def main() -> None:
    """Patches what is to be counted, and runs the command line."""
    where, limit = sys.argv[1], int(sys.argv[2])
    if where == "save":
        modules = checkpoint, run_directory, files
        targets = [(trainer, "save_checkpoint"), (trainer, "prune")]
    else:
        modules = engine, trainer, run_log
        targets = [
            (engine.Engine, "train_step"),
            (trainer.Trainer, "_log_training"),
            (trainer.Trainer, "_validate"),
        ]
    sources = {module.__file__ for module in modules}
    for owner, name in targets:
        setattr(owner, name, trace(getattr(owner, name), sources, limit))
    sys.argv = ["transformer-mt", *sys.argv[3:]]
    try:
        program.main()
    finally:
        if limit == 0:
            print(_count)


if __name__ == "__main__":
    main()
