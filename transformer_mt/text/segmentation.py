"""Random segmentations of words into pieces: BPE-dropout, and sampling from a unigram model.

SentencePiece implements both, but its generator cannot be seeded reliably: since version 0.2.3 the
same seed gives different segmentations in different processes, so no run could be resumed exactly.
Here all random numbers come from a generator that the caller seeds.

Shapes: N words of L characters each. Characters are given as the ids of their own pieces.
"""

import numpy as np
import numpy.typing as npt

from transformer_mt.text.vocabulary import PieceTable

Integers = npt.NDArray[np.int64]
PieceIds = npt.NDArray[np.int32]
NO_PIECE = -1
"""Fills the rows of words that have fewer pieces than others."""


class _Lookup:
    """A read-only dictionary of non-negative integers that looks up whole arrays."""

    def __init__(self, entries: dict[int, int]) -> None:
        keys = np.fromiter(entries.keys(), np.int64, len(entries))
        values = np.fromiter(entries.values(), np.int32, len(entries))
        order = np.argsort(keys)
        # A sentinel, which no key equals; it is found for keys above all others.
        self._keys = np.append(keys[order], np.iinfo(np.int64).max)
        self._values = np.append(values[order], np.int32(NO_PIECE))

    def __getitem__(self, keys: Integers) -> PieceIds:
        """Gives the value of each key, and NO_PIECE for a key that is missing."""
        positions = np.searchsorted(self._keys, keys)
        is_found = self._keys[positions] == keys
        return np.where(is_found, self._values[positions], np.int32(NO_PIECE))


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
        self._merges = _Lookup(
            {
                ids[text[:cut]] * self._size + ids[text[cut:]]: merged
                for text, merged in ids.items()
                for cut in range(1, len(text))
                if text[:cut] in ids and text[cut:] in ids
            }
        )

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
        for changed in (best - 1, best):
            rows = np.flatnonzero((changed >= 0) & (changed < width - 2))
            left = changed[rows]
            merges[rows, left] = self._draw_merges(new[rows, left], new[rows, left + 1], rng)
        return new, merges

    def _draw_merges(self, left: PieceIds, right: PieceIds, rng: np.random.Generator) -> PieceIds:
        """Finds the merges of neighbours; NO_PIECE if there is none or it is dropped."""
        merges = self._merges[left.astype(np.int64) * self._size + right]
        # A merge that is not dropped stays possible until a neighbour takes one of its symbols.
        # This is how SentencePiece implements the paper's algorithm, which draws at each step.
        merges[rng.random(merges.shape) < self._dropout] = NO_PIECE
        return merges


class UnigramSampling:
    """Draws from all segmentations of words with their smoothed probabilities.

    Reference:
        Kudo 2018, Subword Regularization: Improving Neural Network Translation Models with Multiple
        Subword Candidates, section 3.3, with l = infinity.

    Args:
        pieces: Pieces of a unigram model; a score is a log-probability.
        alpha: Exponent of the probabilities: the smaller, the more random.
    """

    def __init__(self, pieces: PieceTable, alpha: float) -> None:
        ids, self._size = pieces.ids, len(pieces.texts)
        nodes, children = {"": 0}, {}
        for text in ids:
            for end in range(1, len(text) + 1):
                if text[end - 1] not in ids:
                    break
                node = nodes.setdefault(text[:end], len(nodes))
                children[nodes[text[: end - 1]] * self._size + ids[text[end - 1]]] = node
        self._children = _Lookup(children)
        self._longest = max(map(len, nodes))
        # As an index, NO_PIECE selects the last entry of both arrays.
        self._pieces = np.array([ids.get(text, NO_PIECE) for text in nodes] + [NO_PIECE], np.int32)
        self._scores = np.append(alpha * pieces.scores, -np.inf)

    def segment(self, characters: PieceIds, rng: np.random.Generator) -> PieceIds:
        """Draws one segmentation of each word, (N, L), with NO_PIECE after the last piece."""
        words, word_of_row = _distinct_rows(characters)
        pieces = self._find_pieces(words)
        shares = self._cumulate(pieces)
        end = np.full(len(characters), characters.shape[1])
        backwards = np.full(characters.shape, NO_PIECE, np.int32)
        counts = np.zeros_like(end)
        while len(rows := np.flatnonzero(end)):
            word, last = word_of_row[rows], end[rows]
            shorter = (rng.random(len(rows))[:, None] >= shares[word, last]).sum(axis=1)
            backwards[rows, counts[rows]] = pieces[word, last, shorter]
            end[rows] -= shorter + 1
            counts[rows] += 1
        columns = np.arange(characters.shape[1])
        # After the last piece the index is negative, so that it selects a NO_PIECE from the end.
        return np.take_along_axis(backwards, counts[:, None] - 1 - columns, axis=1)

    def _find_pieces(self, words: PieceIds) -> PieceIds:
        """Finds every piece in every word, (N, L).

        Returns ids, (N, L + 1, K), by the position after the piece and its number of characters
        minus one; K is the length of the longest piece; NO_PIECE where there is none.
        """
        count, length = words.shape
        shape = (count, length + 1, min(self._longest, length))
        pieces = np.full(shape, NO_PIECE, np.int32)
        for start in range(length):
            node = np.zeros(count, np.int32)
            for end in range(start + 1, min(start + self._longest, length) + 1):
                node = self._children[node.astype(np.int64) * self._size + words[:, end - 1]]
                pieces[:, end, end - start - 1] = self._pieces[node]
        return pieces

    def _cumulate(self, pieces: PieceIds) -> npt.NDArray[np.float64]:
        """Computes the distribution of the length of the last piece before each position.

        Maps (N, L + 1, K) to cumulative probabilities over K; the last one is exactly 1.
        """
        scores = self._scores[pieces]
        shares = np.ones(pieces.shape)
        log_totals = np.zeros(pieces.shape[:2])
        for end in range(1, pieces.shape[1]):
            longest = min(end, pieces.shape[2])
            before = log_totals[:, end - longest : end][:, ::-1]
            logs = before + scores[:, end, :longest]
            peak = logs.max(axis=1, keepdims=True)
            sums = np.exp(logs - peak).cumsum(axis=1)
            log_totals[:, end] = peak[:, 0] + np.log(sums[:, -1])
            shares[:, end, :longest] = sums / sums[:, -1:]
        return shares


def _distinct_rows(rows: PieceIds) -> tuple[PieceIds, Integers]:
    """Returns the distinct rows, and for each row the index of the distinct row it equals."""
    packed = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.itemsize * rows.shape[1])))
    _, first, inverse = np.unique(packed.ravel(), return_index=True, return_inverse=True)
    return rows[first], inverse
