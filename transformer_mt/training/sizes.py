"""Sizes that suit a text and a machine: vocabulary, model, batches, duration.

The sizes are those of the file in `configs/` for as much text, if there is one. With less text,
there are fewer pieces and more dropout.

Reference:
    Sennrich and Zhang 2019, Revisiting Low-Resource Neural Machine Translation: A Case Study.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from transformer_mt.text.cleaning import LineProblems
from transformer_mt.text.corpus import Pair

CHARACTER_COVERAGE = 0.9999
"""Share of the text that the counted characters cover; the rest are encoded as bytes."""
COVERED = 0.999
"""Share of the pairs that must not be longer than `data.max_length`."""
MIN_PAIRS = 20
"""With fewer pairs, one twentieth of them is less than one pair."""


def this_machine() -> tuple[str, bool]:
    """Describes what `train.device = "auto"` would use, and tells whether it is a GPU."""
    import torch  # takes seconds, and a mistake in the arguments of `init` should show at once

    from transformer_mt.system.device import choose_device, total_memory

    device, threads = choose_device("auto"), torch.get_num_threads()
    memory = f"{total_memory(device) / 1e9:.1f} GB of memory"
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} with {memory}", True
    return f"{threads} CPU thread{'s' * (threads != 1)}, {memory}, no GPU", False


@dataclass(frozen=True)
class TextStatistics:
    """Counts of a text.

    Attributes:
        pairs: Number of pairs.
        empty: Pairs of which at least one side is empty.
        src_words, tgt_words: Mean number of words per line; words are separated by white space.
        longest_bytes: UTF-8 bytes that the longer side of `COVERED` of the pairs does not exceed.
        distinct_words: Number of distinct words of both languages together.
        characters: Number of distinct characters of both languages, without the rarest, which make
            up 1 - `CHARACTER_COVERAGE` of the text.
        src_problems, tgt_problems: Numbers of lines that may be wrong, as text; empty if none.
    """

    pairs: int
    empty: int
    src_words: float
    tgt_words: float
    longest_bytes: int
    distinct_words: int
    characters: int
    src_problems: str = ""
    tgt_problems: str = ""

    @property
    def usable(self) -> int:
        """Pairs with text on both sides."""
        return self.pairs - self.empty


def measure_text(pairs: Iterable[Pair]) -> TextStatistics:
    """Reads a text once; memory grows with its distinct words, not with its length."""
    words, characters = Counter[str](), Counter[str]()
    lengths, src_problems, tgt_problems = Counter[int](), LineProblems(), LineProblems()
    empty = src_words = tgt_words = 0
    for src, tgt in pairs:
        src_problems.add(src)
        tgt_problems.add(tgt)
        src_side, tgt_side = src.split(), tgt.split()
        empty += not (src_side and tgt_side)
        src_words += len(src_side)
        tgt_words += len(tgt_side)
        words.update(src_side + tgt_side)
        lengths[max(len(src.encode()), len(tgt.encode()))] += 1
    for word, count in words.items():
        for character in word:
            characters[character] += count
    by_frequency = [count for _, count in characters.most_common()]
    total = lengths.total()
    return TextStatistics(
        pairs=total,
        empty=empty,
        src_words=src_words / max(total, 1),
        tgt_words=tgt_words / max(total, 1),
        longest_bytes=_first_covering(sorted(lengths.items()), COVERED),
        distinct_words=len(words),
        characters=_first_covering(list(enumerate(by_frequency, 1)), CHARACTER_COVERAGE),
        src_problems=str(src_problems),
        tgt_problems=str(tgt_problems),
    )


def _first_covering(counts: list[tuple[int, int]], share: float) -> int:
    """Returns the first value up to which the counts are at least a share of their sum."""
    left = share * sum(count for _, count in counts)
    for value, count in counts:
        left -= count
        if left <= 0:
            return value
    return 0


class Preset(NamedTuple):
    """Sizes for a minimum number of pairs, by the names of the configuration keys.

    `pairs` counts those held out too; with `gpu`, a CPU would take days. There are as many `layers`
    in the encoder as in the decoder, and `save_every` steps between validations too.
    """

    pairs: int
    gpu: bool
    vocab_size: int
    d_model: int
    d_ff: int
    n_heads: int
    layers: int
    dropout: float
    batch_tokens: int
    warmup_steps: int
    lr_scale: float
    save_every: int
    minutes: int


# fmt: off
PRESETS = (
    #      pairs      gpu    vocab  d_model d_ff heads layers drop batch warm-up lr  save  minutes
    Preset(0,         False,  2000, 128,     512,  4,   2,    0.3,  2000,   400, 1.0,  500,   60),
    Preset(10_000,    False,  4000, 256,    1024,  4,   3,    0.3,  2000,   500, 0.7,  500,   60),
    Preset(20_000,    False,  6000, 256,    1024,  4,   3,    0.3,  2000,   500, 0.7,  500,   60),
    Preset(100_000,   False,  8000, 128,     512,  4,   4,    0.1,  2000,  1000, 1.5, 1000,   90),
    Preset(100_000,   True,  10000, 512,    1024,  4,   6,    0.3,  4000,  4000, 0.7, 1000,  120),
    Preset(500_000,   True,  16000, 512,    2048,  8,   6,    0.1, 12000,  4000, 1.0, 2500,  480),
    Preset(2_000_000, True,  37000, 512,    2048,  8,   6,    0.1, 25000,  4000, 1.0, 2500, 1440),
)
# fmt: on
"""In order of text size: roughly configs/tutorial-2x128.toml, then configs/multi30k.toml with two
vocabulary sizes, the second its own, then configs/news-cpu.toml: a CPU is too slow for so much
text, and trains more steps of a narrower model. With a GPU: the usual sizes for IWSLT14, then the
base model with the pieces and steps of configs/wmt16-small.toml, then configs/wmt16-base.toml.
"""

_MAX_LENGTHS = (64, 128, 256, 512)
BYTES_PER_PIECE = 3
"""A low estimate for long lines: mean lengths are 3.4 to 4.7 bytes for German and English with
2,000 to 16,000 pieces, and a character of Chinese has 3."""

_MAX_HELD_OUT = 1_000
_HELD_OUT_SHARE = 20
_SPECIAL_PIECES = 260
"""256 bytes and four special pieces."""
_MANY_CHARACTERS = 1_000
"""Scripts with more characters, such as Chinese, need pieces in addition to one per character."""


@dataclass(frozen=True)
class Sizes:
    """The chosen sizes.

    Attributes:
        preset: The row of the table; `vocab_size` is its size, adapted to the text.
        held_out: Pairs for validation, and as many for the test; `train_pairs` are the others.
    """

    preset: Preset
    held_out: int
    train_pairs: int
    vocab_size: int
    max_length: int


def choose_sizes(text: TextStatistics, has_gpu: bool) -> Sizes:
    """Chooses sizes for a text of `MIN_PAIRS` pairs or more, to train with or without a GPU."""
    held_out = min(_MAX_HELD_OUT, text.pairs // _HELD_OUT_SHARE)
    fitting = [row for row in PRESETS if row.pairs <= text.usable and (has_gpu or not row.gpu)]
    preset = fitting[-1]
    pieces = text.longest_bytes / BYTES_PER_PIECE
    max_length = next((length for length in _MAX_LENGTHS if pieces <= length), _MAX_LENGTHS[-1])
    return Sizes(
        preset=preset,
        held_out=held_out,
        train_pairs=text.pairs - 2 * held_out,
        vocab_size=_choose_vocab_size(text, preset.vocab_size),
        max_length=max_length,
    )


def _choose_vocab_size(text: TextStatistics, usual_size: int) -> int:
    """Limits the size to what can be learned from the text.

    A vocabulary needs a piece for each character, and finds about one more per word. Half the words
    are enough: the training text has fewer than the whole text, and pieces learned from words that
    occur once are useless.
    """
    if text.characters > _MANY_CHARACTERS:
        usual_size += text.characters
    return min(usual_size, _SPECIAL_PIECES + text.characters + text.distinct_words // 2)
