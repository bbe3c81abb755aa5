"""What ends a process with its launcher or with another process, and how long it waits."""

import os
import re
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import fork_server
import pytest
from conftest import command, write_config
from launch import free_port

from transformer_mt.system import launcher, processes

SCENARIO = Path(__file__).parent / "joined_process.py"
LOST = "error: another process has ended or is unreachable; run the same command again\n"
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "scaling.md"


def launched(port: int, rank: int = 0) -> dict[str, str]:
    """Gives the environment of one of two processes."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
    return {**os.environ, "MASTER_ADDR": "127.0.0.1", **{k: str(v) for k, v in names.items()}}


@pytest.mark.parametrize("seconds", [0, 2])
def test_a_launcher_killed_while_its_worker_starts(corpus_dir, tmp_path, seconds):
    """At once, or while the worker imports torch, which here takes longer than the test.

    Sabotage: watch the launcher only when joining; take process 1 for a launcher.
    """
    config = write_config(tmp_path, corpus_dir)
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(60)\n")
    path = os.pathsep.join((str(tmp_path), *sys.path))
    env = {**launched(free_port()), "TORCHELASTIC_RUN_ID": "1", "PYTHONPATH": path}
    launcher = f'"$@" & echo $!; sleep {seconds}; kill -9 $$'
    words = ["sh", "-c", launcher, "sh", *command("train", config, "--run", tmp_path / "run")]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=env, stdout=pipe, stderr=pipe, text=True) as process:
        worker = int(process.stdout.readline())
        try:
            error = process.communicate(timeout=seconds + 10)[1]
        except subprocess.TimeoutExpired:
            os.kill(worker, signal.SIGKILL)
            raise
    assert error == LOST.replace("another process", "the launcher")


@pytest.mark.parametrize(
    ("parent", "by_torchrun", "same_program", "expected"),
    [
        (1, True, False, True),
        (1, True, True, False),  # in a container, torchrun may be process 1
        (1, False, False, False),  # and so may be a shell that sets the variables itself
        (7, True, False, False),
    ],
)
def test_a_process_is_an_orphan(monkeypatch, parent, by_torchrun, same_program, expected):
    """If process 1 is its parent but not torchrun. Sabotage: leave out one of the conditions."""
    monkeypatch.setattr(os, "getppid", lambda: parent)
    monkeypatch.setattr(os.path, "samefile", lambda left, right: same_program)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if by_torchrun:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert launcher.is_orphan() == expected


HUNG = "error: a GPU has hung for 0 minutes; run the same command again\n"


@pytest.mark.parametrize(
    ("scenario", "message"), [("late", LOST), ("stopped", LOST), ("gpu", HUNG)]
)
def test_a_process_that_is_lost(tmp_path, scenario, message):
    """The other ends, and one says why, although the main threads wait for something else.

    Sabotage: let the first that has finished end the watch; wait longer for a peer than
    PEER_TIMEOUT; wait for the store; do not look at the GPU; give NCCL more than ten minutes.
    """
    port, words = free_port(), [sys.executable, SCENARIO, scenario]
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        streams = {"stdout": out.fileno(), "stderr": err.fileno()}
        both = [fork_server.start(words, env=launched(port, rank), **streams) for rank in (0, 1)]
        both[0].join(30)
        if scenario == "stopped":
            both[1].kill()
        both[1].join(30)
    assert both[0].exitcode == 1 and both[1].exitcode is not None
    assert (tmp_path / "out").read_text() == ""
    assert (tmp_path / "err").read_text() == message


def test_every_limit_is_documented():
    """In the table of waits, by its rows. Sabotage: change any of them."""
    table = DOCUMENTATION.read_text().partition("| for | at most |")[2]
    limits = re.findall(r"\| (\d+) (seconds|minutes|hours) \|$", table, re.MULTILINE)
    assert [timedelta(**{unit: int(number)}) for number, unit in limits] == [
        processes.PEER_TIMEOUT,
        processes.GPU_TIMEOUT,
        processes.WORK_TIMEOUT,
        processes.VALUE_TIMEOUT,
    ]
