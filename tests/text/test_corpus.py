"""Reading parallel text: every layout, every error, and where lines end."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from transformer_mt.config.keys import DataConfig
from transformer_mt.errors import DataError
from transformer_mt.system.streams import compress
from transformer_mt.text.corpus import load_split, open_split, read_lines
from transformer_mt.text.test_sets import load_test_set

PAIRS = [("eins", "one"), ("zwei", "two"), ("drei", "three"), ("vier", "four")]


def text_folder(folder, src: bytes, tgt: bytes, **changes) -> DataConfig:
    (folder / "train.de").write_bytes(src)
    (folder / "train.en").write_bytes(tgt)
    return DataConfig(path=str(folder), **changes)


@pytest.fixture
def numbers(tmp_path) -> DataConfig:
    """Gives a text folder of four pairs."""
    sides = ("".join(f"{word}\n" for word in side).encode() for side in zip(*PAIRS, strict=True))
    return text_folder(tmp_path, *sides)


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_folder_laid_out_like_a_hub_repository(tmp_path, kind):
    """A translation column in parquet, two columns in JSONL; slices; nothing is filtered."""
    rows = [{"de": de, "en": en} for de, en in [*PAIRS, ("", "NA"), ('"x', "a\u2028b")]]
    rows = [{"translation": row} for row in rows] if kind == "parquet" else rows
    repository = tmp_path / "corpus"
    repository.mkdir()
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), repository / "train-00000.parquet")
    else:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (repository / "train.jsonl").write_text(lines)
    config = DataConfig(path=str(repository), cache_dir=str(tmp_path / "cache"))
    pairs = load_split(config, "train")
    assert list(zip(pairs.src[:4], pairs.tgt[:4], strict=True)) == PAIRS
    assert pairs.tgt[4:] == ["NA", "a\u2028b"] and pairs.src[4:] == ["", '"x']
    assert len(load_split(config, "train[:2]")) == 2
    wrong = config.model_copy(update={"tgt_lang": "fr"})
    with pytest.raises(DataError, match=r"data.tgt_lang = fr.*de, en"):
        load_split(wrong, "train")
    with pytest.raises(DataError, match="nope"):
        load_split(config, "nope")


def test_lines_end_at_line_feeds_alone(tmp_path):
    """No other kind of line break moves the two sides against each other."""
    src = "a\u2028b\nc\x85d\ne\rf\ng\x0ch\ni\x00j\n\nk\r\n l".encode()
    config = text_folder(tmp_path, src, b"1\n2\n3\n4\n5\n6\n7\n8")
    pairs = load_split(config, "train")
    assert pairs.src == ["a\u2028b", "c\x85d", "e\rf", "g\x0ch", "i\x00j", "", "k", "l"]
    assert pairs.tgt == list("12345678")


@pytest.mark.parametrize(
    ("src", "tgt", "message"),
    [
        (b"a\nb\nc\n", b"1\n2\n", r"train.de has 3 lines and .*train.en has 2"),
        (b"a\nb\nc\nd\n", b"1\n", r"train.de has 4 lines and .*train.en has 1"),
        (b"a\nb\n", b"1\n2\n3\n4\n5\n", r"train.de has 2 lines and .*train.en has 5"),
        (b"a\n", b"1\n2\n\xff\n", r"train.en, line 3: not UTF-8"),
        (b"a\n\xff\n", b"1\n2\n", r"train.de, line 2: not UTF-8"),
        (b"", b"", r"split train: contains no pairs"),
    ],
)
def test_text_that_cannot_be_used(tmp_path, src, tgt, message):
    """The message names the file and the line or the counts."""
    with pytest.raises(DataError, match=message):
        load_split(text_folder(tmp_path, src, tgt), "train")


@pytest.mark.parametrize(
    ("changes", "split", "message"),
    [
        ({}, "nope", r"nope.de: no such file.*the folder holds train.de, train.en"),
        ({"tgt_lang": "fr"}, "train", r"train.fr: no such file, although"),
        ({}, "train[:x]", r"train\[:x\]: not a split"),
        ({"path": "./nowhere"}, "train", r"data.path = ./nowhere: there is no such folder"),
    ],
)
def test_what_is_not_there(numbers, changes, split, message):
    """The message names the file, split or folder that is missing."""
    with pytest.raises(DataError, match=message):
        load_split(numbers.model_copy(update=changes), split)


@pytest.mark.parametrize("ending", ["", ".gz", ".xz", ".zst"])
def test_compressed_text_and_tables(tmp_path, ending):
    """Two files or one table, compressed or not, in either direction; more columns are ignored."""
    sides = ["".join(f"{word}\n" for word in side).encode() for side in zip(*PAIRS, strict=True)]
    for language, raw in zip(("de", "en"), sides, strict=True):
        (tmp_path / f"text.{language}{ending}").write_bytes(compress(raw, ending))
    table = "".join(f"{de}\t {en}\t0.9\n" for de, en in PAIRS).encode()
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
    """The file is named, whether it is truncated or not compressed at all."""
    raw = compress(b"".join(b"%d\n" % i for i in range(5000)), ending)
    for damaged in (raw[: len(raw) // 2], b"plain text, not compressed"):
        for language in ("de", "en"):
            (tmp_path / f"train.{language}{ending}").write_bytes(damaged)
        with pytest.raises(DataError, match=f"train.de{ending}: cannot be read"):
            load_split(DataConfig(path=str(tmp_path)), "train")


def test_several_files_make_a_split(tmp_path):
    """Names, paths into other folders, patterns of tables and slices are concatenated in order."""
    (tmp_path / "main").mkdir()
    (tmp_path / "more").mkdir()
    for folder, word in (("main", "a"), ("more", "b")):
        for language in ("de", "en"):
            (tmp_path / folder / f"part.{language}").write_text(f"{word}{language}\n" * 3)
    for number in (1, 2):
        rows = [{"de": f"p{number}", "en": f"q{number}"}]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "more" / f"{number}.parquet")
    (tmp_path / "more" / "x.jsonl").write_text(json.dumps({"de": "j", "en": "k"}) + "\n")
    names = ["part[:1]", "../more/part[:2]", "../more/*.parquet", "../more/x.jsonl"]
    config = DataConfig(path=str(tmp_path / "main"), cache_dir=str(tmp_path / "cache"))
    pairs = load_split(config, names)
    assert pairs.src == ["ade", "bde", "bde", "p1", "p2", "j"]
    with pytest.raises(DataError, match=r"nope\*.parquet: no such file"):
        load_split(config, ["part", "nope*.parquet"])


def test_a_damaged_file_is_named(tmp_path):
    """With the last line that was read."""
    with pytest.raises(DataError, match=f"{tmp_path / 'c'}: cannot be read after line 0: No such"):
        list(read_lines(tmp_path / "c"))
    raw = gzip.compress(b"".join(b"%d\n" % i for i in range(50_000)))
    (tmp_path / "d.gz").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(
        DataError, match=r"d.gz: cannot be read after line \d{4}\d?: .*end-of-stream"
    ):
        list(read_lines(tmp_path / "d.gz"))


def test_a_table_may_name_the_languages_in_either_order(tmp_path):
    """The order of the columns follows from the file name, the source from the configuration."""
    (tmp_path / "train.en-de.tsv").write_text("one\teins\n")
    assert load_split(DataConfig(path=str(tmp_path)), "train").src == ["eins"]
    reverse = DataConfig(path=str(tmp_path), src_lang="en", tgt_lang="de")
    assert load_split(reverse, "train").src == ["one"]
    assert load_split(reverse, "train").tgt == ["eins"]


@pytest.mark.parametrize("nested", [True, False])
def test_direction_and_missing_values_of_columns(tmp_path, nested):
    """Either language may be the source, either side may be missing, and the order is kept.

    Sabotage: read one column twice; give the text "None" for a missing value.
    """
    rows = [{"de": f"d{i}", "en": f"e{i}"} for i in range(25)]
    rows += [{"de": None, "en": " x "}, {"de": "y", "en": None}]
    repository = tmp_path / "corpus"
    repository.mkdir()
    table = [{"translation": row} for row in rows] if nested else rows
    if nested:  # a pair may be missing too
        table, rows = [*table, {"translation": None}], [*rows, {"de": None, "en": None}]
    pq.write_table(pa.Table.from_pylist(table), repository / "train.parquet")
    options = {"path": str(repository), "cache_dir": str(tmp_path / "cache")}
    for src, tgt in (("de", "en"), ("en", "de")):
        pairs = load_split(DataConfig(**options, src_lang=src, tgt_lang=tgt), "train")
        assert pairs.src == [(row[src] or "").strip() for row in rows]
        assert pairs.tgt == [(row[tgt] or "").strip() for row in rows]
        missing = DataConfig(**options, src_lang="fr", tgt_lang=tgt)
        with pytest.raises(DataError, match=r"data.src_lang = fr"):
            load_split(missing, "train")
    config = DataConfig(**options)
    assert load_split(config, str(repository / "*.parquet")).src[:2] == ["d0", "d1"]
    assert (tmp_path / "cache").is_dir()


def test_columns_that_are_not_text(tmp_path):
    """The message names the column. Sabotage: convert the value."""
    repository = tmp_path / "corpus"
    repository.mkdir()
    pq.write_table(pa.table({"de": [1], "en": ["one"]}), repository / "train.parquet")
    config = DataConfig(path=str(repository), cache_dir=str(tmp_path / "cache"))
    with pytest.raises(DataError, match="1 in the column de is not text"):
        load_split(config, "train")


def test_a_byte_order_mark(tmp_path):
    """`translate` drops that of its input, so the source has none. The reference keeps its own."""
    for name, text in (("a.de", "\ufeffeins\n\ufeffzwei\n"), ("a.en", "\ufeffone\ntwo\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    pairs = load_split(DataConfig(path=str(tmp_path)), "a")
    test_set = load_test_set(DataConfig(path="none"), None, tmp_path / "a.de", [tmp_path / "a.en"])
    assert pairs.src == test_set.src == ["eins", "\ufeffzwei"]
    assert [pairs.tgt] == test_set.references == [["\ufeffone", "two"]]


def test_the_digest_of_every_kind_of_split(tmp_path):
    """Lists of splits, JSONL files, folders with the hub's layout: all content counts.

    Sabotage: hash only the first file, or only file names.
    """
    (tmp_path / "hub").mkdir()
    for name in ("a", "b"):
        for language in ("de", "en"):
            (tmp_path / f"{name}.{language}").write_text(f"{name}{language}\n")
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"de": name, "en": name}) + "\n")
        (tmp_path / "hub" / f"{name}.jsonl").write_text(json.dumps({"de": name, "en": name}))
    config = DataConfig(path=str(tmp_path), cache_dir=str(tmp_path.parent / "cache"))
    hub = config.model_copy(update={"path": str(tmp_path / "hub")})
    splits = [(config, ["a", "b"]), (config, ["b", "a"]), (config, "*.jsonl"), (hub, "train")]

    def digests() -> list[str]:
        return [open_split(*arguments).digest() for arguments in splits]

    first = digests()
    assert first == digests() and len(set(first)) == 4
    changes = [("b.en", [0, 1]), ("b.jsonl", [2]), ("hub/b.jsonl", [3])]
    for name, changed in changes:
        before, path = digests(), tmp_path / name
        path.write_text(path.read_text().replace("b", "c"))
        after = digests()
        assert [i for i in range(4) if before[i] != after[i]] == changed


def test_a_path_that_is_a_file(numbers):
    """It is not mistaken for a hub id; the message says what to give instead."""
    path = f"{numbers.path}/train.de"
    with pytest.raises(DataError, match="train.de: this is a file; give the folder"):
        open_split(numbers.model_copy(update={"path": path}), "train")
