"""Runs a command and kills it at a chosen line: `kill_at.py save|step N COMMAND ARGUMENTS...`.

Counts the lines that run in the modules that save and prune, or in those that train, log and
validate; before the Nth of them the process sends itself SIGKILL. With an N of 0 it runs to its
end and writes their number to stdout. Of `train` only the training is counted. Beside the
program's commands there is `prune RUN STEP KEEP_LAST BEST_STEP`.
"""

import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path

from transformer_mt.checkpoints import checkpoint, run_directory
from transformer_mt.cli import program
from transformer_mt.system import files, outputs
from transformer_mt.training import engine, run_log, saving, trainer
from transformer_mt.training.trainer import Trainer

MODULES = {"save": (checkpoint, run_directory, files, outputs, saving)}
MODULES["step"] = (engine, trainer, run_log)


def counted(function, where: str, limit: int):
    sources, count = {module.__file__ for module in MODULES[where]}, 0

    def on_line(frame, event, argument):
        nonlocal count
        count += event == "line"
        if count == limit:
            os.kill(os.getpid(), signal.SIGKILL)
        return on_line

    def on_call(frame, event, argument):
        return on_line if frame.f_code.co_filename in sources else None

    def wrapped(*arguments, **options):
        sys.settrace(on_call)
        threading.settrace(on_call)  # checkpoints are written by a thread
        try:
            return function(*arguments, **options)
        finally:
            sys.settrace(None)
            if limit == 0:
                print(count)

    return wrapped


def main() -> None:
    where, limit, (name, *arguments) = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    sys.argv = ["transformer-mt", name, *arguments]
    run = program.main
    if name == "train":
        Trainer.run = counted(Trainer.run, where, limit)
    elif name == "prune":
        run_dir, *steps = arguments
        prune = partial(run_directory.prune, Path(run_dir), *map(int, steps))
        run = counted(prune, where, limit)
    else:
        run = counted(run, where, limit)
    run()


if __name__ == "__main__":
    main()
