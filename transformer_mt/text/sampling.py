"""Subword regularisation: different segmentations of the training pairs in each epoch.

The segmentations are a pure function of seed, epoch and prepared corpus, so that a resumed run sees
the same ones. Pairs are segmented in blocks, each with its own random generator.
"""

import os
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch

from transformer_mt.config.keys import Config
from transformer_mt.errors import ConfigError
from transformer_mt.text.batching import EncodedLines, EncodedPairs, Ids
from transformer_mt.text.prepared import PreparedCorpus
from transformer_mt.text.segmentation import (
    NO_PIECE,
    BPEDropout,
    Integers,
    PieceIds,
    UnigramSampling,
)
from transformer_mt.text.vocabulary import WORD_MARK, PieceTable

_PAIRS_PER_BLOCK = 20_000
_CHARACTERS_AT_ONCE = 200_000
"""Limit on the number of words times their length; bounds memory. The segmentations depend on this
and on the size of a block, so neither may change."""
_NICENESS = 19
_MAX_THREADS = 4
"""More threads would wait for Python's lock, and make the training thread wait too."""


class LineSampler:
    """Draws segmentations of the lines of one language, word by word.

    A word with a byte piece, an unknown piece or a user-defined symbol keeps its segmentation. In
    all other words, the texts of the pieces concatenate to the word, before and after sampling, so
    that they decode to the same text.

    Args:
        pieces: The vocabulary of the language.
        rate: `vocab.sampling`.

    Raises:
        ConfigError: If the vocabulary allows only one segmentation of each word.
    """

    def __init__(self, pieces: PieceTable, rate: float) -> None:
        if pieces.kind is None:
            raise ConfigError(
                f"vocab.sampling = {rate:g}: this vocabulary is one of words or characters, which"
                " has no other segmentations; use one of kind bpe or unigram, or 0"
            )
        sampler = BPEDropout if pieces.kind == "bpe" else UnigramSampling
        self._segment = sampler(pieces, rate).segment
        ids = pieces.ids
        characters = [
            [ids[c] for c in text] if all(c in ids for c in text) else [] for text in pieces.texts
        ]
        self._counts = np.fromiter(map(len, characters), np.int64, len(characters))
        self._starts = np.cumsum(self._counts) - self._counts
        self._characters = np.array([i for row in characters for i in row], np.int32)
        self._begins_word = np.array([text.startswith(WORD_MARK) for text in pieces.texts])

    def sample(self, lines: EncodedLines, rng: np.random.Generator) -> EncodedLines:
        """Draws one segmentation of each line."""
        ids = lines.ids
        begins_word = self._begins_word[ids]
        begins_word[lines.offsets[:-1][lines.counts > 0]] = True
        words = np.flatnonzero(begins_word)
        if not len(words):
            return lines
        counts = self._counts[ids]
        characters = self._characters[_ranges(self._starts[ids], counts)]
        lengths = np.add.reduceat(counts, words)
        firsts = np.cumsum(lengths) - lengths
        lengths[np.minimum.reduceat(counts, words) == 0] = 0  # keeps its segmentation
        pieces = np.diff(np.append(words, len(ids)))
        drawn: list[tuple[Integers, PieceIds]] = []
        for rows in _group_by_length(lengths):
            columns = firsts[rows, None] + np.arange(lengths[rows[0]])
            segmentations = self._segment(characters[columns], rng)
            pieces[rows] = (segmentations != NO_PIECE).sum(axis=1)
            drawn.append((rows, segmentations))
        ends = np.concatenate(([0], np.cumsum(pieces)))
        sampled = np.empty(ends[-1], ids.dtype)
        kept = np.flatnonzero(lengths <= 1)
        sampled[_ranges(ends[kept], pieces[kept])] = ids[_ranges(words[kept], pieces[kept])]
        for rows, segmentations in drawn:
            present = segmentations[segmentations != NO_PIECE]
            sampled[_ranges(ends[rows], pieces[rows])] = present
        return EncodedLines(sampled, ends[np.searchsorted(words, lines.offsets)])


