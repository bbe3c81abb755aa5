"""What this machine can compute on, and in which precision."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from transformer_mt.errors import DeviceError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(name: str) -> torch.device:
    """Finds the device; `auto` is CUDA where there is one.

    Raises:
        DeviceError: If the name is none, or CUDA is asked for and absent.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise DeviceError(f"device {name}: write auto, cpu or cuda")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError("device cuda: PyTorch finds no CUDA device here; use cpu or auto")
    if name == "cuda":
        # cuDNN plans attention anew for every shape it has not met; ours differ in every batch.
        torch.backends.cuda.enable_cudnn_sdp(False)
    return torch.device(name)


def choose_precision(name: str, device: torch.device, kept: str | None) -> str:
    """Resolves `auto` to the fastest precision that trains well.

    Args:
        name: `auto`, `fp32`, `bf16` or `fp16`.
        device: Where to compute.
        kept: What a resumed run has computed in so far; `auto` stays with it.

    Raises:
        DeviceError: If the device does not compute in that precision.
    """
    if name == "auto" and kept:
        name = kept
    if name == "auto":
        if supports("bf16", device):
            return "bf16"
        return "fp16" if device.type == "cuda" else "fp32"
    if not supports(name, device):
        if kept:
            raise DeviceError(
                f"train.precision: the run computes in {kept}, which this {device.type} does not"
                " have; resume it where it began, or start a new run"
            )
        raise DeviceError(
            f"train.precision = {name}: this {device.type} does not compute in it; use auto or fp32"
        )
    return name


def supports(precision: str, device: torch.device) -> bool:
    """Tells whether a device computes in `fp32`, `bf16` or `fp16` without emulating it."""
    if precision == "bf16":
        if device.type == "cuda":
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return precision == "fp32" or device.type == "cuda"


@contextmanager
def tensor_cores(device: torch.device) -> Iterator[None]:
    """On CUDA, lets float32 products round their factors to TF32 for a while.

    Training bears it. Decoding is left exact, so that it gives the same text everywhere.
    """
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def is_out_of_memory(error: BaseException) -> bool:
    """Tells whether an error of PyTorch or Python means that memory ran out."""
    allocator = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    return allocator or isinstance(error, (torch.OutOfMemoryError, MemoryError))
