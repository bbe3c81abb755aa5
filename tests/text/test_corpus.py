"""Reading parallel text: every layout, every error, and where lines end."""

import gzip
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from transformer_mt.config.keys import DataConfig
from transformer_mt.errors import DataError
from transformer_mt.system.streams import compress
from transformer_mt.text import hub
from transformer_mt.text.corpus import RawPairs, load_split, open_split, read_lines
from transformer_mt.text.test_sets import load_test_set

PAIRS = [("eins", "one"), ("zwei", "two"), ("drei", "three"), ("vier", "four")]


def text_folder(folder, src: bytes, tgt: bytes, **changes) -> DataConfig:
    (folder / "train.de").write_bytes(src)
    (folder / "train.en").write_bytes(tgt)
    return DataConfig(path=str(folder), **changes)


@pytest.fixture
def numbers(tmp_path) -> DataConfig:
    sides = ("".join(f"{word}\n" for word in side).encode() for side in zip(*PAIRS, strict=True))
    (tmp_path / "x.parquet").touch()  # the folder is one of text all the same
    return text_folder(tmp_path, *sides)


@pytest.mark.parametrize("nested", [True, False])
def test_a_folder_laid_out_like_a_hub_repository(tmp_path, monkeypatch, nested):
    """Either language may be the source, either side may be missing, and the order is kept."""
    monkeypatch.setattr(hub, "_why_offline", None)  # is not asked
    rows = [{"de": f"d{i}", "en": f"e{i}"} for i in range(25)]
    rows += [{"de": "", "en": "NA"}, {"de": '"x', "en": "a\u2028b"}]
    rows += [{"de": None, "en": " x "}, {"de": "y", "en": None}]
    repository = tmp_path / "corpus"
    repository.mkdir()
    if nested:  # a pair may be missing too
        table = pa.Table.from_pylist([{"translation": row} for row in [*rows, None]])
        pq.write_table(table, repository / "train-00000.parquet")
        rows.append({"de": None, "en": None})
    else:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (repository / "train.jsonl").write_text(lines)
    options = {"path": str(repository), "cache_dir": str(tmp_path / "cache")}
    for src, tgt in (("de", "en"), ("en", "de")):
        config = DataConfig(**options, src_lang=src, tgt_lang=tgt)
        pairs = load_split(config, "train")
        assert pairs.src == [(row[src] or "").strip() for row in rows]
        assert pairs.tgt == [(row[tgt] or "").strip() for row in rows]
        assert load_split(config, "train[:2]").src == pairs.src[:2]
        for key in ("src_lang", "tgt_lang"):
            wrong = config.model_copy(update={key: "fr"})
            with pytest.raises(DataError, match=rf"data.{key} = fr.*de, en"):
                load_split(wrong, "train")
    with pytest.raises(DataError, match="nope"):
        load_split(config, "nope")
    pattern = str(repository / ("*.parquet" if nested else "*.jsonl"))
    assert load_split(config, pattern).src == pairs.src
    assert load_split(config, f"{pattern}[-3:]").src == pairs.src[-3:]
    assert (tmp_path / "cache").is_dir()
    pq.write_table(pa.table({"de": [1], "en": ["one"]}), repository / "other.parquet")
    with pytest.raises(DataError, match="1 in the column de is not text"):
        load_split(config, str(repository / "other.parquet"))


def test_a_damaged_file_of_several(tmp_path, capfd):
    """Our error names it, and the library prints nothing. Sabotage: leave its messages."""
    folder, row = tmp_path / "corpus", json.dumps({"de": "a", "en": "b"})
    folder.mkdir()
    for name, text in (("train-1", row), ("train-2", row[:9]), ("train-3", row)):
        (folder / f"{name}.jsonl").write_text(text + "\n")
    config = DataConfig(path=str(folder), cache_dir=str(tmp_path / "cache"))
    for split in ("*.jsonl", "train"):
        message = f"split {re.escape(split)}: {folder}/train-2.jsonl: JSON parse error: "
        with pytest.raises(DataError, match=message):
            load_split(config, split)
    assert capfd.readouterr() == ("", "")


def test_lines_end_at_line_feeds_alone(tmp_path):
    src = "a\u2028b\nc\x85d\ne\rf\ng\x0ch\ni\x00j\n\nk\r\n l".encode()
    config = text_folder(tmp_path, src, b"1\n 2\t\n3\n4\n5\n6\n7\n8")
    pairs = load_split(config, "train")
    assert pairs.src == ["a\u2028b", "c\x85d", "e\rf", "g\x0ch", "i\x00j", "", "k", "l"]
    assert pairs.tgt == list("12345678")


