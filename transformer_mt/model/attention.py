"""Scaled dot-product attention: softmax(Q K^T / sqrt(K)) V.

Shapes: B batch, H heads, T queries, S keys, K head width. Masks are bool and True means "may
attend". The layers around it are in multi_head_attention.py; the CPU versions are in cpu_kernels.py
and tested against the functions here.

Reference: Vaswani et al. 2017, Attention Is All You Need, section 3.2.1.
"""

import math

import torch
from torch import Tensor


def attention_weights(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Computes softmax(Q K^T / sqrt(K)) in float32.

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


def scaled_dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool
) -> Tensor:
    """Computes softmax(Q K^T / sqrt(K)) V.

    Args:
        q: Queries, (B, H, T, K).
        k: Keys, (B, H, S, K).
        v: Values, (B, H, S, K).
        mask: As in `attention_weights`.
        causal: As in `attention_weights`.

    Returns:
        Weighted values, (B, H, T, K), in the type of the queries.

    Reference:
        Section 3.2.1, equation 1.
    """
    return (attention_weights(q, k, mask, causal) @ v.float()).to(q.dtype)
