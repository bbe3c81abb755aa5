"""Reading parallel text: every layout, every error, and where lines end."""

import gzip
import io
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import pairs_of, refuses, write_pairs

from transformer_mt.config.keys import DataConfig
from transformer_mt.config.splits import NamedSplit, SplitFiles
from transformer_mt.errors import DataError
from transformer_mt.system.streams import compress
from transformer_mt.text.corpus import RawPairs, load_split, open_split, read_lines
from transformer_mt.text.test_sets import load_test_set

PAIRS = [("eins", "one"), ("zwei", "two"), ("drei", "three"), ("vier", "four")]


def text_folder(folder, src: bytes, tgt: bytes, **changes) -> DataConfig:
    (folder / "train.de").write_bytes(src)
    (folder / "train.en").write_bytes(tgt)
    return DataConfig(path=str(folder), **changes)


@pytest.fixture
def numbers(tmp_path) -> DataConfig:
    write_pairs(tmp_path, "train", PAIRS)
    (tmp_path / "x.parquet").touch()  # the folder is one of text all the same
    return DataConfig(path=str(tmp_path))


@pytest.mark.parametrize("nested", [True, False])
def test_parquet_and_json_lines(tmp_path, nested):
    """Either language may be the source, either side may be missing, and the order is kept."""
    rows = [{"de": f"d{i}", "en": f"e{i}"} for i in range(25)]
    rows += [{"de": "", "en": "NA"}, {"de": '"x', "en": "a\u2028b"}]
    rows += [{"de": None, "en": " x "}, {"de": "y", "en": None}]
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    name = "train-00000.parquet" if nested else "train.jsonl"
    if nested:  # a pair may be missing too
        table = pa.Table.from_pylist([{"translation": row} for row in [*rows, None]])
        pq.write_table(table, corpus / name)
        rows.append({"de": None, "en": None})
    else:
        write_data(corpus / name, [row.values() for row in rows])
    options = {"path": str(corpus), "cache_dir": str(tmp_path / "cache")}
    for src, tgt in (("de", "en"), ("en", "de")):
        config = DataConfig(**options, src_lang=src, tgt_lang=tgt)
        pairs = load_split(config, name)
        assert pairs.src == [(row[src] or "").strip() for row in rows]
        assert pairs.tgt == [(row[tgt] or "").strip() for row in rows]
        assert load_split(config, f"{name}[:2]").src == pairs.src[:2]
        for key in ("src_lang", "tgt_lang"):
            wrong = config.model_copy(update={key: "fr"})
            refuses(DataError, f"data.{key} = fr.*de, en", load_split, wrong, name)
    refuses(DataError, "nope", load_split, config, "nope")
    pattern = str(corpus / ("*.parquet" if nested else "*.jsonl"))
    assert load_split(config, pattern).src == pairs.src
    assert load_split(config, f"{pattern}[-3:]").src == pairs.src[-3:]
    assert not (tmp_path / "cache").exists()


def test_lines_end_at_line_feeds_alone(tmp_path):
    src = "a\u2028b\nc\x85d\ne\rf\ng\x0ch\ni\x00j\n\nk\r\n l".encode()
    pairs = load_split(text_folder(tmp_path, src, b"1\n 2\t\n3\n4\n5\n6\n7\n8"), "train")
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
    refuses(DataError, message, load_split, text_folder(tmp_path, src, tgt), "train")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tgt_lang": "fr"}, "train.fr: no such file; the folder holds"),
        ({"src_lang": "fr"}, "train.fr: no such file; the folder holds train.de, train.en"),
        ({"path": "pandas"}, "there is no such folder.*; a data set of the hub has an owner"),
        ({"path": "./nowhere"}, "data.path = ./nowhere: there is no such folder"),
        ({"path": __file__}, "test_corpus.py: this is a file; give the folder"),
        ({"path": "own/text"}, "^data.path = own/text: this is a file; "),  # also a name on the hub
        ({"path": __file__, "train": SplitFiles(src="a", tgt="b")}, "py: this is a file; give"),
    ],
)
def test_what_is_not_there(numbers, changes, message, monkeypatch):
    """Sabotage: look for the folder alone where a split is two files."""
    monkeypatch.chdir(numbers.path)
    os.mkdir("own")
    open("own/text", "w").close()
    config = numbers.model_copy(update=changes)
    refuses(DataError, message, load_split, config, config.train)


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
        assert pairs_of(DataConfig(path=str(tmp_path)), name) == PAIRS
        back = DataConfig(path=str(tmp_path), src_lang="en", tgt_lang="de")
        assert load_split(back, f"{name}[1:2]").src == ["two"]


