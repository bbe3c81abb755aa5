"""Multi-head self-attention and cross-attention, for whole sequences and position by position.

Shapes: B batch, S source length, T target length, D model width, H heads, K = D / H head width,
R rows (hypotheses) of incremental decoding. Masks are bool and True means "may attend".

Reference: Vaswani et al. 2017, Attention Is All You Need, sections 3.2.2 and 3.2.3.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transformer_mt.config.keys import ModelConfig
from transformer_mt.model.cpu_kernels import Attention, Linear


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

    Those of self-attention have R rows. Those of the encoder's output are (B, H, S, K), since
    several rows may share a source.
    """

    self_keys: PositionCache
    self_values: PositionCache
    memory_keys: Tensor
    memory_values: Tensor


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
            layer.self_keys.select(rows, self.position)
            layer.self_values.select(rows, self.position)
            if sources is not None:
                layer.memory_keys = layer.memory_keys.index_select(0, sources)
                layer.memory_values = layer.memory_values.index_select(0, sources)
        if sources is not None:
            self.memory_mask = self.memory_mask[sources]


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """Splits the width into heads, (B, T, D) to (B, H, T, K)."""
    heads: Tensor = x.unflatten(-1, (n_heads, -1)).transpose(1, 2)  # type: ignore[no-untyped-call]
    return heads


def join_heads(heads: Tensor) -> Tensor:
    """Concatenates the heads, (B, H, T, K) to (B, T, D)."""
    return heads.transpose(1, 2).flatten(2)


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself (section 3.2.2)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_heads = config.n_heads
        # One weight for queries, keys and values: one product is faster than three.
        self.qkv = Linear(config.d_model, 3 * config.d_model, config.attention_bias)
        self.attention = Attention(config.attention_dropout)
        self.out = Linear(config.d_model, config.d_model, config.attention_bias)

    def forward(self, x: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """Attends within x, (B, T, D) to (B, T, D)."""
        q, k, v = split_heads(self.qkv(x), 3 * self.n_heads).chunk(3, dim=1)  # (B, H, T, K) each
        output: Tensor = self.out(join_heads(self.attention(q, k, v, mask, causal)))
        return output

    def decode_position(self, x: Tensor, cache: LayerCache, position: int) -> Tensor:
        """Attends from one position to itself and all before it, and adds it to the cache.

        Args:
            x: Vectors of the position, (R, 1, D).
            cache: Holds the previous positions.
            position: Index of the position.

        Returns:
            Output at the position, (R, 1, D).
        """
        q, k, v = self.qkv(x).chunk(3, dim=-1)  # (R, 1, D) each
        cache.self_keys.append(k[:, 0], position)
        cache.self_values.append(v[:, 0], position)
        keys = cache.self_keys.heads(position + 1, self.n_heads)
        values = cache.self_values.heads(position + 1, self.n_heads)
        heads = self.attention(split_heads(q, self.n_heads), keys, values, None, False)
        output: Tensor = self.out(join_heads(heads))  # (R, 1, D)
        return output


class CrossAttention(nn.Module):
    """Multi-head attention of the target to the encoder's output (section 3.2.3)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_heads = config.n_heads
        self.q = Linear(config.d_model, config.d_model, config.attention_bias)
        self.kv = Linear(config.d_model, 2 * config.d_model, config.attention_bias)
        self.attention = Attention(config.attention_dropout)
        self.out = Linear(config.d_model, config.d_model, config.attention_bias)

    def project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Projects the encoder's output to keys and values, (B, S, D) to two (B, H, S, K)."""
        k, v = split_heads(self.kv(memory), 2 * self.n_heads).chunk(2, dim=1)
        return k, v

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Attends to projected memory.

        Args:
            x: Target vectors, (B, T, D).
            keys: From `project_memory`, (B, H, S, K).
            values: From `project_memory`, (B, H, S, K).
            mask: Source positions that are not padding, (B, 1, 1, S).

        Returns:
            Output, (B, T, D).
        """
        q = split_heads(self.q(x), self.n_heads)  # (B, H, T, K)
        output: Tensor = self.out(join_heads(self.attention(q, keys, values, mask, False)))
        return output

    def decode_position(self, x: Tensor, cache: LayerCache, mask: Tensor) -> Tensor:
        """Attends from one position of R rows, (R, 1, D), to the B sources they belong to.

        Rows of one source are adjacent, so they are computed as its queries and share its keys.
        """
        queries = x.view(len(cache.memory_keys), -1, x.size(-1))  # (B, R / B, D)
        output: Tensor = self(queries, cache.memory_keys, cache.memory_values, mask)
        return output.view_as(x)  # (R, 1, D)
