"""How much of their time several processes wait for the one with the most work."""

from collections.abc import Sequence

import numpy as np

from transformer_mt.text.batching import (
    Indices,
    Lengths,
    cut_micro_batches,
    deal_micro_batches,
    padded_size,
)

_SAMPLE_STEPS = 200
_MARGIN = 1.05
_ENOUGH = 0.05
"""An idle share below this needs no advice."""


def idle_share(
    steps: Sequence[Indices],
    lengths: tuple[Lengths, Lengths],
    micro_batch_tokens: int,
    world_size: int,
) -> float:
    """Computes the share of time that processes wait for the one with the most work.

    Time is assumed to be proportional to padded positions; communication is ignored.

    Args:
        steps: Indices of the pairs of each step; if there are many steps, only a sample is used.
        lengths: Tokens of each source and target of the corpus, (N,) each.
        micro_batch_tokens: Limit on sentences times longest side.
        world_size: Number of processes.
    """
    chosen = np.unique(np.linspace(0, len(steps) - 1, _SAMPLE_STEPS, dtype=int))
    longest = total = 0
    for step in chosen:
        parts = cut_micro_batches(steps[step], *lengths, micro_batch_tokens)
        sizes = [padded_size(indices, *lengths) for indices in parts]
        shares = deal_micro_batches(sizes, world_size)
        longest += max(sum(sizes[number] for number in share) for share in shares)
        total += sum(sizes)
    return 1 - total / (longest * world_size)


def describe_idle_share(
    steps: Sequence[Indices],
    lengths: tuple[Lengths, Lengths],
    micro_batch_tokens: int,
    world_size: int,
) -> str:
    """Tells the share of `idle_share`, and which setting would reduce it."""
    share = idle_share(steps, lengths, micro_batch_tokens, world_size)
    text = f"{world_size} processes, idle {share:.0%} of the time for lack of micro-batches"
    if share <= _ENOUGH:
        return text
    longest_pair = max(int(side.max()) for side in lengths)
    # A little more than an equal part of a step's positions, so that no small remainder is left.
    sides = np.maximum(*lengths)
    positions = np.quantile([sides[step].sum() for step in steps[:_SAMPLE_STEPS]], 0.9)
    better, best = share, 0
    for n in range(1, 5):
        tokens = int(_MARGIN * positions / (n * world_size))
        if better > _ENOUGH and longest_pair <= tokens < micro_batch_tokens:
            idle = idle_share(steps, lengths, tokens, world_size)
            if idle < better:
                better, best = idle, tokens
    return f"{text}; {better:.0%} with train.micro_batch_tokens = {best}" if best else text
