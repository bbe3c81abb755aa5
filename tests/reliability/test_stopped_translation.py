"""A translation that was stopped goes on where it was, and ends as if it had not been stopped."""

import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import copy_lines, run_program

STOP_AT = Path(__file__).with_name("stop_at.py")
CHUNK = 8


def program(*arguments: object, place: str = "none:0", number: int = signal.SIGKILL) -> list[str]:
    """Gives a command line that stops at a place, with small chunks."""
    options = ["--place", place, "--signal", str(int(number)), str(CHUNK)]
    return [sys.executable, str(STOP_AT), *options, *map(str, arguments)]


def run(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        program(*arguments, **options), capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def texts(untrained_run, tmp_path_factory) -> tuple[Path, Path, bytes]:
    """Gives an input of ten chunks, the last of three lines, and its undisturbed translation."""
    folder = tmp_path_factory.mktemp("texts")
    lines = copy_lines(9 * CHUNK + 3, 21)
    lines[4], lines[30] = "", "longer than sixty pieces " * 9
    (folder / "in.de").write_text("".join(f"{line}\n" for line in lines))
    done = run("translate", untrained_run, "--input", folder / "in.de", "--output", folder / "out")
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(folder)) == ["in.de", "out"]
    return untrained_run, folder / "in.de", (folder / "out").read_bytes()


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_killed_and_run_again(texts, tmp_path, suffix):
    """SIGKILL between chunks and within one: equal bytes, nothing left behind, chunks not redone.

    Sabotage: do not truncate the partial file; count lines before they are on disk.
    """
    run_dir, source, expected = texts
    output = tmp_path / f"out{suffix}"
    command = ["translate", run_dir, "--input", source, "--output", output]
    assert run(*command, place="written:2").returncode == -signal.SIGKILL
    partial = tmp_path / f".out{suffix}.partial"
    with partial.open("ab") as file:
        file.write(b"half a chu")  # was not yet counted
    assert run(*command, place="translated:3").returncode == -signal.SIGKILL
    assert not output.exists()
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert f"{output}: going on after {4 * CHUNK} finished lines" in done.stderr
    assert f"{9 * CHUNK + 3 - 4 * CHUNK} lines in " in done.stderr
    assert "1 lines exceeded the maximum length" in done.stderr
    assert os.listdir(tmp_path) == [output.name]
    unpacked = subprocess.run(["gzip", "-dc", output], capture_output=True).stdout
    assert (unpacked if suffix else output.read_bytes()) == expected


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_by_a_signal(texts, tmp_path, number, code):
    """The message says where the work is and how to go on. Sabotage: delete it on errors."""
    run_dir, source, expected = texts
    command = ["translate", run_dir, "--input", source, "--output", tmp_path / "out"]
    done = run(*command, place="translated:4", number=number)
    assert done.returncode == code and "Traceback" not in done.stderr
    kept = tmp_path / ".out.partial"
    message = f"{3 * CHUNK} finished lines are kept in {kept}; run the same command again to go on"
    assert done.stderr.splitlines()[-1] == f"warning: stopped: {message}"
    assert run(*command).returncode == 0 and (tmp_path / "out").read_bytes() == expected


def test_anything_changed_starts_over(texts, tmp_path):
    """Input, options and checkpoint; the message says which. Sabotage: leave one out of the task."""
    run_dir, source, _ = texts
    copied = tmp_path / "in.de"
    copied.write_bytes(source.read_bytes())
    command = ["translate", run_dir, "--input", copied, "--output", tmp_path / "out"]
    assert run(*command, place="written:2").returncode == -signal.SIGKILL
    copied.write_bytes(b"another line\n" + source.read_bytes())
    changed = [*command, "--batch-tokens", 100]
    done = run(*changed)
    assert done.returncode == 0, done.stderr
    text = f"starting over; {2 * CHUNK} finished lines were made with another batch tokens and input"
    assert text in done.stderr
    undisturbed = run("translate", run_dir, "--input", copied, "--batch-tokens", 100)
    assert (tmp_path / "out").read_text() == undisturbed.stdout


