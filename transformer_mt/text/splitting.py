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
import sentencex
from pydantic import ConfigDict

from transformer_mt.config.keys import DataConfig
from transformer_mt.text.batching import Lengths
from transformer_mt.text.vocabulary import WORD_MARK, SentencePieceModel, fold_whitespace

SINGLE_SENTENCES = 0.01
"""Below this share of training lines with several sentences, every sentence is a part."""
PERCENTILE = 99.9

_BLOCK = 2000
"""Characters that sentencex is given at once: among open quotes its time grows as their square."""
_QUOTES = re.compile(r"""["'„“”‚‘’«»‹›()\[\]]""")
_CLOSING_QUOTES = re.compile("(?:(?<=[。！？])[”’]+)?")
_ORDINAL_LANGUAGES = frozenset("cs da de et fi hr hu is lv nb nn no pl sk sl sr tr".split())
_ORDINAL = re.compile(r"(?<!\S)\d{1,2}\.\s?$")
_ABBREVIATION = re.compile(
    r"(?<!\S)(?:[A-HJ-ZÄÖÜ]|Bsp|Fa|Frl|Gebr|Hl|Hrsg|Kap|Pfr|Vol|approx|cf|pp)\.\s?$"
)
"""What sentencex may take for ends of sentences; initials are any capital but the English "I"."""
_MISSED_END = re.compile(r"(?:…|\b(?:usw|etc)\.)\s(?=[A-ZÄÖÜ])")

_AFTER_END = re.compile(r"(?<=[.!?…]\s)[a-zà-öø-þ]")
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
    """Splits text into sentences, which joined give the text again.

    Time is linear in the length, and a sentence that does not end within `_BLOCK` characters may
    be joined with the next one.

    Args:
        text: Words separated by single spaces.
        language: Code of the language, such as de; an unknown one is split as English.
    """
    ends, start = [], 0
    while len(text) - start > _BLOCK:
        found = _sentence_ends(text[start : start + _BLOCK], language)
        ends += [start + end for end in found]
        # A sentence that the block cuts is read again with the next one.
        start = ends[-1] if found else start + _BLOCK
    ends += [start + end for end in _sentence_ends(text[start:], language)]
    return [text[i:j] for i, j in pairwise([0, *ends, len(text)])]


def _sentence_ends(text: str, language: str) -> list[int]:
    """Finds where the sentences of a text end, but for the last one.

    Sentencex does not look into quotations, so it is given the text without quotation marks.
    """
    plain = _QUOTES.sub("", text)
    if plain == plain.lower():  # a text without capitals, in which sentencex finds no sentences
        plain = _AFTER_END.sub(lambda match: match[0].upper(), plain)
    segments = sentencex.segment(language, plain)
    ends = {match.end() for match in _MISSED_END.finditer(plain)}
    offsets = accumulate(map(len, segments))
    for segment, end in zip(segments[:-1], offsets, strict=False):
        if _is_sentence(segment, language) and not plain[end].islower():
            ends.add(end)
    if len(plain) < len(text) and ends:
        kept = [i for i, character in enumerate(text) if not _QUOTES.match(character)]
        # Opening quotes belong to the next sentence, closing ones without a space to the last.
        matches = (_CLOSING_QUOTES.match(text, kept[end - 1] + 1) for end in ends)
        ends = {match.end() for match in matches if match}
    return sorted(ends)


def _is_sentence(segment: str, language: str) -> bool:
    """Tells whether what sentencex takes for a sentence is one, and not "der 2." or "1.5"."""
    if segment[-1:].isascii() and not segment[-1:].isspace():
        return False  # a point within a word, such as in an address
    if not any(map(str.isalpha, segment)):
        return False
    if language[:2] in _ORDINAL_LANGUAGES and _ORDINAL.search(segment, max(len(segment) - 8, 0)):
        return False
    return _ABBREVIATION.search(segment, max(len(segment) - 12, 0)) is None


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
