"""Several processes translate and evaluate the same as one, also if they are killed or stopped."""

import gzip
import json
import os
import pty
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import fork_server
import launch
import pytest
from conftest import copy_lines, run_program
from launch import ENVIRONMENT, FAULTY, children, exit_codes, messages, together, with_chunks_of

CHUNK, LONG_CHUNK, KILLS = 16, 250, 2


def alone(*arguments: object, chunk: int = CHUNK) -> subprocess.CompletedProcess[bytes]:
    """Runs the program in one process of one thread."""
    words = [sys.executable, FAULTY, "chunks", 0, chunk, *arguments]
    done = fork_server.run(words, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture
def texts(tmp_path):
    """Gives inputs of six chunks, which members of a `.gz` show, and of one; some are split."""
    lines = copy_lines(5 * CHUNK + 3, 3)
    lines[7], lines[20] = "", " ".join(lines[:8])
    text = "".join(f"{line}\n" for line in lines).encode()
    (tmp_path / "a.de.gz").write_bytes(gzip.compress(text))
    (tmp_path / "b.de").write_text("".join(f"{line}\n" for line in lines[:9]))
    return ("--input", tmp_path / "a.de.gz", "--input", tmp_path / "b.de", "--output-dir")


@pytest.fixture(scope="module")
def long_text(copy_run, tmp_path_factory) -> tuple[Path, bytes]:
    """Gives an input that takes seconds, in which processes notice a kill, and its translation."""
    folder = tmp_path_factory.mktemp("texts")
    text = "".join(f"{line}\n" for line in copy_lines(26 * LONG_CHUNK, 2))
    (folder / "in.de").write_text(text)
    alone(*to_file(copy_run, folder / "in.de", folder / "one"), chunk=LONG_CHUNK)
    return folder / "in.de", (folder / "one").read_bytes()


@pytest.mark.parametrize("name", ["copy", "exported"])
def test_output_of_several_processes(exported_run, texts, tmp_path, name):
    """Is byte-equal to that of one, and each message comes once."""
    model = exported_run.with_name(name)
    arguments = ("translate", model, "--beam-size", 2, "--scores", *texts)
    alone(*arguments, tmp_path / "one")
    done = together(2, *arguments, tmp_path / "many", program=with_chunks_of(CHUNK))
    assert done.returncode == 0, done.stderr
    for name in ("a.en.gz", "b.en"):
        one, many = ((tmp_path / folder / name).read_bytes() for folder in ("one", "many"))
        assert one == many and len(one) > 50
    assert sorted(path.name for path in (tmp_path / "many").glob("[!.]*")) == ["a.en.gz", "b.en"]
    for text in ("files: 2 translated", "translating with"):
        assert done.stderr.count(text) == 1
    assert all(line.endswith("translated into nothing") for line in messages(done.stderr))


@pytest.mark.slow
def test_evaluation_by_several_processes(copy_run, tmp_path):
    """Gives the same scores and text, once, and a row for each run."""
    lines = copy_lines(40, 9)
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in lines))
    arguments = (
        *("evaluate", copy_run, "--src", tmp_path / "text", "--ref", tmp_path / "text", "--json"),
        *("--batch-tokens", 100, "--baseline", copy_run, "--save"),
    )
    one = run_program(*arguments, tmp_path / "one")
    many = together(2, *arguments, tmp_path / "many")
    assert many.returncode == 0, many.stderr
    left, right = json.loads(one.stdout), json.loads(many.stdout)
    assert left.pop("seconds") > 0 and right.pop("seconds") > 0
    assert left == right and left["bleu"] > 75
    assert (tmp_path / "one").read_bytes() == (tmp_path / "many").read_bytes()
    rows = together(2, arguments[0], copy_run, copy_run, *arguments[2:-3])
    assert rows.returncode == 0, rows.stderr
    assert [json.loads(line)["bleu"] for line in rows.stdout.splitlines()] == [left["bleu"]] * 2


ERRORS = {
    "no such input": (("translate", "RUN", "--input", "none.de"), "none.de: no such file"),
    "average": (("average", "RUN"), "average works in one process"),
    "two systems": (("evaluate", "RUN", "none"), "none: no such"),
    "prompt": (("translate", "RUN"), "a prompt works in one process"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ERRORS)
def test_a_mistake_is_said_once(copy_run, kind):
    """By whichever process notices it, and none waits. Sabotage: print in each process."""
    arguments, text = ERRORS[kind]
    words = [copy_run if word == "RUN" else word for word in arguments]
    master, terminal = pty.openpty()
    done = launch.launch(2, *words, stdin=terminal)
    os.close(master)
    os.close(terminal)
    [message] = messages(done.stderr)
    assert text in message and done.returncode == 1 and 2 in exit_codes(done.stderr)


FAILURES = {
    "device": "device cuda: not available",  # before it joins the others
    "absent": "run: no such directory",  # when it loads the model
    "decode": "out of memory",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAILURES)
def test_an_error_of_one_process_ends_all(copy_run, tmp_path, fault):
    """Within seconds, with its error alone; the main process may add what it has kept."""
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in copy_lines(40, seed=9)))
    options = ["translate", copy_run, "--input", tmp_path / "text", "--output", tmp_path / "out"]
    if fault == "decode":
        options = ["evaluate", copy_run, "--src", tmp_path / "text", "--ref", tmp_path / "text"]
    began = time.monotonic()
    done = launch.launch_faulty(fault, 1, 0, *options, "--batch-tokens", 50)
    assert time.monotonic() - began < 25
    [message] = [line for line in messages(done.stderr) if "error: " in line]
    assert message.startswith("process 1 of 2: error: ") and FAILURES[fault] in message
    assert done.returncode == 1 and 2 in exit_codes(done.stderr)


def to_file(run_dir: Path, source: Path, output: Path) -> tuple[object, ...]:
    return ("translate", run_dir, "--input", source, "--output", output)


def wait_for_chunks(state: Path, count: int, process: subprocess.Popen[str]) -> None:

    def is_finished() -> bool:
        return state.exists() and json.loads(state.read_bytes())["lines"] >= count * LONG_CHUNK

    launch.wait_until(is_finished, process)


@pytest.mark.slow
def test_workers_killed_again_and_again(copy_run, long_text, tmp_path):
    """Each of two in turn, and the launcher restarts both: byte-equal to one process."""
    source, expected = long_text
    rng, state = random.Random(4), tmp_path / ".out.state"
    process = launch.start(
        2,
        *to_file(copy_run, source, tmp_path / "out"),
        options=("--max-restarts", 20),
        program=with_chunks_of(LONG_CHUNK),
    )
    for kill in range(KILLS):
        wait_for_chunks(state, 8 * kill + rng.randint(2, 8), process)
        workers = children(process)
        assert len(workers) == 2
        os.kill(workers[kill], signal.SIGKILL)
        while set(workers) & set(children(process)):
            time.sleep(0.01)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    assert stderr.count("continuing after") == KILLS
    assert (tmp_path / "out").read_bytes() == expected
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
