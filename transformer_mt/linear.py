"""Linear maps whose matrices can be packed, for as long as they stay the same.

On CPUs oneDNN multiplies by a matrix that was laid out for it beforehand two to three times as fast
as PyTorch's plain kernel does (benchmarks/README.md).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Packable(nn.Module):
    """A module with one matrix that it multiplies by."""

    packed: Tensor | None = None

    @property
    def matrix(self) -> Tensor:
        """The matrix, (outputs, inputs)."""
        raise NotImplementedError

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Maps (..., inputs) to (..., outputs)."""
        if self.packed is None:
            return F.linear(x, self.matrix, bias)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, bias, "none", [], "")
        return product


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
    mine = [
        module
        for module in model.modules()
        if isinstance(module, Packable) and module.packed is None and _can_pack(module.matrix)
    ]
    for module in mine:
        module.packed = torch.ops.mkldnn._reorder_linear_weight(module.matrix.detach())
    try:
        yield
    finally:
        for module in mine:
            module.packed = None


def _can_pack(matrix: Tensor) -> bool:
    return matrix.device.type == "cpu" and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
