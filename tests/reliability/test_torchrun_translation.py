"""Translation by several processes that are killed or stopped continues as that of one does."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import fork_server
import pytest
from conftest import copy_lines
from launch import ENVIRONMENT, STOP_AT, children, launch, messages, start, with_chunks_of

pytestmark = pytest.mark.slow

CHUNK, KILLS = 500, 4


def translate_alone(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs the program in one process of one thread."""
    words = [sys.executable, STOP_AT, CHUNK, *arguments]
    return fork_server.run(words, text=True, env=ENVIRONMENT)


def write_texts(copy_run: Path, folder: Path, count: int) -> tuple[Path, bytes]:
    """Gives an input, and its translation by one process that nothing stopped."""
    text = "".join(f"{line}\n" for line in copy_lines(count, 2))
    (folder / "in.de").write_text(text)
    done = translate_alone(*command(copy_run, folder / "in.de", folder / "one"))
    assert done.returncode == 0, done.stderr
    return folder / "in.de", (folder / "one").read_bytes()


@pytest.fixture(scope="module")
def texts(copy_run, tmp_path_factory) -> tuple[Path, bytes]:
    """Gives an input of many chunks, and its translation.

    Processes notice within a second that their launcher was killed; they must not finish before.
    """
    return write_texts(copy_run, tmp_path_factory.mktemp("texts"), 48 * CHUNK)


def command(run_dir: Path, source: Path, output: Path) -> tuple[object, ...]:
    return ("translate", run_dir, "--input", source, "--output", output)


def wait_for_chunks(state: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Waits until so many chunks are finished."""
    began = time.monotonic()
    while not state.exists() or json.loads(state.read_bytes())["lines"] < count * CHUNK:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() - began < 120
        time.sleep(0.01)


def test_workers_killed_ten_times(copy_run, tmp_path, tmp_path_factory):
    """A random one of two each time, while the launcher restarts both: byte-equal to one process.

    Sabotage: let each process write; do not skip what is finished.
    """
    source, expected = write_texts(copy_run, tmp_path_factory.mktemp("texts"), 25_000)
    rng, state = random.Random(4), tmp_path / ".out.state"
    process = start(
        2,
        *command(copy_run, source, tmp_path / "out"),
        options=("--max-restarts", 20),
        program=with_chunks_of(CHUNK),
    )
    for kill in range(KILLS):
        wait_for_chunks(state, 8 * kill + rng.randint(2, 8), process)
        workers = children(process)
        assert len(workers) == 2
        os.kill(rng.choice(workers), signal.SIGKILL)
        while set(workers) & set(children(process)):
            time.sleep(0.01)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    assert stderr.count("continuing after") == KILLS
    assert (tmp_path / "out").read_bytes() == expected
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_launcher_that_is_stopped(copy_run, texts, tmp_path, signum):
    """Keeps what is finished, says so once, and one process alone continues.

    Sabotage: report the peer that obeyed its own signal as lost.
    """
    source, expected = texts
    arguments = command(copy_run, source, tmp_path / "out")
    process = start(2, *arguments, program=with_chunks_of(CHUNK))
    wait_for_chunks(tmp_path / ".out.state", 4, process)
    process.send_signal(signum)
    _, stderr = process.communicate(timeout=30)
    if signum == signal.SIGKILL:
        [message] = messages(stderr)
        assert "the launcher has ended" in message
    else:
        [message] = messages(stderr)
        assert message.startswith("warning: stopped: ") and "finished lines are kept" in message
    done = translate_alone(*arguments)
    assert done.returncode == 0 and "continuing after" in done.stderr
    assert (tmp_path / "out").read_bytes() == expected


def test_a_stream_is_not_read_on_after_a_restart(copy_run, texts, tmp_path):
    """Lines that a lost process had read would be missing. Sabotage: go on."""
    source, expected = texts
    with source.open() as file, (tmp_path / "out").open("w") as output:
        process = start(
            2,
            *("translate", copy_run, "--quiet"),
            options=("--max-restarts", 3),
            program=with_chunks_of(CHUNK),
            stdin=file,
            stdout=output,
        )
        while not (tmp_path / "out").stat().st_size:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        os.kill(children(process)[1], signal.SIGKILL)
        _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "processes that were restarted, cannot translate a stream" in stderr
    assert expected.startswith((tmp_path / "out").read_bytes())


def test_a_full_disk(copy_run, texts):
    """The one message is that of the process that writes. Sabotage: let the other tell too."""
    done = launch(2, *command(copy_run, texts[0], Path("/dev/full")), "--quiet")
    [message] = messages(done.stderr)
    assert message.startswith("error: ") and "No space left on device" in message
    assert done.returncode == 1
