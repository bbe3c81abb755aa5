"""Several processes translate and evaluate the same as one."""

import gzip
import json
import os
import pty
import subprocess
import sys
import time

import fork_server
import pytest
from conftest import copy_lines, run_program
from launch import (
    ENVIRONMENT,
    STOP_AT,
    exit_codes,
    launch,
    launch_faulty,
    messages,
    with_chunks_of,
)

CHUNK = 16


@pytest.fixture
def texts(tmp_path):
    """Gives two inputs: of six chunks, the last short and some lines split, and of one.

    A compressed output has a member for each chunk, so its bytes show the chunks.
    """
    lines = copy_lines(5 * CHUNK + 3, 3)
    lines[7], lines[20] = "", " ".join(lines[:8])
    text = "".join(f"{line}\n" for line in lines).encode()
    (tmp_path / "a.de.gz").write_bytes(gzip.compress(text))
    (tmp_path / "b.de").write_text("".join(f"{line}\n" for line in lines[:9]))
    return ("--input", tmp_path / "a.de.gz", "--input", tmp_path / "b.de", "--output-dir")


def translate_alone(*arguments: object, **streams) -> subprocess.CompletedProcess[bytes]:
    """Translates in one process of one thread."""
    words = [sys.executable, STOP_AT, CHUNK, "translate", *arguments]
    done = fork_server.run(words, env=ENVIRONMENT, **streams)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_output_of_several_processes(copy_run, texts, tmp_path, world_size):
    """Is byte-equal to that of one, and each message comes once.

    Sabotage: let every process write; cut other chunks.
    """
    options = (*texts, tmp_path / "one", "--beam-size", 2, "--scores")
    translate_alone(copy_run, *options)
    options = (*texts, tmp_path / "many", "--beam-size", 2, "--scores")
    program = with_chunks_of(CHUNK)
    done = launch(world_size, "translate", copy_run, *options, program=program)
    assert done.returncode == 0, done.stderr
    for name in ("a.en.gz", "b.en"):
        one, many = ((tmp_path / folder / name).read_bytes() for folder in ("one", "many"))
        assert one == many and len(one) > 50
    assert sorted(path.name for path in (tmp_path / "many").iterdir()) == ["a.en.gz", "b.en"]
    assert done.stderr.count("lines in ") == 2 and done.stderr.count("translating with") == 1
    assert not messages(done.stderr)


@pytest.mark.slow
def test_evaluation_by_several_processes(copy_run, tmp_path):
    """Gives the same scores and text, once. Sabotage: score in every process."""
    lines = copy_lines(40, 9)
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in lines))
    arguments = (
        *("evaluate", copy_run, "--src", tmp_path / "text", "--ref", tmp_path / "text", "--json"),
        *("--batch-tokens", 100, "--baseline", copy_run, "--save"),
    )
    one = run_program(*arguments, tmp_path / "one")
    many = launch(2, *arguments, tmp_path / "many")
    assert many.returncode == 0, many.stderr
    left, right = json.loads(one.stdout), json.loads(many.stdout)
    assert left.pop("seconds") > 0 and right.pop("seconds") > 0
    assert left == right and left["bleu"] > 90
    assert (tmp_path / "one").read_bytes() == (tmp_path / "many").read_bytes()


ERRORS = {
    "no such input": (("translate", "RUN", "--input", "none.de"), "none.de: no such file"),
    "no run": (("translate", "none"), "none: no such"),
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
    done = launch(2, *words, stdin=terminal)
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
@pytest.mark.parametrize(
    ("command", "fault"),
    [("translate", "device"), ("translate", "absent"), ("evaluate", "decode")],
)
def test_an_error_of_one_process_ends_all(copy_run, tmp_path, command, fault):
    """Within seconds, with its error alone. Sabotage: wait without handling signals.

    The main process may add what it has kept, when the launcher stops it.
    """
    (tmp_path / "text").write_text("ab cd\n" * 40)
    options = ["--input", tmp_path / "text", "--output", tmp_path / "out"]
    if command == "evaluate":
        options = ["--src", tmp_path / "text", "--ref", tmp_path / "text"]
    began = time.monotonic()
    done = launch_faulty(fault, 1, 0, command, copy_run, *options, "--batch-tokens", 50)
    assert time.monotonic() - began < 25
    [message] = [line for line in messages(done.stderr) if "error: " in line]
    assert message.startswith("process 1 of 2: error: ") and FAILURES[fault] in message
    assert done.returncode == 1 and 2 in exit_codes(done.stderr)


@pytest.mark.slow
def test_stdin_to_stdout(copy_run, tmp_path):
    """The main process alone reads and writes them. Sabotage: let each read."""
    lines = "".join(f"{line}\n" for line in copy_lines(50, 5))
    (tmp_path / "in").write_text(lines)
    expected = translate_alone(copy_run, input=lines.encode()).stdout
    with (tmp_path / "in").open() as file:
        done = launch(2, "translate", copy_run, program=with_chunks_of(CHUNK), stdin=file)
    assert done.returncode == 0, done.stderr
    assert done.stdout.encode() == expected and expected.count(b"\n") == 50
