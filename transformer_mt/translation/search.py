"""Greedy search, beam search and sampling over a function that gives the next logits.

Works only on token ids: no strings, no model. Everything stays on the device until the end, except
for one number at each position: how many sentences are still being translated.

Shapes: B sentences, W beam size, R rows (one per hypothesis in progress), L positions,
V vocabulary.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from transformer_mt.translation.options import Sampling
from transformer_mt.translation.runtime import Hypothesis, Source, length_penalty


class DecodingState(Protocol):
    """Whatever a `next_logits` function carries from position to position."""

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Keeps, repeats or reorders rows, and keeps only the given sources (None is all)."""


S = TypeVar("S", bound=DecodingState)

KEPT_SHARE, ROW_MULTIPLE = 0.9, 8
"""Greedy search keeps a multiple of `ROW_MULTIPLE` rows, and only removes the others once those it
keeps are at most `KEPT_SHARE` of the rows."""
_LOWEST = torch.finfo(torch.float64).min
# The constants of SplitMix64, as signed integers.
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


def most_probable(logits: Tensor, rows: Tensor, position: int) -> Tensor:
    """Chooses the most probable token of each row."""
    return logits.argmax(dim=-1)


def greedy(
    next_logits: Callable[[Tensor, S], Tensor],
    state: S,
    max_lengths: Tensor,
    bos_id: int,
    eos_id: int,
    choose: Callable[[Tensor, Tensor, int], Tensor] = most_probable,
) -> list[list[int]]:
    """Takes one token at every position, the most probable one if `choose` says no other.

    Args:
        next_logits: Maps the ids of the last position, (R,), and the state to logits, (R, V).
        state: State of B rows; changed in place.
        max_lengths: Tokens after which a row ends without EOS, (B,) int64.
        bos_id: Id that every row begins with.
        eos_id: Id that ends a row.
        choose: Maps logits, (R, V), the original numbers of these rows, (R,), and the position,
            from 1, to the ids that are taken, (R,).

    Returns:
        B lists of ids without BOS and EOS.
    """
    rows = torch.arange(len(max_lengths), device=max_lengths.device)  # those kept, (R,)
    ids, active = torch.full_like(rows, bos_id), torch.ones_like(rows, dtype=torch.bool)
    all_eos, taken = torch.full_like(rows, eos_id), list[Tensor]()
    for position in itertools.count(1):
        ids = choose(next_logits(ids, state).float(), rows, position)
        taken.append(all_eos.scatter(0, rows, torch.where(active, ids, eos_id)))  # (B,)
        active = active & (ids != eos_id) & (max_lengths[rows] > position)
        active_rows = int(active.sum())  # the only wait for the device at a position
        if not active_rows:
            break
        # Removing rows copies the others, and a new shape costs the CPU a new kernel: a few
        # finished rows are cheaper to keep.
        size = math.ceil(active_rows / ROW_MULTIPLE) * ROW_MULTIPLE
        if size <= KEPT_SHARE * len(rows):
            kept = active.sort(descending=True, stable=True).indices[:size]
            rows, ids, active = rows[kept], ids[kept], active[kept]
            state.select(kept, kept)
    hypotheses = torch.stack(taken, dim=1).tolist()  # (B, L)
    return [row[: row.index(eos_id)] if eos_id in row else row for row in hypotheses]


class Sampler:
    """Draws tokens by their probabilities; what is drawn depends on nothing but logits and place.

    Gumbel noise, times the temperature, is added to the logits of all tokens, and the highest sum
    wins. The noise of a token is a function of seed, line, part of the line, position and token.
    Thus logits that differ in rounding give another token only if the two highest sums nearly tie;
    sums of probabilities, compared with one random number, would be as close for many tokens.

    Args:
        sources: The B sources, with their lines and parts.
        sampling: How to draw.
        device: Device of the logits.

    Reference:
        Kool et al. 2019, Stochastic Beams and Where to Find Them, section 2.3 (Gumbel-max);
        Steele et al. 2014, Fast Splittable Pseudorandom Number Generators (SplitMix64).
    """

    def __init__(self, sources: Sequence[Source], sampling: Sampling, device: torch.device) -> None:
        self._sampling, self._log_probabilities = sampling, list[Tensor]()
        places = ([sampling.seed, source.line, source.part] for source in sources)
        keys = [np.random.SeedSequence(place).generate_state(1, np.uint64) for place in places]
        self._keys = torch.from_numpy(np.concatenate(keys).view(np.int64)).to(device)

    def choose(self, logits: Tensor, rows: Tensor, position: int) -> Tensor:
        """Draws a token for each row; see `greedy`."""
        vocab_size, top_k = logits.size(1), self._sampling.top_k or logits.size(1)
        values, ids = logits, torch.arange(vocab_size, device=logits.device).expand_as(logits)
        if top_k < vocab_size:
            values, ids = logits.topk(top_k)
        uniform = _uniform(self._keys[rows][:, None], position * vocab_size + ids)
        noise = -(-(-uniform).log1p()).log()  # -log(-log(1 - u)) has the Gumbel distribution
        best = (values + self._sampling.temperature * noise).argmax(dim=1, keepdim=True)
        drawn = ids.gather(1, best)  # (R, 1)
        log_p = logits.log_softmax(-1).gather(1, drawn)[:, 0].double()  # (R,)
        of_all = log_p.new_zeros(len(self._keys)).index_copy(0, rows, log_p)  # (B,)
        self._log_probabilities.append(of_all)
        return drawn[:, 0]

    def score(
        self, hypotheses: list[list[int]], max_lengths: list[int], alpha: float
    ) -> list[Hypothesis]:
        """Scores what was drawn, as beam search does: by the model, whatever the temperature."""
        totals = torch.stack(self._log_probabilities).cumsum(0).tolist()  # (L, B)
        lengths = [
            min(len(ids) + 1, limit) for ids, limit in zip(hypotheses, max_lengths, strict=True)
        ]
        return [
            Hypothesis(ids, totals[length - 1][row] / length_penalty(length, alpha))
            for row, (ids, length) in enumerate(zip(hypotheses, lengths, strict=True))
        ]


