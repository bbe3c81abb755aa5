"""Runs the program and kills it at a chosen line: `kill_at.py save|step N ARGUMENTS...`.

Counts the lines that run while training, in the modules that save and prune, or in those that
train, log and validate; before the Nth of them the process sends itself SIGKILL. With an N of 0 it
runs to its end and writes their number to stdout.
"""

import os
import signal
import sys

from transformer_mt.checkpoints import checkpoint, run_directory
from transformer_mt.cli import program
from transformer_mt.system import files
from transformer_mt.training import engine, run_log, trainer
from transformer_mt.training.trainer import Trainer

MODULES = {"save": (checkpoint, run_directory, files), "step": (engine, trainer, run_log)}


def main() -> None:
    """Patches what is to be counted, and runs the command line."""
    sources = {module.__file__ for module in MODULES[sys.argv[1]]}
    limit, count, run = int(sys.argv[2]), 0, Trainer.run

    def on_line(frame, event, argument):
        nonlocal count
        count += event == "line"
        if count == limit:
            os.kill(os.getpid(), signal.SIGKILL)
        return on_line

    def on_call(frame, event, argument):
        return on_line if frame.f_code.co_filename in sources else None

    def run_counted(self, *arguments, **options):
        sys.settrace(on_call)
        try:
            return run(self, *arguments, **options)
        finally:
            sys.settrace(None)
            if limit == 0:
                print(count)

    Trainer.run = run_counted
    sys.argv = ["transformer-mt", *sys.argv[3:]]
    program.main()


if __name__ == "__main__":
    main()
