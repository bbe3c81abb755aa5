"""Lines that are longer than a model's training sentences, split into parts that it can translate.

A model that was trained on single sentences translates one sentence of several, and leaves out the
others without a word.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice, pairwise
from typing import ClassVar

import numpy as np
from pydantic import ConfigDict

from transformer_mt.config.keys import DataConfig
from transformer_mt.text.batching import Lengths
from transformer_mt.text.vocabulary import WORD_MARK, SentencePieceModel, fold_whitespace

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

_CLAUSE_ENDS = (";", ":", ",", "–", "—")
_CLAUSE_ENDS_WITHOUT_SPACE = ("；", "：", "，", "、")


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
    def measure(cls, lengths: Lengths, several_sentences: int) -> "SourceStatistics":
        """Computes them from the pieces of each line, (N,), and the lines of several sentences."""
        percentile = int(np.percentile(lengths, PERCENTILE, method="higher"))
        return cls(int(lengths.max()), percentile, several_sentences / len(lengths))

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
        self.max_length = max_length or data.max_length
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
        texts = [fold_whitespace(line) for line in lines]
        parts = [[text] for text in texts]
        if self.splits_every_sentence:
            parts = [split_sentences(text, self._language) for text in texts]
        encoded = iter(self._model.encode(list(chain.from_iterable(parts))))
        return [
            [
                ids
                for part, part_ids in zip(line, islice(encoded, len(line)), strict=True)
                for ids in self._shorten(part, part_ids)
            ]
            for line in parts
        ]

    def _shorten(self, text: str, ids: list[int]) -> list[list[int]]:
        """Splits a text that is longer than usual; an empty one has no parts."""
        if len(ids) <= self.usual_length:
            return [ids] if ids else []
        sentences, rows = split_sentences(text, self._language), [ids]
        if len(sentences) > 1:
            ends = list(accumulate(map(len, self._model.encode(sentences))))
            text_ends = dict(zip(ends, accumulate(map(len, sentences)), strict=True))
            chosen = [text_ends[end] for end in _choose_ends(ends, self.usual_length)]
            rows = self._model.encode([text[i:j] for i, j in pairwise([0, *chosen])])
        for find_ends, limit, shortest in (
            # A part of a few words lacks context.
            (_clause_ends, self.usual_length, self.usual_length // 4),
            (_word_ends, self.max_length, 0),
            (_piece_ends, self.max_length, 0),
        ):
            rows = [
                part
                for row in rows
                for part in (
                    _cut(row, find_ends(self._model.pieces(row)), limit, shortest)
                    if len(row) > limit
                    else [row]
                )
            ]
        return rows


def _clause_ends(pieces: list[str]) -> list[int]:
    return [
        i
        for i, (piece, following) in enumerate(pairwise(pieces), start=1)
        if piece.endswith(_CLAUSE_ENDS_WITHOUT_SPACE)
        or (piece.endswith(_CLAUSE_ENDS) and following.startswith(WORD_MARK))
    ]


def _word_ends(pieces: list[str]) -> list[int]:
    return [i for i in range(1, len(pieces)) if pieces[i].startswith(WORD_MARK)]


def _piece_ends(pieces: list[str]) -> list[int]:
    return list(range(1, len(pieces)))


def _cut(ids: list[int], ends: list[int], limit: int, shortest: int) -> list[list[int]]:
    chosen = _choose_ends([*ends, len(ids)], limit, shortest)
    return [ids[i:j] for i, j in pairwise([0, *chosen])]


def _choose_ends(ends: Sequence[int], limit: int, shortest: int = 0) -> list[int]:
    """Chooses as few of the ascending ends as keep parts within the limit, if they can.

    No part but the last has fewer pieces than `shortest`; the last end is always chosen.
    """
    chosen, start, previous = [], 0, 0
    for end in ends:
        if end - start > limit and previous - start > shortest:
            chosen.append(previous)
            start = previous
        previous = end
    return [*chosen, previous]
