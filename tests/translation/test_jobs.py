"""Jobs of many files: which are translated, what becomes of bad ones, what is made again."""

import gzip
import hashlib
import json
import os
import subprocess
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import assert_one_error, command, copy_lines, refuses

from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.errors import OutputError
from transformer_mt.system.output_record import RECORD, OutputRecord
from transformer_mt.system.outputs import check_output
from transformer_mt.translation.pytorch_runtime import PyTorchRuntime
from transformer_mt.translation.translator import Translator

LINES = copy_lines(40, 31)


@pytest.fixture
def translate(copy_run, call, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments, **options: call("translate", copy_run, *arguments, **options)


def write(path: str, *lines: str) -> Path:
    """Writes lines to a file, in new folders."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(f"{line}\n" for line in lines))
    return Path(path)


def tree(folder: str) -> dict[str, str]:
    """Reads all files of a folder but the record."""
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): p.read_text() for p in files if p.name != RECORD}


@pytest.fixture
def texts(translate) -> dict[str, str]:
    """Writes three texts; gives the translations that each has by itself."""
    write("in/a/x.de", *LINES[:3])
    write("in/b/x.de", *LINES[3:4])
    write("in/b/empty.txt")
    names = {"a/x.en": "a/x.de", "b/x.en": "b/x.de", "b/empty.txt.en": "b/empty.txt"}
    return {to: translate("-i", f"in/{name}").out.decode() for to, name in names.items()}


FORMS = {
    "folder": (["-i", "in"], ""),
    "two folders": (["-i", "in/b", "--input", "in"], ""),
    "list of lines": (["--files-from", "list"], "in/"),
    "list of zero bytes": (["--files-from", "-"], "in/"),
    "arguments": (["in/a/x.de", "in/b/empty.txt"], None),
}


@pytest.mark.parametrize(("words", "prefix"), FORMS.values(), ids=FORMS)
def test_forms_of_inputs(translate, texts, words, prefix):
    """Those of a folder or list keep their folders; nothing that is no text is translated."""
    write("list", "in/a/x.de", "./in/b/../b/x.de", "in/b/empty.txt")
    Path("zeros").write_bytes(Path("list").read_bytes().replace(b"\n", b"\0"))
    for name in ("in/.hidden", "in/.git/x.de"):
        write(name, "nicht")
    Path("in/b/picture").write_bytes(b"\x89PNG\n")
    Path("in/b/bytes").write_bytes(b"a\nb\0c\n")
    os.mkfifo("in/pipe")
    Path("in/link").symlink_to("a")
    done = translate(*words, "--output-dir", "in/out", "--summary", "s", stdin="zeros")
    assert done.code == 0, done.err
    expected = {f"{prefix}{name}": text for name, text in texts.items()}
    if prefix is None:
        expected = {"x.en": texts["a/x.en"], "empty.txt.en": ""}
    elif words[0] == "-i" and len(words) > 2:
        expected |= {"x.en": texts["b/x.en"], "empty.txt.en": ""}
    assert tree("in/out") == expected
    summary = json.loads(Path("s").read_text())
    in_folder = "in" in words
    assert [summary["done"], summary["exit_code"]] == [len(expected), 0]
    assert (summary["not_text"] > 2, summary["links"] > 0) == (in_folder, in_folder)
    assert summary["hidden"] == 2 * in_folder


def test_outputs_are_no_inputs(translate, texts):
    """Beside them, and run again; sabotage: walk into the folder of outputs, or do not ask."""
    for _ in range(2):
        assert translate("-i", "in", "--output-dir", "in").code == 0
    written = {name: text for name, text in tree("in").items() if name.endswith(".en")}
    assert written == texts
    write("in/c.de", LINES[0])
    write("in/c.en", "of somebody else")
    done = translate("-i", "in", "--output-dir", "in", "--summary", "s")
    assert done.code == 3 and "in/c.en: exists, and was edited" in done.err
    assert json.loads(Path("s").read_text())["in_target_language"] == 1
    assert translate("-i", "in", "--output-dir", "in", "--overwrite").code == 0
    assert "of somebody else" not in Path("in/c.en").read_text()
    done = translate("-i", "in/a/x.de", "-i", "in/a/x.en", "--output-dir", "in/a")
    assert done.code == 3 and "in/a/x.en: is also an input; name another" in done.err


BAD = {
    "missing.de": (lambda path: path.unlink(), "no such file"),
    "folder.de": (lambda path: (path.unlink(), path.mkdir()), None),
    "bzip2.de": (lambda path: path.write_bytes(b"BZh91AY&SY"), "holds bzip2 data, not text; "),
    "cut.de.gz": (lambda path: path.write_bytes(gzip.compress(b"a\n" * 99)[:-9]), "cannot be read"),
    "utf16.de": (lambda path: path.write_bytes("\ufeffab\n".encode("utf-16-le")), "is UTF-16; "),
    "pipe.de": (lambda path: (path.unlink(), os.mkfifo(path)), "is not a regular file"),
    "same.gz": (lambda path: write("in/same.de.gz", "x"), "is not compressed, although its name "),
    "target.de": (lambda path: Path("out/target.en").mkdir(parents=True), "is a directory; "),
    "partial.de": (lambda path: Path("out/.partial.en.small").mkdir(parents=True), "Is a dir"),
    "own.de": (lambda path: write("out/own.en", "mine"), "was edited or written by another "),
    "twice": (lambda path: write("in/twice.de", "a"), None),
    "n" * 253: (lambda path: None, "File name too long"),
}


def test_a_bad_file_costs_one_file(translate):
    """Its reason is reported, also in the summary; the exit code is 3, the others are complete."""
    names = [*BAD, "good.de", "m" * 250]
    for name in names:
        write(f"in/{name}", LINES[0])
    for name, (spoil, _) in BAD.items():
        spoil(Path("in", name))
    inputs = [f"in/{name}" for name in [*names, "twice.de"]]
    done = translate(*inputs, "--output-dir", "out", "--summary", "s")
    assert done.code == 3 and "Traceback" not in done.err, done.err
    summary = json.loads(Path("s").read_text())
    reasons = {name: reason for name, (_, reason) in BAD.items() if reason}
    reasons["twice.de"] = "out/twice.en: is already the output of in/twice; rename one"
    assert summary["failed"].keys() == {f"in/{name}" for name in reasons}
    for name, reason in reasons.items():
        assert reason in summary["failed"][f"in/{name}"]
    total = len(reasons) + 3
    assert f"\nerror: {len(reasons)} of {total} files not translated; see above\n" in done.err
    assert done.err.count("; translating the other files") == len(reasons)
    assert tree("out").keys() == {"good.en", "m" * 250 + ".en", "twice.en", "own.en"}
    assert summary["done"] == summary["lines"] == 3 and summary["exit_code"] == 3
    assert Path("out/own.en").read_text() == "mine\n"


def test_a_folder_that_cannot_be_written(translate, monkeypatch):
    """Is one mistake, not one per file, and shows before models are loaded.

    Sabotage: ask for each file alone; leave the record to the first output.
    """
    write("in/a.de", LINES[0])
    error = OutputError("the record: cannot be written")
    monkeypatch.setattr(OutputRecord, "append", Mock(side_effect=error))
    done = translate("-i", "in", "--output-dir", "out")
    assert_one_error(done, str(error))
    assert "translating with" not in done.err
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    done = translate("-i", "in", "--output-dir", "out", "--summary", "/dev/null")
    assert_one_error(done, "out: not writable")


def test_the_only_file_is_bad(translate):
    """Its reason is in the summary, too. Sabotage: catch only what happens while it is read."""
    done = translate("-i", "missing.de", "--summary", "s", "-q")
    assert_one_error(done, "missing.de: no such file")
    assert json.loads(Path("s").read_text())["failed"] == {"missing.de": "no such file"}


def test_what_is_made_again(translate, texts):
    """Sabotage: compare names alone; leave the options out of the fingerprint."""

    def run(*options, code=0):
        done = translate("-i", "in", "--output-dir", "out", "--summary", "s", *options)
        assert done.code == code, done.err
        summary = json.loads(Path("s").read_text())
        return summary["done"], summary["skipped"], len(summary["failed"])

    assert [run(), run()] == [(3, 0, 0), (0, 3, 0)]
    write("in/a/x.de", *LINES[5:9])
    assert [run(), run("--beam-size", "2"), run("--overwrite")] == [(1, 2, 0), (3, 0, 0), (3, 0, 0)]
    assert run("--batch-tokens", "99", "--device", "cpu") == (0, 3, 0)
    write("out/b/x.en", "corrected")
    assert run(code=3) == (0, 2, 1) and Path("out/b/x.en").read_text() == "corrected\n"
    assert [run("--overwrite"), run()] == [(3, 0, 0), (0, 3, 0)]
    assert tree("out")["b/x.en"] == texts["b/x.en"]
    Path("out/b/x.en").unlink()
    assert run() == (1, 2, 0)
    record = Path("out", RECORD)
    record.write_bytes(record.read_bytes().replace(b'b/x.en"', b"\xff\n[]\n{\n"))
    assert run(code=3) == (0, 2, 1)
    record.unlink()
    assert run(code=3) == (0, 0, 3)


def test_files_of_several_chunks(translate, monkeypatch):
    """With draws each is alone; what is no text is passed over. Sabotage: do not read it first."""
    monkeypatch.setattr(PyTorchRuntime, "chunk_lines", (2, 4))
    for name, (begin, end) in zip("abcde", pairwise((0, 9, 12, 13, 17, 22)), strict=True):
        write(f"in/{name}.de", *LINES[begin:end])
    for name, data in (("large.bin", b"\0\n" * 20), ("bytes", b"b\0c\n"), ("png", b"\x89PNG\n")):
        Path(f"in/{name}").write_bytes(b"a\n" * (name != "png") + data)
    for options in ((), ("--sample",)):
        alone = {f"{n}.en": translate("-i", f"in/{n}.de", *options).out.decode() for n in "abcde"}
        words = ("-i", "in", "--output-dir", f"out{len(options)}", *options)
        done = translate(*words)
        assert done.code == 0 and tree(f"out{len(options)}") == alone
        assert done.err.count(" per second") == (5 if options else 2)
        assert "3 not text" in done.err and translate(*words).code == 0


def meanwhile(monkeypatch, act) -> None:
    """Lets something happen after each chunk is translated."""
    translate_chunks = Translator.translate_chunks

    def translate(*arguments):
        for translations in translate_chunks(*arguments):
            act()
            yield translations

    monkeypatch.setattr(Translator, "translate_chunks", translate)


def test_an_input_that_changes(translate, texts, monkeypatch):
    """While others of its group are translated; sabotage: do not ask again."""
    meanwhile(monkeypatch, lambda: write("in/a/x.de", "anders"))
    done = translate("-i", "in", "--output-dir", "out")
    assert done.code == 3 and "in/a/x.de: changed while it was read; " in done.err
    assert tree("out").keys() == texts.keys() - {"a/x.en"}


def test_an_output_that_appears_meanwhile_is_not_replaced(translate, texts, monkeypatch):
    """Sabotage: look only before the translation."""
    monkeypatch.setattr(PyTorchRuntime, "chunk_lines", (1, 2))
    names = "out/a/x.en", "out/b/x.en"
    meanwhile(monkeypatch, lambda: [write(name, "of somebody else") for name in names])
    done = translate("-i", "in", "--output-dir", "out")
    assert done.code == 3
    for name in names:
        assert f"warning: {name}: exists, and was edited or written by another" in done.err
        assert Path(name).read_text() == "of somebody else\n"


def test_another_process_writes_the_same_output(translate, texts):
    """Its unfinished file is not touched. Sabotage: write small files to the same `.partial`."""
    Path("out").mkdir()
    other = check_output(Path("out/x.en"))
    with other.lock():
        other.partial.write_text("of another process")
        for _ in range(2):
            assert translate("in/a/x.de", "--output-dir", "out").code == 0
        assert Path("out/x.en").read_text() == texts["a/x.en"]
        assert other.partial.read_text() == "of another process"


def test_a_large_file_that_another_job_has_translated(translate, monkeypatch):
    """It is not translated again. Sabotage: ask only before the first large file."""
    monkeypatch.setattr(PyTorchRuntime, "chunk_lines", (1, 2))
    write("in/a.de", *LINES[:5])
    write("in/b.de", *LINES[5:9])
    words, other_jobs = ("-i", "in", "--output-dir", "out"), list[int]()

    def run_other_job():
        if not other_jobs:
            other_jobs.append(0)
            other_jobs[0] = translate(*words).code  # `a.en` is being written

    meanwhile(monkeypatch, run_other_job)
    done = translate(*words)
    assert other_jobs == [3] and "files: 1 translated, 1 already complete; 5 lines" in done.err


def test_jobs_with_one_folder_of_outputs(tmp_path):
    """A job that started first knows what another has written since. Sabotage: read once."""
    output, made_from = check_output(tmp_path / "x.en"), {"input": "of x"}
    first, second = OutputRecord(tmp_path), OutputRecord(tmp_path)
    second.announce(output, hashlib.sha256(b"text").hexdigest(), made_from)
    output.target.write_bytes(b"text")
    first.require_own(output)
    assert first.is_complete(output, made_from) and not first.is_complete(output, {})
    output.target.write_bytes(b"text of somebody else")
    refuses(OutputError, "edited or written by another program", first.require_own, output)


def test_the_translation_of_another_input_is_not_replaced(translate):
    """Of one that is still there. Sabotage: record no input; ask before what is complete."""
    write("news/a.de", LINES[0])
    write("mail/a.de", LINES[1])
    assert translate("-i", "news", "--output-dir", "out").code == 0
    done = translate("-i", "mail", "--output-dir", "out")
    assert done.code == 3 and "out/a.en: is the translation of " in done.err
    assert translate("-i", "news", "--output-dir", "out").code == 0
    Path("mail/a.de").write_bytes(Path("news/a.de").read_bytes())
    assert "1 already complete" in translate("-i", "mail", "--output-dir", "out").err
    write("mail/a.de", LINES[1])
    assert translate("-i", "mail", "--output-dir", "out", "--overwrite").code == 0
    Path("mail").rename("post")
    write("post/a.de", LINES[2])
    assert translate("-i", "post", "--output-dir", "out").code == 0


def test_a_link_to_the_newest_inputs(translate):
    """It leads elsewhere the next night; another way to a file is the same input.

    Sabotage: record where the link leads; compare names alone.
    """
    for night, line in (("monday", LINES[0]), ("tuesday", LINES[1])):
        write(f"{night}/a.de", line)
        Path("newest").unlink(missing_ok=True)
        Path("newest").symlink_to(night)
        assert "1 translated" in translate("-i", "newest", "--output-dir", "out").err
    write("tuesday/a.de", LINES[2])
    assert "1 translated" in translate("-i", "tuesday", "--output-dir", "out").err
    # What `..` leads to from a link is another file than that of this name.
    write("deep/b.de", LINES[0])
    write("b.de", LINES[1])
    (Path("deep") / "inner").mkdir()
    Path("link").symlink_to("deep/inner")
    assert translate("-i", "b.de", "--output-dir", "out").code == 0
    assert "is the translation of " in translate("-i", "link/../b.de", "--output-dir", "out").err


def test_a_tree_of_several_formats(translate, monkeypatch):
    """Only tables have a column; JSON names the file, so a renamed one is translated again."""
    write("in/a.de", "a")
    write("in/b.tsv", "id\tde", "1\tb")
    write("in/c.srt", "1", "0:01 --> 0:02", "c")
    words = "--output-dir", "out", "--summary", "s"
    for expected in (3, 0), (0, 3):
        assert translate("-i", "in", *words, "--column", "de").code == 0
        summary = json.loads(Path("s").read_text())
        assert (summary["done"], summary["skipped"]) == expected
    for path in (Path("in/a.de"), Path("moved/a.de")):
        if not path.exists():
            path.parent.mkdir()
            Path("in/a.de").rename(path)
        assert translate("-i", path, *words, "--format", "jsonl").code == 0
        assert json.loads(Path("out/a.en").read_text())["file"] == str(path)


def test_the_summary_replaces_only_a_summary(translate, texts, copy_run):
    """Or an empty file, as mktemp makes, but none that a pattern or a slip named."""
    source = Path("in/a/x.de").read_text()
    for words in (
        ["--output-dir", "out", "--summary", "in/a/x.de", "in/b/x.de"],
        ["-i", "in/a/x.de", "--output-dir", "out", "--summary", "in/a/x.de"],
        ["-i", "in/b/x.de", "-o", "x", "--summary", "x"],
        ["-i", "in/b/x.de", "--summary", "/dev/stdout"],
    ):
        done = translate(*words)
        assert (done.code, done.out) == (2, b"") and "; name another" in done.err, done.err
        assert Path("in/a/x.de").read_text() == source and not Path("x").exists()
    Path("s.gz").touch()
    for _ in range(2):
        assert translate("-i", "in/b/x.de", "-o", "x", "--summary", "s.gz").code == 0
        assert translate("-i", "in", "--output-dir", "in", "--summary", "in/s").code == 0
    summary = json.loads(Path("in/s").read_text())
    assert summary["skipped"] == 3 and not Path("in/s.en").exists()
    assert summary["models"] == [find_checkpoint(copy_run).digest]
    write("list", "in/nope", "../x.de")
    assert translate("--files-from", "list", "--output-dir", "o", "--summary", "in/s").code == 3
    counts = ("lines", "split", "copied", "cut", "empty", "replaced", "kept")
    summary = json.loads(Path("in/s").read_text())
    assert [summary[name] for name in counts] == [0] * 7 and summary["exit_code"] == 3
    assert summary["failed"]["../x.de"].startswith("is outside the current folder; ")


def test_more_files_than_a_process_can_open(exported_run, tmp_path):
    for number in range(150):
        write(str(tmp_path / f"in/{number}.de"), LINES[0])
    job = "translate", exported_run, "-i", tmp_path / "in", "--output-dir", tmp_path / "o"
    shell = ["bash", "-c", 'ulimit -n 100; exec "$@"', "-", *command(*job)]
    done = subprocess.run(shell, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0 and "150 translated" in done.stderr, done.stderr
