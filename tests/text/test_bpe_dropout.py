"""Subword regularisation: what is drawn, that it is the same text, and what it depends on."""

import hashlib
from collections import Counter
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sentencepiece
import torch
from conftest import copy_lines, learn_elsewhere, refuses, tiny_config

from transformer_mt.config.keys import VocabConfig
from transformer_mt.errors import ConfigError
from transformer_mt.text import bpe_dropout, epoch_pairs
from transformer_mt.text.batching import EncodedPairs, encode_pairs, flatten
from transformer_mt.text.bpe_dropout import NO_PIECE, BPEDropout, LineSampler
from transformer_mt.text.prepared import PreparedCorpus
from transformer_mt.text.vocabulary import UNK_ID, PieceTable, Vocabulary, train_vocabulary

TEXT = Path(__file__).read_text(encoding="utf-8").split("\n")
RARE = ["ab \U0001f600 cd", "日本語 ab", "a\x00b", "▁ab cd▁", "", "x"]


def learn(kind: str, size: int = 500) -> Vocabulary:
    counts = Counter(word for line in TEXT for word in line.split())
    return train_vocabulary([counts], VocabConfig(kind=kind, size=size))


@pytest.fixture(scope="module")
def vocab() -> Vocabulary:
    return learn("bpe")


def sample(pairs, vocab, rate=0.3, max_length=500, seed=1, epoch=0, **more) -> EncodedPairs:
    changes = {"vocab__sampling": rate, "data__max_length": max_length, "train__seed": seed, **more}
    corpus = PreparedCorpus(Path(), vocab, pairs, {}, "")
    sampled = epoch_pairs.EpochPairs(corpus, tiny_config(Path("nowhere"), **changes))
    try:
        return sampled.of_epoch(epoch)
    finally:
        sampled.close()


def rows(pairs: EncodedPairs) -> list[tuple[list[int], list[int]]]:
    return [(pairs.src[i].tolist(), pairs.tgt[i].tolist()) for i in range(len(pairs))]


def digest(pairs: EncodedPairs) -> str:
    return hashlib.sha256(repr(rows(pairs)).encode()).hexdigest()


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_the_distribution_is_sentencepiece_s(vocab, rate):
    count, ids = 20_000, vocab.src.table().ids
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocab.src_model)
    segmenter = BPEDropout(vocab.src.table(), rate)
    for word in ("lines", "assert"):
        rows = np.array([[ids[c] for c in f"▁{word}"]] * count, np.int32)
        drawn = segmenter.segment(rows, np.random.default_rng(1))
        own = Counter(tuple(row[row != NO_PIECE].tolist()) for row in drawn)
        options = {"enable_sampling": True, "alpha": rate, "nbest_size": -1}
        theirs = Counter(map(tuple, processor.encode([word] * count, **options)))
        assert len(own) > 2
        distance = sum(abs(own[key] - theirs[key]) for key in own | theirs) / 2 / count
        assert distance < 0.06, (own.most_common(4), theirs.most_common(4))


def test_every_segmentation_decodes_to_the_same_text(vocab):
    """Most lines change, and none decodes to anything else, in the vocabulary of its language."""
    vocab = Vocabulary(vocab.src_model, learn("bpe", 400).src_model)
    lines = [line for line in TEXT if line.strip()] + RARE
    pairs = encode_pairs(lines, lines[::-1], vocab)
    sampled = sample(pairs, vocab)
    changed = 0
    for (src, tgt), (new_src, new_tgt) in zip(rows(pairs), rows(sampled), strict=True):
        assert vocab.src.decode([new_src]) == vocab.src.decode([src])
        assert vocab.tgt.decode([new_tgt]) == vocab.tgt.decode([tgt])
        changed += src != new_src
    assert changed > 0.5 * len(lines)
    assert sampled.src.ids.dtype == pairs.src.ids.dtype


def test_a_word_with_an_unknown_piece_keeps_its_segmentation():
    options = {"model_type": "bpe", "vocab_size": 120, "minloglevel": 2}
    model = learn_elsewhere(copy_lines(800, 1), user_defined_symbols=["<ab>"], **options)
    vocab = Vocabulary(model, model)  # without padding: its ids are moved up
    line = " ".join(["abé <ab>cd", *copy_lines(20, 1)])
    pairs = encode_pairs([line], [line], vocab)
    [(plain, _)], [(drawn, _)] = rows(pairs), rows(sample(pairs, vocab, rate=0.9))
    two_words = len(vocab.src.encode(["abé <ab>cd"])[0])
    assert UNK_ID in plain and "<ab>" in vocab.src.pieces(plain[:two_words])
    assert drawn[:two_words] == plain[:two_words]
    assert len(drawn) > len(plain) and vocab.tgt.decode([drawn]) == vocab.tgt.decode([plain])