def test_finished_files_are_skipped(texts, tmp_path):
    """Of several, stopped in the second: the first is not translated again, unless it changed."""
    run_dir, source, expected = texts
    names = ["a.de", "b.de", "c.de"]
    for name in names:
        (tmp_path / name).write_bytes(source.read_bytes())
    inputs = [word for name in names for word in ("--input", tmp_path / name)]
    command = ["translate", run_dir, *inputs, "--output-dir", tmp_path / "out"]
    assert run(*command, place="written:13", number=signal.SIGTERM).returncode == 143
    assert (tmp_path / "out" / "a.en").read_bytes() == expected
    done = run(*command, place="written:13")  # kills only if the first is translated again
    assert done.returncode == -signal.SIGKILL or done.returncode == 0
    assert f"{tmp_path / 'out' / 'a.en'}: already complete" in done.stderr
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path / "out")) == ["a.en", "b.en", "c.en"]
    assert all((tmp_path / "out" / f"{x}.en").read_bytes() == expected for x in "abc")


@pytest.mark.slow
def test_killed_at_any_line_of_code(texts, tmp_path):
    """While chunks are written and files completed. Sabotage: write the journal before the chunk."""
    run_dir, source, expected = texts
    command = ["translate", run_dir, "--input", source, "--output", tmp_path / "out"]
    killed = 0
    for line in range(3, 400, 17):
        (tmp_path / "out").unlink(missing_ok=True)
        killed += run(*command, place=f"code:{line}").returncode == -signal.SIGKILL
        done = run(*command)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "out").read_bytes() == expected
        assert os.listdir(tmp_path) == ["out"]
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
        with subprocess.Popen([*command, "--output-dir", str(out)], stderr=subprocess.DEVNULL) as p:
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
    command = ["translate", run_dir, "--input", source, "--output", tmp_path / "out"]
    with subprocess.Popen(program(*command), stderr=subprocess.PIPE) as first:
        while not (tmp_path / ".out.lock").exists():
            assert first.poll() is None
        done = run(*command)
        first.stderr.read()
    assert done.returncode == 2 and first.returncode == 0
    assert re.search(rf"error: {tmp_path}/out: process \d+ is writing it", done.stderr)
    assert "translating with" not in done.stderr
    assert (tmp_path / "out").read_bytes() == expected and os.listdir(tmp_path) == ["out"]


@pytest.mark.slow
def test_a_full_disk(texts, tmp_path):
    """One line and exit code 2; with room again the same command goes on."""
    run_dir, source, expected = texts
    (tmp_path / "disk").mkdir()
    disk = shlex.quote(str(tmp_path / "disk"))
    command = program("translate", run_dir, "--input", source, "--output", tmp_path / "disk/out")
    script = (
        f"mount -t tmpfs -o size=64k tmpfs {disk}\n"
        f"dd if=/dev/zero of={disk}/filler bs=4k count=11 2>/dev/null || true\n"
        f"CODE=0; {shlex.join(command)} || CODE=$?; echo first $CODE >&2\n"
        f"rm {disk}/filler; {shlex.join(command)}; cp {disk}/out {shlex.quote(str(tmp_path))}"
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
    assert "going on after" in done.stderr
    assert (tmp_path / "out").read_bytes() == expected


def test_a_stream_as_input_keeps_nothing(texts, tmp_path):
    """Stopped or not: stdin cannot be read again."""
    run_dir, source, expected = texts
    command = program("translate", run_dir, "--output", tmp_path / "out", place="translated:3")
    with source.open("rb") as file:
        assert subprocess.run(command, stdin=file, capture_output=True).returncode
    done = run_program("translate", run_dir, "--output", tmp_path / "out", stdin=b"abc\n\n")
    assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / "out").read_bytes().count(b"\n") == 2 and expected
    assert os.listdir(tmp_path) == ["out"]
