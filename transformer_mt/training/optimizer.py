"""Adam or Muon, the learning rate of the paper, and a moving average of the weights."""

import math
from collections import defaultdict
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from transformer_mt.config.keys import OptimConfig
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.private_torch import Adam, add_all_, is_step_skipped, lerp_all_

_MOMENTUM = 0.95
"""Decay rate of Muon's momentum, instead of Adam's beta_1."""
_ADAM_RMS = 0.2
"""Typical root mean square of Adam's changes of weights, as a share of the learning rate."""
_FUSED = {"qkv": 3, "kv": 2}
"""Matrices that one parameter of the model holds; Muon makes each orthogonal by itself."""


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


def build_optimizer(
    model: nn.Module, config: OptimConfig, muon_dtype: torch.dtype
) -> torch.optim.Adam:
    """Builds Adam, or Muon if it is configured; neither has taken a step.

    Before each step, set the learning rate of every group, from `noam_rate`.

    Args:
        model: The model to train.
        config: The `[optim]` section.
        muon_dtype: Type in which Muon makes matrices orthogonal, float32 or bfloat16.

    Reference:
        Attention Is All You Need, section 5.3.
    """
    if config.muon:
        return Muon(model, config, muon_dtype)
    # Only the fused implementation can skip a step on the device.
    return Adam(model.parameters(), lr=0.0, betas=config.betas, eps=config.eps, fused=True)


class Muon(Adam):
    """Muon for the matrices inside layers; Adam for embeddings, biases and layer normalisation.

    A matrix changes by its momentum made orthogonal, scaled to the root mean square of Adam's
    changes, so that both use one learning rate. Adam keeps its moments for the matrices too: the
    first is Muon's momentum, the second is not used. So a checkpoint has the same tensors with
    either optimizer, and `skip_step_if` and a loss scaler work as with Adam.

    Reference:
        Jordan et al. 2024, Muon: An optimizer for hidden layers in neural networks. The scale is
        from Liu et al. 2025, Muon is Scalable for LLM Training, section 2.2.
    """

    def __init__(self, model: nn.Module, config: OptimConfig, dtype: torch.dtype) -> None:
        matrices, others = list[Tensor](), list[Tensor]()
        # Rows of matrices by shape, since those of one shape are made orthogonal at once.
        self._blocks = defaultdict[torch.Size, list[tuple[Tensor, slice]]](list)
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2 or name.endswith("_embedding"):
                others.append(parameter)
                continue
            matrices.append(parameter)
            *_, layer, _ = name.split(".")
            size = len(parameter) // _FUSED.get(layer, 1)
            for start in range(0, len(parameter), size):
                rows = slice(start, start + size)
                self._blocks[parameter[rows].shape].append((parameter, rows))
        self._dtype = dtype
        momentum = (_MOMENTUM, config.betas[1])
        groups: list[dict[str, Any]] = [{"params": others}, {"params": matrices, "betas": momentum}]
        super().__init__(groups, lr=0.0, betas=config.betas, eps=config.eps, fused=True)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Takes a step with the gradients of all parameters; call `skip_step_if` before it.

        The gradients of matrices inside layers are overwritten.
        """
        matrices = self.param_groups[1]
        lr, matrices["lr"] = matrices["lr"], 0.0
        super().step(closure)  # of the matrices it changes only the moments: their rate is 0
        matrices["lr"] = lr
        skipped = is_step_skipped(self)
        for shape, blocks in self._blocks.items():
            momentum = self._nesterov_momentum(blocks)
            scale = -lr * _ADAM_RMS * math.sqrt(max(shape))
            changes = orthogonalise(momentum.to(self._dtype)).mul_(scale)
            changes.masked_fill_(skipped, 0.0)  # or NaN would reach the weights
            add_all_([parameter[rows] for parameter, rows in blocks], list(changes))

    def _nesterov_momentum(self, blocks: list[tuple[Tensor, slice]]) -> Tensor:
        """Computes the momentum of matrices of one shape, (N, A, B), in place of the gradients."""
        gradients, moments = list[Tensor](), list[Tensor]()
        for parameter, rows in blocks:
            assert parameter.grad is not None
            gradients.append(parameter.grad[rows])
            moments.append(self.state[parameter]["exp_avg"][rows])
        lerp_all_(gradients, moments, _MOMENTUM)
        return torch.stack(gradients)


def orthogonalise(matrices: Tensor) -> Tensor:
    """Brings the singular values of matrices, (N, A, B) to (N, A, B), near 1, tiny ones excepted.

    Reference:
        The Newton-Schulz iteration of Jordan et al. 2024, with its five steps and coefficients.
    """
    is_tall = matrices.size(1) > matrices.size(2)
    x = matrices.mT if is_tall else matrices
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp_min(1e-7)
    for _ in range(5):
        gram = x @ x.mT  # (N, A, A), A being the smaller side
        polynomial = torch.baddbmm(gram, gram, gram, beta=-4.775, alpha=2.0315)
        x = torch.baddbmm(x, polynomial, x, beta=3.4445)
    return x.mT if is_tall else x


class ExponentialMovingAverage:
    """An exponential moving average of the weights of a model.

    Args:
        model: The average starts at its weights, on their device.
        decay: Share of the previous average that a step keeps, except for early steps.

    Attributes:
        model: A copy with the averages as its weights.
    """

    def __init__(self, model: Transformer, decay: float) -> None:
        self.model, self.decay = deepcopy(model), decay
        self._averages: list[Tensor] = list(self.model.parameters())
        self._weights: list[Tensor] = list(model.parameters())

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Adds the weights after a step, counted from 1.

        Early steps keep only (1 + step) / (10 + step) of the previous average, so that the random
        initial weights soon lose their influence.
        """
        decay = min(self.decay, (1 + step) / (10 + step))
        lerp_all_(self._averages, self._weights, 1.0 - decay)
