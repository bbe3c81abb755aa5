"""Greedy and beam search over a function that gives the next logits.

Works on token ids alone: no strings, no model. Shapes: B sentences, W beam size, R rows (one per
hypothesis in progress), L tokens so far, V vocabulary.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor


class DecodingState(Protocol):
    """Whatever a `next_logits` function carries from position to position."""

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Keeps, repeats or reorders rows, and keeps only the given sources (None is all)."""


S = TypeVar("S", bound=DecodingState)

KEPT_SHARE, ROW_MULTIPLE = 0.9, 32
"""Greedy search keeps a multiple of `ROW_MULTIPLE` rows, and only removes the others once those it
keeps are at most `KEPT_SHARE` of the rows."""


@dataclass(frozen=True)
class Hypothesis:
    """One translation of a sentence.

    Attributes:
        ids: Token ids without BOS and EOS.
        log_probability: Sum over its tokens, including EOS if it has one, in nats.
        score: That sum divided by the length penalty.
    """

    ids: list[int]
    log_probability: float
    score: float


def greedy(
    next_logits: Callable[[Tensor, S], Tensor],
    state: S,
    max_lengths: Tensor,
    bos_id: int,
    eos_id: int,
) -> list[list[int]]:
    """Takes the most probable token at every position.

    Args:
        next_logits: Maps the ids of the last position, (R,), and the state to logits, (R, V).
        state: State of B rows; changed in place.
        max_lengths: Tokens after which a row ends without EOS, (B,) int64.
        bos_id: Id that every row begins with.
        eos_id: Id that ends a row.

    Returns:
        B lists of ids without BOS and EOS.
    """
    rows = torch.arange(len(max_lengths), device=max_lengths.device)
    hypotheses: list[list[int]] = [[] for _ in rows]
    ids, active = torch.full_like(rows, bos_id), torch.ones_like(rows, dtype=torch.bool)
    for position in range(1, int(max_lengths.max()) + 1):
        ids = next_logits(ids, state).float().argmax(dim=-1)
        active &= ids != eos_id
        for row, token, is_active in zip(rows.tolist(), ids.tolist(), active.tolist(), strict=True):
            if is_active:
                hypotheses[row].append(token)
        active &= max_lengths[rows] > position
        active_rows = int(active.sum())
        if not active_rows:
            break
        # Removing rows copies the others, and a new shape costs the CPU a new kernel: a few
        # finished rows are cheaper to keep.
        size = math.ceil(active_rows / ROW_MULTIPLE) * ROW_MULTIPLE
        if size <= KEPT_SHARE * len(rows):
            kept = active.sort(descending=True, stable=True).indices[:size]
            rows, ids, active = rows[kept], ids[kept], active[kept]
            state.select(kept, kept)
    return hypotheses


def length_penalty(tokens: int, alpha: float) -> float:
    """Computes the divisor of the log-probability of a hypothesis.

    Args:
        tokens: Its length, including EOS if it has one.
        alpha: Exponent; 0 gives 1.

    Reference:
        Wu et al. 2016, Google's Neural Machine Translation System, equation 14.
    """
    return float(((5 + tokens) / 6) ** alpha)


