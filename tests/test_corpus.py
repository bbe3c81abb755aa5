"""Reading parallel text: every layout, every way to be wrong, and lines that stay lines."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from transformer_mt.config import DataConfig, VocabConfig
from transformer_mt.corpus import (
    RawPairs,
    decode_lines,
    encode_pairs,
    encode_training_pairs,
    load_split,
)
from transformer_mt.errors import DataError
from transformer_mt.vocab import train_vocabulary

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


@pytest.fixture(scope="module")
def vocab():
    """Gives a vocabulary of little more than bytes."""
    words = [word for pair in PAIRS for word in pair]
    return train_vocabulary(words, words, VocabConfig(size=280), 1)


@pytest.mark.parametrize(
    ("split", "part"),
    [
        ("train", slice(None)),
        ("train[:3]", slice(3)),
        ("train[2:]", slice(2, None)),
        ("train[1:2]", slice(1, 2)),
        ("train[-1:]", slice(-1, None)),
    ],
)
def test_slices_of_text(numbers, split, part):
    """A slice takes the pairs that Python's would."""
    pairs = load_split(numbers, split)
    assert list(zip(pairs.src, pairs.tgt, strict=True)) == PAIRS[part]


def test_direction(numbers):
    """The languages say which side is the source."""
    swapped = DataConfig(path=numbers.path, src_lang="en", tgt_lang="de")
    assert load_split(swapped, "train").src[0] == "one"


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_folder_laid_out_like_a_hub_repository(tmp_path, kind, nested):
    """A translation column or two columns, parquet or JSONL; slices; nothing is filtered."""
    rows = [{"de": de, "en": en} for de, en in [*PAIRS, ("", "NA"), ('"x', "a\u2028b")]]
    rows = [{"translation": row} for row in rows] if nested else rows
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


def test_missing_values_are_empty(tmp_path):
    """A null in a column is an empty side, not the word None."""
    repository = tmp_path / "corpus"
    repository.mkdir()
    table = pa.table({"de": ["eins", None], "en": ["one", "two"]})
    pq.write_table(table, repository / "train.parquet")
    config = DataConfig(path=str(repository), cache_dir=str(tmp_path / "cache"))
    assert load_split(config, "train").src == ["eins", ""]


def test_lines_end_at_line_feeds_alone(tmp_path):
    """Nothing else that looks like a line break shifts the two sides against each other."""
    src = "a\u2028b\nc\x85d\ne\rf\ng\x0ch\ni\x00j\n\nk\r\n l".encode()
    config = text_folder(tmp_path, src, b"1\n2\n3\n4\n5\n6\n7\n8")
    pairs = load_split(config, "train")
    assert pairs.src == ["a\u2028b", "c\x85d", "e\rf", "g\x0ch", "i\x00j", "", "k", "l"]
    assert pairs.tgt == list("12345678")


@pytest.mark.parametrize(
    ("src", "tgt", "message"),
    [
        (b"a\nb\nc\n", b"1\n2\n", r"train.de has 3 lines and .*train.en has 2"),
        (b"a\n\xff\n", b"1\n2\n", r"train.de, line 2: not UTF-8"),
        (b"", b"", r"split train holds no pairs"),
    ],
)
def test_text_that_cannot_be_used(tmp_path, src, tgt, message):
    """The message names the file and the line or the counts."""
    with pytest.raises(DataError, match=message):
        load_split(text_folder(tmp_path, src, tgt), "train")


@pytest.mark.parametrize(
    ("changes", "split", "message"),
    [
        ({}, "nope", r"nope.de: no such file; the folder holds train.de, train.en"),
        ({"tgt_lang": "fr"}, "train", r"train.fr: no such file"),
        ({}, "train[:x]", r"train\[:x\]: not a split"),
        ({"path": "./nowhere"}, "train", r"data.path = ./nowhere: there is no such folder"),
    ],
)
def test_what_is_not_there(numbers, changes, split, message):
    """The message names the file, split or folder that is missing."""
    with pytest.raises(DataError, match=message):
        load_split(numbers.model_copy(update=changes), split)


def test_training_pairs_are_filtered_and_counted(vocab):
    """Each reason is counted; other sets are never filtered."""
    long = "eins " * 30
    raw = RawPairs(["eins", "", "zwei", long, "x " * 9], ["one", "no", "  ", long, "one"])
    config = DataConfig(path="x", max_length=40, max_length_ratio=4.0)
    pairs = encode_training_pairs(raw, vocab, config)
    assert len(pairs) == 1 and vocab.decode_tgt(pairs.tgt(0).tolist()) == "one"
    assert pairs.dropped == {"empty": 2, "over 40 pieces": 1, "length ratio over 4": 1}
    everything = encode_pairs(raw, vocab)
    assert len(everything) == 5 and not everything.dropped
    assert everything.src_lengths.tolist() == [len(everything.src(i)) + 1 for i in range(5)]


def test_nothing_left_is_an_error_with_the_counts(vocab):
    """The message says how many pairs each reason took."""
    raw = RawPairs(["", "eins " * 30], ["no", "one"])
    with pytest.raises(DataError, match=r"left of 2 \(1 empty, 1 over 9 pieces\)"):
        encode_training_pairs(raw, vocab, DataConfig(path="x", max_length=9))


def test_the_digest_names_the_content(vocab):
    """Equal pairs have equal digests; moving a piece from one pair to the next changes it."""
    first, same, other = (
        encode_pairs(RawPairs(list(src), ["one", "two"]), vocab).digest()
        for src in (["ab", "c"], ["ab", "c"], ["a", "bc"])
    )
    assert first == same != other


def test_decoding_never_loses_a_line():
    """Invalid UTF-8 is replaced; a last line without a line feed counts."""
    raw = io.BytesIO(b"a\xff\n\n\xe2\x80\xa8\r\nlast")
    assert list(decode_lines(raw)) == ["a\ufffd", "", "\u2028\r", "last"]
