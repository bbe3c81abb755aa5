"""The translator by hand: limits, splitting, batches and scores, with a model not trained."""

import math
from collections import Counter
from itertools import count, islice

import pytest
import torch
from torch import Tensor

from transformer_mt import translator as module
from transformer_mt.config import ModelConfig, VocabConfig
from transformer_mt.errors import ConfigError
from transformer_mt.model import Transformer
from transformer_mt.translator import Search, Translation, Translator
from transformer_mt.vocab import EOS_ID, Vocabulary, train_vocabulary

LETTERS = "abcdefghijklmnopqrstuvwxyz.,;!"


@pytest.fixture(scope="module")
def vocab() -> Vocabulary:
    """Gives a vocabulary whose pieces are characters, each space one too."""
    return train_vocabulary([Counter({LETTERS: 1})], VocabConfig(kind="char", size=40))


class Recorder(Transformer):
    """A random model that keeps what it was asked to translate, and may be kept from ending."""

    def __init__(self, vocab: Vocabulary, ends: bool = True) -> None:
        torch.manual_seed(5)
        layers = {"encoder_layers": 1, "decoder_layers": 1, "norm": "pre"}
        config = ModelConfig(d_model=16, d_ff=32, n_heads=2, **layers)
        super().__init__(config, vocab.src_size, vocab.tgt_size, 0)
        for parameter in self.parameters():
            parameter.data.mul_(3.0)
        self.ends, self.batches, self.eval_modes = ends, [], []

    def start(self, src: Tensor, max_length: int) -> object:
        rows = [[i for i in row if i not in (0, EOS_ID)] for row in src.tolist()]
        self.batches.append(rows)
        self.eval_modes.append(not self.training)
        return super().start(src, max_length)

    def decode_step(self, ids: Tensor, state: object) -> Tensor:
        logits = super().decode_step(ids, state)
        return logits if self.ends else logits.index_fill(-1, torch.tensor([EOS_ID]), -math.inf)

    @property
    def sources(self) -> list[list[int]]:
        return [row for batch in self.batches for row in batch]


def texts(vocab: Vocabulary, rows: list[list[int]]) -> list[str]:
    return [vocab.decode_tgt(row) for row in rows]


@pytest.mark.parametrize("search", [Search(1), Search(1, scored=True), Search(4)])
def test_output_is_at_most_fifty_pieces_longer(vocab, monkeypatch, search):
    """A model that never ends gives exactly the source's pieces + 50, each line its own.

    Sabotage: allow 40 or 51; take the limit of the longest line for all.
    """
    monkeypatch.setattr(Vocabulary, "decode_tgt", lambda self, ids: " ".join(map(str, ids)))
    lines = ["a", "bcdef", "abcdefghijkl"]
    found = Translator(Recorder(vocab, ends=False), vocab, 100, search).translate(lines)
    pieces = [len(row) for row in vocab.encode_src(lines)]
    assert [len(text.split()) for text in found] == [n + 50 for n in pieces]


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("abcdefghijk", ["abcdefghijk"]),  # twelve pieces with the space before it
        ("ab cd. ef gh ij", ["ab cd.", "ef gh ij"]),
        ("ab cd! ef gh ij", ["ab cd!", "ef gh ij"]),
        ("ab cd, ef gh ij", ["ab cd,", "ef gh ij"]),
        ("ab. cd, ef gh", ["ab.", "cd, ef gh"]),  # a sentence before a later clause
        ("ab. cd. ef gh", ["ab. cd.", "ef gh"]),  # the last of several
        ("a. bcd efg hijk", ["a. bcd efg", "hijk"]),  # a mark in the first quarter is none
        ("a, bcd efg hijk", ["a, bcd efg", "hijk"]),
        ("abcdefghijk lm", ["abcdefghijk", "lm"]),  # a word that ends at the limit
        ("abc.def ghi jklm", ["abc.def ghi", "jklm"]),  # no space after the mark
        ("abcdefghijklmn", ["abcdefghijk", "lmn"]),  # within a word, if there is no other way
        ("ab cd ef gh ij kl mn op qr", ["ab cd ef gh", "ij kl mn op", "qr"]),
    ],
)
def test_where_a_long_line_is_split(vocab, line, parts):
    """At most twelve pieces each, after a sentence, a clause, a word; no piece is lost.

    Sabotage: cut after `max_length` pieces, wherever that is.
    """
    model = Recorder(vocab)
    translator = Translator(model, vocab, 12, Search(batch_tokens=1))
    translator.translate_chunk(["", line])
    [ids] = vocab.encode_src([line])
    sources = sorted(model.sources, key=lambda row: line.index(vocab.decode_tgt(row)))
    assert texts(vocab, sources) == parts
    assert sum(sources, []) == ids and max(map(len, sources)) <= 12
    assert translator.lines_split == (len(parts) > 1)


