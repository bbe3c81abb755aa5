"""The content of a prepared corpus, by hand: what is dropped, counted and stored."""

import logging
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conftest import tiny_config, tiny_values

from transformer_mt.config.keys import VocabConfig
from transformer_mt.config.loading import parse_config
from transformer_mt.errors import ConfigError
from transformer_mt.text.prepared import prepare
from transformer_mt.text.vocabulary import train_vocabulary


@pytest.fixture
def folder(tmp_path) -> Path:
    """Gives a folder for training text."""
    (tmp_path / "corpus").mkdir()
    return tmp_path / "corpus"


def write_pairs(folder: Path, pairs: list[tuple[str, str]]) -> None:
    """Writes the training text of a corpus of pairs."""
    for column, language in enumerate(("de", "en")):
        text = "".join(f"{pair[column]}\n" for pair in pairs)
        (folder / f"train.{language}").write_text(text)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    ("changes", "pairs", "dropped"),
    [
        # A source may have two translations, and a translation two sources.
        (
            {"drop_duplicates": True},
            [("a b", "x"), ("a b", "y"), ("a c", "x"), ("a b", "x"), ("a", "b x"), ("a b", "x")],
            {3: "duplicate", 5: "duplicate"},
        ),
        # SentencePiece's own mark of a space is text, but holds no piece.
        ({}, [("a", "a"), ("a", "a"), ("  ", "c"), ("▁", "a")], {2: "empty", 3: "empty"}),
        (
            {"max_length": 6, "max_length_ratio": 2.0},
            [("ab", "abcde"), ("ab", "abcdef"), ("a", "abcd"), ("abc", "abc")],
            {1: "over 6 pieces", 2: "length ratio over 2"},
        ),
    ],
)
def test_which_pairs_are_dropped(folder, swapped, changes, pairs, dropped):
    """By hand, one piece per character: those kept are stored in order, the others counted.

    Sabotage: compare only sources for duplicates; encode all pairs.
    """
    pairs = [pair[::-1] for pair in pairs] if swapped else pairs
    write_pairs(folder, pairs)
    values = {f"data__{key}": value for key, value in changes.items()}
    prepared = prepare(tiny_config(folder, vocab__kind="char", **values))
    assert prepared.report["dropped"] == dict(Counter(dropped.values()))
    kept = [pair for i, pair in enumerate(pairs) if i not in dropped]
    for side, lines in enumerate((prepared.pairs.src, prepared.pairs.tgt)):
        ids = prepared.vocab.src.encode([pair[side] for pair in kept])
        assert [line.tolist() for line in lines] == ids
    assert (prepared.report["pairs"], prepared.report["kept"]) == (len(pairs), len(kept))


def test_the_report_by_hand(folder, caplog):
    """Pieces per word, unknown pieces and the longest line, over both sides of what is kept.

    The vocabulary lacks the letter q. Sabotage: count a side twice, or what is dropped.
    """
    write_pairs(folder, [("ab", "abc de"), ("a b", "c d e"), ("e", "a"), ("f g h", "f")])
    caplog.set_level(logging.INFO)
    first = prepare(tiny_config(folder, vocab__kind="char"))
    assert caplog.messages[0] == "learning 292 pieces from 11 distinct words"
    write_pairs(folder, [("ab", "abc qe"), ("a b", "c q eq ab"), ("e", "qaa"), ("", "f g h")])
    prepared = prepare(tiny_config(folder, vocab__kind="char"), first.vocab)
    counts = {
        key: prepared.report[key] for key in ("pairs", "kept", "dropped", "unknown", "longest")
    }
    assert counts == {
        "pairs": 4,
        "kept": 3,
        "dropped": {"empty": 1},
        "unknown": 4,
        "longest": 10,  # c q eq ab, each word with a piece before it
    }
    # Sources of 3 + 4 + 2 pieces and 1 + 2 + 1 words, targets of 7 + 10 + 4 and 2 + 4 + 1.
    assert prepared.report["pieces_per_word"] == round(30 / 11, 3)
    assert first.counts == "4 training pairs of 4 (dropped: none)"
    assert caplog.messages[-3] == prepared.counts == "3 training pairs of 4 (dropped: 1 empty)"
    assert caplog.messages[-2] == "2.727 pieces per word, 4 unknown, longest 10 pieces"
    assert caplog.messages[-1] == "13.3% of the pieces are unknown: raise vocab.size"
    lengths = [side.tolist() for side in prepared.pairs.lengths]
    assert lengths == [[4, 5, 3], [8, 11, 5]]