def _uniform(keys: Tensor, counters: Tensor) -> Tensor:
    """Hashes int64 to uniform float32 in (0, 1], finest near 0, where the noise is largest."""
    x = keys + counters * _GOLDEN_GAMMA  # overflow wraps
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        x = (x ^ _shift_right(x, shift)) * factor
    x = x ^ _shift_right(x, 31)
    return (_shift_right(x, 11).float() + 0.5) * 2.0**-53


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shifts 64-bit integers as unsigned ones."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def beam_search(
    next_logits: Callable[[Tensor, S], Tensor],
    state: S,
    max_lengths: Tensor,
    bos_id: int,
    eos_id: int,
    beam_size: int,
    alpha: float,
) -> list[list[Hypothesis]]:
    """Extends the `beam_size` most probable prefixes of every sentence until that many have ended.

    A hypothesis ends when EOS is among the `beam_size` most probable continuations; with
    a beam size of 1 this is greedy search.

    Args:
        next_logits: Maps the ids of the last position, (R,), and the state to logits, (R, V).
        state: State of B rows; changed in place, to R = B * W rows, fewer as sentences end.
        max_lengths: Tokens after which a hypothesis ends without EOS, (B,) int64.
        bos_id: Id that every hypothesis begins with.
        eos_id: Id that ends a hypothesis.
        beam_size: Prefixes kept, W; at most V / 2.
        alpha: Exponent of the length penalty; 0 compares plain log-probabilities.

    Returns:
        For each sentence its `beam_size` best hypotheses, all different, the best first.

    Reference:
        Attention Is All You Need, section 6.1 (beam size 4, alpha 0.6).
    """
    beam = _Beam.begin(max_lengths, bos_id, beam_size)
    ended = _EndedHypotheses(max_lengths, beam_size, alpha)
    running = torch.arange(len(max_lengths), device=max_lengths.device)  # sentences, (B',)
    state.select(running.repeat_interleave(beam_size))
    for position in itertools.count(1):
        logits = next_logits(beam.ids[running].flatten(), state)
        candidates = _extend(beam, running, logits.float())
        ends = candidates.ids == eos_id  # (B, 2 * W)
        totals, columns = candidates.totals.masked_fill(ends, -torch.inf).topk(beam_size)
        beam = _Beam(totals, *(each.gather(1, columns) for each in candidates[1:]))
        ended.add(candidates, ends, beam, position)

        is_running = ~ended.is_done[running]
        count = int(is_running.sum())  # the only wait for the device: `nonzero` would be another
        if not count:
            break
        places = is_running.sort(descending=True, stable=True).indices[:count]
        kept = places if count < len(running) else None
        running = running[places]
        state.select((places[:, None] * beam_size + beam.parents[running]).flatten(), kept)
    return ended.best()


class _Beam(NamedTuple):
    """The last tokens of N hypotheses of each sentence, the most probable first, all (B, N)."""

    totals: Tensor  # log-probabilities of the hypotheses in nats
    ids: Tensor
    parents: Tensor  # which hypotheses of the previous position they continue

    @classmethod
    def begin(cls, max_lengths: Tensor, bos_id: int, beam_size: int) -> "_Beam":
        """Makes the initial beam, which holds only BOS."""
        ids = max_lengths.new_full((len(max_lengths), beam_size), bos_id)
        # Only one prefix is possible at first: equal ones would fill the beam with duplicates.
        totals = torch.full_like(ids, -torch.inf, dtype=torch.float32)
        totals[:, 0] = 0.0
        return cls(totals, ids, torch.zeros_like(ids))


