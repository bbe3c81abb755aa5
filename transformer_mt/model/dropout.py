"""Dropout with masks that a CPU draws in a fifth of the time."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_STATES = 2**16
"""A CPU draws 16 random bits for each number, so the probability is rounded to such a part."""


class Dropout(nn.Module):
    """Zeroes numbers at random in training and scales the others up to keep the mean.

    Args:
        p: Probability of a zero.

    Reference:
        Attention Is All You Need, section 5.4.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Maps a tensor to one of the same shape."""
        if not self.training or not self.p:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        return x * _noise(x.detach(), self.p)


def _noise(like: Tensor, p: float) -> Tensor:
    """Draws what dropout multiplies by: PyTorch draws Bernoulli numbers on one thread, slowly."""
    zeros = min(round(p * _STATES), _STATES - 1)
    # The whole range of int64, or the sign bit would never be set.
    bits = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = bits.view(torch.int16)[: like.numel()].view(like.shape)
    noise = torch.empty(like.shape, dtype=like.dtype)
    return torch.ge(bits, zeros - _STATES // 2, out=noise).mul_(_STATES / (_STATES - zeros))
