"""The command `translate`: files and streams, mistakes, messages."""

import bz2
import gzip
import json
import lzma
import os
import select
import signal
import subprocess
import threading
from pathlib import Path

import fork_server
import pytest
from conftest import assert_one_error, command, copy_lines

from transformer_mt.system.outputs import check_output
from transformer_mt.system.streams import compress, open_input, read_blocks

LINES = copy_lines(12, 31)
TEXT = "".join(f"{line}\n" for line in LINES).encode()


@pytest.fixture
def translate(untrained_run, call):
    return lambda *arguments, **options: call("translate", untrained_run, *arguments, **options)


@pytest.fixture
def source(tmp_path) -> Path:
    (tmp_path / "in.de").write_bytes(TEXT)
    return tmp_path / "in.de"


@pytest.fixture
def no_model(monkeypatch):
    monkeypatch.setattr("transformer_mt.translation.sharing.build_translation_model", None)


def test_streams(translate, source, monkeypatch, tmp_path):
    """`-` is stdin or stdout; a named pipe is read only once."""
    done = translate("--input", source)
    expected = done.out
    assert expected.count(b"\n") == 12 and "\n12 lines in " in done.err
    assert translate("--input", "-", "--output", "-", stdin=source).out == expected
    assert translate(stdin=source).out == expected
    monkeypatch.setattr("transformer_mt.translation.inputs.sha256", None)
    os.mkfifo(tmp_path / "pipe")
    threading.Thread(target=(tmp_path / "pipe").write_bytes, args=[TEXT], daemon=True).start()
    translate("--input", tmp_path / "pipe", "--output", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == expected


MISTAKES = [
    (["--input", "in.de", "--output", "./in.de"], "in.de: is also an input"),
    (["--input", "nope.de", "--output", "x"], "nope.de: no such file"),
    (["--input", "folder"], "folder: is a directory; add --output-dir to "),
    (["in.de", "--input", "in.de"], "several inputs need --output-dir"),
    (["--files-from", "in.de"], "several inputs need --output-dir"),
    (["--input", "in.de", "--output", "x", "--output-dir", "out"], "choose one"),
    (["--output-dir", "out"], "--output-dir needs files"),
    (["in.de", "--overwrite"], "--overwrite needs --output-dir"),
    (["--input", "-", "--output-dir", "out"], "--output-dir needs files"),
    (["--files-from", "nope", "--output-dir", "out"], "nope: no such file"),
    (["--input", "in.de", "--output-dir", "in.de"], "in.de: is a file; name a folder"),
    (["folder"], "folder: is a directory; add --output-dir to "),
    (["--input", "in.de", "--output", "x.en.bz2"], "x.en.bz2: bzip2 is not supported; choose .gz"),
    (["run"], "translate takes one run: add --ensemble "),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=[m for _, m in MISTAKES])
def test_mistakes_are_found_before_a_model_is_loaded(
    translate, source, no_model, monkeypatch, tmp_path, arguments, message
):
    """One line that names the path as it was typed; nothing is made."""
    monkeypatch.chdir(tmp_path)
    for folder in ("folder", "run"):
        (tmp_path / folder).mkdir()
    (tmp_path / "run" / "run.json").touch()
    for name in ("in.de", "in.en", "in.txt", "in.txt.en", "x.de"):
        (tmp_path / "folder" / name).write_bytes(TEXT)
    done = translate(*arguments)
    assert_one_error(done, message)
    assert ".partial" not in done.err
    assert source.read_bytes() == TEXT and not list(tmp_path.glob("*/.*"))


def test_stdin_is_not_replaced(copy_run, source):
    """By the translation of itself. Sabotage: do not ask what stdin is."""
    with source.open() as stdin, open(os.devnull, "w") as null:
        words = command("translate", copy_run, "-o", source)
        process = fork_server.start(words, stdin.fileno(), stderr=null.fileno())
        process.join(60)
    assert process.exitcode == 2 and source.read_bytes() == TEXT


def test_an_input_that_is_not_text(translate, source, tmp_path):
    """It is named; stdin has no name."""
    source.write_bytes(bz2.compress(TEXT))
    message = "holds bzip2 data, not text; convert it first, such as with bzip2 -dc, "
    assert_one_error(translate("-q", "-i", source, "-o", tmp_path / "out"), f"{source}: {message}")
    assert_one_error(translate("-q", stdin=source), f"stdin: {message}")


def test_several_runs_need_a_word(translate, call, untrained_run, source):
    """`--ensemble` joins them, here into the same model; `evaluate` without it gives two rows."""
    several = untrained_run, "--input", source
    assert translate(*several, "--ensemble").out == translate("--input", source).out
    texts = "--src", source, "--ref", source, "--json"
    for options, rows in ((), 2), (("--ensemble",), 1):
        done = call("evaluate", untrained_run, untrained_run, *texts, *options)
        names = [json.loads(line)["checkpoint"] for line in done.out.splitlines()]
        assert len(names) == rows and (" and " in names[0]) == (rows == 1)


def test_the_length_penalty_of_greedy_search_is_for_scores(translate, source):
    rows = translate("--input", source, "--format", "jsonl").out.splitlines()
    scores = [json.loads(row)["score"] for row in rows if json.loads(row)["status"] != "copied"]
    assert len(rows) == 12 and max(scores) < 0
    scores = "--scores", "--input", source
    plain = translate(*scores, "--length-penalty", "0")
    assert plain.code == 0 and plain.out != translate(*scores).out
    draws = "--input", source, "--sample", "--length-penalty", "0"
    for words, warned in ((), True), (("--scores",), False):
        done = translate(*draws, *words)
        assert done.code == 0 and "--beam-size" not in done.err  # which sampling refuses
        assert ("--length-penalty has no effect on sampling\n" in done.err) == warned


@pytest.mark.parametrize("made_by", ["copy_run", "exported_run"])
def test_lines_without_a_letter_are_copied(call, request, tmp_path, made_by):
    """By either runtime, in `evaluate` too, with a count and a status; for every rank."""
    model, source = request.getfixturevalue(made_by), tmp_path / "in.de"
    source.write_text("12\nabc\n\n-- 5 --\r\n\U0001f600\nwww.example.org\n")
    done = call("translate", model, "--input", source, "--format", "jsonl")
    rows = [json.loads(line) for line in done.out.splitlines()]
    copied = ["12", "-- 5 --", "\U0001f600", "www.example.org"]
    assert [row["text"] for row in rows] == [copied[0], "abc", "", *copied[1:]]
    assert [row["status"] for row in rows] == ["copied", "ok", "ok", *["copied"] * 3]
    assert [row["parts"] for row in rows] == [0, 1, 0, 0, 0, 0]
    assert [row["score"] for row in rows][2:] == [0] * 4
    assert "\n4 lines without words copied\n" in done.err
    several = ("--beam-size", "2", "--n-best", "2")
    lines = call("translate", model, "--input", source, *several).out.decode().split("\n")
    assert lines[:2] == ["12", "12"] and lines[6:12] == [each for each in copied[1:] for _ in "ab"]
    texts = ("--src", source, "--ref", source, "--save", tmp_path / "saved", "--json")
    scores = json.loads(call("evaluate", model, *texts).out)
    assert scores["lines_copied"] == 4 and scores["bleu"] == pytest.approx(100)
    assert (tmp_path / "saved").read_text().split("\n")[:-1] == [row["text"] for row in rows]


def test_an_output_in_use(translate, source, no_model, tmp_path):
    """Refused by name before a model is loaded."""
    output = check_output(tmp_path / "out")
    with output.lock():
        done = translate("--input", source, "--output", tmp_path / "out")
        message = f"error: {tmp_path}/out: process {os.getpid()} is writing it;"
        assert done.code == 2 and done.err.splitlines()[-1].startswith(message)
    assert os.listdir(tmp_path) == ["in.de"]


@pytest.mark.parametrize("variable", ["TORCHELASTIC_RESTART_COUNT", "GROUP_WORLD_SIZE"])
def test_a_stream_is_not_read_on_by_a_restart(translate, source, no_model, monkeypatch, variable):
    """Lines that a lost process had read would be missing; several launchers count separately."""
    monkeypatch.setenv(variable, "2")
    from_stdin = translate("--output", source.with_name("out"), stdin=source)
    from_list = translate("--files-from", "-", "--output-dir", source.with_name("o"), stdin=source)
    for done in (from_stdin, translate("--input", source), from_list):
        assert_one_error(done, "were restarted, cannot translate a stream, since it")


def test_packed_files(translate, source, tmp_path):
    """Each has an output of its own, packed as it is; one that is damaged is named."""
    expected, packed = translate("--input", source).out, {"e.gz": gzip.compress(b"")}
    packed |= {"b.gz": gzip.compress(TEXT), "c.xz": lzma.compress(TEXT)}
    packed["d.zst"] = compress(TEXT, ".zst")
    for name, data in packed.items():
        (tmp_path / name).write_bytes(data)
    done = translate(*(tmp_path / name for name in packed), "--output-dir", tmp_path / "out")
    assert done.code == 0 and "\nfiles: 4 translated; 36 lines\n" in done.err
    for name in packed:
        with open_input(tmp_path / "out" / name.replace(".", ".en.")) as file:
            assert b"".join(read_blocks(file, name)) == (b"" if name == "e.gz" else expected)
    assert translate("--input", tmp_path / "b.gz").out == expected
    (tmp_path / "b.gz").write_bytes(packed["b.gz"][:-9])
    done = translate("--input", tmp_path / "b.gz", "--quiet")
    assert_one_error(done, "")
    assert done.err.startswith(f"error: {tmp_path}/b.gz: cannot be read: it ends before")


def test_a_coprocess_gets_its_answer(exported_run, tmp_path):
    """A program that writes a line and waits. Once it no longer reads, SIGPIPE ends the process."""
    pipe, summary = subprocess.PIPE, tmp_path / "summary"
    words = command("translate", exported_run, "--quiet", "--summary", summary)
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        for line in (b"\n", b"abc de\n", b"\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert select.select([process.stdout], [], [], 60)[0], "nothing came"
            assert process.stdout.readline().endswith(b"\n")
        process.stdout.close()
        process.stdin.write(b"x yz\n")
        process.stdin.flush()
        assert process.wait(60) == -signal.SIGPIPE
        assert process.stderr.read() == b""
    assert json.loads(summary.read_text())["exit_code"] == 128 + signal.SIGPIPE