class EpochPairs:
    """Provides the pairs of an epoch, and prepares those of the next one in background threads.

    The segmentations are a pure function of corpus, seed and epoch. With several processes, each
    prepares the same pairs for itself.

    Args:
        corpus: The prepared pairs, which all epochs use if `vocab.sampling` is 0.
        config: How to sample segmentations, and the seed. A pair that would be longer than
            `data.max_length` keeps its segmentation.

    Raises:
        ConfigError: If the vocabulary has only one segmentation of every word.
    """

    def __init__(self, corpus: PreparedCorpus, config: Config) -> None:
        self._prepared, self._samplers = corpus.pairs, list[LineSampler]()
        self._max_length, self._seed = config.data.max_length, config.train.seed
        if rate := config.vocab.sampling:
            src = LineSampler(corpus.vocab.src.table(), rate)
            shared = corpus.vocab.shared
            self._samplers = [src, src if shared else LineSampler(corpus.vocab.tgt.table(), rate)]
        # NumPy mostly runs without Python's lock.
        count = min(torch.get_num_threads(), _MAX_THREADS)
        self._threads = ThreadPoolExecutor(count, initializer=_lower_priority)
        self._started: tuple[int, list[Future[EncodedPairs]]] | None = None

    def start(self, epoch: int) -> None:
        """Starts to prepare the pairs of an epoch, from 0, unless all epochs use the same pairs."""
        if self._samplers:
            blocks = range(-(-len(self._prepared) // _PAIRS_PER_BLOCK))
            futures = [self._threads.submit(self._sample_block, epoch, i) for i in blocks]
            self._started = epoch, futures

    def of_epoch(self, epoch: int) -> EncodedPairs:
        """Returns the pairs of an epoch, from 0, in the order of the corpus."""
        if self._started is None or self._started[0] != epoch:
            self.start(epoch)
        if self._started is None:
            return self._prepared
        blocks = [future.result() for future in self._started[1]]
        return EncodedPairs(
            _concatenate([block.src for block in blocks]),
            _concatenate([block.tgt for block in blocks]),
        )

    def close(self) -> None:
        """Ends the threads once they have finished their current blocks."""
        self._threads.shutdown(cancel_futures=True)

    def _sample_block(self, epoch: int, block: int) -> EncodedPairs:
        sides = [_take_block(side, block) for side in (self._prepared.src, self._prepared.tgt)]
        # Numbers from 1, since NumPy treats [seed, epoch] and [seed, epoch, 0, 0] as the same seed.
        src, tgt = (
            sampler.sample(lines, np.random.default_rng([self._seed, epoch, block + 1, side + 1]))
            for side, (sampler, lines) in enumerate(zip(self._samplers, sides, strict=True))
        )
        too_long = np.maximum(src.counts, tgt.counts) > self._max_length
        return EncodedPairs(_replace(src, sides[0], too_long), _replace(tgt, sides[1], too_long))


def _ranges(starts: Integers, lengths: Integers) -> Integers:
    """Concatenates ranges: [3, 8] and [2, 1] give [3, 4, 8]."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)


def _group_by_length(lengths: Integers) -> list[Integers]:
    """Groups the words of two or more characters by length; groups have a limited size."""
    groups = []
    for length in np.unique(lengths[lengths > 1]):
        rows, limit = np.flatnonzero(lengths == length), max(1, _CHARACTERS_AT_ONCE // int(length))
        groups += [rows[start : start + limit] for start in range(0, len(rows), limit)]
    return groups


def _take_block(lines: EncodedLines, block: int) -> EncodedLines:
    start = block * _PAIRS_PER_BLOCK
    offsets = lines.offsets[start : start + _PAIRS_PER_BLOCK + 1]
    return EncodedLines(lines.ids[offsets[0] : offsets[-1]], offsets - offsets[0])


def _replace(
    lines: EncodedLines, others: EncodedLines, is_replaced: npt.NDArray[np.bool_]
) -> EncodedLines:
    """Replaces the flagged lines with the corresponding lines of `others`."""
    counts = np.where(is_replaced, others.counts, lines.counts)
    starts = np.where(is_replaced, others.offsets[:-1] + len(lines.ids), lines.offsets[:-1])
    return EncodedLines.cut(_join([lines.ids, others.ids])[_ranges(starts, counts)], counts)


def _concatenate(blocks: Sequence[EncodedLines]) -> EncodedLines:
    counts = np.concatenate([block.counts for block in blocks])
    return EncodedLines.cut(_join([block.ids for block in blocks]), counts)


def _join(parts: Sequence[Ids]) -> Ids:
    joined: Ids = np.empty(sum(map(len, parts)), parts[0].dtype)
    return np.concatenate(parts, out=joined)


def _lower_priority() -> None:
    """Gives priority on the cores to the training threads, which wait for each other."""
    if sys.platform == "linux":  # elsewhere, priority applies to the process
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
