"""Search over a step function. Knows ids, not strings, and no model."""

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from torch import Tensor


class State(Protocol):
    """Whatever a step function carries from position to position."""

    def select(self, rows: Tensor) -> None:
        """Keeps only the given rows, in the given order."""


S = TypeVar("S", bound=State)


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
    ids = torch.full_like(rows, bos_id)
    for position in range(1, int(max_lengths.max()) + 1):
        ids = step(ids, state).argmax(dim=-1)
        ended = ids == eos_id
        for row, token, end in zip(rows.tolist(), ids.tolist(), ended.tolist(), strict=True):
            if not end:
                hypotheses[row].append(token)
        going = ~(ended | (max_lengths[rows] <= position))
        if not bool(going.all()):
            kept = going.nonzero().flatten()
            if not len(kept):
                break
            rows, ids = rows[kept], ids[kept]
            state.select(kept)
    return hypotheses
