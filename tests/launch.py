"""Starts the program under torchrun, and compares what it trained."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import torch

from transformer_mt.checkpoints.checkpoint import EMA, MODEL
from transformer_mt.checkpoints.run_directory import load_newest

FAULTY = Path(__file__).parent / "training" / "faulty_process.py"
STOP_AT = Path(__file__).parent / "reliability" / "stop_at.py"
PROGRAM = ("-m", "--", "transformer_mt")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def free_port() -> int:
    """Finds a port that no one listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def launcher(world_size: int, *options: object) -> list[str]:
    """Gives the beginning of the command line of torchrun on this machine."""
    address = ("--master-addr", "127.0.0.1", "--master-port", free_port())
    words = ("--nproc-per-node", world_size, *address, *options)
    return [sys.executable, "-m", "torch.distributed.run", *map(str, words)]


def with_chunks_of(lines: int) -> tuple[str, ...]:
    """Gives the program with small chunks, for `start` and `launch`."""
    return ("--", str(STOP_AT), str(lines))


def start(
    world_size: int, *arguments: object, options=(), program=PROGRAM, **streams
) -> subprocess.Popen[str]:
    """Starts the program in several processes; what they write to stderr is kept."""
    words = [*launcher(world_size, *options), *program, *map(str, arguments)]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, **streams)


def children(process: subprocess.Popen[str]) -> list[int]:
    """Gives the ids of the workers of a launcher."""
    listed = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    return [int(line) for line in listed.stdout.split()]


def launch(
    world_size: int, *arguments: object, program=PROGRAM, **options
) -> subprocess.CompletedProcess[str]:
    """Runs the program in several processes to its end."""
    words = [*launcher(world_size), *program, *map(str, arguments)]
    return subprocess.run(
        words, capture_output=True, text=True, env=ENVIRONMENT, timeout=300, **options
    )


def launch_faulty(fault: str, rank: int, step: int, *arguments: object, world_size: int = 2):
    """Runs the program with a fault in one of two processes."""
    words = [*launcher(world_size), "--", FAULTY, fault, rank, step, *arguments]
    return subprocess.run(
        list(map(str, words)), capture_output=True, text=True, env=ENVIRONMENT, timeout=240
    )


def messages(stderr: str) -> list[str]:
    """Gives the lines that are the program's, not torchrun's own report."""
    return re.findall(r"^(?:process \d+ of \d+: )?(?:error|warning): .*", stderr, re.MULTILINE)


def exit_codes(stderr: str) -> list[int]:
    """Gives the exit codes of the workers in torchrun's report."""
    lines = [line.split() for line in stderr.splitlines()]
    return [int(line[2]) for line in lines if line[:2] == ["exitcode", ":"]]


def weights(run_dir: Path, name: str = MODEL) -> dict[str, torch.Tensor]:
    """Reads the newest weights, key biases aside.

    A key's bias shifts all scores of a query alike, so its true gradient is zero, and Adam turns
    the rounding into steps of full size.
    """
    tensors = load_newest(run_dir).load_tensors(name)
    for key, tensor in tensors.items():
        if key.endswith(("qkv.bias", "kv.bias")):
            start = len(tensor) // 3 if key.endswith("qkv.bias") else 0
            width = len(tensor) // (3 if key.endswith("qkv.bias") else 2)
            tensor[start : start + width] = 0
    return tensors


def assert_close(run_dir: Path, other: Path) -> None:
    """Compares weights and their moving average up to rounding.

    Where an input of the ReLU is nearly zero, rounding decides whether a token changes the weights
    of that unit. So a twentieth of a tensor may differ by more, but by less than mistakes cause.
    """
    for name in (MODEL, EMA):
        left, right = weights(run_dir, name), weights(other, name)
        assert left.keys() == right.keys()
        for key in left:
            differences = (left[key] - right[key]).abs().flatten()
            typical, largest = float(differences.quantile(0.95)), float(differences.max())
            assert typical < 2e-5 and largest < 4e-4, f"{name} {key}: {typical}, {largest}"


def records(run_dir: Path, kind: str) -> list[dict[str, object]]:
    """Reads the metrics of one kind, wall times aside."""
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    timed = ("seconds", "tokens_per_second", "mfu")
    return [
        {key: value for key, value in line.items() if key not in timed}
        for line in lines
        if line["kind"] == kind
    ]
