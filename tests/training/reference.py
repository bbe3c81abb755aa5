"""The label-smoothed loss in plain PyTorch, which `projected_loss` is compared with."""

import torch.nn.functional as F
from torch import Tensor


def smoothed_loss(logits: Tensor, targets: Tensor, label_smoothing: float, pad_id: int) -> Tensor:
    """Sums the loss over targets, (B, T), that are not padding, from logits, (B, T, V)."""
    return F.cross_entropy(
        logits.float().flatten(0, 1),
        targets.flatten(),
        ignore_index=pad_id,
        reduction="sum",
        label_smoothing=label_smoothing,
    )
