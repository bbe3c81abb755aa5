"""Starts the program without importing torch anew, with the standard library's fork server.

A child is a process of its own, with the arguments, environment, directory and streams given: a
SIGKILL of it is as real as that of a process that was started. Children share what was decided
when the server started: imported modules, the seed of string hashes, variables that are read while
importing. Where that matters (closed or full streams, a terminal, torchrun, settings made before
torch is imported), tests use `subprocess`.
"""

import os
import runpy
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.forkserver import ensure_running
from tempfile import TemporaryFile
from unittest.mock import patch

from transformer_mt.system.process_settings import configure_libraries

IMPORTED = (
    "pytest",  # the main module of whoever starts a child is imported there, too
    "transformer_mt.cli.program",
    "transformer_mt.training.run",
    "transformer_mt.evaluation.report",
    "transformer_mt.translation.run",
    "transformer_mt.text.test_sets",
    "torch.optim",
    "torch._dynamo",  # torch.optim imports it when an optimizer is made
)


@cache
def context():
    """Starts the server of this process."""
    server = get_context("forkserver")
    server.set_forkserver_preload(list(IMPORTED))
    ignored = "ignore::UserWarning:multiprocessing.resource_tracker"  # locks of killed children
    with patch.dict(os.environ, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", PYTHONWARNINGS=ignored):
        configure_libraries()  # before the server imports torch
        ensure_running()
    return server


def run_words(words: list[str], cwd: str, env: dict[str, str], streams: list[Connection]) -> None:
    """Does what `python WORDS...` does, in the child."""
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = open(0, closefd=False)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[0] = os.path.dirname(words[0])
        runpy.run_path(words[0], run_name="__main__")


class Forked:
    """Runs `[python, "-m", module, ...]` or `[python, script, ...]`; used like `Popen`.

    Streams are open files; without one, that of this process is used.
    """

    def __init__(self, words, stdin=0, stdout=1, stderr=2, cwd=None, env=None) -> None:
        files = (
            file if isinstance(file, int) else file.fileno() for file in (stdin, stdout, stderr)
        )
        streams = [Connection(os.dup(file)) for file in files]  # what can be sent to a child
        arguments = list(map(str, words[1:])), str(cwd or os.getcwd()), dict(env or os.environ)
        self.args = words
        self._process = context().Process(target=run_words, args=(*arguments, streams), daemon=True)
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    poll = returncode.fget

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *error: object) -> None:
        if error[0]:
            self.kill()
        self.wait()


def run(words, input=b"", text=False, timeout=300, **options) -> subprocess.CompletedProcess:
    """Runs a command to its end, as `subprocess.run` with captured output."""
    mode = "w+" if text else "w+b"
    reading, writing = os.pipe()
    with TemporaryFile(mode) as out, TemporaryFile(mode) as err, open(reading, "rb") as stdin:
        with open(writing, "wb") as writer, Forked(words, stdin, out, err, **options) as process:
            stdin.close()
            with suppress(BrokenPipeError):
                writer.write(input)
                writer.close()
            process.wait(timeout)
        out.seek(0), err.seek(0)
        return subprocess.CompletedProcess(words, process.returncode, out.read(), err.read())
