"""Adam and the paper's learning rate."""

import torch
from torch import nn

from transformer_mt.config import OptimConfig


def noam_rate(step: int, d_model: int, warmup_steps: int, scale: float = 1.0) -> float:
    """Gives the learning rate of one step: a linear rise, then the inverse square root.

    Args:
        step: Step about to be taken, counted from 1.
        d_model: Model width.
        warmup_steps: Steps of the rise.
        scale: Factor on the paper's rate.

    Raises:
        ValueError: If step is below 1.

    Reference:
        Attention Is All You Need, section 5.3, equation 3.
    """
    if step < 1:
        raise ValueError(f"steps are counted from 1, got {step}")
    return float(scale * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5))


def build_adam(model: nn.Module, config: OptimConfig) -> torch.optim.Adam:
    """Builds fused Adam, the one implementation that can skip a step on the device.

    The rate is set before each step, from `noam_rate`.

    Reference:
        Attention Is All You Need, section 5.3.
    """
    return torch.optim.Adam(
        model.parameters(), lr=0.0, betas=config.betas, eps=config.eps, fused=True
    )