def test_a_corpus_file_that_changes_while_it_is_read(tmp_path):
    """Its lines would be mixed."""
    path = tmp_path / "a.de"
    path.write_text("a\n" * 50_000)
    lines = read_lines(path)
    next(lines)
    with path.open("a") as file:
        file.write("b\n")
    refuses(DataError, f"^{path}: changed while it was read; ", list, lines)


def test_several_files_make_a_split(tmp_path, monkeypatch):
    (tmp_path / "more" / ".hidden").mkdir(parents=True)
    for folder, word in (("main", "a"), ("more", "b")):
        write_pairs(tmp_path / folder, "part", [(f"{word}de", f"{word}en")] * 3)
    for number in range(7, 0, -1):
        write_data(tmp_path / "more" / f"{number}.parquet", [(f"p{number}", f"q{number}")])
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
    names = ["part", "nope*.parquet"]
    refuses(DataError, r"nope\*.parquet: no such file", load_split, config, names)


def test_links_do_not_repeat_a_file(tmp_path):
    """Sabotage: read what a pattern matches by each of its names."""
    write_data(tmp_path / "a" / "x.jsonl", PAIRS)
    config = DataConfig(path=str(tmp_path))
    for name, target in (("a/up", ".."), ("latest", "a")):
        (link := tmp_path / name).symlink_to(target)
        [part] = open_split(config, "**/*.jsonl").parts
        assert part.files == [tmp_path / "a" / "x.jsonl"] and list(part.read()) == PAIRS
        link.unlink()


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
    for name in ("a", "b"):
        write_pairs(tmp_path, name, [(f"{name}de", f"{name}en")])
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"de": name, "en": name}) + "\n")
    config = DataConfig(path=str(tmp_path), cache_dir=str(tmp_path.parent / "cache"))
    splits = ["a", "b"], ["b", "a"], "*.jsonl"

    def digests() -> list[str]:
        return [open_split(config, split).digest() for split in splits]

    first = digests()
    assert first == digests() and len(set(first)) == 3
    for name, changed in (("b.en", [0, 1]), ("b.jsonl", [2])):
        before, path = digests(), tmp_path / name
        path.write_text(path.read_text().replace("b", "c"))
        assert [i for i, after in enumerate(digests()) if before[i] != after] == changed


