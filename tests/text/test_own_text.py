"""Own text: two files named in a table, what a folder answers, the examples of the guides."""

import gzip
import io
import json
import re
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import pairs_of, refuses, tiny_config, write_copy_corpus, write_lines

from transformer_mt.config.keys import DataConfig
from transformer_mt.config.loading import load_config
from transformer_mt.config.splits import SplitColumns, SplitFiles
from transformer_mt.errors import DataError
from transformer_mt.system.streams import compress
from transformer_mt.text import corpus
from transformer_mt.text.corpus import load_split, open_split
from transformer_mt.text.prepared import _fingerprint, prepare
from transformer_mt.text.test_sets import load_test_set

ROOT = Path(__file__).parents[2]
NUMBERS = [(f"eins {i}", f"one {i}") for i in range(10)]


@pytest.fixture
def own_text(tmp_path) -> Path:
    """Gives a folder with deutsch.txt and english.txt of ten pairs."""
    folder = tmp_path / "mytext"
    folder.mkdir()
    src, tgt = zip(*NUMBERS, strict=True)
    write_lines(folder, **{"deutsch.txt": src, "english.txt": tgt})
    return folder


def table(part: str | None = None) -> SplitFiles:
    return SplitFiles(src="deutsch.txt", tgt="english.txt", slice=part)


def test_pairs_with_an_empty_side_are_left_out_before_a_slice(own_text):
    """Of either side, white space and invisible characters too. Sabotage: take the slice first."""
    empty = {"deutsch.txt": {2: " \t", 8: "\u00ad"}, "english.txt": {2: "", 9: "\u200b "}}
    for name, lines in empty.items():
        texts = enumerate((own_text / name).read_text().splitlines())
        write_lines(own_text, **{name: [lines.get(i, text) for i, text in texts]})
    left, config = [NUMBERS[i] for i in (0, 1, 3, 4, 5, 6, 7)], DataConfig(path=str(own_text))
    for text, part in ((None, slice(None)), ("[-3:]", slice(-3, None)), ("[:-5]", slice(-5))):
        split = table(text).model_copy(update={"skip_empty": True})
        assert pairs_of(config, split) == left[part]
    assert len(pairs_of(config, table())) == 10
    assert str(split).endswith('slice = "[:-5]", skip_empty = true }')
    split = table().model_copy(update={"skip_empty": True, "src": "none.txt"})
    refuses(DataError, "none.txt: no such file", pairs_of, config, split)


def test_a_split_may_be_a_table_of_two_files(own_text):
    """Its slice is one of Python's."""
    config = DataConfig(path=str(own_text))
    assert pairs_of(config, table()) == NUMBERS
    for part in "[:] [:3] [2:] [:-4] [-4:-2] [-2:] [-4:8] [-30:2] [8:999999999999999999]".split():
        assert pairs_of(config, table(part)) == eval(f"NUMBERS{part}")


def test_the_last_pairs_are_found_in_one_reading(own_text, monkeypatch):
    """Every start of training takes them. Sabotage: count the pairs first."""
    readings, read_text = [], corpus._read_text
    monkeypatch.setattr(corpus, "_read_text", lambda *p: readings.append(p) or read_text(*p))
    config = DataConfig(path=str(own_text))
    assert pairs_of(config, table("[-4:-2]")) == NUMBERS[-4:-2] and len(readings) == 1
    monkeypatch.setattr(corpus, "_MOST_HELD", 3)
    assert pairs_of(config, table("[-4:-2]")) == NUMBERS[-4:-2] and len(readings) == 3


def test_a_table_of_the_other_direction_is_reported(tmp_path, caplog):
    """Its files would be read as text of the other language."""
    split = SplitFiles(src="x.de.gz", tgt="x.en")
    for name in (split.src, split.tgt):
        (tmp_path / name).write_bytes(compress(b"a\n", Path(name).suffix))
    assert pairs_of(DataConfig(path=str(tmp_path)), split) == [("a", "a")] and not caplog.text
    swapped = DataConfig(path=str(tmp_path), src_lang="en", tgt_lang="de")
    assert pairs_of(swapped, split) == [("a", "a")]
    looks = "source and target look swapped; data.src_lang is en and data.tgt_lang is de"
    assert caplog.messages == [f'{{ src = "x.de.gz", tgt = "x.en" }}: {looks}']
    (tmp_path / "x.csv").write_text("deu,eng\na,b\n")
    assert pairs_of(swapped, columns("x.csv", "deu", "eng")) == [("a", "b")]
    assert "{ file = " in caplog.messages[1] and looks in caplog.messages[1]
    load_test_set(swapped, src=tmp_path / split.src, refs=[tmp_path / split.tgt])
    assert caplog.messages[2] == f"--src, --ref: {looks}"


