"""Vocabularies: ids, round trips, and text that no training ever saw."""

import random

import pytest
from conftest import ALPHABET
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_mt.config import VocabConfig
from transformer_mt.errors import DataError
from transformer_mt.vocab import Vocabulary, fold_whitespace, train_vocabulary


def lines(seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join("".join(rng.choices(ALPHABET, k=4)) for _ in range(5)) for _ in range(200)]


def learn(**changes) -> Vocabulary:
    return train_vocabulary(lines(1), lines(2), VocabConfig(size=320, **changes), 1)


@pytest.fixture(scope="module")
def vocab() -> Vocabulary:
    return learn()


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_learning_is_deterministic(kind):
    """The same text and seed give the same bytes, in either kind."""
    first, second = learn(kind=kind), learn(kind=kind)
    assert first.src_model == second.src_model
    assert first.src_size == 320


@pytest.mark.parametrize(
    "text",
    ["Größe über Äpfel", "½ … ² ﬁ Å", "日本語 и русский", "\U0001f600 ok", "a\u200bb", "x\x00y"],
)
def test_text_comes_back_as_written(vocab, text):
    """No character is normalised away, and what has no piece is spelled in bytes."""
    (ids,) = vocab.encode_tgt([text])
    assert vocab.decode_tgt(ids) == text
    assert all(i > 3 for i in ids), "no special id stands for text"


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581"), max_size=40))
def test_any_text_comes_back_with_white_space_folded(vocab, text):
    """Of all of Unicode only SentencePiece's own space mark, U+2581, is not itself."""
    (ids,) = vocab.encode_src([text])
    assert vocab.decode_tgt(ids) == fold_whitespace(text)


def test_white_space_of_every_kind_is_one_space():
    """Line separators, tabs and non-breaking spaces too."""
    assert fold_whitespace(" a\t\u00a0b\u2028\x0c\x85c \r\n") == "a b c"


def test_a_hypothesis_is_one_line(vocab):
    r"""Byte pieces that spell \n, \r and \t decode to spaces. Sabotage: decode without folding."""
    byte_ids = [4 + ord(character) for character in "\n\r\t"]
    assert vocab.src_pieces(byte_ids) == ["<0x0A>", "<0x0D>", "<0x09>"]
    (ids,) = vocab.encode_tgt(["ab"])
    assert vocab.decode_tgt([*ids, *byte_ids, *ids]).split(" ") == ["ab", "", "", "", "ab"]


@pytest.mark.parametrize("shared", [True, False])
def test_saved_and_loaded(tmp_path, shared):
    """One file when shared, else two; ids stay what they were."""
    made = learn(shared=shared)
    assert len(made.save(tmp_path)) == (1 if shared else 2)
    read = Vocabulary.load(tmp_path)
    assert read.shared == made.shared == shared
    text = lines(3)
    assert (read.encode_src(text), read.encode_tgt(text)) == (
        made.encode_src(text),
        made.encode_tgt(text),
    )


def test_what_is_no_vocabulary(tmp_path):
    """Too many pieces for the text, no model, no file: each is named."""
    with pytest.raises(DataError, match=r"vocab.size = 99999: .*<= \d+"):
        train_vocabulary(lines(1), lines(2), VocabConfig(size=99_999), 1)
    with pytest.raises(DataError, match="not a SentencePiece model"):
        Vocabulary(b"nonsense", b"nonsense")
    with pytest.raises(DataError, match="src.model"):
        Vocabulary.load(tmp_path)