def write_data(path, pairs) -> None:
    """Writes a data file of the format that its name says, and sets its time back."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        columns = dict(zip(("de", "en"), zip(*pairs, strict=True), strict=True))
        pq.write_table(pa.table(columns), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"de": de, "en": en}) + "\n" for de, en in pairs))
    else:
        cells = {".csv": ",", ".tsv": "\t"}[path.suffix]
        path.write_text("".join(f"{de}{cells}{en}\n" for de, en in [("de", "en"), *pairs]))
    os.utime(path, (1e9, 1e9))


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".csv", ".tsv"])
def test_text_that_changes_is_read_anew(tmp_path, suffix):
    """Also if names, times and sizes stay, or another folder has the same name.

    Sabotage: read by `datasets.load_dataset`, which takes the text of its cache.
    """
    split = f"data/train{suffix}"

    def read(folder: str, pairs: list) -> str:
        corpus = tmp_path / folder / "corpus"
        write_data(corpus / split, pairs)
        config = DataConfig(path=str(corpus), cache_dir=str(tmp_path / "cache"))
        assert pairs_of(config, split) == pairs
        return open_split(config, split).digest()

    changed = [("EINS", "ONE"), *PAIRS[1:]]
    digests = [read("v1", PAIRS), read("v1", changed), read("v2", PAIRS[2:]), read("v1", PAIRS)]
    assert digests[0] == digests[3] and len(set(digests)) == 3


@pytest.mark.parametrize("name", ["corpus [v2]", "corpus*", "corpu?", "c[!x]"])
@pytest.mark.parametrize("split", ["train.jsonl", "tr*.jsonl", "**/train.jsonl"])
def test_the_name_of_a_folder_is_literal(tmp_path, name, split):
    """Another folder, which it would match as a pattern, is not read."""
    for folder in ("corpus v", "corpus2", "corpus", "cc"):
        write_data(tmp_path / folder / "train.jsonl", PAIRS[:1])
    write_data(tmp_path / name / "train.jsonl", PAIRS[1:])
    assert pairs_of(DataConfig(path=str(tmp_path / name)), split) == PAIRS[1:]
    for folder in (name, str(tmp_path / name)):
        assert pairs_of(DataConfig(path=str(tmp_path)), f"{folder}/{split}") == PAIRS[1:]
    for stem, word in ((name, "right"), ("corpus v", "wrong"), ("corpus2", "wrong")):
        write_pairs(tmp_path, stem, [(word, word)])
    for part in ("", "[-1:]"):
        assert pairs_of(DataConfig(path=str(tmp_path)), f"{name}{part}") == [("right", "right")]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".csv", ".tsv"])
def test_the_name_of_a_file_comes_before_a_pattern(tmp_path, suffix):
    exact, pattern = f"train [12]{suffix}", f"train ?{suffix}"
    for number in (1, 2):
        write_data(tmp_path / f"train {number}{suffix}", PAIRS[number : number + 1])
    config = DataConfig(path=str(tmp_path))
    assert pairs_of(config, exact) == PAIRS[1:3]
    write_data(tmp_path / exact, PAIRS)
    assert pairs_of(config, exact) == PAIRS
    assert pairs_of(config, f"{exact}[-1:]") == PAIRS[-1:]
    assert pairs_of(config, pattern) == PAIRS[1:3]


def test_words_in_tables_are_text(tmp_path):
    """Only an empty cell is empty. Sabotage: read it by pandas."""
    words = "null NULL NA N/A n/a None nan NaN <NA> #N/A 007 1e5 True".split()
    pairs = [*((word, f"x {word}") for word in words), ("", "empty"), ("empty", "")]
    for name in ("train.csv", "data/train.tsv"):
        write_data(tmp_path / name, pairs)
        assert pairs_of(DataConfig(path=str(tmp_path)), name) == pairs


def test_quotation_marks(tmp_path):
    """In CSV they may enclose cells; in TSV, where a tab always ends one, they are text."""
    raw = '\ufeffid,de,en\r\n1,"a, ""b""",c "d"\r\n2,"e\nf",g\r\n\r\n3,h,' + "i" * 150_000
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(raw.encode()))
    config = DataConfig(path=str(tmp_path))
    pairs = [('a, "b"', 'c "d"'), ("e\nf", "g"), ("h", "i" * 150_000)]
    assert pairs_of(config, "a.csv.gz") == pairs
    lines = [("de", "en"), ('"Er sagte', "He said"), ("ja", 'yes"'), ("a\rb\u2028c", "d")]
    raw = "".join(f"{number}\t{de}\t{en}\r\n" for number, (de, en) in enumerate(lines)).encode()
    (tmp_path / "a.tsv").write_bytes(raw)
    assert pairs_of(config, "a.tsv") == lines[1:]


def test_a_table_whose_name_says_its_columns(tmp_path):
    """A first line with their names is no pair; a last empty line counts."""
    config, raw = DataConfig(path=str(tmp_path)), b"a\tb\t0.5\nc\td\n"
    (tmp_path / "x.de-en.tsv.gz").write_bytes(gzip.compress(raw))
    (tmp_path / "y.en-de.tsv").write_bytes(b"en\tde\n" + raw)
    for name in ("x", "x.de-en.tsv.gz", "*.de-en.tsv.gz"):
        assert pairs_of(config, name) == [("a", "b"), ("c", "d")]
    assert pairs_of(config, "y") == pairs_of(config, "y.en-de.tsv") == [("b", "a"), ("d", "c")]
    before = open_split(config, "x").digest()  # by which a prepared corpus is found again
    (tmp_path / "x.de-en.tsv.gz").rename(tmp_path / "x.en-de.tsv.gz")
    assert open_split(config, "x").digest() != before
    (tmp_path / "z.de-en.tsv").write_bytes('a "b\tc" d\nx\u2028y\tz\rw\nde\ten\n\t\n'.encode())
    pairs = [('a "b', 'c" d'), ("x\u2028y", "z\rw"), ("de", "en"), ("", "")]
    assert pairs_of(config, "z") == pairs


def parquet(columns: dict | list, names: list[str] | None = None) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns, names=names), buffer)
    return buffer.getvalue()


