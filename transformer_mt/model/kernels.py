"""Fast ways to compute linear layers, dropout and attention on CPUs and GPUs.

Each computes what its counterpart in `torch.nn.functional`, or the formula in
`multi_head_attention`, computes; tests compare the two. benchmarks/LOG.md has the measurements.
"""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_mt.system.device import has_fast_mkl
from transformer_mt.system.private_torch import (
    has_onednn_linear,
    onednn_linear,
    reorder_onednn_weight,
    tensor_version,
)

FEW_QUERIES = 8
"""Up to this many queries, as in incremental decoding, plain products are faster than SDPA."""
_REORDERED = "reordered"
"""Attribute of a weight that holds its copy in oneDNN's own layout."""
_BIAS = "bias"
"""Attribute of a mask that holds it as a bias."""
_BIAS_ALIGNMENT = 8
"""PyTorch copies a bias whose strides are no multiples of this."""
_ROW_MULTIPLE = 64
"""`pad_rows` adds 2 to 4% to steps of 2,000 tokens, and leaves 10 to 17 different row counts."""
_STATES = 2**16
"""Dropout draws 16 random bits per element, so p is rounded to a multiple of 1 / 2^16."""
_thread = threading.local()
"""Holds the generator that dropout draws from in each thread; None means PyTorch's own."""


def _on_cpu(x: Tensor) -> bool:
    return x.device.type == "cpu"


# --- Linear layers ------------------------------------------------------------------------------


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computes x @ weight^T + bias.

    In float32 on a CPU the product runs through oneDNN if the weight is reordered, or if MKL,
    PyTorch's default library, is slow: on CPUs with AVX-512 that are not Intel's it takes twice
    the time. With gradients in bf16 or float16 the rows are padded, as in `pad_rows`.

    Args:
        x: Input, (..., inputs).
        weight: Weight, (outputs, inputs). Without gradients its reordered copy is used, if it has
            one and has not changed since.
        bias: Bias, (outputs,).

    Returns:
        Output, (..., outputs).
    """
    if not _on_cpu(x):
        return F.linear(x, weight, bias)
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    if _needs_padding(x, dtype) and torch.is_grad_enabled():
        return _apply_to_rows(_PaddedLinear, x, weight, bias, dtype)
    if not _can_use_onednn(weight) or dtype != torch.float32:
        return F.linear(x, weight, bias)
    version, copy = getattr(weight, _REORDERED, (None, None))
    if copy is not None and version == tensor_version(weight) and not torch.is_grad_enabled():
        return onednn_linear(x, copy, bias)
    if has_fast_mkl():
        return F.linear(x, weight, bias)
    return _apply_to_rows(_OneDNNLinear, x, weight, bias)


def _can_use_onednn(weight: Tensor) -> bool:
    return _on_cpu(weight) and weight.dtype == torch.float32 and has_onednn_linear()


def _needs_padding(x: Tensor, dtype: torch.dtype) -> bool:
    return _on_cpu(x) and dtype in (torch.bfloat16, torch.float16)


def _apply_to_rows(
    function: type[torch.autograd.Function], x: Tensor, weight: Tensor, *arguments: Any
) -> Tensor:
    """Applies a function of a matrix to an input, (..., inputs)."""
    rows: Tensor = function.apply(x.flatten(0, -2), weight, *arguments)  # type: ignore[no-untyped-call]
    return rows.view(*x.shape[:-1], -1)


def pad_rows(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Converts rows to a type; for products in bf16 or float16 on a CPU also pads them with zeros.

    There oneDNN compiles a kernel for each number of rows. On CPUs with AMX that takes 2 to 17 ms,
    up to fifteen times as long as the product. With few numbers, kernels are reused.

    Args:
        rows: Matrix, (N, D).
        dtype: Type of the result.

    Returns:
        Matrix, (N', D); N' is the next multiple of 64, on other devices and in float32 N.
    """
    n_padding = -len(rows) % _ROW_MULTIPLE
    if not n_padding or not _needs_padding(rows, dtype):
        return rows.to(dtype)
    padded = torch.empty(len(rows) + n_padding, rows.size(1), dtype=dtype)
    padded[: len(rows)] = rows
    padded[len(rows) :] = 0
    return padded


class _OneDNNLinear(torch.autograd.Function):
    """oneDNN's product with its gradients, which are products too."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return onednn_linear(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        rows, weight = ctx.saved_tensors
        grad_bias = grad.sum(0) if ctx.needs_input_grad[2] else None
        return onednn_linear(grad, weight.t()), weight_gradient(grad, rows), grad_bias


class _PaddedLinear(torch.autograd.Function):
    """The product and its gradients in a half precision, with rows padded by `pad_rows`."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        padded, half_weight = pad_rows(rows, dtype), weight.to(dtype)
        ctx.save_for_backward(padded, half_weight)
        output = F.linear(padded, half_weight, bias.to(dtype) if bias is not None else None)
        return output[: len(rows)]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        padded, half_weight = ctx.saved_tensors
        grad_bias = grad.sum(0) if ctx.needs_input_grad[2] else None
        padded_grad = pad_rows(grad, padded.dtype)
        grad_rows = (padded_grad @ half_weight)[: len(grad)]
        return grad_rows, padded_grad.t() @ padded, grad_bias, None  # autograd converts the types


