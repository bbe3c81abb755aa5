"""Adam, the learning rate of the paper, and a moving average of the weights."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from transformer_mt.config.keys import OptimConfig
from transformer_mt.system.private_torch import lerp_all_


def noam_rate(step: int, d_model: int, warmup_steps: int, scale: float = 1.0) -> float:
    """Computes the learning rate of a step: linear warm-up, then inverse square-root decay.

    Args:
        step: Number of the step about to be taken, from 1.
        d_model: Model width.
        warmup_steps: Steps of the warm-up.
        scale: Factor on the learning rate of the paper.

    Reference:
        Attention Is All You Need, section 5.3, equation 3.
    """
    return float(scale * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5))


def build_adam(model: nn.Module, config: OptimConfig) -> torch.optim.Adam:
    """Builds fused Adam, the only implementation that can skip a step on the device.

    Set the learning rate before each step, from `noam_rate`.

    Reference:
        Attention Is All You Need, section 5.3.
    """
    return torch.optim.Adam(
        model.parameters(), lr=0.0, betas=config.betas, eps=config.eps, fused=True
    )


def clip_gradients(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scales unscaled gradients in place to a total norm of at most `max_norm`; 0 is no limit.

    Returns the norm before, a scalar on the device, without waiting for it.
    """
    return nn.utils.clip_grad_norm_(parameters, max_norm or math.inf)


class ExponentialMovingAverage:
    """An exponential moving average of the weights of a model.

    Args:
        model: The average starts at its weights, on their device.
        decay: Share of the previous average that a step keeps, except for early steps.

    Attributes:
        averages: The average of each parameter, in the order of the model.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._parameters: list[Tensor] = list(model.parameters())
        self.averages = [parameter.detach().clone() for parameter in self._parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Adds the weights after a step, counted from 1.

        Early steps keep only (1 + step) / (10 + step) of the previous average, so that the random
        initial weights soon lose their influence.
        """
        decay = min(self.decay, (1 + step) / (10 + step))
        lerp_all_(self.averages, self._parameters, 1.0 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Swaps the average into the model temporarily; changes made to it meanwhile are kept."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for parameter, average in zip(self._parameters, self.averages, strict=True):
            weights = parameter.clone()
            parameter.copy_(average)
            average.copy_(weights)
