"""What a decoder keeps between the positions of incremental decoding."""

from dataclasses import dataclass

import torch
from torch import Tensor


class Cache:
    """Vectors of target positions that a decoder layer keeps between steps.

    Time comes first, so that a step writes, and a selection of rows copies, whole blocks.

    Args:
        like: Any tensor of the device and type to keep.
        room: Target positions there will be at most.
        rows: Hypotheses, R.
        width: Numbers kept of each position, D.
    """

    def __init__(self, like: Tensor, room: int, rows: int, width: int) -> None:
        self._room, self._width = room, width
        self._store = like.new_empty(room * rows * width)
        self._spare = like.new_empty(0)
        self._view = self._store.view(room, rows, width)

    def append(self, vectors: Tensor, length: int) -> None:
        """Writes the vectors, (R, D), of position `length`."""
        self._view[length] = vectors

    def heads(self, length: int, n_heads: int) -> Tensor:
        """Gives the first `length` positions as (R, H, length, K)."""
        return (
            self._view[:length]
            .view(length, -1, n_heads, self._width // n_heads)
            .permute(1, 2, 0, 3)
        )

    def select(self, rows: Tensor, length: int) -> None:
        """Keeps, repeats or reorders rows, of `length` positions each."""
        size = self._room * len(rows) * self._width
        if len(self._spare) < size:
            self._spare = self._store.new_empty(size)
        view = self._spare[:size].view(self._room, len(rows), self._width)
        torch.index_select(self._view[:length], 1, rows, out=view[:length])
        self._store, self._spare, self._view = self._spare, self._store, view


@dataclass
class LayerCache:
    """Keys and values that one decoder layer keeps between steps.

    Attributes:
        self_keys: Of the target positions so far of R rows.
        self_values: Likewise.
        memory_keys: Of the encoder's output, (B, H, S, K); several rows may share a source.
        memory_values: Likewise.
    """

    self_keys: Cache
    self_values: Cache
    memory_keys: Tensor
    memory_values: Tensor

    def select(self, rows: Tensor, length: int) -> None:
        """Keeps, repeats or reorders rows of `length` target positions."""
        self.self_keys.select(rows, length)
        self.self_values.select(rows, length)

    def select_sources(self, sources: Tensor) -> None:
        """Keeps only some sources."""
        self.memory_keys = self.memory_keys.index_select(0, sources)
        self.memory_values = self.memory_values.index_select(0, sources)


@dataclass
class DecoderState:
    """What incremental decoding carries from step to step.

    Attributes:
        layers: Cached keys and values of each layer.
        memory_mask: Real source positions, (B, 1, 1, S).
        length: Target positions already in the cache.
    """

    layers: list[LayerCache]
    memory_mask: Tensor
    length: int = 0

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Keeps, repeats or reorders rows in place; rows of one source stand together.

        Args:
            rows: Row numbers, int64.
            sources: Numbers of the sources that are kept, int64; None keeps all.
        """
        for layer in self.layers:
            layer.select(rows, self.length)
        if sources is not None:
            self.memory_mask = self.memory_mask[sources]
            for layer in self.layers:
                layer.select_sources(sources)