def weight_gradient(grad: Tensor, rows: Tensor) -> Tensor:
    """Computes grad^T @ rows, the gradient of the weight of a linear layer, (outputs, inputs).

    oneDNN copies a transposed matrix first. MKL, which PyTorch's own product calls, reads it in
    place, so it is used unless it is slow, as in `linear`.

    Args:
        grad: Gradient of the output, (N, outputs).
        rows: Input, (N, inputs).
    """
    if _on_cpu(grad) and grad.dtype == torch.float32 and has_fast_mkl():
        return grad.t() @ rows
    return linear(grad.t(), rows.t())


class Linear(nn.Linear):
    """`nn.Linear` computed by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., inputs) to (..., outputs)."""
        return linear(x, self.weight, self.bias)


def reorder_weights(model: nn.Module) -> list[Tensor]:
    """Gives `linear` copies of a model's weights in oneDNN's own layout.

    A step of decoding multiplies few rows. With such copies oneDNN does that faster than MKL, the
    smallest models excepted; otherwise it makes the copy for every product. If a weight changes
    afterwards, its copy is no longer used.

    Args:
        model: Its `nn.Linear` weights are reordered, and the `output_weight` of any module, if they
            are float32 on a CPU.

    Returns:
        The weights reordered by this call; those already reordered are left out.
    """
    weights = list[Tensor]()
    for module in model.modules():
        weight = module.weight if isinstance(module, nn.Linear) else None
        weight = getattr(module, "output_weight", weight)
        if weight is not None and _can_use_onednn(weight) and not hasattr(weight, _REORDERED):
            weights.append(weight)
    copies = list(map(reorder_onednn_weight, weights))  # all or, if memory runs out, none
    for weight, copy in zip(weights, copies, strict=True):
        setattr(weight, _REORDERED, (tensor_version(weight), copy))
    return weights


@contextmanager
def reordered_weights(model: nn.Module) -> Iterator[None]:
    """Gives `linear` such copies within the block."""
    weights = reorder_weights(model)
    try:
        yield
    finally:
        for weight in weights:
            delattr(weight, _REORDERED)


# --- Dropout ------------------------------------------------------------------------------------


def dropout(x: Tensor, p: float) -> Tensor:
    """Zeroes elements with probability p and scales the others up to keep the mean.

    The probability is below 1, and on a CPU rounded to a multiple of 1 / 2^16.
    """
    if not _on_cpu(x):
        return F.dropout(x, p)
    # Five times as fast as PyTorch, which draws random numbers one by one.
    zeros = min(round(p * _STATES), _STATES - 1)
    # The full range of int64: by default the sign bit would never be set.
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64)
    bits.random_(-(2**63), None, generator=getattr(_thread, "generator", None))
    bits = bits.view(torch.int16)[: x.numel()].view(x.shape)
    factors = torch.empty(x.shape, dtype=x.dtype)  # zeros and 1 / (1 - p)
    torch.ge(bits, zeros - _STATES // 2, out=factors).mul_(_STATES / (_STATES - zeros))
    return x * factors


@contextmanager
def seeded_dropout(device: torch.device, seed: int) -> Iterator[None]:
    """Seeds the random numbers of dropout on a device.

    On a CPU the calling thread gets its own generator within the block; on other devices PyTorch's
    own generators are seeded.
    """
    if device.type != "cpu":
        torch.manual_seed(seed)
        yield
        return
    _thread.generator = torch.Generator().manual_seed(seed)
    try:
        yield
    finally:
        _thread.generator = None


class Dropout(nn.Module):
    """`nn.Dropout` computed by `dropout` (Attention Is All You Need, section 5.4)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Maps a tensor to one of the same shape; unchanged unless in training."""
        return dropout(x, self.p) if self.training and self.p else x


# --- Attention ----------------------------------------------------------------------------------


def has_fused_attention(q: Tensor, p: float) -> bool:
    """Tells whether `fused_attention` is used for queries, (B, H, T, K), and a dropout probability.

    On a CPU it has no dropout, and is slower than plain products for few queries.
    """
    return not _on_cpu(q) or (not p and q.size(2) > FEW_QUERIES)


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, p: float
) -> Tensor:
    """Computes `multi_head_attention.attention`, whose arguments it has, by PyTorch's kernels."""
    if not _on_cpu(q):
        bias = None if mask is None else _bias(mask, q.dtype)
        return F.scaled_dot_product_attention(q, k, v, bias, p, causal)
    # On a CPU attention is slower in bf16 than in float32, and its gradient many times slower.
    with torch.autocast("cpu", enabled=False):
        q32, k32, v32 = q.float(), k.float(), v.float()
        output = F.scaled_dot_product_attention(q32, k32, v32, mask, 0.0, causal)
        return output.to(q.dtype)


def _bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Converts a mask, (..., S), to what CUDA's memory-efficient kernel adds to the scores.

    That is 0 where queries may attend and -inf elsewhere, in the type of the queries and with rows
    that begin at multiples of 8 elements; from any other mask, each call would make one. It is kept
    as an attribute of the mask, which all layers share.
    """
    bias: Tensor | None = getattr(mask, _BIAS, None)
    if bias is None or bias.dtype != dtype:
        length = mask.size(-1)
        row_length = math.ceil(length / _BIAS_ALIGNMENT) * _BIAS_ALIGNMENT
        bias = torch.zeros((*mask.shape[:-1], row_length), dtype=dtype, device=mask.device)
        bias = bias[..., :length].masked_fill_(~mask, -math.inf)
        setattr(mask, _BIAS, bias)
    return bias


def prepare_keys_values(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Copies keys and values, (B, H, S, K), that attention will read many times.

    They become contiguous and, on a CPU, float32; otherwise each call would convert them again.
    """
    if _on_cpu(keys):
        keys, values = keys.float(), values.float()
    return keys.contiguous(), values.contiguous()
