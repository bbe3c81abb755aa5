"""Packs: the pairs of a micro-batch one behind the other, in rows that have one length for a run.

Shapes: N capacity of a pack, Q = N / `BLOCK` blocks of tokens.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from transformer_mt.text.batching import EncodedLines, EncodedPairs, Indices, Lengths
from transformer_mt.text.vocabulary import BOS_ID, EOS_ID, PAD_ID

BLOCK = 128
"""Tokens of a block: attention skips blocks of keys that no query of a block may attend to."""


@dataclass(frozen=True)
class Pack:
    """Ids of pairs in rows of N tokens, with what attention needs to keep the pairs apart.

    Attributes:
        ids: `src`, `tgt_in` and `tgt_out` of a `Batch`, padded at the end, (3, N), int32.
        positions: Position of each source and target token in its sentence, (2, N), int32.
        segments: Number of the pair that each source and target token belongs to, -1 for padding,
            (2, N), int32.
        key_blocks: First and last block of keys that each block of queries attends to, in the
            self-attention of encoder and decoder and in cross-attention, (3, Q, 2), int32.
        src_tokens: Number of source tokens without padding.
        tgt_tokens: Likewise of target tokens.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    segments: torch.Tensor
    key_blocks: torch.Tensor
    src_tokens: int
    tgt_tokens: int

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors of the pack, whose shapes depend on the capacity alone."""
        return self.ids, self.positions, self.segments, self.key_blocks


def pack_capacity(tokens: int, longest: int) -> int:
    """Gives the smallest capacity for packs that are complete with `tokens` tokens of a side.

    The pair that completes a pack has up to `longest` tokens, and each side ends with padding.
    """
    return BLOCK * math.ceil((tokens + longest + 1) / BLOCK)


def cut_into_packs(
    step: Indices, src_lengths: Lengths, tgt_lengths: Lengths, capacity: int, workers: int = 1
) -> list[Indices]:
    """Cuts a step into a multiple of the workers, of about equal numbers of tokens.

    The multiple is the smallest that the capacity allows; with fewer pairs each is a pack of its
    own. Together the packs hold each index once, in order.

    Args:
        step: Indices of pairs.
        src_lengths: Tokens of each source of the corpus, (N,).
        tgt_lengths: Tokens of each target of the corpus, (N,).
        capacity: Tokens of a side in a pack, at least one of them padding.
        workers: Processes that compute packs at the same time.
    """
    totals = np.cumsum((src_lengths[step], tgt_lengths[step]), axis=1)  # (2, pairs)
    fewest = len(_fill_up(totals, capacity - 1))
    count = min(workers * math.ceil(fewest / workers), len(step))
    size = int(totals[:, -1].max()) // count
    while len(starts := _fill_up(totals, size)) > count:
        size += 1 + size // 100
    return np.split(step, starts[1:])


def _fill_up(totals: Lengths, size: int) -> list[int]:
    """Gives the first pair of each pack if each takes pairs up to `size` tokens of a side.

    Args:
        totals: Tokens of the pairs up to each, that one included, (2, pairs).
        size: Limit on the tokens of a side, which a single pair may exceed.
    """
    starts, done = [0], np.zeros(2, np.int64)
    while True:
        full = min(np.searchsorted(totals[side], done[side] + size, "right") for side in (0, 1))
        end = max(int(full), starts[-1] + 1)
        if end >= totals.shape[1]:
            return starts
        starts.append(end)
        done = totals[:, end - 1]


def pack_pairs(pairs: EncodedPairs, indices: Indices, capacity: int) -> Pack:
    """Collects the given pairs, with BOS and EOS, into a pack on the CPU.

    Args:
        pairs: The corpus.
        indices: Positions of pairs in it, which have fewer than `capacity` tokens a side.
        capacity: N, a multiple of `BLOCK`.
    """
    src, tgt = pairs.src.take(indices), pairs.tgt.take(indices)
    src_lengths, tgt_lengths = src.counts + 1, tgt.counts + 1
    ids = (_row(src, capacity, False), _row(tgt, capacity, True), _row(tgt, capacity, False))
    src_places, tgt_places = _places(src_lengths, capacity), _places(tgt_lengths, capacity)
    key_blocks = (
        _key_blocks(src_lengths, src_lengths, capacity, causal=False),
        _key_blocks(tgt_lengths, tgt_lengths, capacity, causal=True),
        _key_blocks(tgt_lengths, src_lengths, capacity, causal=False),
    )
    return Pack(
        ids=torch.from_numpy(np.stack(ids)),
        positions=torch.from_numpy(np.stack((src_places[0], tgt_places[0]))),
        segments=torch.from_numpy(np.stack((src_places[1], tgt_places[1]))),
        key_blocks=torch.from_numpy(np.stack(key_blocks)),
        src_tokens=int(src_lengths.sum()),
        tgt_tokens=int(tgt_lengths.sum()),
    )


def _row(lines: EncodedLines, capacity: int, begin: bool) -> npt.NDArray[np.int32]:
    """Puts lines one behind the other, each with BOS before it or with EOS after it, (N,)."""
    lengths = lines.counts + 1
    ends = np.cumsum(lengths)
    marks = ends - lengths if begin else ends - 1
    row = np.full(capacity, PAD_ID, np.int32)
    is_piece = np.arange(capacity) < ends[-1]
    is_piece[marks] = False
    row[is_piece] = lines.ids
    row[marks] = BOS_ID if begin else EOS_ID
    return row


def _places(lengths: Lengths, capacity: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Gives the position in its sentence and the sentence, -1 for padding, of each token, (N,)."""
    total = int(lengths.sum())
    positions, segments = np.zeros(capacity, np.int32), np.full(capacity, -1, np.int32)
    positions[:total] = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    segments[:total] = np.repeat(np.arange(len(lengths)), lengths)
    return positions, segments


def _key_blocks(
    query_lengths: Lengths, key_lengths: Lengths, capacity: int, causal: bool
) -> npt.NDArray[np.int32]:
    """Gives the first and last block of keys for each block of queries, (Q, 2).

    Padding attends to the first token of the keys' padding: nobody reads what comes of it, but
    without any key the softmax would be undefined.
    """
    first_query = np.arange(0, capacity, BLOCK)
    last_query = first_query + BLOCK - 1
    query_ends, key_ends = np.cumsum(query_lengths), np.cumsum(key_lengths)
    first_segment = np.searchsorted(query_ends, first_query, "right")  # padding is the last one
    last_segment = np.searchsorted(query_ends, last_query, "right")
    key_starts = np.append(key_ends - key_lengths, key_ends[-1])
    last_keys = np.append(key_ends - 1, key_ends[-1])
    if causal:
        last_key = np.minimum(last_keys[last_segment], last_query)
    else:
        last_key = last_keys[last_segment]
    return np.stack((key_starts[first_segment], last_key), axis=1).astype(np.int32) // BLOCK