def beam_search(
    next_logits: Callable[[Tensor, S], Tensor],
    state: S,
    max_lengths: Tensor,
    bos_id: int,
    eos_id: int,
    beam_size: int,
    alpha: float,
) -> list[list[Hypothesis]]:
    """Extends the `beam_size` most probable prefixes of every sentence until as many have ended.

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
    ended = _EndedHypotheses(len(max_lengths), beam_size, alpha)
    state.select(beam.sentences.repeat_interleave(beam_size))
    for position in range(1, int(max_lengths.max()) + 1):
        logits = next_logits(beam.tokens[:, :, -1].flatten(), state)
        candidates, parents = _extend(beam, logits.float())
        ends = candidates.tokens[:, :, -1] == eos_id  # (B, 2 * W)
        ended.add(candidates.columns(beam_size), ends[:, :beam_size], has_eos=True)
        totals, columns = candidates.totals.masked_fill(ends, -torch.inf).topk(beam_size)
        beam = _Beam(beam.sentences, totals, _gather(candidates.tokens, columns))

        full = ended.are_full(beam.sentences)
        at_limit = max_lengths[beam.sentences] <= position
        ended.add(beam, (at_limit & ~full)[:, None].expand_as(beam.totals), has_eos=False)
        kept = (~(full | at_limit)).nonzero().flatten()
        if not len(kept):
            break
        rows = (kept[:, None] * beam_size + parents.gather(1, columns)[kept]).flatten()
        state.select(rows, kept if len(kept) < len(full) else None)
        beam = beam.select(kept)
    return ended.best()


@dataclass(frozen=True)
class _Beam:
    """Hypotheses of the sentences that are still being translated, W per sentence.

    Attributes:
        sentences: Numbers of the sentences, (B,).
        totals: Log-probabilities in nats, (B, W).
        tokens: Ids with BOS, (B, W, L).
    """

    sentences: Tensor
    totals: Tensor
    tokens: Tensor

    @classmethod
    def begin(cls, max_lengths: Tensor, bos_id: int, beam_size: int) -> "_Beam":
        """Makes the beam that holds BOS only."""
        sentences = torch.arange(len(max_lengths), device=max_lengths.device)
        # Only one prefix is possible at first: equal ones would fill the beam with duplicates.
        totals = torch.full((len(sentences), beam_size), -torch.inf, device=sentences.device)
        totals[:, 0] = 0.0
        tokens = torch.full((len(sentences), beam_size, 1), bos_id, device=sentences.device)
        return cls(sentences, totals, tokens)

    def columns(self, count: int) -> "_Beam":
        """Gives the first hypotheses of each sentence."""
        return _Beam(self.sentences, self.totals[:, :count], self.tokens[:, :count])

    def select(self, kept: Tensor) -> "_Beam":
        """Gives the sentences at these places."""
        return _Beam(self.sentences[kept], self.totals[kept], self.tokens[kept])


class _EndedHypotheses:
    """Collects the hypotheses that have ended, by sentence."""

    def __init__(self, sentences: int, beam_size: int, alpha: float) -> None:
        self._hypotheses: list[list[Hypothesis]] = [[] for _ in range(sentences)]
        self._beam_size, self._alpha = beam_size, alpha

    def add(self, beam: _Beam, mask: Tensor, has_eos: bool) -> None:
        """Adds the hypotheses of a beam where the mask, (B, W), is true.

        Args:
            beam: The hypotheses.
            mask: Which of them have ended.
            has_eos: Whether their last token is EOS.
        """
        sentences = beam.sentences[:, None].expand_as(mask)[mask].tolist()
        totals, tokens = beam.totals[mask].tolist(), beam.tokens[mask].tolist()
        for sentence, total, ids in zip(sentences, totals, tokens, strict=True):
            score = total / length_penalty(len(ids) - 1, self._alpha)  # without BOS
            hypothesis = Hypothesis(ids[1:-1] if has_eos else ids[1:], total, score)
            self._hypotheses[sentence].append(hypothesis)

    def are_full(self, sentences: Tensor) -> Tensor:
        """Tells which sentences, (B,), have as many hypotheses as the beam; gives (B,) bool."""
        full = [len(self._hypotheses[i]) >= self._beam_size for i in sentences.tolist()]
        return torch.tensor(full).to(sentences.device)

    def best(self) -> list[list[Hypothesis]]:
        """Gives the best hypotheses of each sentence, the best first."""
        ranked = (sorted(ended, key=lambda h: -h.score) for ended in self._hypotheses)
        return [hypotheses[: self._beam_size] for hypotheses in ranked]


def _extend(beam: _Beam, logits: Tensor) -> tuple[_Beam, Tensor]:
    """Finds the 2 * W most probable continuations of a beam by one token.

    A hypothesis has one continuation that is EOS, so W others always remain.

    Args:
        beam: Hypotheses of L tokens.
        logits: Float32, (B * W, V).

    Returns:
        Hypotheses of L + 1 tokens, the most probable first, and which of the W hypotheses each
        continues, (B, 2 * W).
    """
    width = beam.totals.size(1)
    log_probabilities, ids = logits.log_softmax(-1).topk(2 * width)  # (B * W, 2 * W)
    totals = beam.totals[:, :, None] + log_probabilities.view(*beam.totals.shape, -1)
    totals, places = totals.flatten(1).topk(2 * width)  # (B, 2 * W), of (B, W * 2 * W)
    parents = places // (2 * width)
    ids = ids.view(len(totals), -1).gather(1, places)
    tokens = torch.cat((_gather(beam.tokens, parents), ids[:, :, None]), dim=-1)
    return _Beam(beam.sentences, totals, tokens), parents


def _gather(tokens: Tensor, columns: Tensor) -> Tensor:
    """Picks hypotheses by column: (B, N, L) and (B, M) to (B, M, L)."""
    return tokens.gather(1, columns[:, :, None].expand(-1, -1, tokens.size(-1)))
