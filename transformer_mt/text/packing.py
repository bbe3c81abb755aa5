"""Packs: the pairs of a micro-batch one behind the other, in rows that have one length for a run.

Shapes: N capacity of a pack, Q = N / `BLOCK` blocks of tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from transformer_mt.text.batching import EncodedPairs, Ids, Indices, Lengths
from transformer_mt.text.vocabulary import PAD_ID

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
    """Gives the capacity of packs for `tokens` tokens of a side and a pair of up to `longest` more.

    Each side ends with padding.
    """
    return BLOCK * math.ceil((tokens + longest + 1) / BLOCK)


def cut_into_packs(
    step: Indices, lengths: Lengths, capacity: int, workers: int = 1
) -> list[Indices]:
    """Cuts a step into the smallest multiple of the workers of packs that hold it.

    Adjacent pairs of a step have similar lengths, so they go to different packs, which then have
    about equal numbers of tokens. With fewer pairs than packs each pair is one of its own.

    Args:
        step: Indices of pairs, each with fewer than `capacity` tokens a side.
        lengths: Tokens of each source and target of the corpus, (2, N).
        capacity: Tokens of a side in a pack, at least one of them padding.
        workers: Processes that compute packs at the same time.
    """
    count = 0
    while True:
        count += workers
        packs = [step[first::count] for first in range(min(count, len(step)))]
        if max(lengths[:, pack].sum(axis=1).max() for pack in packs) < capacity:
            return packs


def pack_pairs(pairs: EncodedPairs, indices: Indices, capacity: int) -> Pack:
    """Collects the given pairs, with BOS and EOS, into a pack on the CPU.

    Args:
        pairs: The corpus.
        indices: Positions of pairs in it, which have fewer than `capacity` tokens a side.
        capacity: N, a multiple of `BLOCK`.
    """
    src, tgt_in, tgt_out = pairs.marked(indices)
    sides, src_lengths, tgt_lengths = (src, tgt_out), src.counts, tgt_out.counts
    key_blocks = (
        _key_blocks(src_lengths, src_lengths, capacity, causal=False),
        _key_blocks(tgt_lengths, tgt_lengths, capacity, causal=True),
        _key_blocks(tgt_lengths, src_lengths, capacity, causal=False),
    )
    starts = [np.repeat(side.offsets[:-1], side.counts) for side in sides]
    segments = [np.repeat(np.arange(len(side)), side.counts) for side in sides]
    return Pack(
        ids=_rows([src.ids, tgt_in.ids, tgt_out.ids], PAD_ID, capacity),
        positions=_rows([np.arange(len(each)) - each for each in starts], 0, capacity),
        segments=_rows(segments, -1, capacity),
        key_blocks=torch.from_numpy(np.stack(key_blocks)),
        src_tokens=len(src.ids),
        tgt_tokens=len(tgt_out.ids),
    )


def _rows(rows: Sequence[Ids | Lengths], padding: int, capacity: int) -> torch.Tensor:
    """Puts values into rows that are padded at the end, (..., N), int32."""
    padded = np.full((len(rows), capacity), padding, np.int32)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    return torch.from_numpy(padded)


def _key_blocks(
    query_lengths: Lengths, key_lengths: Lengths, capacity: int, causal: bool
) -> npt.NDArray[np.int32]:
    """Returns the first and last block of keys for each block of queries, (Q, 2).

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
    last_key = last_keys[last_segment]
    if causal:
        last_key = np.minimum(last_key, last_query)
    return np.stack((key_starts[first_segment], last_key), axis=1).astype(np.int32) // BLOCK
