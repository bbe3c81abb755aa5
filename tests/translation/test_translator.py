"""The translator by hand: limits, splitting, batches and scores, with a model not trained."""

import math
from concurrent.futures import CancelledError
from itertools import chain, pairwise
from types import SimpleNamespace

import pytest
import torch
from conftest import peak_memory, refuses
from torch import Tensor

from transformer_mt.config.keys import DataConfig, ModelConfig
from transformer_mt.errors import ConfigError
from transformer_mt.model.transformer import Transformer
from transformer_mt.text.splitting import LineSplitter
from transformer_mt.text.vocabulary import EOS_ID, PAD_ID, Vocabulary
from transformer_mt.translation.options import SearchOptions
from transformer_mt.translation.pytorch_runtime import PyTorchRuntime
from transformer_mt.translation.runtime import Hypothesis
from transformer_mt.translation.summary import count_kinds
from transformer_mt.translation.translator import Translation, Translator, _join


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Batches are decoded one after the other, in the order in which the model records them."""
    torch.set_num_threads(1)


class RecordingModel(Transformer):
    """A random model that records the sources of each batch, and may be made never to end."""

    def __init__(self, vocab: Vocabulary, ends: bool = True) -> None:
        torch.manual_seed(5)
        layers = {"encoder_layers": 1, "decoder_layers": 1, "norm": "pre"}
        config = ModelConfig(d_model=16, d_ff=32, n_heads=2, **layers)
        super().__init__(config, vocab.src.size, vocab.tgt.size, PAD_ID)
        for parameter in self.parameters():
            parameter.data.mul_(3.0)
        self.ends = ends
        self.batches: list[list[list[int]]] = []

    def begin_decoding(self, src: Tensor, max_length: int) -> object:
        self.batches.append([[i for i in row if i not in (PAD_ID, EOS_ID)] for row in src.tolist()])
        return super().begin_decoding(src, max_length)

    def next_logits(self, ids: Tensor, state: object) -> Tensor:
        logits = super().next_logits(ids, state)
        return logits if self.ends else logits.index_fill(-1, torch.tensor([EOS_ID]), -math.inf)

    @property
    def sources(self) -> list[list[int]]:
        """All sources, in the order in which they were translated."""
        return [row for batch in self.batches for row in batch]


def build_translator(vocab: Vocabulary, options: SearchOptions, max_length: int = 50) -> Translator:
    runtime = PyTorchRuntime(RecordingModel(vocab))
    return Translator(runtime, vocab, splitter(vocab, max_length), options)


def splitter(vocab: Vocabulary, max_length: int = 50) -> LineSplitter:
    return LineSplitter(vocab.src, DataConfig(path="none", max_length=max_length))


def texts(vocab: Vocabulary, rows: list[list[int]]) -> list[str]:
    return vocab.tgt.decode(rows)


@pytest.mark.parametrize("options", [(1,), (1, 1.0, True), (4,)])
def test_output_is_at_most_fifty_pieces_longer(vocab, monkeypatch, options):
    """Sabotage: allow 40 or 51; take the longest line's limit for all; call none of them cut."""
    monkeypatch.setattr(vocab.tgt, "decode", lambda rows: [" ".join(map(str, row)) for row in rows])
    lines = ["a", "bcdef", "abcdefghijkl"]
    runtime, options = PyTorchRuntime(RecordingModel(vocab, ends=False)), SearchOptions(*options)
    outputs = Translator(runtime, vocab, splitter(vocab), options).translate(lines)
    pieces = [len(row) for row in vocab.src.encode(lines)]
    assert [len(text.split()) for text in outputs] == [count + 50 for count in pieces]
    ranked = Translator(runtime, vocab, splitter(vocab), options).n_best([*lines, ""])
    best = [translations[0] for translations in ranked]
    assert [translation.status for translation in best] == ["cut"] * 3 + ["ok"]
    assert count_kinds(best) == {"split": 0, "copied": 0, "cut": 3, "empty": 0}


