"""Encoded text: lines of ids, padded batches, the steps of an epoch, and their micro-batches."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from transformer_mt.system.device import copy_to_device
from transformer_mt.text.vocabulary import BOS_ID, EOS_ID, PAD_ID, Vocabulary

Indices = npt.NDArray[np.int64]
"""Positions of pairs in the corpus."""
Lengths = npt.NDArray[np.int64]
"""Number of tokens of each source or target in the corpus."""
Ids = npt.NDArray[np.uint16] | npt.NDArray[np.int32]
"""Piece ids; the narrow type is for vocabularies of up to 65,536 pieces."""
_LINES_AT_ONCE = 20_000
"""Lines that are copied at once: the positions of their ids take 24 bytes per id."""


@dataclass(frozen=True)
class EncodedLines:
    """The ids of one language, one line after another, without BOS and EOS."""

    ids: Ids
    offsets: npt.NDArray[np.int64]
    """Where each line begins in `ids`, and the end of the last one, (N + 1,)."""

    @classmethod
    def cut(cls, ids: Ids, counts: npt.NDArray[np.int64]) -> "EncodedLines":
        """Cuts ids into lines, given the number of ids in each, (N,)."""
        return cls(ids, np.concatenate(([0], np.cumsum(counts))))

    @classmethod
    def concatenate(cls, parts: Sequence["EncodedLines"]) -> "EncodedLines":
        """Joins the lines of all parts, whose ids have one type."""
        ids: Ids = np.concatenate([part.ids for part in parts])
        return cls.cut(ids, np.concatenate([part.counts for part in parts]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Ids:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Ids in each line, (N,)."""
        return np.diff(self.offsets)

    def take(self, lines: Indices) -> "EncodedLines":
        """Copies lines in the given order."""
        if len(lines) > _LINES_AT_ONCE:
            parts = np.split(lines, range(_LINES_AT_ONCE, len(lines), _LINES_AT_ONCE))
            return EncodedLines.concatenate([self.take(part) for part in parts])
        starts = self.offsets[lines]
        counts = self.offsets[lines + 1] - starts
        new_starts = np.cumsum(counts) - counts
        positions = np.arange(counts.sum()) + np.repeat(starts - new_starts, counts)
        return EncodedLines.cut(self.ids[positions], counts)

    def marked(self, begin: bool) -> "EncodedLines":
        """Adds BOS before each line, or EOS after it."""
        places, mark = (self.offsets[:-1], BOS_ID) if begin else (self.offsets[1:], EOS_ID)
        ids = cast(Ids, np.insert(self.ids, places, mark))
        return EncodedLines(ids, self.offsets + np.arange(len(self.offsets)))

    def padded(self) -> torch.Tensor:
        """Copies the lines into a padded (N, L) tensor."""
        counts = self.counts
        rows = np.full((len(self), counts.max(initial=0)), PAD_ID, np.int64)
        rows[np.arange(rows.shape[1]) < counts[:, None]] = self.ids
        return torch.from_numpy(rows)


