"""Keys and values that a decoder keeps between the positions of incremental decoding.

Shapes: B sources, S source length, R rows (hypotheses), D model width, H heads, K head width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


class PositionCache:
    """Vectors of the target positions so far: the keys, or the values, of one decoder layer.

    The position is the first dimension, so that adding a position writes, and selecting rows
    copies, contiguous blocks.

    Args:
        like: Any tensor with the device and type to use.
        max_positions: Largest number of target positions.
        n_rows: Rows, R.
        d_model: Width of a vector, D.
    """

    def __init__(self, like: Tensor, max_positions: int, n_rows: int, d_model: int) -> None:
        self._max_positions, self._d_model = max_positions, d_model
        self._storage = like.new_empty(max_positions * n_rows * d_model)
        self._spare = like.new_empty(0)  # where `select` copies to, then swapped with the storage
        self._vectors = self._storage.view(max_positions, n_rows, d_model)

    def append(self, vectors: Tensor, position: int) -> None:
        """Stores the vectors, (R, D), of a position."""
        self._vectors[position] = vectors

    def heads(self, n_positions: int, n_heads: int) -> Tensor:
        """Gives the first positions, split into heads, (R, H, n_positions, K)."""
        return (
            self._vectors[:n_positions]
            .view(n_positions, -1, n_heads, self._d_model // n_heads)
            .permute(1, 2, 0, 3)
        )

    def select(self, rows: Tensor, n_positions: int) -> None:
        """Keeps, repeats or reorders rows of the first positions."""
        size = self._max_positions * len(rows) * self._d_model
        if len(self._spare) < size:
            self._spare = self._storage.new_empty(size)
        selected = self._spare[:size].view(self._max_positions, len(rows), self._d_model)
        torch.index_select(self._vectors[:n_positions], 1, rows, out=selected[:n_positions])
        self._storage, self._spare, self._vectors = self._spare, self._storage, selected


@dataclass
class LayerCache:
    """Keys and values that one decoder layer keeps between positions.

    Attributes:
        self_keys: Self-attention keys of the target positions so far, R rows.
        self_values: Self-attention values, likewise.
        memory_keys: Keys of the encoder's output, (B, H, S, K); several rows may share a source.
        memory_values: Values of the encoder's output, likewise.
    """

    self_keys: PositionCache
    self_values: PositionCache
    memory_keys: Tensor
    memory_values: Tensor

    def select(self, rows: Tensor, n_positions: int) -> None:
        """Keeps, repeats or reorders rows of the first positions."""
        self.self_keys.select(rows, n_positions)
        self.self_values.select(rows, n_positions)

    def select_sources(self, sources: Tensor) -> None:
        """Keeps only the sources of the given numbers, int64."""
        self.memory_keys = self.memory_keys.index_select(0, sources)
        self.memory_values = self.memory_values.index_select(0, sources)


@dataclass
class DecoderState:
    """State of incremental decoding between two positions.

    Attributes:
        layers: Cached keys and values of each layer.
        memory_mask: Source positions that are not padding, (B, 1, 1, S).
        position: Index of the next target position; those before it are cached.
    """

    layers: list[LayerCache]
    memory_mask: Tensor
    position: int = 0

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Keeps, repeats or reorders rows in place; rows of one source must stay adjacent.

        Args:
            rows: Row numbers, int64.
            sources: Numbers of the sources to keep, int64; None keeps all.
        """
        for layer in self.layers:
            layer.select(rows, self.position)
        if sources is not None:
            self.memory_mask = self.memory_mask[sources]
            for layer in self.layers:
                layer.select_sources(sources)
