"""Statistics of a parallel text: pairs, words, characters, and the distribution of lengths."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from transformer_mt.text.corpus import Pair

CHARACTER_COVERAGE = 0.9999
"""Share of the text that the counted characters cover; the rest are encoded as bytes."""


@dataclass
class Lengths:
    """Number of lines of each length."""

    counts: Counter[int] = field(default_factory=Counter)

    @property
    def lines(self) -> int:
        """Number of lines."""
        return self.counts.total()

    @property
    def total(self) -> int:
        """Sum of all lengths."""
        return sum(length * count for length, count in self.counts.items())

    @property
    def mean(self) -> float:
        """Mean length."""
        return self.total / max(self.lines, 1)

    def quantile(self, share: float) -> int:
        """Returns the smallest length that at least this share of the lines does not exceed.

        Args:
            share: From 0 to 1.
        """
        left = share * self.lines
        for length, count in sorted(self.counts.items()):
            left -= count
            if left <= 0:
                return length
        return 0


@dataclass(frozen=True)
class TextStatistics:
    """Result of `measure_text`.

    Attributes:
        pairs: Number of pairs.
        empty: Pairs of which at least one side is empty.
        src_words: Words of each source line; words are separated by white space.
        tgt_words: Words of each target line.
        longer_bytes: UTF-8 bytes of the longer side of each pair.
        distinct_words: Number of distinct words of both languages together.
        characters: Number of distinct characters of both languages, without the rarest, which make
            up 1 - `CHARACTER_COVERAGE` of the text.
    """

    pairs: int
    empty: int
    src_words: Lengths
    tgt_words: Lengths
    longer_bytes: Lengths
    distinct_words: int
    characters: int


def measure_text(pairs: Iterable[Pair]) -> TextStatistics:
    """Reads a text once; memory grows with its distinct words, not with its length."""
    src_words, tgt_words, longer_bytes = Lengths(), Lengths(), Lengths()
    words: Counter[str] = Counter()
    empty = 0
    for src, tgt in pairs:
        sides = src.split(), tgt.split()
        empty += not all(sides)
        for side, lengths in zip(sides, (src_words, tgt_words), strict=True):
            words.update(side)
            lengths.counts[len(side)] += 1
        longer_bytes.counts[max(len(src.encode()), len(tgt.encode()))] += 1
    return TextStatistics(
        pairs=longer_bytes.lines,
        empty=empty,
        src_words=src_words,
        tgt_words=tgt_words,
        longer_bytes=longer_bytes,
        distinct_words=len(words),
        characters=_count_characters(words),
    )


def _count_characters(words: Counter[str]) -> int:
    """Counts the most frequent characters until they make up `CHARACTER_COVERAGE` of the text."""
    occurrences: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            occurrences[character] += count
    left = CHARACTER_COVERAGE * occurrences.total()
    for number, (_, count) in enumerate(occurrences.most_common(), start=1):
        left -= count
        if left <= 0:
            return number
    return len(occurrences)
