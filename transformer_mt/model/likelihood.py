"""Probabilities that a model assigns to a target: the basis of perplexity and of scoring."""

import torch.nn.functional as F
from torch import Tensor

from transformer_mt.model.transformer import Transformer
from transformer_mt.system.device import compute_settings


def token_log_probabilities(
    model: Transformer, src: Tensor, tgt_in: Tensor, tgt_out: Tensor, pad_id: int
) -> Tensor:
    """Computes the log-probability of each target token, without label smoothing.

    Args:
        model: In evaluation mode, or dropout is applied.
        src: Source ids, padded, (B, S).
        tgt_in: BOS and target ids, padded, (B, T).
        tgt_out: Target ids and EOS, padded, (B, T).
        pad_id: Id of padding.

    Returns:
        Natural logarithms, (B, T), float32; 0 at padding.
    """
    with compute_settings(src.device, tf32=False):
        logits = model(src, tgt_in).float()  # (B, T, V)
    losses = F.cross_entropy(
        logits.flatten(0, 1), tgt_out.flatten(), ignore_index=pad_id, reduction="none"
    )  # (B * T,)
    return -losses.view_as(tgt_out)