def test_the_digest_depends_on_ids_and_lines(folder):
    """The same ids cut into other lines, or on the other side, give another digest."""
    write_pairs(folder, [("a", "b")])
    vocab = prepare(tiny_config(folder, vocab__kind="char")).vocab
    digests = set()
    for pairs in (
        [("a a", "b"), ("a", "b")],
        [("a", "b"), ("a a", "b")],
        [("b", "a a"), ("b", "a")],
    ):
        write_pairs(folder, pairs)
        digests.add(prepare(tiny_config(folder, vocab__kind="char"), vocab).digest)
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [((65_536, 300), "uint16"), ((300, 65_537), "int32"), ((65_537, 300), "int32")],
)
def test_ids_are_as_narrow_as_the_vocabulary_allows(folder, sizes, dtype):
    """Two bytes hold 65,536 different ids; the larger vocabulary decides for both sides."""
    write_pairs(folder, [("ab", "cd")] * 3)
    counts = [Counter({"ab": 3}), Counter({"cd": 3})]
    vocab = train_vocabulary(counts, VocabConfig(kind="char", size=300))
    vocab.src.size, vocab.tgt.size = sizes
    prepared = prepare(tiny_config(folder, vocab__kind="char"), vocab)
    assert prepared.report["dtype"] == dtype and isinstance(prepared.pairs.src.ids, np.memmap)
    assert prepared.pairs.src.ids.dtype == prepared.pairs.tgt.ids.dtype == np.dtype(dtype)


def test_each_language_has_its_own_vocabulary_or_both_one(folder):
    """Learned from its own side, without dropped pairs; a shared one from both."""
    write_pairs(folder, [("ab ab", "cd"), ("ba", "dc"), ("xyz", "")])
    values = tiny_values(folder, vocab__kind="char", vocab__shared=False)
    values["model"]["tie_embeddings"] = False
    vocab = prepare(parse_config(values, "test")).vocab
    sides = vocab.src.pieces(range(vocab.src.size)), vocab.tgt.pieces(range(vocab.tgt.size))
    assert [set(side[4:]) for side in sides] == [{"▁", "a", "b"}, {"▁", "c", "d"}]
    shared = prepare(tiny_config(folder, vocab__kind="char")).vocab
    assert shared.shared and set(shared.src.pieces(range(4, shared.src.size))) == set("▁abcd")


def test_a_weight_repeats_what_cleaning_keeps(folder):
    """In ids, counts and learned words, as if the entry were listed as often; read once.

    Duplicates are dropped first. Sabotage: repeat before cleaning; leave the weight out of the
    counts, or out of the fingerprint.
    """
    write_pairs(folder, [("ab ab", "cd. Ef"), ("ab", "cd"), ("", "x")])
    for language, line in (("de", "ba"), ("en", "dc")):
        (folder / f"more.{language}").write_text(f"{line}\n")
    more = {"src": "more.en", "tgt": "more.de"}
    listed = ["train", "train", "more", "more", "more"]
    weighted = [{"name": "train", "weight": 2}, {**more, "weight": 3}]
    kinds = {"vocab__kind": "char", "data__src_lang": "en", "data__tgt_lang": "de"}
    expected = prepare(tiny_config(folder, data__train=listed, **kinds))
    strict = {**kinds, "data__drop_duplicates": True}
    prepared = prepare(tiny_config(folder, data__train=weighted, **strict))
    assert prepared.counts == "3 training pairs of 4 (dropped: 1 empty), 7 per epoch"
    assert prepared.vocab.has_same_ids(expected.vocab)
    for side in ("src", "tgt"):
        rows, listed_rows = (
            sorted(row.tolist() for row in getattr(corpus.pairs, side))
            for corpus in (prepared, expected)
        )
        assert rows == listed_rows and len(rows) == 7
    for key in ("pieces", "pieces_per_word", "unknown", "longest", "sources"):
        assert prepared.report[key] == expected.report[key]
    assert prepared.report["sources"]["several_sentences"] == 2 / 7
    other = prepare(tiny_config(folder, data__train=[weighted[0], more], **strict))
    assert other.path != prepared.path and other.digest != prepared.digest
    with pytest.raises(ConfigError, match="data.valid has a weight"):
        tiny_config(folder, data__valid={**more, "weight": 2})
    for wrong in (0, 1001, 1.5):
        with pytest.raises(ConfigError, match=r"data.train\[0\].weight = .* should be"):
            tiny_config(folder, data__train=[{**more, "weight": wrong}])