def test_chinese_parts_are_joined_without_a_space():
    """Sabotage: look at the end of the whole text alone."""
    parts = [[Translation(text, 0.0)] for text in ("你好。", "“世界！”", "", "A.", "“Go!”", "东京")]
    assert _join(parts, 1)[0].text == "你好。“世界！”A. “Go!” 东京"


@pytest.mark.parametrize("cut_length", [7, 9])
def test_a_split_line_joins_its_parts(vocab, cut_length):
    """Texts by a space, but none for an empty part; scores are summed; cut is what one part is.

    For each rank. Progress counts lines. Sabotage: average the scores; count the parts; ask only
    the last part, or all, whether they were cut; join empty parts too.
    """
    [[*_, letter]] = vocab.tgt.encode(["x"])

    def decode(batches, options):
        """Gives x alone, and as many as there may be, or none."""
        for batch in batches:
            counts = ((len(ids) + 50) * (len(ids) == cut_length) for ids, *_ in batch)
            yield [[Hypothesis([letter], -1.0), Hypothesis([letter] * n, -2.0)] for n in counts]

    runtime = SimpleNamespace(device_type="cpu", batch_tokens=99, chunk_lines=(8, 9), decode=decode)
    options = SearchOptions(2, n_best=2)
    translator = Translator(runtime, vocab, splitter(vocab, max_length=12), options)
    advances: list[int] = []
    lines = ["kl", "", "ab cd. ef gh ij", "  ", "ab cd. ef gh ij"]
    translations = translator.n_best(lines, advances.append)
    cut = Translation("x" * (cut_length + 50), -4.0, parts=2, is_cut=True)
    split = [Translation("x x", -2.0, parts=2), cut]
    empty = [Translation("", 0, parts=0)] * 2
    assert translations[1:] == [empty, split, empty, split]
    assert translations[0] == [Translation("x", -1.0), Translation("", -2.0)]
    counts = count_kinds(best for best, *_ in translations)
    assert counts == {"split": 2, "copied": 0, "cut": 0, "empty": 0}
    assert sum(advances) == len(lines) and min(advances) >= 0
    assert (translator.first_chunk_lines, translator.chunk_lines) == (8, 9)


@pytest.mark.parametrize("text", ["ab cd", "12", ""])
def test_memory_stays_flat(vocab, text):
    """However many chunks there are. Sabotage: keep lines, or batches; give no empty batch."""

    def decode(batches, options):
        for batch, _ in pairwise(chain(batches, [[]])):  # takes one in advance
            yield [[Hypothesis([], 0.0)] for _ in batch]

    runtime = SimpleNamespace(device_type="cpu", batch_tokens=99, chunk_lines=(8, 9), decode=decode)
    translator = Translator(runtime, vocab, splitter(vocab), SearchOptions())

    def translate(count):
        lines = ["ab cd", *[text] * count]
        # Python keeps tuples of up to 20 elements for others that follow, so sources are longer.
        chunks = ([line.replace("b", "b" * (n % 20 + 20)) for n in range(300)] for line in lines)
        for _ in translator.translate_chunks(chunks, lambda _: 0):
            pass

    few, many = (peak_memory(translate, count) for count in (20, 80))
    assert many < 1.2 * few


def test_batches_by_hand(vocab):
    """Longest first; a short line counts as eight. Sabotage: leave out end mark or beam size."""
    lines = ["b" * 2, "a", "c" * 3, "e" * 20, "d" * 9]  # the space before each is a piece too
    expected = {1: [["e" * 20, "d" * 9], ["ccc", "bb", "a"]]}
    expected[2] = [["e" * 20], ["d" * 9, "ccc"], ["bb", "a"]]

    def batches(lines: list[str], beam_size: int, batch_tokens: int) -> list[list[str]]:
        translator = build_translator(vocab, SearchOptions(beam_size, batch_tokens=batch_tokens))
        translator.n_best(lines)
        return [texts(vocab, batch) for batch in translator.runtime.model.batches]

    for beam_size in (1, 2):
        assert batches(lines, beam_size, 48) == expected[beam_size]
        # 23 positions with the end mark, times the beam size: one less and one line fits.
        long_lines = ["e" * 21, "f" * 21]
        assert len(batches(long_lines, beam_size, 46 * beam_size)) == 1
        assert len(batches(long_lines, beam_size, 46 * beam_size - 1)) == 2
        assert batches(["a", "b", "c"], beam_size, 16 * beam_size) == [["a", "b"], ["c"]]


