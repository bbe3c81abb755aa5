"""BPE-dropout: random segmentations of words into pieces.

SentencePiece implements it, but its generator cannot be seeded reliably: since version 0.2.3 the
same seed gives different segmentations in different processes, so no run could be resumed exactly.
Here all random numbers come from a generator that the caller seeds.

Shapes: N words of L characters each. Characters are given as the ids of their own pieces.
"""

import numpy as np
import numpy.typing as npt

from transformer_mt.errors import ConfigError
from transformer_mt.text.batching import EncodedLines, flatten
from transformer_mt.text.vocabulary import WORD_MARK, PieceTable, SentencePieceModel

Integers = npt.NDArray[np.int64]
PieceIds = npt.NDArray[np.int32]
NO_PIECE = -1
"""Fills the rows of words that have fewer pieces than others."""
_CHARACTERS_AT_ONCE = 200_000
"""Limit on the number of words times their length; bounds memory. The segmentations depend on it,
so it may not change."""


class BPEDropout:
    """Merges the characters of words into pieces, and leaves out merges at random.

    Reference:
        Provilkov et al. 2020, BPE-Dropout: Simple and Effective Subword Regularization, section 3.

    Args:
        pieces: Pieces of a BPE model; a higher score means an earlier merge.
        dropout: Probability that a possible merge is left out; 0 gives the model's segmentation
            without sampling.
    """

    def __init__(self, pieces: PieceTable, dropout: float) -> None:
        self._dropout, self._size = dropout, len(pieces.texts)
        self._scores = np.append(pieces.scores, -np.inf)  # the last one is for NO_PIECE
        ids = pieces.ids
        merges = {
            ids[text[:cut]] * self._size + ids[text[cut:]]: merged
            for text, merged in ids.items()
            for cut in range(1, len(text))
            if text[:cut] in ids and text[cut:] in ids
        }
        # The last pair is a sentinel, which none equals; it is found for pairs above all others.
        rows = [*sorted(merges.items()), (np.iinfo(np.int64).max, NO_PIECE)]
        self._pairs, merged = np.array(rows, np.int64).T.copy()
        self._merged = merged.astype(np.int32)

    def segment(self, characters: PieceIds, rng: np.random.Generator) -> PieceIds:
        """Draws one segmentation of each word, (N, L), with NO_PIECE after the last piece."""
        segmentation = np.full(characters.shape, NO_PIECE, np.int32)
        rows, symbols = np.arange(len(characters)), characters
        merges = self._draw_merges(symbols[:, :-1], symbols[:, 1:], rng)
        while (width := symbols.shape[1]) > 1 and len(rows):
            scores = self._scores[merges]
            best = scores.argmax(axis=1)  # the leftmost of several
            goes_on = scores[np.arange(len(rows)), best] > -np.inf
            segmentation[rows[~goes_on], :width] = symbols[~goes_on]
            rows, symbols, merges, best = (a[goes_on] for a in (rows, symbols, merges, best))
            symbols, merges = self._merge(symbols, merges, best, rng)
        segmentation[rows, : symbols.shape[1]] = symbols
        return segmentation

    def _merge(
        self, symbols: PieceIds, merges: PieceIds, best: Integers, rng: np.random.Generator
    ) -> tuple[PieceIds, PieceIds]:
        """Merges the pair `best`, (N,), of the symbols, (N, W), of each word.

        `merges`, (N, W - 1), holds the result of merging each symbol with its right neighbour.
        Returns the new symbols, (N, W - 1), and merges, (N, W - 2).
        """
        count, width = symbols.shape
        columns, merged = np.arange(width), merges[np.arange(count), best]
        new = symbols[columns != best[:, None] + 1].reshape(count, width - 1)
        new[np.arange(count), best] = merged
        merges = merges[columns[:-1] != best[:, None]].reshape(count, width - 2)
        for changed in (best - 1, best):  # the merged symbol has new neighbours
            rows = np.flatnonzero((changed >= 0) & (changed < width - 2))
            left = changed[rows]
            merges[rows, left] = self._draw_merges(new[rows, left], new[rows, left + 1], rng)
        return new, merges

    def _draw_merges(self, left: PieceIds, right: PieceIds, rng: np.random.Generator) -> PieceIds:
        """Finds the merges of neighbours; NO_PIECE if there is none or it is dropped."""
        pairs = left.astype(np.int64) * self._size + right
        places = np.searchsorted(self._pairs, pairs)
        merges = np.where(self._pairs[places] == pairs, self._merged[places], np.int32(NO_PIECE))
        # A merge that is not dropped stays possible until a neighbour takes one of its symbols.
        # This is how SentencePiece implements the paper's algorithm, which draws at each step.
        merges[rng.random(merges.shape) < self._dropout] = NO_PIECE
        return merges


