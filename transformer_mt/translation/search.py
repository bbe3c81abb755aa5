"""Search over a step function. Knows ids, not strings, and no model."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor


class State(Protocol):
    """Whatever a step function carries from position to position."""

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Keeps, repeats or reorders rows, and keeps only the given sources (None is all)."""


S = TypeVar("S", bound=State)

KEPT_SHARE, ROW_MULTIPLE = 0.9, 32
"""Greedy search drops rows that have ended when this share is enough, down to such a multiple."""


@dataclass(frozen=True)
class Hypothesis:
    """One translation found by beam search.

    Attributes:
        ids: Tokens without begin and end marks.
        log_probability: Sum over its tokens, the end mark included if it ended, in nats.
        score: That sum divided by the length penalty.
    """

    ids: list[int]
    log_probability: float
    score: float


def greedy(
    step: Callable[[Tensor, S], Tensor],
    state: S,
    max_lengths: Tensor,
    bos_id: int,
    eos_id: int,
) -> list[list[int]]:
    """Takes the likeliest token at every position.

    Args:
        step: From the ids of the last position, (B,), and the state to logits, (B, V).
        state: Of B rows; changed in place.
        max_lengths: Tokens after which a row ends without an end mark, (B,) int64.
        bos_id: Id every row begins with.
        eos_id: Id that ends a row.

    Returns:
        B lists of ids without begin and end marks.
    """
    rows = torch.arange(len(max_lengths), device=max_lengths.device)
    hypotheses: list[list[int]] = [[] for _ in rows]
    ids, going = torch.full_like(rows, bos_id), torch.ones_like(rows, dtype=torch.bool)
    for position in range(1, int(max_lengths.max()) + 1):
        ids = step(ids, state).float().argmax(dim=-1)
        going &= ids != eos_id
        flags = going.tolist()
        for row, token, goes_on in zip(rows.tolist(), ids.tolist(), flags, strict=True):
            if goes_on:
                hypotheses[row].append(token)
        going &= max_lengths[rows] > position
        left = int(going.sum())
        if not left:
            break
        # Dropping rows copies those that stay, and a new shape costs the CPU a new kernel: a few
        # rows that have ended are carried along.
        size = math.ceil(left / ROW_MULTIPLE) * ROW_MULTIPLE
        if size <= KEPT_SHARE * len(rows):
            kept = going.sort(descending=True, stable=True).indices[:size]
            rows, ids, going = rows[kept], ids[kept], going[kept]
            state.select(kept, kept)
    return hypotheses


def length_penalty(tokens: int, alpha: float) -> float:
    """Gives what a log-probability of so many tokens is divided by.

    Reference:
        Wu et al. 2016, Google's Neural Machine Translation System, equation 14.
    """
    return float(((5 + tokens) / 6) ** alpha)


def beam_search(
    step: Callable[[Tensor, S], Tensor],
    state: S,
    max_lengths: Tensor,
    bos_id: int,
    eos_id: int,
    beam_size: int,
    alpha: float,
) -> list[list[Hypothesis]]:
    """Keeps the likeliest `beam_size` beginnings of every sentence until as many have ended.

    A hypothesis ends when its end mark is among the `beam_size` likeliest continuations; with a
    beam of 1 that is greedy search.

    Args:
        step: From the ids of the last position, (R,), and the state to logits, (R, V).
        state: Of B rows; changed in place, to R = B * beam_size rows, fewer as sentences end.
        max_lengths: Tokens after which a hypothesis ends without an end mark, (B,) int64.
        bos_id: Id every hypothesis begins with.
        eos_id: Id that ends one.
        beam_size: Beginnings kept; at most V / 2.
        alpha: Exponent of the length penalty; 0 compares log-probabilities as they are.

    Returns:
        For each sentence its `beam_size` best hypotheses, distinct, the best first.

    Reference:
        Attention Is All You Need, section 6.1 (beam 4, alpha 0.6).
    """
    sentences = torch.arange(len(max_lengths), device=max_lengths.device)
    state.select(sentences.repeat_interleave(beam_size))
    # One beginning at first: equal ones would fill the beam with the same hypothesis.
    totals = torch.full((len(sentences), beam_size), -torch.inf, device=sentences.device)
    totals[:, 0] = 0.0
    tokens = torch.full((len(sentences), beam_size, 1), bos_id, device=sentences.device)
    found: list[list[Hypothesis]] = [[] for _ in sentences]

    def collect(where: Tensor, texts: Tensor, log_probabilities: Tensor, marked: bool) -> None:
        """Keeps the hypotheses (B, beam) of `texts`, (B, beam, L), that stand where it is true."""
        owners = sentences[:, None].expand_as(where)[where].tolist()
        values = log_probabilities[where].tolist()
        for owner, text, value in zip(owners, texts[where].tolist(), values, strict=True):
            score = value / length_penalty(len(text) - 1 + marked, alpha)
            found[owner].append(Hypothesis(text[1:], value, score))

    for position in range(1, int(max_lengths.max()) + 1):
        logits = step(tokens[:, :, -1].flatten(), state).float()
        # At most one end mark a beam: twice as many candidates always leave a full beam.
        likely, words = logits.log_softmax(-1).topk(2 * beam_size)  # (R, 2 * beam)
        continued = totals[:, :, None] + likely.view(*totals.shape, -1)  # (B, beam, 2 * beam)
        best, places = continued.flatten(1).topk(2 * beam_size)  # (B, 2 * beam)
        parents = places // (2 * beam_size)
        ids = words.view(len(totals), -1).gather(1, places)
        texts = tokens.gather(1, parents[:, :, None].expand(-1, -1, position))
        ended = ids == eos_id
        collect(ended[:, :beam_size], texts[:, :beam_size], best[:, :beam_size], True)
        totals, slots = best.masked_fill(ended, -torch.inf).topk(beam_size)
        tokens = torch.cat((texts, ids[:, :, None]), dim=-1)
        tokens = tokens.gather(1, slots[:, :, None].expand(-1, -1, position + 1))
        full = torch.tensor([len(found[i]) >= beam_size for i in sentences.tolist()])
        full, cut = full.to(totals.device), max_lengths[sentences] <= position
        collect((cut & ~full)[:, None].expand_as(totals), tokens, totals, False)
        kept = (~(full | cut)).nonzero().flatten()
        if not len(kept):
            break
        rows = (kept[:, None] * beam_size + parents.gather(1, slots)[kept]).flatten()
        state.select(rows, kept if len(kept) < len(sentences) else None)
        sentences, totals, tokens = sentences[kept], totals[kept], tokens[kept]
    return [sorted(some, key=lambda h: -h.score)[:beam_size] for some in found]
