"""Where translations are written, and from where they are read: links, pipes, packed files."""

import gzip
import json
import lzma
import os
import shlex
import stat
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import command, copy_lines

from transformer_mt.cli.program import main
from transformer_mt.errors import OutputError
from transformer_mt.system.outputs import check_output, open_output, write_lines
from transformer_mt.system.streams import compress, open_decompressed
from transformer_mt.translation.run import output_name

LINES = copy_lines(12, 31)
TEXT = "".join(f"{line}\n" for line in LINES).encode()


@dataclass
class Result:
    """What a command gave."""

    code: int
    out: bytes
    err: str


@pytest.fixture
def call(untrained_run, monkeypatch, capfdbinary):
    """Runs `translate` in this process, with stdin from a file."""

    def call(*arguments: object, stdin: Path | None = None) -> Result:
        with monkeypatch.context() as patch, open(stdin or os.devnull) as source:
            patch.setattr("sys.stdin", source)
            patch.setattr("transformer_mt.translation.run.exit_on_closed_stdout", lambda: None)
            words = ["transformer-mt", "translate", untrained_run, *arguments]
            patch.setattr(sys, "argv", list(map(str, words)))
            try:
                main()
                code = 0
            except SystemExit as stop:
                code = int(stop.code or 0)
        out, err = capfdbinary.readouterr()
        return Result(code, out, err.decode())

    return call


@pytest.fixture
def source(tmp_path) -> Path:
    """Gives a file to translate."""
    (tmp_path / "in.de").write_bytes(TEXT)
    return tmp_path / "in.de"


@pytest.fixture
def no_model(monkeypatch):
    """Lets no model be loaded."""

    def refuse(*_):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("transformer_mt.translation.run.build_translation_model", refuse)


def test_a_file_is_replaced_through_its_links_with_its_mode_and_owner(tmp_path):
    """Sabotage: rename over the path as it was typed; do not set the mode."""
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.write_text("before")
    target.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(target, 1234, 2345)
    before = target.stat()
    link.symlink_to("second")
    (tmp_path / "second").symlink_to("folder/target")
    write_lines(["ä", "b"], check_output(link))
    assert link.is_symlink() and (tmp_path / "second").is_symlink()
    assert target.read_text() == "ä\nb\n"
    after = target.stat()
    assert stat.S_IMODE(after.st_mode) == 0o640
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert os.listdir(target.parent) == ["target"]


def test_a_link_to_a_file_that_does_not_exist_yet(tmp_path):
    """The file is made where the link points."""
    (tmp_path / "link").symlink_to("target")
    write_lines(["a"], check_output(tmp_path / "link"))
    assert (tmp_path / "target").read_text() == "a\n" and (tmp_path / "link").is_symlink()


def test_a_file_appears_when_it_is_whole(tmp_path):
    """What was there stays until then, and if something goes wrong."""
    path = tmp_path / "out"
    path.write_text("before")
    with open_output(check_output(path)) as file:
        file.write(b"after")
        assert path.read_text() == "before"
        # A private file never has a readable copy beside it.
        assert stat.S_IMODE((tmp_path / ".out.partial").stat().st_mode) == 0o644
    with pytest.raises(ValueError), open_output(check_output(path)) as file:
        raise ValueError
    assert path.read_text() == "after" and os.listdir(tmp_path) == ["out"]