def _extend(beam: _Beam, running: Tensor, logits: Tensor) -> _Beam:
    """Finds the 2 * W most probable continuations of a beam by one token, (B, 2 * W).

    Each hypothesis has only one continuation with EOS, so W others always remain. `logits`,
    (B' * W, V), are those of the B' running sentences; what is returned of others is meaningless.
    """
    width, number = beam.totals.size(1), 2 * beam.totals.size(1)
    log_probabilities, ids = logits.log_softmax(-1).topk(number)  # (B' * W, 2 * W)
    totals = beam.totals[running][:, :, None] + log_probabilities.view(-1, width, number)
    totals, places = totals.flatten(1).topk(number)  # (B', 2 * W), of (B', W * 2 * W)
    ids = ids.view(len(totals), -1).gather(1, places)
    continued = _Beam(totals, ids, places // number)
    if len(running) == len(beam.totals):
        return continued
    shape = len(beam.totals), number
    return _Beam(*(each.new_zeros(shape).index_copy_(0, running, each) for each in continued))


class _EndedHypotheses:
    """The W best hypotheses of each sentence among those that have ended, on the device.

    The beams of all positions are kept. A hypothesis is stored as the place of its last token in
    them, position * W + column, where position 0 is BOS; parents lead from there to the others.
    """

    def __init__(self, max_lengths: Tensor, beam_size: int, alpha: float) -> None:
        self._max_lengths, self._beam_size, self._alpha = max_lengths, beam_size, alpha
        self._beams: list[tuple[Tensor, Tensor]] = []  # ids and parents of each position
        self._counts = torch.zeros_like(max_lengths)  # of those that ended with EOS, (B,)
        self.is_done = torch.zeros_like(max_lengths, dtype=torch.bool)  # none in progress, (B,)
        self._places = max_lengths.new_zeros(len(max_lengths), beam_size)  # the best first, (B, W)
        self._scores = torch.full_like(self._places, -torch.inf, dtype=torch.float64)  # none yet

    def add(self, candidates: _Beam, ends: Tensor, beam: _Beam, position: int) -> None:
        """Adds the hypotheses that end at a position.

        Args:
            candidates: The 2 * W most probable continuations.
            ends: Which of them end with EOS, (B, 2 * W).
            beam: The W most probable of the others; they end if their length is at its limit.
            position: Number of the position, from 1.
        """
        width = self._beam_size
        self._beams.append((beam.ids, beam.parents))
        has_eos = ends[:, :width] & ~self.is_done[:, None]  # (B, W)
        self._counts += has_eos.sum(1)
        is_full = self._counts >= width
        is_cut = ((self._max_lengths == position) & ~is_full)[:, None].expand_as(has_eos)
        self.is_done = is_full | (self._max_lengths <= position)

        # The last token of those with EOS is the one before it; of those that are cut, in the beam.
        before_eos = (position - 1) * width + candidates.parents[:, :width]
        in_beam = (position * width + torch.arange(width, device=ends.device)).expand_as(has_eos)
        totals = torch.cat((candidates.totals[:, :width], beam.totals), dim=1)  # (B, 2 * W)
        # float64, as in Python. The lowest finite score is above the -inf of an empty slot.
        scores = (totals.double() / length_penalty(position, self._alpha)).clamp(min=_LOWEST)
        scores = scores.masked_fill(~torch.cat((has_eos, is_cut), dim=1), -torch.inf)
        # The W best of the earlier ones and these, (B, W + 2 * W) to (B, W).
        scores, order = torch.cat((self._scores, scores), dim=1).sort(descending=True, stable=True)
        self._scores, order = scores[:, :width], order[:, :width]
        self._places = torch.cat((self._places, before_eos, in_beam), dim=1).gather(1, order)

    def best(self) -> list[list[Hypothesis]]:
        """Copies the hypotheses of each sentence to the host, the best first."""
        ids, parents = (torch.stack(each).cpu() for each in zip(*self._beams, strict=True))
        places = self._places.cpu()
        lengths, columns = places // self._beam_size, places % self._beam_size  # (B, W)
        tokens = torch.empty_like(ids)  # (L, B, W)
        # Each hypothesis is followed back from its last token; what stands after that is not read.
        for position in range(len(ids), 0, -1):
            tokens[position - 1] = ids[position - 1].gather(1, columns)
            before = parents[position - 1].gather(1, columns)
            columns = torch.where(position <= lengths, before, columns)
        fields = tokens.permute(1, 2, 0), lengths, self._scores
        return [
            [Hypothesis(row[:length], score) for row, length, score in zip(*sentence, strict=True)]
            for sentence in zip(*(field.tolist() for field in fields), strict=True)
        ]