def test_the_files_of_a_table_may_be_packed_and_lie_elsewhere(own_text, tmp_path, monkeypatch):
    """Relative to `data.path`, absolute or with ~; in lists too; beside a corpus of the hub."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "packed.gz").write_bytes(gzip.compress((own_text / "english.txt").read_bytes()))
    config = DataConfig(path=str(own_text))
    for tgt in ("../packed.gz", str(tmp_path / "packed.gz"), "~/packed.gz", "$HOME/packed.gz"):
        assert pairs_of(config, SplitFiles(src="deutsch.txt", tgt=tgt, slice="[:1]")) == NUMBERS[:1]
    assert pairs_of(config, [table("[:2]"), table("[-1:]")]) == [*NUMBERS[:2], NUMBERS[-1]]
    hub = DataConfig(path="wmt/wmt16")
    assert pairs_of(hub, SplitFiles(src="~/mytext/deutsch.txt", tgt="~/packed.gz")) == NUMBERS
    refuses(DataError, "data.path = wmt/wmt16: there is no such folder", load_split, hub, table())
    for src, tgt, message in (
        ("none/a", "english.txt", f"^{own_text}/none/a: no such file$"),
        ("deutsch.txt", "englisch.txt", "englisch.txt: no such file; .* deutsch.txt, english.txt"),
    ):
        refuses(DataError, message, open_split, config, SplitFiles(src=src, tgt=tgt))


def test_a_slice_that_is_empty_or_malformed(own_text):
    files = f"{own_text}/deutsch.txt and {own_text}/english.txt"
    config = DataConfig(path=str(own_text))
    for part in ("[10:]", "[3:1]", "[:-10]"):
        message = re.escape(f"{files}: the slice {part} selects none of 10 pairs")
        refuses(DataError, f"^{message}", load_split, config, table(part))
    for part in ("[-:]", "[:9999999999999999999999]", "[1]"):
        message = re.escape(f"train{part}: not a split; write a name or a slice")
        refuses(DataError, f"^{message}", load_split, config, f"train{part}")


@pytest.mark.parametrize("split", ["train", "validation[:5]"])
def test_a_folder_of_other_text_says_what_it_holds_and_how_to_name_it(own_text, split):
    """The table in the message can be filled in, and of many files eight are listed."""
    for name in (".hidden", *(f"x{i}" for i in range(6))):
        (own_text / name).write_text("")
    error = refuses(DataError, "", load_split, DataConfig(path=str(own_text)), split)
    name = split.partition("[")[0]
    assert str(error) == (
        f"{own_text}/{name}.de: no such file, nor {name}.en, {name}.de-en.tsv or {name}.tmx; the"
        " folder holds .hidden, deutsch.txt, english.txt, x0, x1, x2, x3, x4, ...; name other files"
        ' under [data], such as train = { src = "SOURCE_FILE", tgt = "TARGET_FILE", slice ='
        ' "[:-1000]" }, or one of a format with several columns: .tmx, .parquet, .jsonl, .ndjson,'
        " .json, .csv, .tsv"
    )
    (own_text / "empty").mkdir()
    config = DataConfig(path=str(own_text / "empty"))
    refuses(DataError, "the folder holds no files", load_split, config, split)


def columns(file: str, src: int | str, tgt: int | str, **others: object) -> SplitColumns:
    return SplitColumns(file=file, src=src, tgt=tgt, **others)


ROWS = [{"id": 7, "a": {"b.c": de, "d": {"e": en}}} for de, en in NUMBERS[:2]]
LINES = "".join(f"{json.dumps(row)}\n" for row in ROWS).encode()
PARQUET = io.BytesIO()
pq.write_table(pa.Table.from_pylist(ROWS), PARQUET)
PARTLY_NESTED = io.BytesIO()
PARTLY = [{"text": de, "id": 7, "translation": {"de": "x", "en": en}} for de, en in NUMBERS[:2]]
pq.write_table(pa.Table.from_pylist(PARTLY), PARTLY_NESTED)


@pytest.mark.parametrize(
    ("split", "raw"),
    [
        (columns("a.tsv.gz", 2, 1), b"one 0\teins 0\t\none 1 \teins 1\tmore\n"),
        (columns("a.tsv", "Text", "1"), b"Text\t1\r\neins 0\tone 0\r\neins 1\tone 1\r\n"),
        (columns("a.de-en.tsv", "de", "en"), b"en\t#\tde\none 0\t\teins 0\none 1\t\teins 1\n"),
        (columns("a.csv", 2, 3), b"1,eins 0,one 0\n\n2,eins 1,one 1\n"),
        (columns("a.csv.zst", 1, 2), b'eins 0;" one 0"\neins 1;one 1\n'),
        (columns("a.csv", "a,,\nc", "d"), b'\xef\xbb\xbf"a,,\nc";d\neins 0;one 0\neins 1;one 1\n'),
        (columns("a.csv", 1, 2), b"eins 0;one 0;a, b, c\neins 1;one 1;\n"),
        (columns("a.csv", "a", "b"), b'a, b\neins 0, "one 0"\neins 1,"one 1"\n'),
        (columns("a.csv", "a;;c", "d"), b'"a;;c",d\neins 0,one 0\n"eins 1",one 1\n'),
        (columns("?.ndjson", "a.b.c", "a.d.e"), LINES),
        (columns("a.parquet", "a.b.c", "a.d.e"), PARQUET.getvalue()),
        (columns("a.parquet", "text", "translation.en"), PARTLY_NESTED.getvalue()),
        (columns("a.parquet", "text", "en"), PARTLY_NESTED.getvalue()),
    ],
    ids=str,
)
def test_a_split_may_be_two_columns_of_a_file(tmp_path, split, raw):
    """Named by its first row, or numbered. Sabotage: count delimiters between quotes, too."""
    path, config = tmp_path / split.file.replace("?", "a"), DataConfig(path=str(tmp_path))
    path.write_bytes(compress(raw, path.suffix))
    part = split.model_copy(update={"slice": "[-1:]", "skip_empty": True, "weight": 3})
    assert pairs_of(config, split) == NUMBERS[:2]
    assert list(open_split(config, [part]).read_weighted()) == [(NUMBERS[1], 3)]


def test_columns_that_a_file_does_not_have(tmp_path):
    for name, raw, src, tgt, message in (
        ("a.tsv", b"x\ty\n", 1, "y", "line 1: .* the columns 1 and y, unless all are numbers"),
        ("a.jsonl", LINES, 1, 2, "columns need .*, numbers .csv or .tsv"),
        ("a.jsonl", LINES, "a.d.e", "a.d.f", "line 1 has e$"),
        ("a.jsonl", LINES, "a.d", "id", "line 1: .* in the column d is not text"),
    ):
        (tmp_path / name).write_bytes(raw)
        config = DataConfig(path=str(tmp_path))
        refuses(DataError, f"{name}.* {message}", load_split, config, columns(name, src, tgt))


def test_tables_shape_the_corpus_and_names_keep_their_fingerprint(own_text, tmp_path):
    """A moved folder is the same. Sabotage: a digest of the files without the columns."""
    sample = ROOT / "configs" / "sample.toml"
    listed = ['data.train=["a[:5]", "b"]', "data.max_length_ratio=3"]
    assert _fingerprint(load_config(sample), "digest", None) == "9ae620c8f0c26865"
    assert _fingerprint(load_config(sample, listed), "digest", None) == "185f0c0d556cbede"
    split = table().model_dump()
    changes = {"vocab__size": 280, "data__prepared_dir": str(tmp_path / "prepared")}
    first = prepare(tiny_config(own_text, data__train=split, **changes))
    moved = own_text.rename(tmp_path / "moved")
    reordered = dict(reversed(split.items()))
    assert prepare(tiny_config(moved, data__train=reordered, **changes)).path == first.path
    part = {**split, "slice": "[:5]"}
    assert prepare(tiny_config(moved, data__train=part, **changes)).report.kept == 5
    write_lines(moved, **{"a.tsv": [f"{de}\t{en}\t{de}" for de, en in NUMBERS]})
    parts = [columns("a.tsv", *numbers) for numbers in ((1, 2), (2, 1), (3, 2))]
    configs = [tiny_config(moved, data__train=part.model_dump(), **changes) for part in parts]
    assert len({open_split(config.data, config.data.train).digest() for config in configs}) == 3
    assert len({prepare(config).path for config in configs}) == 3


def test_the_example_of_the_guide(tmp_path, monkeypatch, call):
    """Two files and the commands, with a small model and few steps; the table is valid."""
    toml = (ROOT / "docs" / "text.md").read_text().split("```toml\n")[1].split("```")[0]
    section = (ROOT / "README.md").read_text().split("## Your own text\n")[1]
    commands = re.findall(r"^    transformer-mt (.*?) *(?:#.*)?$", section, re.MULTILINE)[:3]
    assert [line.split()[0] for line in commands] == ["init", "train", "evaluate"]
    write_copy_corpus(tmp_path / "mytext", {"train": 1200})
    (tmp_path / "example.toml").write_text(toml)
    example = load_config(tmp_path / "example.toml").data
    assert len(load_split(example, example.test)) == 1000
    sizes = "train.max_steps=2 train.device=cpu train.precision=fp32 model.d_model=16 model.d_ff=16"
    settings = [f"--set={size}" for size in sizes.split()]
    extra = {"init": [], "train": settings, "evaluate": ["--json"]}
    monkeypatch.chdir(tmp_path)
    for line in commands:
        name, *arguments = shlex.split(line)
        code, out, err = call(name, *arguments, *extra[name])
        assert code == 0, err
    written = load_config(tmp_path / "mytext.toml").data
    assert written.path == example.path and written.train.src == example.train.src
    assert json.loads(out)["sentences"] == 60
    assert "1,080 training pairs" in (tmp_path / "checkpoints/mytext/train.log").read_text()
