"""A translation that was stopped continues where it was, and ends as if it had not been stopped."""

import gzip
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import fork_server
import pytest
from conftest import copy_lines
from stop_at import install

from transformer_mt.cli.program import main

STOP_AT = Path(__file__).with_name("stop_at.py")
CHUNK = 8


def program(*arguments: object, place: str = "none:0", model: bool = False) -> list[str]:
    """Gives a command line that is killed at a place, with small chunks.

    Args:
        arguments: The command line.
        place: As in stop_at.py.
        model: Whether the model translates; otherwise lines are reversed.
    """
    options = ["--place", place, *(() if model else ("--fake", os.devnull)), str(CHUNK)]
    return [sys.executable, str(STOP_AT), *options, *map(str, arguments)]


def run(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
    """Runs the program to its end in a forked process."""
    return fork_server.run(program(*arguments, **options), text=True)


@dataclass
class Result:
    """What a command gave."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def call(monkeypatch, capfd):
    """Runs a command in this process: SIGKILL needs one of its own, other signals do not."""

    def call(
        *arguments: object,
        place: str = "none:0",
        number: int = signal.SIGTERM,
        model: bool = False,
    ) -> Result:
        with monkeypatch.context() as patch:
            install(patch.setattr, CHUNK, place, number, None if model else os.devnull)
            patch.setattr("transformer_mt.translation.run.exit_on_closed_stdout", lambda: None)
            patch.setattr(sys, "argv", ["transformer-mt", *map(str, arguments)])
            try:
                main()
                code = 0
            except SystemExit as stop:
                code = int(stop.code or 0)
        return Result(code, *capfd.readouterr())

    return call


@pytest.fixture
def texts(untrained_run, tmp_path) -> tuple[Path, Path, bytes]:
    """Gives a run, an input of ten chunks, the last of three lines, and its lines reversed."""
    folder = tmp_path / "texts"
    folder.mkdir()
    lines = copy_lines(9 * CHUNK + 3, 21)
    lines[4], lines[11] = "", "longer than sixty pieces " * 4
    (folder / "in.de").write_text("".join(f"{line}\n" for line in lines))
    reversed_lines = "".join(f"{line[::-1]}\n" for line in lines)
    return untrained_run, folder / "in.de", reversed_lines.encode()


def test_killed_and_run_again(texts, tmp_path, call):
    """SIGKILL between chunks and within one: equal bytes, nothing left behind, chunks not redone.

    Sabotage: do not skip the finished lines; open the partial file at its end.
    """
    run_dir, source, _ = texts
    (tmp_path / "out").mkdir()
    output = tmp_path / "out" / "text.gz"
    command = ["translate", run_dir, "--input", source, "--output", output]
    killed = subprocess.run(
        program(*command, place="written:2", model=True), stderr=subprocess.DEVNULL
    )
    assert killed.returncode == -signal.SIGKILL
    with output.with_name(".text.gz.partial").open("ab") as file:
        file.write(b"half a chu")  # was not yet counted
    assert run(*command, place="translated:3", model=True).returncode == -signal.SIGKILL
    assert not output.exists()
    done = call(*command, model=True)
    assert done.returncode == 0, done.stderr
    assert f"{output}: continuing after {4 * CHUNK} finished lines" in done.stderr
    assert f"{5 * CHUNK + 3} lines in " in done.stderr
    assert "1 line over the maximum length" in done.stderr
    assert os.listdir(output.parent) == [output.name]
    undisturbed = tmp_path / "undisturbed.gz"
    assert call(*command[:-1], undisturbed, model=True).returncode == 0
    assert output.read_bytes() == undisturbed.read_bytes()
    assert gzip.decompress(output.read_bytes()).count(b"\n") == 9 * CHUNK + 3


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_by_a_signal(texts, tmp_path, call, number, code):
    """The message says where the work is and how to continue. Sabotage: delete it on errors."""
    run_dir, source, expected = texts
    command = ["translate", run_dir, "--input", source, "--output", tmp_path / "out"]
    done = call(*command, place="translated:4", number=number)
    assert done.returncode == code and "Traceback" not in done.stderr
    kept = tmp_path / ".out.partial"
    message = (
        f"{3 * CHUNK} finished lines are kept in {kept}; run the same command again to continue"
    )
    assert done.stderr.splitlines()[-1] == f"warning: stopped: {message}"
    assert call(*command).returncode == 0 and (tmp_path / "out").read_bytes() == expected


def test_a_chunk_that_did_not_reach_the_disk(texts, tmp_path, call):
    """After a power failure, what differs from the journal is translated again.

    Sabotage: do not compare digests.
    """
    run_dir, source, expected = texts
    command = ["translate", run_dir, "--input", source, "--output", tmp_path / "out"]
    assert call(*command, place="written:4").returncode == 143
    with (tmp_path / ".out.partial").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\0")
    with (tmp_path / ".out.journal").open("ab") as file:
        file.write(b'{"lines": 8, "lin')
    done = call(*command)
    assert done.returncode == 0 and f"continuing after {3 * CHUNK} finished lines" in done.stderr
    assert (tmp_path / "out").read_bytes() == expected


def test_anything_changed_starts_over(texts, tmp_path, call):
    """The message says what changed, and nothing of the old chunks is left.

    Sabotage: leave the input's digest out of the task; do not truncate the partial file.
    """
    run_dir, source, _ = texts
    copied = tmp_path / "in.de"
    copied.write_bytes(source.read_bytes())
    command = ["translate", run_dir, "--input", copied, "--output", tmp_path / "out"]
    assert call(*command, place="written:2").returncode == 143
    copied.write_bytes(b"another line\n")  # shorter than what is kept
    changed = [*command, "--batch-tokens", 100]
    done = call(*changed)
    assert done.returncode == 0, done.stderr
    text = (
        f"starting over; {2 * CHUNK} finished lines were made with another batch tokens and input"
    )
    assert text in done.stderr
    assert (tmp_path / "out").read_bytes() == b"enil rehtona\n"


def test_finished_files_are_skipped(texts, tmp_path, call):
    """Of several, stopped in the second: the first is not translated again, unless it changed."""
    run_dir, source, expected = texts
    names = ["a.de", "b.de", "c.de"]
    for name in names:
        (tmp_path / name).write_bytes(source.read_bytes())
    inputs = [word for name in names for word in ("--input", tmp_path / name)]
    command = ["translate", run_dir, *inputs, "--output-dir", tmp_path / "out"]
    assert call(*command, place="written:13", number=signal.SIGTERM).returncode == 143
    assert (tmp_path / "out" / "a.en").read_bytes() == expected
    done = call(*command)
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path / 'out' / 'a.en'}: already complete" in done.stderr
    assert done.stderr.count("lines in ") == 2
    assert sorted(os.listdir(tmp_path / "out")) == ["a.en", "b.en", "c.en"]
    assert all((tmp_path / "out" / f"{x}.en").read_bytes() == expected for x in "abc")


@pytest.mark.slow
def test_killed_at_any_line_of_code(texts, tmp_path, call):
    """While chunks are written and files completed. Sabotage: write into the output itself."""
    run_dir, source, expected = texts
    command = ["translate", run_dir, "--input", source, "--output", tmp_path / "out"]
    killed = 0
    for line in range(3, 400, 17):
        (tmp_path / "out").unlink(missing_ok=True)
        killed += run(*command, place=f"code:{line}").returncode == -signal.SIGKILL
        done = call(*command)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "out").read_bytes() == expected
        assert sorted(os.listdir(tmp_path)) == ["out", "texts"]
    assert killed > 15


@pytest.mark.slow
def test_killed_twenty_times(untrained_run, tmp_path):
    """200,000 lines over three files: byte-equal, at most one chunk is translated twice per kill.

    Sabotage: start each file anew.
    """
    rng, chunk_lines, inputs, translated = random.Random(5), 1000, [], tmp_path / "log"
    sizes = {"a": 100_000, "b": 60_000, "c": 40_000}
    for name, size in sizes.items():
        lines = (f"{name}{i} " + "x" * rng.randint(0, 40) for i in range(size))
        (tmp_path / f"{name}.de").write_text("".join(f"{line}\n" for line in lines))
        inputs += ["--input", str(tmp_path / f"{name}.de")]
    out = tmp_path / "out"
    fake = ["--fake", str(translated), str(chunk_lines)]
    command = [sys.executable, str(STOP_AT), *fake, "translate", str(untrained_run), *inputs]
    for _ in range(20):
        size = translated.stat().st_size if translated.exists() else 0
        with fork_server.Forked([*command, "--output-dir", str(out)]) as p:
            while not translated.exists() or translated.stat().st_size == size:
                assert p.poll() is None
                time.sleep(0.001)
            time.sleep(rng.random() * 0.2)
            p.kill()
    done = subprocess.run([*command, "--output-dir", str(out)], capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    assert sorted(os.listdir(out)) == ["a.en", "b.en", "c.en"]
    for name in sizes:
        lines = (tmp_path / f"{name}.de").read_text().splitlines()
        expected = "".join(f"{line[::-1]}\n" for line in lines)
        assert (out / f"{name}.en").read_text() == expected
    chunks = sum(sizes.values()) // chunk_lines
    assert chunks <= len(translated.read_text().splitlines()) <= chunks + 20


@pytest.mark.slow
def test_two_processes_with_one_output(texts, tmp_path):
    """The second is refused by name, and the first is not disturbed. Sabotage: no lock."""
    run_dir, source, expected = texts
    os.mkfifo(tmp_path / "pipe")
    options = ["--output", tmp_path / "out"]
    waiting = program("translate", run_dir, "--input", tmp_path / "pipe", *options)
    with fork_server.Forked(waiting) as first:
        while not (tmp_path / ".out.lock").exists():
            assert first.poll() is None
        done = run("translate", run_dir, "--input", source, *options)
        (tmp_path / "pipe").write_bytes(source.read_bytes())
    assert done.returncode == 2 and first.returncode == 0
    assert re.search(rf"error: {tmp_path}/out: process \d+ is writing it", done.stderr)
    assert "translating with" not in done.stderr
    assert (tmp_path / "out").read_bytes() == expected
    assert sorted(os.listdir(tmp_path)) == ["out", "pipe", "texts"]


@pytest.mark.slow
def test_a_full_disk(texts, tmp_path):
    """One line and exit code 2; with room again the same command continues."""
    run_dir, source, expected = texts
    source.write_bytes(source.read_bytes() * 40)  # more than the disk has room for
    (tmp_path / "disk").mkdir()
    disk = shlex.quote(str(tmp_path / "disk"))
    command = program("translate", run_dir, "--input", source, "--output", tmp_path / "disk/out")
    script = (
        f"mount -t tmpfs -o size=64k tmpfs {disk}\n"
        f"CODE=0; {shlex.join(command)} || CODE=$?; echo first $CODE >&2\n"
        f"mount -o remount,size=1m {disk}; {shlex.join(command)}\n"
        f"cp {disk}/out {shlex.quote(str(tmp_path))}"
    )
    namespace = ["unshare", "--map-root-user", "--mount", "sh", "-ec"]
    probe = [*namespace, f"mount -t tmpfs -o size=1m tmpfs {disk}"]
    if subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("this machine does not let a user mount a file system")
    done = subprocess.run([*namespace, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    error = lines[lines.index("first 2") - 1]
    assert error.startswith(f"error: {tmp_path}/disk/out: No space left on device; ")
    assert "finished lines are kept in" in error and "Traceback" not in done.stderr
    assert "continuing after" in done.stderr
    assert (tmp_path / "out").read_bytes() == expected * 40


def test_a_stream_as_input_keeps_nothing(texts, tmp_path, call, monkeypatch):
    """Stopped or not: stdin cannot be read again."""
    run_dir, source, expected = texts
    command = ["translate", run_dir, "--output", tmp_path / "out"]
    for place, code in (("translated:3", 143), ("none:0", 0)):
        with source.open() as file:
            monkeypatch.setattr("sys.stdin", file)
            assert call(*command, place=place).returncode == code
        assert not list(tmp_path.glob(".*"))
    assert (tmp_path / "out").read_bytes() == expected