@pytest.mark.parametrize(
    ("src", "tgt", "message"),
    [
        (b"a\nb\nc\n", b"1\n2\n", r"train.de has 3 lines and .*train.en has 2"),
        (b"a\nb\n", b"1\n2\n3\n4\n5\n", r"train.de has 2 lines and .*train.en has 5"),
        (b"a\n", b"1\n2\n\xff\n", r"train.en, line 3: not UTF-8"),
        (b"a\n\xff\n", b"1\n2\n", r"train.de, line 2: not UTF-8; .* iconv -f WINDOWS-1252"),
        ("a\n".encode("utf-16"), b"1\n", r"train.de: is UTF-16; convert it with iconv -f UTF-16 "),
        (b"", b"", r"split train: contains no pairs"),
    ],
)
def test_text_that_cannot_be_used(tmp_path, src, tgt, message):
    with pytest.raises(DataError, match=message):
        load_split(text_folder(tmp_path, src, tgt), "train")


@pytest.mark.parametrize(
    ("changes", "split", "message"),
    [
        ({}, "nope", r"nope.de: no such file.*the folder holds train.de, train.en"),
        ({"tgt_lang": "fr"}, "train", r"train.fr: no such file; the folder holds"),
        ({"src_lang": "fr"}, "train", r"train.fr: no such file; the folder holds"),
        (
            {"path": "pandas"},
            "train",
            "there is no such folder.*; a data set of the hub has an owner",
        ),
        ({"path": "./nowhere"}, "train", r"data.path = ./nowhere: there is no such folder"),
        ({"path": __file__}, "train", "test_corpus.py: this is a file; give the folder"),
    ],
)
def test_what_is_not_there(numbers, changes, split, message):
    with pytest.raises(DataError, match=message):
        load_split(numbers.model_copy(update=changes), split)


@pytest.mark.parametrize("ending", ["", ".gz", ".xz", ".zst"])
def test_compressed_text_and_tables(tmp_path, ending):
    """Two files or one table, compressed or not, in either direction; more columns are ignored."""
    sides = ["".join(f"{word}\n" for word in side).encode() for side in zip(*PAIRS, strict=True)]
    (tmp_path / f"text.de{ending or '.gz'}").touch()  # the file without an ending is preferred
    for language, raw in zip(("de", "en"), sides, strict=True):
        (tmp_path / f"text.{language}{ending}").write_bytes(compress(raw, ending))
    table = "".join(f" {de} \t {en} \t0.9\n" for de, en in PAIRS).encode()
    (tmp_path / f"table.de-en.tsv{ending}").write_bytes(compress(table, ending))
    for name in ("text", "table"):
        pairs = load_split(DataConfig(path=str(tmp_path)), name)
        assert list(zip(pairs.src, pairs.tgt, strict=True)) == PAIRS
        back = DataConfig(path=str(tmp_path), src_lang="en", tgt_lang="de")
        assert load_split(back, f"{name}[1:2]").src == ["two"]


def test_tables_are_text(tmp_path):
    """Quotes, NA, U+2028 and a lone carriage return are text; a last empty line counts."""
    raw = 'a "b\tc" d\nNA\tnull\nx\u2028y\tz\rw\n\t\n'.encode()
    (tmp_path / "train.de-en.tsv").write_bytes(raw)
    pairs = load_split(DataConfig(path=str(tmp_path)), "train")
    assert pairs.src == ['a "b', "NA", "x\u2028y", ""]
    assert pairs.tgt == ['c" d', "null", "z\rw", ""]
    (tmp_path / "train.de-en.tsv").write_bytes(b"a\tb\nc d\n")
    with pytest.raises(DataError, match=r"train.de-en.tsv, line 2: no tab"):
        load_split(DataConfig(path=str(tmp_path)), "train")


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
def test_a_damaged_compressed_file(tmp_path, ending):
    raw, path = compress(b"".join(b"%d\n" % i for i in range(50_000)), ending), tmp_path / "x"
    path = path.with_suffix(ending)
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(DataError, match=f"x{ending}: cannot be read: "):
        list(read_lines(path))
    path.write_bytes(b"plain text, not compressed")
    message = f"x{ending}: is not compressed, although its name ends in {ending}$"
    with pytest.raises(DataError, match=message):
        list(read_lines(path))


def test_a_corpus_file_that_changes_while_it_is_read(tmp_path):
    """Its lines would be mixed."""
    path = tmp_path / "a.de"
    path.write_text("a\n" * 50_000)
    lines = read_lines(path)
    next(lines)
    with path.open("a") as file:
        file.write("b\n")
    with pytest.raises(DataError, match=f"^{path}: changed while it was read; "):
        list(lines)


