"""Starts the program without importing torch anew: a server imports it once and forks.

A child is a process of its own, with the arguments, environment, directory and streams given: a
SIGKILL of it is as real as that of a process that was started. Children of one server share what
was decided when it started: imported modules, the seed of string hashes, variables that are read
while importing; and Python itself is not taken down at their end. Where that matters (closed or
full streams, a terminal, torchrun, settings made before torch is imported), and at least once per
command and kind of kill, tests use `subprocess`.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from functools import cache
from tempfile import TemporaryFile

from transformer_mt.system.process_settings import configure_libraries
from transformer_mt.system.processes import end_process

IMPORTED = (
    "transformer_mt.cli.program",
    "transformer_mt.training.run",
    "transformer_mt.evaluation.report",
    "transformer_mt.translation.run",
    "transformer_mt.text.test_sets",
    "torch.optim",
    "torch._dynamo",  # torch.optim imports it when an optimizer is made
)
NUMBER = struct.Struct("i")


@cache
def server() -> socket.socket:
    """Starts the server of this process; it ends when the socket is closed."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )
    atexit.register(lambda: (ours.close(), process.wait()))
    return ours


class Forked:
    """Runs `[python, "-m", module, ...]` or `[python, script, ...]`; used like `Popen`.

    Streams are open files; without one, that of this process is used. The child is killed when
    this process ends.
    """

    def __init__(self, words, stdin=0, stdout=1, stderr=2, cwd=None, env=None) -> None:
        request = (list(map(str, words[1:])), str(cwd or os.getcwd()), dict(env or os.environ))
        self.args, self.returncode = words, None
        self._connection, theirs = socket.socketpair()
        with theirs:
            files = [
                getattr(file, "fileno", lambda file=file: file)()
                for file in (stdin, stdout, stderr)
            ]
            socket.send_fds(server(), [b"."], [*files, theirs.fileno()])
        self._connection.sendall(json.dumps(request).encode() + b"\n")
        self.pid = self._receive()

    def _receive(self) -> int:
        return NUMBER.unpack(self._connection.recv(NUMBER.size, socket.MSG_WAITALL))[0]

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = self._receive()
            self._connection.close()
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
        with open(writing, "wb") as writer:
            with Forked(words, stdin, out, err, **options) as process:
                stdin.close()
                with suppress(BrokenPipeError):
                    writer.write(input)
                    writer.close()
                process.wait(timeout)
        out.seek(0), err.seek(0)
        return subprocess.CompletedProcess(words, process.returncode, out.read(), err.read())


def serve(control: socket.socket) -> tuple[list[str], str, dict[str, str]]:
    """Forks a process for each message; returns what to run, in a child."""
    while True:
        _, files, *_ = socket.recv_fds(control, 1, 4)
        if not files:
            os._exit(0)
        if os.fork() == 0:
            control.close()
            return attend(*files)
        for file in files:
            os.close(file)


def attend(stdin: int, stdout: int, stderr: int, descriptor: int):
    """Forks the child and reports its end; kills it if whoever asked for it has ended."""
    connection = socket.socket(fileno=descriptor)
    words, folder, environment = json.loads(connection.makefile().readline())
    ended, held = os.pipe()  # the child's end of it closes with the child
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid:
        os.close(held)
        connection.sendall(NUMBER.pack(pid))
        if ended not in select.select([ended, connection], [], [])[0]:
            os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        with suppress(BrokenPipeError):
            connection.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))
        os._exit(0)
    connection.close()
    os.close(ended)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate((stdin, stdout, stderr)):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    return words


def run_words(words: list[str]) -> None:
    """Does what `python WORDS...` does."""
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[0] = os.path.dirname(words[0])
        runpy.run_path(words[0], run_name="__main__")


def main() -> None:
    """Serves. A child ends by `os._exit`, since taking Python down would last half a second."""
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    configure_libraries()  # before torch is imported
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    try:
        run_words(serve(control))
    except SystemExit as stop:
        if not isinstance(stop.code, int):
            raise
        end_process(stop.code)
    end_process(0)


if __name__ == "__main__":
    main()