LATIN = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xfc"))
ROW = b'{"de": "a", "en": "b"}\n'


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("a.csv", b"de,en\na,b\nc,d,e\n", "a.csv, line 3: .* columns is 3, not 2"),
        ("a.csv", b'de,en\n"a\nb",c\nd\n', "a.csv, line 4: .* columns is 1, not 2"),
        ("a.csv", b"de,en\na,b,\n", "a.csv, line 2: .* columns is 3, not 2"),
        ("a.csv", b'de,en\na,b\n"c,d\ne,f\n', "a.csv, line 3: cannot be read: unexpected end"),
        ("a.csv", b'de,en\n"a"b,c\n', "a.csv, line 2: cannot be read: "),
        ("a.csv", b"de,en\ra,b\r", "a.csv, line 1: .* an unquoted carriage return"),
        ("a.csv", b"Hallo,Hello\nJa,Yes\n", "a.csv, line 1: .* must name the columns de and en"),
        ("a.csv", b"de|en\na|b\n", "a.csv, line 1: .* must name the columns"),
        ("a.csv", b"de,en,de\na,b,c\n", "a.csv, line 1: .* must name the columns"),
        ("a.csv", b"de,en\nf\xfcr,b\n", "a.csv, line 2: not UTF-8"),
        ("a.csv", b"", "contains no pairs"),
        ("a.tsv", b"de\ten\na\n", "a.tsv, line 2: .* columns is 1, not 2"),
        ("a.tsv", b"de\ten\na\tb\tc\n", "a.tsv, line 2: .* columns is 3, not 2"),
        ("a.tsv", b"Hallo\tHello\n", "a.tsv, line 1: .* de and en, unless all are numbers"),
        ("a.jsonl", b"", "contains no pairs"),
        ("a.jsonl.gz", gzip.compress(b"\n\n", mtime=0), "contains no pairs"),
        ("a.jsonl", ROW + b'{"de": "f\xfcr", "en": "b"}\n', "a.jsonl, line 2: not UTF-8"),
        ("a.jsonl", ROW.decode().encode("utf-16"), "a.jsonl: is UTF-16"),
        ("a.jsonl", ROW + b"\n" + ROW[:9], "a.jsonl, line 3: cannot be read: "),
        ("a.jsonl", b'{"de": "a"}\n', "data.tgt_lang = en: .*a.jsonl, line 1 has de"),
        ("a.jsonl", ROW + b'{"de": 1, "en": "b"}', "a.jsonl, line 2: 1 in the column de is not"),
        ("a.jsonl", b'{"de": "\\ud800", "en": "b"}', "a.jsonl, line 1: .* surrogates"),
        ("a.jsonl", b'"de"\n', "a.jsonl, line 1: 'de' has no named columns"),
        ("a.jsonl", b'{"translation": "de en"}', "a.jsonl, line 1: 'de en' has no named columns"),
        ("a.jsonl", b'["%s"]' % (b"a" * 999), r"line 1: 'a{59}\.\.\. has no named columns$"),
        ("a.jsonl", ROW + b'["%s"]' % (b"a" * 999), r"line 2: \['a{58}\.\.\. has no named columns"),
        ("a.json", b'\n[{"de": "a", "en": "b"},\n{"de": 1, "en": 2}]', "a.json, row 2: 1 in the"),
        ("a.jsonl", b"[" * 100_000, "a.jsonl, line 1: cannot be read: "),
        ("a.parquet", parquet({"de": LATIN, "en": ["b"]}), "a.parquet: cannot be read: "),
        ("a.parquet", parquet({"de": pa.array([], pa.string())}), "contains no pairs"),
        ("a.parquet", parquet({"de": ["a"], "x": ["b"]}), "data.tgt_lang = en: .* has de, x"),
        ("a.parquet", parquet({"de": [1], "en": ["one"]}), "1 in the column de is not text"),
        ("a.parquet", b"", "a.parquet: cannot be read: "),
        ("a.parquet", parquet({"de": ["a"], "d": pa.array([10**8], pa.date32())}), "out of range"),
        ("a.parquet", parquet([["a"], ["b"]], ["de", "de"]), "several columns named de"),
        ("a.parquet", b"PAR1 no Parquet PAR1", "a.parquet: cannot be read: "),
    ],
)
def test_a_data_file_that_cannot_be_used(tmp_path, name, raw, message):
    (tmp_path / name).write_bytes(raw)
    refuses(DataError, message, load_split, DataConfig(path=str(tmp_path)), name)


def test_a_pipe_or_folder_in_place_of_a_file(tmp_path):
    """Training reads a text again and again. Sabotage: say that it does not exist."""
    (tmp_path / "a.en").mkdir()
    os.mkfifo(tmp_path / "a.de")
    for name in ("a.de", "a.en"):
        split = SplitFiles(src=name, tgt=name)
        message = rf"{name}: is not a regular file; training reads text repeatedly$"
        refuses(DataError, message, load_split, DataConfig(path=str(tmp_path)), split)


def test_a_named_split_has_a_slice(numbers):
    """Sabotage: leave it out."""
    assert pairs_of(numbers, NamedSplit(name="train", slice="[1:]", weight=2)) == PAIRS[1:]
