"""Linear maps through oneDNN on CPUs, and matrices packed for as long as they stay the same.

PyTorch's own float32 product goes through another library, which on many CPUs is half as fast, and
a matrix that was laid out for oneDNN beforehand is faster again (benchmarks/README.md).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_ONEDNN = hasattr(torch.ops.mkldnn, "_linear_pointwise")
_STATES = 2**16
"""A CPU draws 16 random bits for each number, so the probability is rounded to such a part."""


def product(x: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computes x @ matrix^T + bias, (..., inputs) to (..., outputs), as `F.linear` does."""
    wide = x.dtype == matrix.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    if _ONEDNN and x.device.type == "cpu" and wide:
        rows: Tensor = _Product.apply(x.flatten(0, -2), matrix, bias)  # type: ignore[no-untyped-call]
        return rows.view(*x.shape[:-1], -1)
    return F.linear(x, matrix, bias)


class _Product(torch.autograd.Function):
    """oneDNN's product with its gradients, which are products too."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, matrix)
        ctx.biased = bias is not None
        return _onednn(rows, matrix, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        rows, matrix = ctx.saved_tensors
        grad_bias = grad.sum(0) if ctx.biased else None
        return _onednn(grad, matrix.t()), _onednn(grad.t(), rows.t()), grad_bias


def _onednn(x: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, matrix, bias, "none", [], "")
    return found


class Packable(nn.Module, ABC):
    """A module with one matrix that it multiplies by."""

    packed: Tensor | None = None

    @property
    @abstractmethod
    def matrix(self) -> Tensor:
        """The matrix, (outputs, inputs)."""

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Maps (..., inputs) to (..., outputs)."""
        if self.packed is None:
            return product(x, self.matrix, bias)
        return _onednn(x, self.packed, bias)


class Linear(nn.Linear, Packable):
    """An affine map, as PyTorch's own."""

    @property
    def matrix(self) -> Tensor:
        """The matrix, (outputs, inputs)."""
        return self.weight

    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., inputs) to (..., outputs)."""
        return self.multiply(x, self.bias)


@contextmanager
def packed(model: nn.Module) -> Iterator[None]:
    """Packs the matrices of a model on a CPU; meanwhile they must not change, nor be trained."""
    mine = pack(model)
    try:
        yield
    finally:
        for module in mine:
            module.packed = None


def pack(model: nn.Module) -> list[Packable]:
    """Packs, for good, what is not packed yet; gives the modules."""
    mine = [
        module
        for module in model.modules()
        if isinstance(module, Packable) and module.packed is None and _can_pack(module.matrix)
    ]
    for module in mine:
        module.packed = torch.ops.mkldnn._reorder_linear_weight(module.matrix.detach())
    return mine


def _can_pack(matrix: Tensor) -> bool:
    return matrix.device.type == "cpu" and _ONEDNN


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
