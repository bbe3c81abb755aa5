"""Starts the program without importing torch anew, with the standard library's fork server.

A child is a process of its own, with the arguments, environment and streams given: a SIGKILL of it
is as real as that of a process that was started. Children share what was decided when the server
started: imported modules, the seed of string hashes, variables that are read while importing.
Where that matters (closed or full streams, torchrun itself, settings made before torch is
imported), tests use `subprocess`.
"""

import os
import runpy
import subprocess
import sys
from functools import cache
from multiprocessing import Process, get_context
from multiprocessing.connection import Connection
from multiprocessing.forkserver import ensure_running
from tempfile import TemporaryFile
from unittest.mock import patch

from transformer_mt.system.process_settings import configure_libraries

IMPORTED = """pytest
    transformer_mt.cli.program transformer_mt.training.run transformer_mt.evaluation.evaluate
    transformer_mt.translation.job transformer_mt.text.test_sets torch.optim""".split()
"""Pytest is the main module of whoever starts a child, which imports that, too."""


@cache
def context():
    """Starts the server of this process."""
    server = get_context("forkserver")
    server.set_forkserver_preload(IMPORTED)
    ignored = "ignore::UserWarning:multiprocessing.resource_tracker"  # locks of killed children
    with patch.dict(os.environ, HF_HUB_OFFLINE="1", PYTHONWARNINGS=ignored):
        configure_libraries()  # before the server imports torch
        ensure_running()
    return server


def run_words(words: list[str], env: dict[str, str], streams: list[Connection], cwd: str) -> None:
    """Does what `python WORDS...` does, in the child, but measures the peak of a small product."""
    from transformer_mt.training import flops

    flops._SIZES["cpu"] = 64  # as in `conftest`
    os.chdir(cwd)
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = open(0, closefd=False)
    os.environ.clear()
    os.environ.update(env)
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[0] = os.path.dirname(words[0])
        runpy.run_path(words[0], run_name="__main__")


def start(words, stdin=0, stdout=1, stderr=2, env=None, cwd=None) -> Process:
    """Starts `[python, "-m", module, ...]` or `[python, script, ...]`; streams are descriptors."""
    streams = [Connection(os.dup(each)) for each in (stdin, stdout, stderr)]  # can be sent
    arguments = list(map(str, words[1:])), dict(env or os.environ), streams, cwd or os.getcwd()
    process = context().Process(target=run_words, args=arguments, daemon=True)
    process.start()
    return process


def run(words, input: bytes = b"", env=None, cwd=None) -> subprocess.CompletedProcess[bytes]:
    """Runs a command to its end, with its input from a file."""
    with TemporaryFile() as stdin, TemporaryFile() as out, TemporaryFile() as err:
        stdin.write(input)
        stdin.seek(0)
        process = start(words, stdin.fileno(), out.fileno(), err.fileno(), env, cwd)
        process.join(300)
        assert process.exitcode is not None, "still running"
        out.seek(0), err.seek(0)
        return subprocess.CompletedProcess(words, process.exitcode, out.read(), err.read())