def flatten(rows: Sequence[Sequence[int]]) -> EncodedLines:
    """Concatenates rows of ids, without BOS and EOS."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    ids = np.fromiter((i for row in rows for i in row), np.int32, int(lengths.sum()))
    return EncodedLines.cut(ids, lengths)


@dataclass(frozen=True)
class TokenCounts:
    """Tokens without padding of a micro-batch that another process computes."""

    src_tokens: int
    tgt_tokens: int


@dataclass(frozen=True)
class Batch:
    """Padded ids on one device.

    Attributes:
        src: Source pieces and EOS, (B, S).
        tgt_in: BOS and target pieces, (B, T).
        tgt_out: Target pieces and EOS, (B, T).
        src_tokens: Number of tokens in `src` without padding; an int, so that reading it does not
            wait for the device.
        tgt_tokens: Likewise for `tgt_out`.
    """

    src: torch.Tensor
    tgt_in: torch.Tensor
    tgt_out: torch.Tensor
    src_tokens: int
    tgt_tokens: int

    def to(self, device: torch.device) -> "Batch":
        """Copies to a device, asynchronously if it is a GPU."""
        src, tgt_in, tgt_out = (
            copy_to_device(ids, device) for ids in (self.src, self.tgt_in, self.tgt_out)
        )
        return Batch(src, tgt_in, tgt_out, self.src_tokens, self.tgt_tokens)


@dataclass(frozen=True)
class EncodedPairs:
    """Source lines and as many target lines, as ids."""

    src: EncodedLines
    tgt: EncodedLines

    def __len__(self) -> int:
        return len(self.src)

    @cached_property
    def lengths(self) -> Lengths:
        """Tokens of each source with EOS and of each target with BOS or EOS, (2, N)."""
        return np.stack((self.src.counts, self.tgt.counts)) + 1

    def marked(self, indices: Indices) -> tuple[EncodedLines, EncodedLines, EncodedLines]:
        """Copies the given pairs: sources with EOS, targets with BOS, and targets with EOS."""
        src, tgt = self.src.take(indices), self.tgt.take(indices)
        return src.marked(begin=False), tgt.marked(begin=True), tgt.marked(begin=False)

    def batch(self, indices: Indices) -> Batch:
        """Collects the given pairs, with BOS and EOS, into a padded batch on the CPU."""
        src, tgt_in, tgt_out = self.marked(indices)
        src_tokens, tgt_tokens = len(src.ids), len(tgt_out.ids)
        return Batch(src.padded(), tgt_in.padded(), tgt_out.padded(), src_tokens, tgt_tokens)

    def count_tokens(self, indices: Indices) -> TokenCounts:
        """Counts the tokens of the batch of the given pairs."""
        src_tokens, tgt_tokens = self.lengths[:, indices].sum(axis=1).tolist()
        return TokenCounts(src_tokens, tgt_tokens)


def encode_pairs(
    src_lines: Sequence[str], tgt_lines: Sequence[str], vocab: Vocabulary
) -> EncodedPairs:
    """Encodes all pairs of lines, without cleaning."""
    return EncodedPairs(flatten(vocab.src.encode(src_lines)), flatten(vocab.tgt.encode(tgt_lines)))


STEPS_PER_POOL = 400
"""Size, in steps, of the random pools in which pairs are sorted by length: large enough to keep
padding low, small enough that over the epochs a pair shares steps with pairs from the whole
corpus."""
BIN_WIDTH = 1.07
"""Ratio of the lengths at the two edges of a bin: pairs whose longer sides are in the same bin are
sorted by the difference between their sides."""


def plan_epoch(lengths: Lengths, batch_tokens: int, seed: int, epoch: int) -> list[Indices]:
    """Divides all pairs into steps of indices, as a pure function of its arguments.

    A step gets pairs of similar length until its source or target tokens reach `batch_tokens`.
    Every pair is in exactly one step; adjacent pairs of a step have similar lengths.

    Args:
        lengths: Tokens of each source and target, EOS included, (2, N).
        batch_tokens: Tokens, without padding, at which a step is complete.
        seed: The run's seed.
        epoch: Epoch, from 0.
    """
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(lengths.shape[1])
    tokens = max(int(lengths.sum(axis=1).max()), 1)  # of the side that has more
    pool_size = max(1, len(order) * STEPS_PER_POOL * batch_tokens // tokens)
    steps: list[Indices] = []
    for start in range(0, len(order), pool_size):
        pool = order[start : start + pool_size]
        pool = pool[_order_by_lengths(lengths[:, pool], rng.random())]
        steps += _cut_into_steps(pool, lengths, batch_tokens)
    return [steps[i] for i in rng.permutation(len(steps))]


def _order_by_lengths(lengths: Lengths, offset: float) -> Indices:
    """Sorts pairs so that adjacent ones have similar source and similar target lengths.

    A random offset, from 0 to 1, shifts the edges of the bins, so that pairs share their steps with
    different pairs in every epoch. Pairs of equal lengths keep their order.
    """
    longer, difference = lengths.max(axis=0), lengths[0] - lengths[1]
    bins = (np.log(longer) / np.log(BIN_WIDTH) + offset).astype(np.int64)
    # Every other bin is reversed, so that pairs on both sides of a bin's edge are similar too.
    return np.lexsort((longer, np.where(bins % 2, -difference, difference), bins))


def _cut_into_steps(pool: Indices, lengths: Lengths, batch_tokens: int) -> list[Indices]:
    """Cuts sorted pairs into steps, each ending with the pair that reaches `batch_tokens`."""
    totals = np.cumsum(lengths[:, pool], axis=1)  # (2, N)
    steps, start, done = [], 0, np.zeros(2, int)
    while start < len(pool):
        sides = zip(totals, done, strict=True)
        full = min(np.searchsorted(total, before + batch_tokens) for total, before in sides)
        end = min(int(full) + 1, len(pool))
        steps.append(pool[start:end])
        start, done = end, totals[:, end - 1]
    return steps


def cut_micro_batches(
    step: Indices, lengths: Lengths, micro_batch_tokens: int, workers: int = 1
) -> list[Indices]:
    """Cuts a step into n * workers micro-batches of about equal padded size.

    The smallest n that the limit allows is taken, since each micro-batch has a fixed cost. If there
    are fewer pairs than that, each is a micro-batch of its own. Together they hold each index once,
    in order.

    Args:
        step: Indices of pairs; adjacent pairs have similar lengths.
        lengths: Tokens of each source and target of the corpus, (2, N).
        micro_batch_tokens: Limit on the number of sentences times the longest side; a pair that
            alone exceeds it is a micro-batch of its own.
        workers: Processes or threads that compute micro-batches at the same time.
    """
    sides = lengths[:, step].T.tolist()
    positions = sum(src + tgt for src, tgt in sides)
    fewest = len(_fill_up(sides, micro_batch_tokens, size=math.inf))
    count = min(workers * math.ceil(fewest / workers), len(step))
    # Padding makes the parts a little larger than an equal share of the positions.
    size = positions // count
    while len(starts := _fill_up(sides, micro_batch_tokens, size)) > count:
        size += 1 + size // 100
    parts = np.split(step, starts[1:])
    while len(parts) < count:
        largest = max(
            (number for number, part in enumerate(parts) if len(part) > 1),
            key=lambda number: padded_size(parts[number], lengths),
        )
        parts[largest : largest + 1] = np.array_split(parts[largest], 2)
    return parts


def _fill_up(sides: Sequence[Sequence[int]], micro_batch_tokens: int, size: float) -> list[int]:
    """Returns the position of the first pair of each micro-batch if each takes all that it can.

    Args:
        sides: Source and target tokens of each pair.
        micro_batch_tokens: Limit on sentences times longest side.
        size: Limit on sentences times the sum of the longest source and the longest target.
    """
    starts, rows, longest_src, longest_tgt = [0], 0, 0, 0
    for position, (src, tgt) in enumerate(sides):
        rows += 1
        longest_src, longest_tgt = max(longest_src, src), max(longest_tgt, tgt)
        is_too_large = (
            rows * max(longest_src, longest_tgt) > micro_batch_tokens
            or rows * (longest_src + longest_tgt) > size
        )
        if is_too_large and rows > 1:
            starts.append(position)
            rows, longest_src, longest_tgt = 1, src, tgt
    return starts


def padded_size(micro_batch: Indices, lengths: Lengths) -> int:
    """Counts the source and target positions of a micro-batch, including padding."""
    return len(micro_batch) * int(lengths[:, micro_batch].max(axis=1).sum())


def deal_micro_batches(sizes: Sequence[int], world_size: int) -> list[list[int]]:
    """Distributes micro-batches of the given padded sizes to processes, with similar work for each.

    Returns:
        For each process, the numbers of its micro-batches, ascending; each number occurs once. If
        there are more processes than micro-batches, some have none.
    """
    shares: list[list[int]] = [[] for _ in range(world_size)]
    work = [0] * world_size
    # The largest first, each to the process with the least work so far.
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        rank = work.index(min(work))
        shares[rank].append(number)
        work[rank] += sizes[number]
    return [sorted(share) for share in shares]