def hand_made_vocabulary() -> object:
    """Gives all words of up to three of the letters a, b and c as pieces."""
    words = (product("▁abc", *["abc"] * n) for n in range(3))
    pieces = ["".join(word) for each in words for word in each]
    scores = -1.0 - np.arange(4 + len(pieces)) * 7 % 59
    table = PieceTable([""] * 4 + pieces, scores)
    return SimpleNamespace(shared=True, src=SimpleNamespace(kind="bpe", table=lambda: table))


def hand_made_pairs(count: int) -> EncodedPairs:
    """Gives lines of words of the letters a, b and c, whose sides are equal."""
    rng, rows = np.random.default_rng(0), []
    for _ in range(count):
        words = [(4, *rng.integers(5, 8, rng.integers(1, 9))) for _ in range(rng.integers(5))]
        rows.append([i for word in words for i in word])
    return EncodedPairs(flatten(rows), flatten(rows))


def test_segmentations_depend_on_seed_epoch_and_nothing_else(monkeypatch):
    """They are those of earlier versions, with any number of threads; blocks and sides differ."""
    assert (epoch_pairs._PAIRS_PER_BLOCK, bpe_dropout._CHARACTERS_AT_ONCE) == (20_000, 200_000)
    monkeypatch.setattr(epoch_pairs, "_PAIRS_PER_BLOCK", 60)
    monkeypatch.setattr(bpe_dropout, "_CHARACTERS_AT_ONCE", 40)
    half, vocab = hand_made_pairs(60).src, hand_made_vocabulary()
    side = flatten([half[i].tolist() for i in (*range(60), *range(60), *range(30))])
    pairs = EncodedPairs(side, side)
    first = sample(pairs, vocab)
    assert digest(first)[:16] == "59d62fffec9bf41d"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert digest(sample(pairs, vocab)) == digest(first)
    others = [sample(pairs, vocab, epoch=1), sample(pairs, vocab, seed=2)]
    assert len({digest(each) for each in (first, *others)}) == 3
    src, tgt = zip(*rows(first), strict=True)
    assert src != tgt and src[:60] != src[60:120]


def test_a_pair_that_would_be_too_long_keeps_its_segmentation(vocab):
    lines = ["ab " * 10, "sampling segmentation sampling", "a b c d e f g h i j k l m n o p"]
    pairs = encode_pairs(lines, lines[::-1], vocab)
    limit = int(max(map(max, pairs.lengths))) - 1
    drawn = [sample(pairs, vocab, rate=0.4, max_length=limit, seed=seed) for seed in range(8)]
    free = [sample(pairs, vocab, rate=0.4, seed=seed) for seed in range(8)]
    kept = 0
    for each, unlimited in zip(drawn, free, strict=True):
        for row, free_row, plain in zip(rows(each), rows(unlimited), rows(pairs), strict=True):
            is_too_long = max(map(len, free_row)) > limit
            assert row == (plain if is_too_long else free_row)
            kept += is_too_long
    assert kept


@pytest.mark.parametrize("kind", ["unigram", "word", "char"])
def test_a_vocabulary_that_is_not_of_bpe_is_refused(kind):
    changes = {"vocab__sampling": 0.1, "vocab__kind": kind}
    message = f"vocab.sampling = 0.1 is BPE-dropout.*not {kind}"
    refuses(ConfigError, message, tiny_config, Path("nowhere"), **changes)
    model = learn(kind, 400 if kind == "unigram" else 40).src
    refuses(ConfigError, "is not of kind bpe", LineSampler, model, 0.1)


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_the_first_epochs_have_every_second_pair_reversed_in_turn(rate):
    vocab, count = learn("bpe"), 50
    pairs = encode_pairs(TEXT[:count], TEXT[count : 2 * count], vocab)
    for epoch, first in ((0, 1), (1, 0), (2, count)):  # the first reversed pair
        usual = rows(sample(pairs, vocab, rate, epoch=epoch))
        expected = usual[:first]
        for i, row in enumerate(usual[first:]):
            expected.append(row if i % 2 else row[::-1])
        changed = sample(pairs, vocab, rate, epoch=epoch, train__bidirectional_epochs=2)
        assert rows(changed) == expected
