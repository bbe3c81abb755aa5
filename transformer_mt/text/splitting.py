"""Lines that are longer than a model's training sentences, split into parts that it can translate.

A model that was trained on single sentences translates one sentence of several, and leaves out the
others without a word.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from itertools import chain, pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict

from transformer_mt.config.keys import DataConfig
from transformer_mt.text.vocabulary import WORD_MARK, SentencePieceModel

SINGLE_SENTENCES = 0.01
"""Below this share of training lines with several sentences, every sentence is a part."""
PERCENTILE = 99.9

_ENDS = (".", "!", "?", "…")
_CLOSING = "\"'”’“»«›)]"
_OPENING = "\"'„“‚‘»«‹([¿¡-–—"
_POSSIBLE_END = re.compile("[.!?…][\"'”’“»«›)\\]]* |[。！？].")
_FULL_WIDTH_SENTENCE = re.compile("[^。！？]*[。！？]+[”’」』）]*|[^。！？]+")
_LETTERS = re.compile(r"(?!I$)[^\W\d_]|(?![ap]\.m$)[^\W\d_]{1,2}(\.[^\W\d_]{1,2})+")
"""An initial, but for the English "I", or letters with points, such as "z.B" and "U.S"."""
_ABBREVIATIONS = frozenset(
    "abb abt approx aufl bd betr bsp bspw bzgl bzw ca capt cf dipl dr evtl fa fr frl geb gebr gen"
    " ggf gov hl hr hrsg inkl insb jr kap lt messrs mio mr mrd mrs ms mt nr pfr prof rev sen sgt"
    " sog sr st str tel vgl vs zzgl".split()
)
_BEFORE_NUMBERS = frozenset(
    "abs apr art aug dec dez feb fig jan jul jun mar no nos nov oct okt op p pp sec sep sept"
    " vol".split()
)
"""Abbreviations, or words, after which a number belongs to the same sentence."""
_ORDINAL_LANGUAGES = frozenset("cs da de et fi hr hu is lv nb nn no pl sk sl sr tr".split())
"""Languages in which "2." and "II." are ordinals."""

_CLAUSE_END = re.compile(r"(?<=[;:,–—]\s)|(?<=[；：，、])")


@dataclass(frozen=True)
class SourceStatistics:
    """What the source side of a training text looks like; it decides how lines are split.

    Attributes:
        longest: Pieces of the longest line.
        percentile: Pieces that 99.9% of the lines do not exceed.
        several_sentences: Share of lines with the end of a sentence inside.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    longest: int
    percentile: int
    several_sentences: float

    @classmethod
    def measure(cls, lengths: npt.NDArray[np.int64], several_sentences: int) -> "SourceStatistics":
        """Computes them from the pieces of each line, (N,), and the lines of several sentences."""
        percentile = int(np.percentile(lengths, PERCENTILE, method="higher"))
        return cls(int(lengths.max()), percentile, several_sentences / len(lengths))

    @classmethod
    def combine(
        cls, choose: Callable[[Any], Any], texts: Iterable["SourceStatistics | None"]
    ) -> "SourceStatistics | None":
        """Chooses each value from those of several texts, by `max` or `min`, if any is known."""
        values = [astuple(text) for text in texts if text]
        return cls(*map(choose, zip(*values, strict=True))) if values else None

    @property
    def is_single_sentences(self) -> bool:
        """Whether a model trained on such lines may translate only one sentence of several."""
        return self.several_sentences < SINGLE_SENTENCES


def split_sentences(text: str, language: str) -> list[str]:
    """Splits text into sentences, which joined give the text again, in linear time.

    Args:
        text: Words separated by single spaces.
        language: Code of the language, such as de.
    """
    if not _POSSIBLE_END.search(text):  # as in most lines
        return [text] if text else []
    sentences = []
    for part in _FULL_WIDTH_SENTENCE.findall(text):
        words: list[str] = []
        has_capitals, has_letters = part != part.lower(), False
        for word, following in pairwise([*part.split(" "), ""]):
            words.append(word)
            has_letters = has_letters or any(map(str.isalpha, word))
            # In a text without capitals, any word may begin a sentence.
            first = following.lstrip(_OPENING)[:1]
            begins = first != "" and not (has_capitals and first.islower())
            if begins and has_letters and _ends_sentence(word, first, language):
                sentences.append(" ".join(words) + " ")
                words, has_letters = [], False
        sentences.append(" ".join(words))
    return sentences