def test_a_split_line_joins_its_parts(vocab):
    """Of each rank the texts are joined by a space and the scores summed; advance counts lines."""
    search = Search(3, scored=True)
    parts = ["ab cd.", "ef gh ij", "kl"]
    lines = ["kl", "", "ab cd. ef gh ij", "mno", "  ", "ab cd. ef gh ij"]
    counts: list[int] = []
    translator = Translator(Recorder(vocab), vocab, 12, search)
    found = translator.translate_chunk(lines, counts.append)
    alone = [Translator(Recorder(vocab), vocab, 12, search).translate_chunk([p])[0] for p in parts]
    assert all(len(some) == 3 for some in found)
    for rank in range(3):
        first, second, short = (some[rank] for some in alone)
        assert found[0][rank].text == short.text
        for line in (2, 5):
            joined = " ".join(text for text in (first.text, second.text) if text)
            assert found[line][rank].text == joined
            assert found[line][rank].score == pytest.approx(first.score + second.score, abs=1e-4)
        assert found[1][rank] == found[4][rank] == Translation("", 0)
    assert first.score < 0 and translator.lines_split == 2
    assert sum(counts) == len(lines) and min(counts) >= 0


def test_batches_by_hand(vocab):
    """Longest first, `batch_tokens` over length and beam, a short line counting as eight.

    Sabotage: leave the end mark or the beam out of the length.
    """
    lines = ["b" * 2, "a", "c" * 3, "e" * 20, "d" * 9]  # the space before each is a piece too
    rows = {1: [["e" * 20, "d" * 9], ["ccc", "bb", "a"]]}
    rows[2] = [["e" * 20], ["d" * 9, "ccc"], ["bb", "a"]]
    for beam_size, expected in rows.items():
        model = Recorder(vocab)
        Translator(model, vocab, 50, Search(beam_size, batch_tokens=48)).translate_chunk(lines)
        assert [texts(vocab, batch) for batch in model.batches] == expected
        # 23 positions with the end mark, twice that with a beam of two: one less and one line fits
        for tokens, size in ((46 * beam_size, 2), (46 * beam_size - 1, 1)):
            model = Recorder(vocab)
            search = Search(beam_size, batch_tokens=tokens)
            Translator(model, vocab, 50, search).translate_chunk(["e" * 21, "f" * 21])
            assert len(model.batches[0]) == size
        model = Recorder(vocab)
        search = Search(beam_size, batch_tokens=16 * beam_size)
        Translator(model, vocab, 50, search).translate_chunk(["a", "b", "c"])
        assert [len(batch) for batch in model.batches] == [2, 1]


def test_the_mode_of_the_model_is_restored(vocab):
    """Translation is without dropout; training goes on with it."""
    for training in (True, False):
        model = Recorder(vocab).train(training)
        list(Translator(model, vocab, 50).translate(["ab"]))
        assert model.training == training and model.eval_modes == [True]


def test_lines_are_read_a_chunk_at_a_time(vocab, monkeypatch):
    """A translation is given before the next chunk is read, so input may be without end."""
    monkeypatch.setattr(module, "CHUNK_LINES", 3)
    read: list[int] = []
    lines = ("ab" for number in count() if not read.append(number))
    found = list(islice(Translator(Recorder(vocab), vocab, 50).translate(lines), 4))
    assert len(found) == 4 and len(read) == 6


def test_scores_are_there_when_wanted(vocab):
    """A beam of one has them if asked to; greedy search has none; `show` writes four digits."""
    [[greedy]] = Translator(Recorder(vocab), vocab, 50).translate_chunk(["abc"])
    scored = Translator(Recorder(vocab), vocab, 50, Search(1, scored=True))
    [[one]] = scored.translate_chunk(["abc"])
    assert math.isnan(greedy.score) and one.score < 0 and one.text == greedy.text
    beam = Translator(Recorder(vocab), vocab, 50, Search(2)).translate_chunk(["abc"])
    assert beam[0][0].score >= one.score - 1e-5 and len(beam[0]) == 2
    flat = Search(2, length_penalty=0.0)
    summed = Translator(Recorder(vocab), vocab, 50, flat).translate_chunk(["abc"])
    assert summed[0][0].score != pytest.approx(beam[0][0].score)
    assert Translation("x y", -1.23456).show(True) == "-1.2346\tx y"
    assert Translation("x y", -1.23456).show(False) == "x y"


def test_how_wide_a_beam_may_be(vocab):
    """From one to half the vocabulary; the message gives the bound."""
    half = vocab.tgt_size // 2
    assert Translator(Recorder(vocab), vocab, 50, Search(half)).search.beam_size == half
    for size in (0, half + 1):
        with pytest.raises(ConfigError, match=f"beam size {size}: choose 1 to {half}"):
            Translator(Recorder(vocab), vocab, 50, Search(size))
