"""Every use of private or undocumented PyTorch API.

No other module may use private API (tests/test_architecture.py): after updating PyTorch, check
what each function here calls. Checked on torch 2.11.0, 2.13.0, 2.14.1 and 2.15.0.
"""

import inspect

import torch
from torch import Tensor


class Adam(torch.optim.Adam):
    """PyTorch's, without the wrappers that import torch._dynamo, which takes seconds."""

    add_param_group = inspect.unwrap(torch.optim.Adam.add_param_group)
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))
    zero_grad = inspect.unwrap(torch.optim.Adam.zero_grad)


def has_onednn_linear() -> bool:
    """Returns whether this PyTorch has `onednn_linear` and `reorder_onednn_weight`."""
    return hasattr(torch.ops.mkldnn, "_linear_pointwise")


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computes x @ weight^T + bias through oneDNN on the CPU, without autograd.

    The input is (..., inputs), the weight (outputs, inputs) or a result of `reorder_onednn_weight`,
    the bias (outputs,), and the output (..., outputs), all of the same type.
    """
    output: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return output


def reorder_onednn_weight(weight: Tensor) -> Tensor:
    """Copies a weight, (outputs, inputs), into the memory layout that oneDNN prefers."""
    reordered: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
    return reordered


def cpu_bf16_instructions() -> list[str]:
    """Names the instruction sets of the CPU that compute in bf16."""
    has_avx512, has_amx = torch.cpu._is_avx512_bf16_supported, torch.cpu._is_amx_tile_supported
    return ["AVX512_BF16"] * has_avx512() + ["AMX"] * has_amx()


def add_all_(tensors: list[Tensor], summands: list[Tensor]) -> None:
    """Adds to each tensor in place: tensor += summand."""
    torch._foreach_add_(tensors, summands)


def copy_all_(tensors: list[Tensor], sources: list[Tensor]) -> None:
    """Copies to each tensor, in place."""
    torch._foreach_copy_(tensors, sources)


def lerp_all_(tensors: list[Tensor], ends: list[Tensor], weight: float) -> None:
    """Moves each tensor in place towards its end: tensor += weight * (end - tensor)."""
    torch._foreach_lerp_(tensors, ends, weight)


def tensor_version(tensor: Tensor) -> int:
    """Returns a number that each change of a tensor raises; those of inference mode have none."""
    return 0 if tensor.is_inference() else tensor._version


def loss_scale(scaler: torch.amp.GradScaler) -> Tensor:
    """Returns the scale of an enabled scaler as a scalar tensor, without waiting for the device."""
    scale: Tensor | None = scaler._get_scale_async()
    return torch.tensor(scaler.get_scale()) if scale is None else scale  # None before its first use


def skip_step_if(optimizer: torch.optim.Optimizer, condition: Tensor) -> None:
    """Makes the next `step` of a fused optimizer change nothing if a condition holds.

    The decision is made on the device. If PyTorch stopped reading `found_inf`, non-finite gradients
    would reach the weights, and tests/training/test_optimizer.py would fail. A loss scaler replaces
    the condition, a bool scalar on the device of the parameters, with its own.
    """
    optimizer.found_inf = condition.float()  # type: ignore[attr-defined]


def is_step_skipped(optimizer: torch.optim.Optimizer) -> Tensor:
    """Returns the condition of `skip_step_if`, or a loss scaler's, as a bool scalar."""
    found_inf: Tensor = optimizer.found_inf  # type: ignore[attr-defined]
    return found_inf > 0