def test_a_named_pipe_stays_one(call, source, tmp_path):
    """Its reader gets the lines. Sabotage: replace whatever is there."""
    expected = call("--input", source).out
    assert expected.count(b"\n") == 12
    os.mkfifo(tmp_path / "pipe")
    received = []
    reader = threading.Thread(target=lambda: received.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    assert call("--input", source, "--output", tmp_path / "pipe").code == 0
    reader.join(10)
    assert received == [expected] and (tmp_path / "pipe").is_fifo()


def test_a_device_stays_one(tmp_path):
    """Also behind a link. Sabotage: replace whatever is there."""
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root may make devices")
    (tmp_path / "link").symlink_to(device)
    for path in (device, tmp_path / "link"):
        try:
            write_lines(["a"], check_output(path))
        except PermissionError:
            pytest.skip("devices are disabled on this file system")
        assert device.is_char_device() and sorted(os.listdir(tmp_path)) == ["link", "null"]


def test_descriptors_of_the_process(tmp_path):
    """Written straight into: what a shell appends to is kept. Sabotage: open the path anew."""
    program = "from transformer_mt.system.outputs import *; from pathlib import Path; import sys"
    program += '; write_lines(["new"], check_output(Path(sys.argv[1])))'
    write = f"{sys.executable} -c {shlex.quote(program)}"
    (tmp_path / "file").write_text("old\n")
    (tmp_path / "link").symlink_to("/dev/stdout")
    script = (
        f"{write} /dev/stdout >> file; {write} link >> file; {write} /dev/fd/3 3>> file;"
        f"{write} >(cat > copy); {write} - | cat >> file"
    )
    subprocess.run(["bash", "-c", script], cwd=tmp_path, check=True, timeout=120)
    assert (tmp_path / "file").read_text() == "old\nnew\nnew\nnew\nnew\n"
    assert sorted(os.listdir(tmp_path)) == ["copy", "file", "link"]
    with pytest.raises(OutputError, match="/dev/fd/99: Bad file descriptor"):
        check_output(Path("/dev/fd/99"))


def test_dashes(call, source):
    """`-` is stdin or stdout."""
    expected = call("--input", source).out
    assert call("--input", "-", "--output", "-", stdin=source).out == expected
    assert call(stdin=source).out == expected


MISTAKES = [
    (["--input", "in.de", "--output", "nodir/x.en"], "nodir/x.en: there is no folder nodir"),
    (["--input", "in.de", "--output", "folder"], "folder: is a directory"),
    (["--input", "in.de", "--output", "./in.de"], "in.de: is also an input"),
    (["--input", "in.de", "--output", "link"], "link: is also an input"),
    (["--input", "in.de", "--output", "dead"], "dead: there is no folder"),
    (["--input", "nope.de", "--output", "x"], "nope.de: no such file"),
    (["--input", "in.de", "--input", "in.de"], "needs --output-dir"),
    (["--input", "in.de", "--output", "x", "--output-dir", "out"], "choose one"),
    (["--output-dir", "out"], "--output-dir needs files"),
    (["--input", "in.de", "--output-dir", "no/out"], "no/out: there is no folder no"),
    (["--input", "in.de", "--output-dir", "in.de"], "in.de: File exists"),
    (
        ["--input", "in.de", "--input", "folder/in.de", "--output-dir", "out"],
        "out/in.en: would be the output of both in.de and folder/in.de",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=[m for _, m in MISTAKES])
def test_mistakes_are_found_before_a_model_is_loaded(
    call, source, no_model, monkeypatch, tmp_path, arguments, message
):
    """One line that names the path as it was typed; nothing is made."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "in.de").write_bytes(TEXT)
    (tmp_path / "link").symlink_to("in.de")
    (tmp_path / "dead").symlink_to("nodir/x")
    done = call(*arguments)
    last = done.err.splitlines()[-1]
    assert done.code == 2 and last.startswith("error: ") and message in last
    assert ".partial" not in last and "Traceback" not in done.err
    assert source.read_bytes() == TEXT and not list(tmp_path.glob("*/.*"))


def test_a_file_without_permission(tmp_path, monkeypatch):
    """The file or its folder."""
    (tmp_path / "out").write_text("before")
    for denied in (tmp_path / "out", tmp_path):
        monkeypatch.setattr("os.access", lambda path, mode, denied=denied: Path(path) != denied)
        with pytest.raises(OutputError, match=f"{tmp_path}/out: .*not writable"):
            check_output(tmp_path / "out")


def test_an_output_in_use(call, source, no_model, tmp_path):
    """Refused by name before a model is loaded, and free again after. Sabotage: no lock."""
    output = check_output(tmp_path / "out")
    with output.lock():
        done = call("--input", source, "--output", tmp_path / "out")
        message = f"error: {tmp_path}/out: process {os.getpid()} is writing it;"
        assert done.code == 2 and done.err.splitlines()[-1].startswith(message)
    assert os.listdir(tmp_path) == ["in.de"]
    with output.lock():
        pass


def test_saved_translations_follow_the_same_rules(call, source, untrained_run, monkeypatch):
    """`evaluate --save` refuses to replace its reference, before anything is translated."""
    texts = ["--src", source, "--ref", source, "--save", source]
    monkeypatch.setattr(sys, "argv", ["transformer-mt", "evaluate", *map(str, texts), "run"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2 and source.read_bytes() == TEXT


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst"])
def test_packed_members(tmp_path, suffix):
    """Members one after another are one file; equal text gives equal bytes."""
    parts = [b"one\n", b"", b"two\n"]
    packed = b"".join(compress(part, suffix) for part in parts)
    assert packed == b"".join(compress(part, suffix) for part in parts)
    (tmp_path / f"text{suffix}").write_bytes(packed)
    with open_decompressed(tmp_path / f"text{suffix}") as file:
        assert file.read() == b"one\ntwo\n"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.de", "a.en"),
        ("b.de.gz", "b.en.gz"),
        ("c.txt", "c.txt.en"),
        ("d.xz", "d.en.xz"),
        ("de", "de.en"),
        ("e.de.zst", "e.en.zst"),
    ],
)
def test_names_of_outputs(name, expected):
    """The language is replaced, or added before the compression."""
    assert output_name(name, "de", "en") == expected


def test_many_files(call, source, tmp_path):
    """Packed ones too, each under its own name; one that is damaged does not harm the others.

    Sabotage: stop at the first error.
    """
    expected = call("--input", source).out
    files = {
        "b.de.gz": gzip.compress(TEXT),
        "c.de.xz": lzma.compress(TEXT),
        "d.de.zst": compress(TEXT, ".zst"),
        "e.txt": b"",
        "f.de.gz": b"",
        "broken.de.gz": gzip.compress(os.urandom(10**5))[:-9],
    }
    inputs = ["--input", source, "--input", tmp_path / "missing.de"]
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        inputs += ["--input", tmp_path / name]
    done = call(*inputs, "--output-dir", tmp_path / "out")
    last = done.err.splitlines()[-1]
    assert done.code == 2 and last.startswith("error: 2 of 8 files not translated: ")
    assert "missing.de: no such file" in last and "broken.de.gz: cannot be read" in last
    assert done.err.count("translating with") == 1
    names = ["b.en.gz", "c.en.xz", "d.en.zst", "e.txt.en", "f.en.gz", "in.en"]
    assert sorted(path.name for path in (tmp_path / "out").glob("[!.]*")) == names
    for name in names:
        with open_decompressed(tmp_path / "out" / name) as file:
            assert file.read() == (b"" if name[0] in "ef" else expected)
    assert call("--input", tmp_path / "b.de.gz").out == expected
    # Repaired, the same command translates what is missing, and cleans up.
    (tmp_path / "missing.de").write_bytes(TEXT)
    (tmp_path / "broken.de.gz").write_bytes(gzip.compress(TEXT))
    done = call(*inputs, "--output-dir", tmp_path / "out")
    assert done.code == 0 and done.err.count("already complete") == 6
    assert sorted(os.listdir(tmp_path / "out")) == sorted([*names, "broken.en.gz", "missing.en"])


def test_a_byte_order_mark_is_dropped_and_said(call, source, tmp_path):
    """Only the one at the start."""
    (tmp_path / "bom.de").write_bytes(b"\xef\xbb\xbf" + TEXT)
    done = call("--input", tmp_path / "bom.de")
    assert done.out == call("--input", source).out
    assert "the byte order mark at the start of the input was dropped" in done.err


def test_progress_without_a_terminal(call, source, tmp_path, monkeypatch):
    """Lines with total and time left, from stdin too. Sabotage: count only what --input names."""
    monkeypatch.setattr("transformer_mt.system.console.SECONDS_BETWEEN_LINES", 0)
    for done in (call("--input", source, "--output", tmp_path / "out"), call(stdin=source)):
        assert " of 12 lines, " in done.err and " left\n" in done.err and "\r" not in done.err


def test_json_lines(call, source):
    """One object per translation. Sabotage: count lines from 0 in each chunk."""
    options = ["--input", source, "--beam-size", 2, "--n-best", 2]
    rows = [json.loads(line) for line in call(*options, "--format", "jsonl").out.splitlines()]
    assert [(row["line"], row["rank"]) for row in rows] == [
        (i // 2 + 1, i % 2 + 1) for i in range(24)
    ]
    text = call(*options, "--scores").out.decode().splitlines()
    assert [f"{row['score']:.4f}\t{row['text']}" for row in rows] == text
    greedy = call("--input", source, "--format", "jsonl").out.splitlines()
    assert len(greedy) == 12 and all(json.loads(line)["score"] < 0 for line in greedy)


def test_a_reader_of_a_pipe_that_has_enough(untrained_run, source):
    """Ends the program silently, as `| head` does."""
    script = f"{' '.join(command('translate', untrained_run, '--quiet', '--input', source))}"
    done = subprocess.run(
        ["bash", "-c", f"{script} --output >(exec true); wait"], capture_output=True, timeout=60
    )
    assert done.stderr == b""
