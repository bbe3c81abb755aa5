"""A translation that was stopped continues where it was, and ends as if it had not been stopped."""

import gzip
import json
import os
import signal
import sys
from pathlib import Path

import fork_server
import pytest
from conftest import copy_lines, translate_options

from transformer_mt import load
from transformer_mt.system.outputs import ChunkWriter
from transformer_mt.translation import job
from transformer_mt.translation.pytorch_runtime import PyTorchRuntime
from transformer_mt.translation.translator import Translation, Translator

CHUNK, KILLER = 4, Path(__file__).with_name("killed_at_any_line.py")


def reverse(self, chunks, advance, first_line):
    for lines in chunks:
        advance(len(lines))
        yield [[Translation(line[::-1], -len(line))] for line in lines]


@pytest.fixture
def stopped(call, monkeypatch):
    """Runs a command that reverses lines, or translates, and sends itself a signal at a place.

    `translated:N` is when the Nth chunk is translated and not yet written, `written:N`
    when it is written.
    """

    def stopped(*arguments, place="none:0", number=signal.SIGTERM, fake=True, **options):
        place, left = place.split(":")[0], [int(place.split(":")[1])]

        translate_chunks = reverse if fake else Translator.translate_chunks
        write_chunks = ChunkWriter.write

        def pass_by(name):
            left[0] -= name == place
            if name == place and left[0] == 0:
                os.kill(os.getpid(), number)

        def translate(*arguments):
            for translations in translate_chunks(*arguments):
                pass_by("translated")
                yield translations

        def write(*arguments):
            write_chunks(*arguments)
            pass_by("written")

        with monkeypatch.context() as patch:
            patch.setattr(PyTorchRuntime, "chunk_lines", (CHUNK, CHUNK))
            patch.setattr(Translator, "translate_chunks", translate)
            patch.setattr(ChunkWriter, "write", write)
            return call(*arguments, **options)

    return stopped


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


def test_stopped_and_run_again(texts, tmp_path, stopped, monkeypatch):
    """With draws, which depend on the numbers of lines.

    Sabotage: do not skip the finished lines; number the others from 1; open the partial file at its
    end.
    """
    run_dir, source, _ = texts
    (tmp_path / "out").mkdir()
    output = tmp_path / "out" / "text.gz"
    monkeypatch.setattr("transformer_mt.system.console.SECONDS_BETWEEN_LINES", 0)
    command = ["translate", run_dir, "--sample", "--input", source, "--output", output]
    assert stopped(*command, place="written:4", fake=False).code == 143 and not output.exists()
    with output.with_name(".text.gz.partial").open("ab") as file:
        file.write(b"half a chu")  # was not yet counted
    done = stopped(*command, fake=False)
    assert done.code == 0, done.err
    assert f"{output}: continuing after {4 * CHUNK} finished lines" in done.err
    assert f"{5 * CHUNK + 3} lines in " in done.err and "\nin.de: 39 of 39 lines, " in done.err
    assert "1 line translated in parts" in done.err
    assert os.listdir(output.parent) == [output.name]
    undisturbed = tmp_path / "undisturbed.gz"
    assert stopped(*command[:-1], undisturbed, fake=False).code == 0
    assert output.read_bytes() == undisturbed.read_bytes()
    assert gzip.decompress(output.read_bytes()).count(b"\n") == 9 * CHUNK + 3


@pytest.mark.parametrize("scenario", ["chunks", "small_files"])
def test_killed_at_any_line_of_code(tmp_path, scenario):
    """SIGKILL at each line that writes: what was there, then all of it; the same command goes on.

    Sabotage: write into the output itself; write the state before the chunk; record the small files
    after they are written.
    """
    for folder in ("in", "out"):
        (tmp_path / folder).mkdir()
    for name in "ab":
        (tmp_path / "in" / name).write_text("x\n")
    done = fork_server.run([sys.executable, KILLER, scenario], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 60, done.stdout


@pytest.mark.parametrize(("number", "chunks"), [(signal.SIGINT, 3), (signal.SIGTERM, 0)])
def test_stopped_by_a_signal(texts, tmp_path, stopped, number, chunks):
    """A warning says where the work is; without work nothing is kept. Sabotage: delete it."""
    run_dir, source, expected = texts
    command = ["translate", run_dir, "--input", source, "--output", tmp_path / "out"]
    done = stopped(*command, place=f"translated:{chunks + 1}", number=number)
    assert done.code == 128 + number and "Traceback" not in done.err
    message = f"warning: stopped: {chunks * CHUNK} finished lines are kept in {tmp_path}/.out.part"
    message += "ial; run the same command again to continue"
    assert (message in done.err.splitlines()) == bool(chunks)
    assert sorted(os.listdir(tmp_path)) == [*[".out.partial", ".out.state"][:chunks], "texts"]
    assert stopped(*command).code == 0 and (tmp_path / "out").read_bytes() == expected


def test_anything_changed_starts_over(texts, copy_run, tmp_path, stopped):
    """Sabotage: leave a digest or an option out of the fingerprint; keep what the file has."""
    run_dir, source, _ = texts
    files = ["--input", source, "--output", tmp_path / "out"]
    assert stopped("translate", run_dir, *files, place="written:2").code == 143
    source.write_bytes(b"another line\n")  # shorter than what is kept
    options = "--format", "jsonl", "--length-penalty", 0, "--raw", "--sample"
    done = stopped("translate", copy_run, *files, *options)
    assert done.code == 0, done.err
    assert f"starting over; {2 * CHUNK} finished lines cannot be used" in done.err
    changed = "checkpoint, file, format, input, length penalty, raw, sampling"
    assert f"; changed since: {changed}\n" in done.err
    assert json.loads((tmp_path / "out").read_bytes())["text"] == "enil rehtona"


def test_what_its_bytes_depend_on(texts, monkeypatch):
    """The precision that a default stands for, but not the batches of another machine's memory."""
    model = load(texts[0], device="cpu")
    options = translate_options()
    before = job._fingerprint(model, model.translator(), options)
    assert before["precision"] == "fp32" and before["chunk_size"][:2] == [128, 4096]
    monkeypatch.setattr(model.runtime, "batch_tokens", 7)
    monkeypatch.setattr(model.runtime, "device_type", "cuda")
    assert job._fingerprint(model, model.translator(), options) == before


def test_a_stream_as_input_keeps_nothing(texts, tmp_path, stopped):
    """Stopped or not: stdin cannot be read again."""
    run_dir, source, expected = texts
    command = ["translate", run_dir, "--output", tmp_path / "out"]
    for place, code in (("translated:3", 143), ("none:0", 0)):
        assert stopped(*command, place=place, stdin=source).code == code
        assert not list(tmp_path.glob(".*"))
    assert (tmp_path / "out").read_bytes() == expected