class LineSampler:
    """Draws segmentations of the lines of one language, word by word.

    A word with a byte piece, an unknown piece or a user-defined symbol keeps its segmentation. In
    all other words, the texts of the pieces concatenate to the word, before and after sampling, so
    that they decode to the same text.

    Args:
        model: The vocabulary of the language.
        rate: `vocab.sampling`.

    Raises:
        ConfigError: If the vocabulary is not one of BPE.
    """

    def __init__(self, model: SentencePieceModel, rate: float) -> None:
        if model.kind != "bpe":
            raise ConfigError(
                f"vocab.sampling = {rate:g}: this vocabulary is not of kind bpe, which BPE-dropout"
                " needs; use another one, or 0"
            )
        pieces = model.table()
        self._segment, ids = BPEDropout(pieces, rate).segment, pieces.ids
        # The characters of each piece, as ids; none if one is not a piece.
        self._characters = flatten(
            [[ids[c] for c in text] if all(c in ids for c in text) else [] for text in pieces.texts]
        )
        self._begins_word = np.array([text.startswith(WORD_MARK) for text in pieces.texts])

    def sample(self, lines: EncodedLines, rng: np.random.Generator) -> EncodedLines:
        """Draws one segmentation of each line."""
        begins_word = self._begins_word[lines.ids]
        begins_word[lines.offsets[:-1][lines.counts > 0]] = True
        starts = np.flatnonzero(begins_word)
        if not len(starts):
            return lines
        words = EncodedLines(lines.ids, np.append(starts, len(lines.ids)))
        characters = self._characters.take(lines.ids.astype(np.int64))
        lengths = np.add.reduceat(characters.counts, starts)
        firsts = characters.offsets[starts]
        lengths[np.minimum.reduceat(characters.counts, starts) == 0] = 0  # keeps its segmentation
        # `order` has the place of each word in the concatenation of `drawn`: first, as it was.
        drawn, order = [words], np.arange(len(words))
        for rows in _group_by_length(lengths):
            columns = firsts[rows, None] + np.arange(lengths[rows[0]])
            segmentations = self._segment(characters.ids[columns].astype(np.int32), rng)
            is_piece = segmentations != NO_PIECE
            ids = segmentations[is_piece].astype(lines.ids.dtype)
            order[rows] = np.arange(len(rows)) + sum(map(len, drawn))
            drawn.append(EncodedLines.cut(ids, is_piece.sum(axis=1)))
        sampled = EncodedLines.concatenate(drawn).take(order)
        return EncodedLines(sampled.ids, sampled.offsets[np.searchsorted(starts, lines.offsets)])


def _group_by_length(lengths: Integers) -> list[Integers]:
    """Groups the words of two or more characters by length; groups have a limited size."""
    groups = []
    for length in np.unique(lengths[lengths > 1]):
        rows, limit = np.flatnonzero(lengths == length), max(1, _CHARACTERS_AT_ONCE // int(length))
        groups += np.split(rows, range(limit, len(rows), limit))
    return groups