def _ends_sentence(word: str, first: str, language: str) -> bool:
    """Tells whether a word ends a sentence; `first` is the first character of the next one."""
    word = word.rstrip(_CLOSING)
    if not word.endswith(".") or word.endswith(".."):
        return word.endswith(_ENDS)
    stem = word[:-1].lstrip(_OPENING)
    if language[:2] in _ORDINAL_LANGUAGES and re.fullmatch(r"\d{1,2}|[IVX]+", stem):
        return False
    if _LETTERS.fullmatch(stem) or stem.lower() in _ABBREVIATIONS:
        return False
    return not (first.isdigit() and stem.lower() in _BEFORE_NUMBERS)


class LineSplitter:
    """Splits lines of text into the parts that a model translates, each a list of piece ids.

    A line is split at the end of every sentence if the training lines were single sentences.
    Otherwise, and if a sentence is longer than nearly all training lines, as few parts as
    possible are made: at ends of sentences, else of clauses. Text without such marks is split at
    words, and within a word if need be, but only above the length limit of training.

    Args:
        model: The source vocabulary.
        data: Language and length limit of the training text.
        statistics: Those of the training text; None if an earlier version made the checkpoint.
        max_length: Replaces both limits, in pieces.
    """

    def __init__(
        self,
        model: SentencePieceModel,
        data: DataConfig,
        statistics: SourceStatistics | None = None,
        max_length: int | None = None,
    ) -> None:
        self._model, self._language = model, data.src_lang
        longest = statistics.longest if statistics else 0  # maybe of text before this one
        self.max_length = max_length or max(data.max_length, longest)
        usual = statistics.percentile if statistics and not max_length else self.max_length
        self.usual_length = min(usual, self.max_length)
        self.splits_every_sentence = bool(statistics and statistics.is_single_sentences)

    def describe(self) -> str:
        """Says where lines are split, to complete "splits lines"."""
        usual = f"of more than {self.usual_length} pieces"
        sentences = (
            "after every sentence" if self.splits_every_sentence else f"{usual} into sentences"
        )
        return (
            f"{sentences}, a sentence {usual} into clauses, and what has more than"
            f" {self.max_length} pieces after a word"
        )

    def split(self, lines: Sequence[str]) -> list[list[list[int]]]:
        """Splits lines into parts; an empty line has none."""
        parts = [[line] for line in lines]
        if self.splits_every_sentence:
            parts = [split_sentences(self._model.fold(line), self._language) for line in lines]
        encoded = iter(self._model.encode(list(chain.from_iterable(parts))))
        return [
            [ids for part in line for ids in self._shorten(part, next(encoded))] for line in parts
        ]

    def _shorten(self, text: str, ids: list[int]) -> list[list[int]]:
        """Splits a text that is longer than usual; an empty one has no parts."""
        if len(ids) <= self.usual_length:
            return [ids] if ids else []
        sentences = self._join(split_sentences(self._model.fold(text), self._language))
        # A part of a few words lacks context.
        shortest = self.usual_length // 4
        parts = [
            part
            for sentence in sentences
            for part in self._join(_CLAUSE_END.split(sentence), shortest)
        ]
        return [row for part_ids in self._model.encode(parts) for row in self._cut(part_ids)]

    def _join(self, units: Sequence[str], shortest: int = 0) -> list[str]:
        """Joins neighbours into as few texts as keep within the usual length, if they can.

        No text but the last has fewer pieces than `shortest`.
        """
        texts, length = [list[str]()], 0
        for unit, ids in zip(units, self._model.encode(units), strict=True):
            if length + len(ids) > self.usual_length and length > shortest:
                texts.append([])
                length = 0
            texts[-1].append(unit)
            length += len(ids)
        return ["".join(text) for text in texts]

    def _cut(self, ids: list[int]) -> list[list[int]]:
        """Cuts ids at `max_length`: before a word, or within one that is longer."""
        rows, start, pieces = [], 0, self._model.pieces(ids)
        while len(ids) - start > self.max_length:
            longest = start + self.max_length
            words = (i for i in range(longest, start, -1) if pieces[i].startswith(WORD_MARK))
            end = next(words, longest)
            rows.append(ids[start:end])
            start = end
        return [*rows, ids[start:]]
