"""Adam, the paper's learning rate, and a moving average of the weights."""

from collections.abc import Iterator
from contextlib import contextmanager

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


class Ema:
    """An exponential moving average of a model's weights.

    Args:
        model: Whose weights, and on whose device.
        decay: Share of the old average that a step keeps, once enough steps are behind.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._live: list[torch.Tensor] = list(model.parameters())
        self._average = [p.detach().clone() for p in self._live]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Takes in the weights after a step, counted from 1.

        Early steps keep only (1 + step) / (10 + step) of what was, so that the random start is
        soon forgotten.
        """
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._average, self._live, 1.0 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Puts the average into the model for a while; what the model then has is the average."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for live, average in zip(self._live, self._average, strict=True):
            kept = live.clone()
            live.copy_(average)
            average.copy_(kept)