def test_batches_can_be_cancelled(vocab):
    """At every position, such as on Ctrl-C. Sabotage: ignore `raise_if_cancelled`."""
    calls: list[None] = []

    def cancel() -> None:
        calls.append(None)
        if len(calls) == 3:
            raise CancelledError

    translator = build_translator(vocab, SearchOptions())
    workers = SimpleNamespace(map=lambda f, items: (f(item, cancel) for item in items))
    translator.runtime._workers = workers
    refuses(CancelledError, "", translator.n_best, ["a", "b"])


def test_batches_are_cut_chunk_by_chunk(vocab):
    """However many lines are given at once. Sabotage: sort all lines together."""
    translator = build_translator(vocab, SearchOptions())
    translator.first_chunk_lines = translator.chunk_lines = 2
    translated = translator.n_best(["a", "bcd", "", "ef", "ghijk"])
    batches = [texts(vocab, batch) for batch in translator.runtime.model.batches]
    assert batches == [["bcd", "a"], ["ef"], ["ghijk"]]
    assert translator.translate(["a", "bcd", "", "ef", "ghijk"]) == [t.text for [t] in translated]
    assert translator.runtime.model.batches[3:] == translator.runtime.model.batches[:3]
    translator.runtime.model.batches.clear()
    translator.first_chunk_lines, translator.chunk_lines = 1, 3
    translator.translate(["a", "bcd", "ef", "ghijk", "lm"])
    batches = [texts(vocab, batch) for batch in translator.runtime.model.batches]
    assert batches == [["a"], ["ghijk", "bcd", "ef"], ["lm"]]


def test_equal_lines_of_a_chunk_are_translated_once(vocab):
    """Parts too, but not those of another chunk. Sabotage: remember the lines of all chunks."""
    translator, counts = build_translator(vocab, SearchOptions(batch_tokens=1)), []
    translator.first_chunk_lines = translator.chunk_lines = 4
    translated = translator.n_best(["ab", "cd", "", "ab", "ab", " ab"], counts.append)
    assert texts(vocab, translator.runtime.model.sources) == ["ab", "cd", "ab"]
    assert sum(counts) == 6 and counts[1:3] == [2, 1]
    assert len({repr(translated[line]) for line in (0, 3, 4, 5)}) == 1
    part = build_translator(vocab, SearchOptions(), max_length=12)
    part.translate(["ab cd. ef gh ij", "ab cd."])
    assert texts(vocab, part.runtime.model.sources) == ["ef gh ij", "ab cd."]


def test_lines_gone_wrong_are_told_apart():
    """An empty output of a line with words, one that was cut or copied, an empty line."""
    translations = [
        Translation("a", 0.0),
        Translation("a", 0.0, parts=3),
        Translation("a a a", 0.0, parts=2, is_cut=True),
        Translation(" ", 0.0, is_cut=True),
        Translation("", 0.0, parts=0),
        Translation("12", 0.0, parts=0),
    ]
    assert [each.status for each in translations] == ["ok", "ok", "cut", "empty", "ok", "copied"]
    counts = count_kinds(translations)
    assert counts == {"split": 2, "copied": 1, "cut": 1, "empty": 1}


def test_limits_of_the_options(vocab):
    """Sabotage: compare with the limits the other way round, which passes NaN."""
    half = vocab.tgt.size // 2
    assert build_translator(vocab, SearchOptions(half, 10.0)).options.beam_size == half
    for size in (0, half + 1):
        message = f"beam size {size}: choose 1 to {half}"
        refuses(ConfigError, message, build_translator, vocab, SearchOptions(size))
    for alpha in (-0.1, 10.1, math.inf, math.nan):
        refuses(ConfigError, "length penalty .*: choose 0 to 10", SearchOptions, 4, alpha)
