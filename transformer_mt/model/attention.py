"""Scaled dot-product and multi-head attention, with the caches of step-by-step decoding.

Shapes: B batch, S source length, T target length, D model width, H heads, K head width. Masks are
bool and True means "may attend".

Reference: Vaswani et al. 2017, Attention Is All You Need, section 3.2.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_mt.model.cpu_kernels import Linear
from transformer_mt.model.decoder_cache import LayerCache

Maps = list[Tensor]
"""Collects attention weights, (B, H, queries, keys), when a caller wants to look at them."""


FEW_QUERIES = 8
"""Up to so many, as in a step of decoding, plain products are faster on a CPU."""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    dropout: float,
    maps: Maps | None,
) -> Tensor:
    """Computes scaled dot-product attention.

    Args:
        q: Queries, (B, H, T, K).
        k: Keys, (B, H, S, K).
        v: Values, (B, H, S, K).
        mask: Where queries may attend, broadcastable to (B, H, T, S); None is everywhere.
        causal: Whether a query sees only positions up to its own.
        dropout: Probability with which a weight is dropped.
        maps: Receives the weights, (B, H, T, S), if given.

    Returns:
        Weighted values, (B, H, T, K).

    Reference:
        Section 3.2.1, equation 1.
    """
    if maps is not None:
        maps.append(_attention_weights(q, k, mask, causal))
    if q.device.type == "cpu":
        # On CPUs this one operation is slower in bf16, its backward many times, than in fp32.
        with torch.autocast("cpu", enabled=False):
            wide = q.float(), k.float(), v.float()
            if q.size(2) <= FEW_QUERIES and not dropout:
                return (_attention_weights(q, k, mask, causal) @ wide[2]).to(q.dtype)
            return F.scaled_dot_product_attention(*wide, mask, dropout, causal).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal)


def _attention_weights(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    scores = q.float() @ k.float().transpose(-2, -1) / math.sqrt(q.size(-1))  # (B, H, T, S)
    if causal:
        mask = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(dim=-1)


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself (section 3.2.2)."""

    def __init__(self, d_model: int, n_heads: int, bias: bool, dropout: float) -> None:
        super().__init__()
        self.n_heads, self.dropout = n_heads, dropout
        self.qkv = Linear(d_model, 3 * d_model, bias)
        self.out = Linear(d_model, d_model, bias)

    def forward(self, x: Tensor, mask: Tensor | None, causal: bool, maps: Maps | None) -> Tensor:
        """Attends within x, (B, T, D) to (B, T, D)."""
        q, k, v = self.qkv(x).unflatten(-1, (3 * self.n_heads, -1)).transpose(1, 2).chunk(3, dim=1)
        dropout = self.dropout if self.training else 0.0
        return self._project(attend(q, k, v, mask, causal, dropout, maps))

    def step(self, x: Tensor, cache: LayerCache, length: int) -> Tensor:
        """Attends from position `length` to itself and all before, (R, 1, D) to (R, 1, D)."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        cache.self_keys.append(k[:, 0], length)
        cache.self_values.append(v[:, 0], length)
        keys = cache.self_keys.heads(length + 1, self.n_heads)
        values = cache.self_values.heads(length + 1, self.n_heads)
        queries = q.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # (R, H, 1, K)
        return self._project(attend(queries, keys, values, None, False, 0.0, None))

    def _project(self, heads: Tensor) -> Tensor:
        projected: Tensor = self.out(heads.transpose(1, 2).flatten(2))  # (B, T, D)
        return projected


class CrossAttention(nn.Module):
    """Multi-head attention of the target to the encoder's output (section 3.2.3)."""

    def __init__(self, d_model: int, n_heads: int, bias: bool, dropout: float) -> None:
        super().__init__()
        self.n_heads, self.dropout = n_heads, dropout
        self.q = Linear(d_model, d_model, bias)
        self.kv = Linear(d_model, 2 * d_model, bias)
        self.out = Linear(d_model, d_model, bias)

    def project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Makes keys and values of the encoder's output, (B, S, D) to two (B, H, S, K)."""
        k, v = self.kv(memory).unflatten(-1, (2 * self.n_heads, -1)).transpose(1, 2).chunk(2, dim=1)
        # Widened here, once, on a CPU: `attend` would do it for every query anew.
        return (k.float(), v.float()) if k.device.type == "cpu" else (k, v)

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor, maps: Maps | None
    ) -> Tensor:
        """Attends from x, (B, T, D), to projected memory; gives (B, T, D)."""
        q = self.q(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # (B, H, T, K)
        dropout = self.dropout if self.training else 0.0
        heads = attend(q, keys, values, mask, False, dropout, maps)
        projected: Tensor = self.out(heads.transpose(1, 2).flatten(2))  # (B, T, D)
        return projected

    def step(self, x: Tensor, cache: LayerCache, mask: Tensor) -> Tensor:
        """Attends from one position of R rows, (R, 1, D), to the B sources they belong to.

        Rows of one source follow each other, so they are its queries and share its keys.
        """
        queries = x.view(len(cache.memory_keys), -1, x.size(-1))  # (B, R / B, D)
        return self(queries, cache.memory_keys, cache.memory_values, mask, None).view_as(x)  # type: ignore[no-any-return]
