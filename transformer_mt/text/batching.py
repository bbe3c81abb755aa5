"""From lengths to the steps and micro-batches of an epoch, and from ids to padded tensors.

Knows no text and no model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Ids = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]

STEPS_PER_POOL = 400
"""Pairs are sorted by length inside pools of about so many steps: enough for little padding,
few enough that a step's company is drawn from the whole corpus over the epochs."""
BIN_WIDTH = 1.07
"""Pairs whose longer sides differ by less than this factor are sorted by their other side."""
_LARGEST_STEPS = 100


@dataclass(frozen=True)
class Batch:
    """Padded ids on one device.

    Attributes:
        src: Source pieces and end mark, (B, S).
        tgt_in: Begin mark and target pieces, (B, T).
        tgt_out: Target pieces and end mark, (B, T).
        src_tokens: Real tokens in `src`, known without asking the device.
        tgt_tokens: Likewise in `tgt_out`.
    """

    src: torch.Tensor
    tgt_in: torch.Tensor
    tgt_out: torch.Tensor
    src_tokens: int
    tgt_tokens: int

    def to(self, device: torch.device) -> "Batch":
        """Copies to a device, without waiting for it where that is possible."""
        src, tgt_in, tgt_out = (
            (some.pin_memory() if device.type == "cuda" else some).to(device, non_blocking=True)
            for some in (self.src, self.tgt_in, self.tgt_out)
        )
        return Batch(src, tgt_in, tgt_out, self.src_tokens, self.tgt_tokens)


def plan_epoch(
    src_lengths: Indices, tgt_lengths: Indices, batch_tokens: int, seed: int, epoch: int
) -> list[Indices]:
    """Deals all pairs into steps: a pure function of its arguments.

    A step holds pairs of similar length, until its source or target tokens reach
    `batch_tokens`. Every pair is in exactly one step.

    Args:
        src_lengths: Tokens of each source, end mark included, (N,).
        tgt_lengths: Tokens of each target, end mark included, (N,).
        batch_tokens: Real tokens that fill a step.
        seed: The run's seed.
        epoch: Epoch, from 0.

    Returns:
        For each step the indices of its pairs, neighbours of similar lengths.
    """
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(src_lengths))
    tokens = max(int(src_lengths.sum()), int(tgt_lengths.sum()), 1)
    pool_size = max(1, len(order) * STEPS_PER_POOL * batch_tokens // tokens)
    steps: list[Indices] = []
    for start in range(0, len(order), pool_size):
        pool = order[start : start + pool_size]
        pool = pool[_order_by_shape(src_lengths[pool], tgt_lengths[pool], rng.random())]
        steps += _cut_where_full(pool, src_lengths, tgt_lengths, batch_tokens)
    return [steps[i] for i in rng.permutation(len(steps))]


def _order_by_shape(src_lengths: Indices, tgt_lengths: Indices, offset: float) -> Indices:
    """Sorts so that neighbours are alike on both sides; equal ones stay in random order.

    A random offset of the bins' edges, from 0 to 1, gives pairs other company in every epoch.
    """
    longer, difference = np.maximum(src_lengths, tgt_lengths), src_lengths - tgt_lengths
    bins = (np.log(longer) / np.log(BIN_WIDTH) + offset).astype(np.int64)
    # Every other bin runs backwards, so that a step across the edge of two bins is alike too.
    return np.lexsort((longer, np.where(bins % 2, -difference, difference), bins))


def _cut_where_full(
    pool: Indices, src_lengths: Indices, tgt_lengths: Indices, batch_tokens: int
) -> list[Indices]:
    src_total, tgt_total = np.cumsum(src_lengths[pool]), np.cumsum(tgt_lengths[pool])
    steps, start, src_done, tgt_done = [], 0, 0, 0
    while start < len(pool):
        full = min(
            np.searchsorted(src_total, src_done + batch_tokens),
            np.searchsorted(tgt_total, tgt_done + batch_tokens),
        )
        end = min(int(full) + 1, len(pool))
        steps.append(pool[start:end])
        start, src_done, tgt_done = end, int(src_total[end - 1]), int(tgt_total[end - 1])
    return steps


def cut_micro_batches(
    step: Indices, src_lengths: Indices, tgt_lengths: Indices, micro_batch_tokens: int
) -> list[Indices]:
    """Cuts a step into parts of at most `micro_batch_tokens` padded positions.

    Args:
        step: Indices of pairs, neighbours of similar lengths.
        src_lengths: Tokens of each source of the corpus, (N,).
        tgt_lengths: Tokens of each target of the corpus, (N,).
        micro_batch_tokens: Limit on sentences times longest side.

    Returns:
        Parts that together hold each index once, in order.

    Raises:
        ValueError: If one pair alone is over the limit.
    """
    longest = np.maximum(src_lengths[step], tgt_lengths[step]).tolist()
    parts, start, width = [], 0, 0
    for position, length in enumerate(longest):
        if length > micro_batch_tokens:
            raise ValueError(f"a pair of {length} tokens exceeds {micro_batch_tokens} positions")
        width = max(width, length)
        if (position - start + 1) * width > micro_batch_tokens:
            parts.append(step[start:position])
            start, width = position, length
    parts.append(step[start:])
    return parts


def padded_size(part: Indices, src_lengths: Indices, tgt_lengths: Indices) -> int:
    """Counts the positions of a micro-batch, both sides, padding included."""
    return len(part) * int(src_lengths[part].max() + tgt_lengths[part].max())


def largest_micro_batch(
    steps: Sequence[Indices],
    src_lengths: Indices,
    tgt_lengths: Indices,
    micro_batch_tokens: int,
) -> Indices:
    """Finds the micro-batch that needs most memory, among those of an epoch's largest steps."""
    order = np.concatenate(steps)
    counts = np.fromiter(map(len, steps), np.int64, len(steps))
    starts = np.cumsum(counts) - counts
    widths = sum(np.maximum.reduceat(side[order], starts) for side in (src_lengths, tgt_lengths))
    largest = np.argsort(counts * widths)[-_LARGEST_STEPS:]
    lengths = src_lengths, tgt_lengths
    parts = [p for i in largest for p in cut_micro_batches(steps[i], *lengths, micro_batch_tokens)]
    return max(parts, key=lambda part: padded_size(part, *lengths))


def pad(rows: Sequence[Ids | Sequence[int]], pad_id: int) -> torch.Tensor:
    """Stacks rows of ids, padded at the end to the longest, into an int64 (B, L) tensor."""
    lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
    padded = np.full((len(rows), int(lengths.max(initial=0))), pad_id, np.int64)
    for target, row, length in zip(padded, rows, lengths, strict=True):
        target[:length] = row
    return torch.from_numpy(padded)