def test_several_files_make_a_split(tmp_path, monkeypatch):
    (tmp_path / "main").mkdir()
    (tmp_path / "more" / ".hidden").mkdir(parents=True)
    for folder, word in (("main", "a"), ("more", "b")):
        for language in ("de", "en"):
            (tmp_path / folder / f"part.{language}").write_text(f"{word}{language}\n" * 3)
    for number in range(7, 0, -1):
        rows = [{"de": f"p{number}", "en": f"q{number}"}]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "more" / f"{number}.parquet")
    row = json.dumps({"de": "j", "en": "k"}) + "\n"
    (tmp_path / "more" / ".hidden" / "x.json").write_text(row)
    (tmp_path / "more" / "x.jsonl.gz").write_bytes(gzip.compress(row.encode()))
    names = ["part[:1]", "../more/part[:2]", "../more/*.parquet", "../**/*.json"]
    config = DataConfig(path=str(tmp_path / "main"), cache_dir=str(tmp_path / "cache"))
    pairs = load_split(config, [*names, "../more/x.jsonl.gz"])
    in_order = [f"p{number}" for number in range(1, 8)]
    assert pairs.src == ["ade", "bde", "bde", *in_order, "j", "j"]
    monkeypatch.setenv("MORE", str(tmp_path / "more"))
    in_variable = ["$MORE/part[:1]", "$MORE/[1-3].parquet[:2]", "$MORE/*.parquet[5:]"]
    assert load_split(config, in_variable).src == ["bde", *in_order[:2], *in_order[5:]]
    with pytest.raises(DataError, match=r"nope\*.parquet: no such file"):
        load_split(config, ["part", "nope*.parquet"])


def test_a_byte_order_mark(tmp_path):
    """`translate` drops that of its input, so the source has none. The reference keeps its own."""
    for name, text in (("a.de", "\ufeffeins\n\ufeffzwei\n"), ("a.en", "\ufeffone\ntwo\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    pairs = load_split(DataConfig(path=str(tmp_path)), "a")
    test_set = load_test_set(DataConfig(path="none"), None, tmp_path / "a.de", [tmp_path / "a.en"])
    assert pairs.src == test_set.src == ["eins", "\ufeffzwei"]
    assert [pairs.tgt] == test_set.references == [["\ufeffone", "two"]]


def test_the_digest_of_every_kind_of_split(tmp_path):
    """All content counts; a run is not resumed with other validation pairs."""
    assert RawPairs(["a", "b"], ["c", "d"]).digest().startswith("f729ae0cbcc8")
    (tmp_path / "hub" / "deep").mkdir(parents=True)
    for name in ("a", "b"):
        for language in ("de", "en"):
            (tmp_path / f"{name}.{language}").write_text(f"{name}{language}\n")
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"de": name, "en": name}) + "\n")
        (tmp_path / "hub" / "deep" / f"{name}.jsonl").write_text(f"{name}\n")
    config = DataConfig(path=str(tmp_path), cache_dir=str(tmp_path.parent / "cache"))
    hub = config.model_copy(update={"path": str(tmp_path / "hub")})
    splits = [(config, ["a", "b"]), (config, ["b", "a"]), (config, "*.jsonl"), (hub, "train")]

    def digests() -> list[str]:
        return [open_split(*arguments).digest() for arguments in splits]

    first = digests()
    assert first == digests() and len(set(first)) == 4
    changes = [("b.en", [0, 1]), ("b.jsonl", [2]), ("hub/deep/b.jsonl", [3])]
    for name, changed in changes:
        before, path = digests(), tmp_path / name
        path.write_text(path.read_text().replace("b", "c"))
        after = digests()
        assert [i for i in range(4) if before[i] != after[i]] == changed


def test_a_dataset_folder_holds_text_alone(tmp_path):
    """Otherwise the `datasets` library would read what it has made from the text as text."""
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "train.jsonl").write_text('{"de": "a", "en": "b"}\n')
    config = DataConfig(
        path=f"{tmp_path}/hub", cache_dir=f"{tmp_path}/cache", prepared_dir=f"{tmp_path}/made"
    )
    for key, folders in {"cache_dir": ["", "hub", "hub/a/b"], "prepared_dir": ["hub/a"]}.items():
        for folder in folders:
            inside = config.model_copy(update={key: str(tmp_path / folder)})
            with pytest.raises(DataError, match=rf"^data\.{key} = .* would be read as text of"):
                load_split(inside, "train")
    for split in ("train", "train", "train.jsonl"):
        assert len(load_split(config, split)) == 1
