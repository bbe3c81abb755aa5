"""Runs the program with a fault in one process: `faulty_process.py FAULT RANK STEP ARGUMENTS...`.

Faults, all in that process at that step: `memory` runs out with more than 64 positions; `nan` in
the loss from then on; `kill` is SIGKILL of the process; `wait` waits for a signal. Whatever the
step: `disk` is a disk that is full from the start; `device` a device that is missing; `absent` a
checkpoint that is not on this machine; `decode` is too little memory for translating. In every
process: `chunks`, which have STEP lines, or fewer if they are long.
"""

import errno
import os
import signal
import sys
import time
from unittest.mock import Mock

from transformer_mt.cli import program
from transformer_mt.errors import CheckpointError, DeviceError
from transformer_mt.system import device, streams
from transformer_mt.training import saving
from transformer_mt.training.engine import Engine
from transformer_mt.translation import translation_model
from transformer_mt.translation.ctranslate2_runtime import CTranslate2Runtime
from transformer_mt.translation.pytorch_runtime import PyTorchRuntime


def main() -> None:
    """Patches the engine if this process is meant, and runs the command line."""
    fault, rank, step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    sys.argv = ["transformer-mt", *sys.argv[4:]]
    first_attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if fault == "chunks":
        PyTorchRuntime.chunk_lines = CTranslate2Runtime.chunk_lines = step, step
        streams.CHUNK_BYTES = 10 * step
    elif int(os.environ["RANK"]) == rank and first_attempt:
        if fault in FAILURES:
            place, name, error = FAILURES[fault]
            setattr(place, name, Mock(side_effect=error))
        else:
            break_engine(fault, step)
    program.main()


FAILURES = {
    "disk": (saving, "save_checkpoint", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))),
    "device": (device, "choose_device", DeviceError("device cuda: not available")),
    "absent": (translation_model, "find_checkpoint", CheckpointError("run: no such directory")),
    "decode": (PyTorchRuntime, "decode", MemoryError()),
}


def break_engine(fault: str, at_step: int) -> None:
    """Makes a training step fail."""
    compute_loss, take_step = Engine._loss, Engine.train_step

    def loss(engine, batch):
        size = len(batch.src) * max(batch.src.size(1), batch.tgt_in.size(1))
        if engine.current_step == at_step and fault == "memory" and size > 64:
            raise MemoryError
        loss, nll = compute_loss(engine, batch)
        is_nan = fault == "nan" and engine.current_step >= at_step
        return loss * float("nan") if is_nan else loss, nll

    def train_step(engine, step, *arguments):
        engine.current_step = step
        if step == at_step and fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if step == at_step and fault == "wait":
            time.sleep(300)
        take_step(engine, step, *arguments)

    Engine.current_step = 0
    Engine._loss, Engine.train_step = loss, train_step


if __name__ == "__main__":
    main()
