"""Starts the program in several processes, with or without torchrun; compares what it trained."""

import itertools
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile

import conftest
import fork_server
from conftest import write_config, write_copy_corpus

from transformer_mt.checkpoints.layout import EMA, MODEL
from transformer_mt.checkpoints.run_directory import load_newest

FAULTY = Path(__file__).parent / "training" / "faulty_process.py"
PROGRAM = ("-m", "--", "transformer_mt")
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1"}
_PORTS = itertools.count(10_000 + os.getpid() % 200 * 100)  # each process has its own


def free_port() -> int:
    """Gives a port that nothing listens on, below those that a system gives to connections.

    One of those could be taken before the program listens on it.
    """
    while True:
        with suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", port := next(_PORTS)))
            return port


def with_chunks_of(lines: int) -> tuple[object, ...]:
    """Gives the program with small chunks, for `start`, `launch` and `together`."""
    return ("--", FAULTY, "chunks", 0, lines)


def torchrun(world_size: int, *words: object) -> list[str]:
    """Gives the command that starts a program in several processes."""
    address = ("--master-addr", "127.0.0.1", "--master-port", free_port())
    options = ("--nproc-per-node", world_size, *address)
    return [sys.executable, "-m", "torch.distributed.run", *map(str, (*options, *words))]


def start(world_size: int, *arguments, options=(), program=PROGRAM) -> subprocess.Popen[str]:
    """Starts the program in several processes, with options of torchrun; stderr is a pipe."""
    words = torchrun(world_size, *options, *program, *arguments)
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Waits until a condition holds while a process runs."""
    began = time.monotonic()
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() - began < 120
        time.sleep(0.02)


def count_text(path: Path, text: str) -> int:
    """Counts a text in a file that may not exist yet."""
    return path.read_text().count(text) if path.exists() else 0


def children(process: subprocess.Popen[str]) -> list[int]:
    """Gives the ids of the workers of a launcher."""
    listed = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    return [int(line) for line in listed.stdout.split()]


def launch(world_size: int, *arguments: object, program=PROGRAM, stdin: int = 0):
    """Runs the program in several processes to its end. Torchrun is forked, which is quicker."""
    return run_all(torchrun(world_size, *program, *arguments), [ENVIRONMENT], stdin)


def together(world_size: int, *arguments: object, program=PROGRAM):
    """Runs the program to its end in several forked processes, without torchrun."""
    words = [sys.executable, *(word for word in program if word != "--"), *arguments]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared = {**ENVIRONMENT, **shared, "WORLD_SIZE": str(world_size)}
    ranks = map(str, range(world_size))
    return run_all(words, [{**shared, "RANK": rank, "LOCAL_RANK": rank} for rank in ranks])


def run_all(words, environments, stdin: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end in a forked process for each of the environments."""
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        streams = stdin, out.fileno(), err.fileno()
        processes = [fork_server.start(words, *streams, env) for env in environments]
        for process in processes:
            process.join(300)
        codes = [process.exitcode for process in processes]
        assert None not in codes, "a process has not ended"
        out.seek(0), err.seek(0)
        return subprocess.CompletedProcess(words, max(codes, key=abs), out.read(), err.read())


def launch_faulty(fault: str, rank: int, step: int, *arguments: object):
    """Runs the program with a fault in one of two processes."""
    return launch(2, *arguments, program=("--", FAULTY, fault, rank, step))


def messages(stderr: str) -> list[str]:
    """Gives the lines that are the program's, not torchrun's own report."""
    return re.findall(r"^(?:process \d+ of \d+: )?(?:error|warning): .*", stderr, re.MULTILINE)


def exit_codes(stderr: str) -> list[int]:
    """Gives the exit codes of the workers in torchrun's report."""
    lines = [line.split() for line in stderr.splitlines()]
    return [int(line[2]) for line in lines if line[:2] == ["exitcode", ":"]]


def small_config(folder: Path, **changes: object) -> Path:
    """Writes a tiny model's configuration; a key's bias, whose true gradient is 0, is left out."""
    write_copy_corpus(folder / "corpus", {"train": 600, "validation": 12})
    model = {"model__n_heads": 2, "model__attention_bias": False, "model__dropout": 0.2}
    steps = {"train__batch_tokens": 300, "train__ema_decay": 0.9}
    return write_config(folder, folder / "corpus", **{**model, **steps, **changes})


def assert_equal(run_dir: Path, whole: Path, step: int) -> None:
    """Compares weights, moments, moving average, vocabulary and metrics; times may differ."""
    newest, other = load_newest(run_dir), load_newest(whole)
    assert newest.progress.step == other.progress.step == step
    assert newest.files == other.files
    for name in newest.files - {"state.json", "manifest.json"}:
        assert (newest.path / name).read_bytes() == (other.path / name).read_bytes(), name
    states = [asdict(checkpoint.state) for checkpoint in (newest, other)]
    for state in states:
        del state["progress"]["seconds"]
    assert states[0] == states[1] and records(run_dir) == records(whole)


def assert_close(run_dir: Path, other: Path) -> None:
    """Compares weights; a twentieth may differ by more, where inputs of the ReLU are near 0."""
    for name in (MODEL, EMA):
        left, right = (load_newest(path).load_tensors(name) for path in (run_dir, other))
        assert left.keys() == right.keys()
        for key in left:
            differences = (left[key] - right[key]).abs().flatten()
            typical, largest = float(differences.quantile(0.95)), float(differences.max())
            assert typical < 2e-5 and largest < 4e-4, f"{name} {key}: {typical}, {largest}"


def records(run_dir: Path, kind: str | None = None) -> list[dict[str, object]]:
    """Reads the metrics, wall times aside."""
    timed = ("seconds", "tokens_per_second", "mfu")
    found = conftest.records(run_dir, kind)
    return [{key: value for key, value in each.items() if key not in timed} for each in found]
