"""Attention, and multi-head self- and cross-attention of whole sequences or position by position.

Shapes: B batch, S source length, T target length, D model width, H heads, K = D / H head width,
R rows (hypotheses) of incremental decoding. Masks are bool and True means "may attend".

Reference: Vaswani et al. 2017, Attention Is All You Need, section 3.2.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transformer_mt.config.keys import ModelConfig
from transformer_mt.model.kernels import Linear, dropout, fused_attention, has_fused_attention
from transformer_mt.model.packed_attention import PackMask

Mask = Tensor | PackMask
"""Where queries may attend: a bool tensor, or the mask of a pack, which has its own kernel."""


def attention_weights(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Computes softmax(q k^T / sqrt(K)) in float32, K being the head width.

    Args:
        q: Queries, (B, H, T, K).
        k: Keys, (B, H, S, K).
        mask: Where queries may attend, broadcastable to (B, H, T, S); None is everywhere.
        causal: Whether a query sees only positions up to its own; then mask must be None.

    Returns:
        Weights, (B, H, T, S); each row sums to 1.
    """
    scores = q.float() @ k.float().transpose(-2, -1) / math.sqrt(q.size(-1))  # (B, H, T, S)
    if causal:
        mask = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(dim=-1)


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, p: float
) -> Tensor:
    """Computes softmax(q k^T / sqrt(K)) v with dropout of the weights (section 3.2.1, equation 1).

    Args:
        q: Queries, (B, H, T, K).
        k: Keys, (B, H, S, K).
        v: Values, (B, H, S, K).
        mask: As in `attention_weights`.
        causal: As in `attention_weights`.
        p: Probability with which a weight is dropped.

    Returns:
        Weighted values, (B, H, T, K), computed in float32, in the type of the queries.
    """
    with torch.autocast(q.device.type, enabled=False):
        weights = attention_weights(q, k, mask, causal)  # (B, H, T, S)
        if p:
            weights = dropout(weights, p)
        return (weights @ v.float()).to(q.dtype)


class Attention(nn.Module):
    """Computes `attention`, with dropout p in training, by a faster kernel where there is one."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, causal: bool) -> Tensor:
        """Attends from queries, (B, H, T, K), to keys and values; gives (B, H, T, K)."""
        if isinstance(mask, PackMask):
            return mask.attend(q, k, v)
        p = self.p if self.training else 0.0
        compute = fused_attention if has_fused_attention(q, p) else attention
        return compute(q, k, v, mask, causal, p)


class PositionCache:
    """Vectors of the target positions so far: the keys, or the values, of one decoder layer.

    The position is the first dimension, so that adding a position writes, and selecting rows
    copies, contiguous blocks.

    Args:
        like: Keys or values of the memory, (B, H, S, K); the cache begins with a row for each.
        max_positions: Largest number of target positions.
    """

    def __init__(self, like: Tensor, max_positions: int) -> None:
        n_rows, n_heads, _, head_width = like.shape
        self._vectors = like.new_empty(max_positions, n_rows, n_heads, head_width)
        self._spare = like.new_empty(0)  # `select` copies to it, then swaps the two

    def append(self, vectors: Tensor, position: int) -> Tensor:
        """Stores the vectors, (R, H, 1, K), of a position; gives all so far, (R, H, T, K)."""
        self._vectors[position] = vectors[:, :, 0]
        return self._vectors[: position + 1].permute(1, 2, 0, 3)

    def select(self, rows: Tensor, n_positions: int) -> None:
        """Makes row i a copy of row `rows[i]`, in the first `n_positions` positions."""
        max_positions, _, *head_shape = self._vectors.shape
        selected = self._spare.resize_(max_positions, len(rows), *head_shape)
        torch.index_select(self._vectors[:n_positions], 1, rows, out=selected[:n_positions])
        self._vectors, self._spare = selected, self._vectors


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
            rows: For each row afterwards, the number of the row that it copies, int64, (R,).
            sources: Numbers of the sources to keep, int64, (B,); None keeps all.
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

    def forward(self, x: Tensor, mask: Mask | None, causal: bool) -> Tensor:
        """Attends within x, (B, T, D) to (B, T, D)."""
        q, k, v = split_heads(self.qkv(x), 3 * self.n_heads).chunk(3, dim=1)  # (B, H, T, K) each
        return self.out(join_heads(self.attention(q, k, v, mask, causal)))

    def decode_position(self, x: Tensor, cache: LayerCache, position: int) -> Tensor:
        """Attends from one position to itself and those in the cache, (R, 1, D) to (R, 1, D).

        The position is added to the cache.
        """
        q, k, v = split_heads(self.qkv(x), 3 * self.n_heads).chunk(3, dim=1)  # (R, H, 1, K) each
        keys = cache.self_keys.append(k, position)  # (R, H, T, K)
        values = cache.self_values.append(v, position)
        heads = self.attention(q, keys, values, None, False)  # (R, H, 1, K)
        return self.out(join_heads(heads))  # (R, 1, D)


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

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Mask) -> Tensor:
        """Attends to projected memory, (B, T, D) to (B, T, D).

        Args:
            x: Target vectors, (B, T, D).
            keys: From `project_memory`, (B, H, S, K).
            values: From `project_memory`, (B, H, S, K).
            mask: Source positions that are not padding, (B, 1, 1, S).
        """
        q = split_heads(self.q(x), self.n_heads)  # (B, H, T, K)
        return self.out(join_heads(self.attention(q, keys, values, mask, False)))

    def decode_position(self, x: Tensor, cache: LayerCache, mask: Tensor) -> Tensor:
        """Attends from one position of R rows, (R, 1, D), to the B sources they belong to.

        Rows of one source are adjacent, so they are computed as its queries and share its keys.
        """
        queries = x.view(len(cache.memory_keys), -1, x.size(-1))  # (B, R / B, D)
        return self(queries, cache.memory_keys, cache.memory_values, mask).view_as(x)  # (R, 1, D)
