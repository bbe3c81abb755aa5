"""The compute device, its precisions, and the PyTorch settings for it."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from transformer_mt.errors import DeviceError
from transformer_mt.system.private_torch import cpu_bf16_instructions

_OWN_GROUP, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
"""Names the control group of this process (version 2 of cgroups), and the folder of all groups."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(name: str) -> torch.device:
    """Resolves `auto`, `cpu` or `cuda`; `auto` is CUDA if available, else the CPU.

    Raises:
        DeviceError: If CUDA is requested and not available.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError("device cuda: PyTorch finds no CUDA device; use cpu or auto")
    return torch.device(name)


def choose_precision(name: str, device: torch.device, recorded: str | None) -> str:
    """Resolves `auto` to the fastest precision that trains reliably.

    Args:
        name: `auto`, `fp32`, `bf16` or `fp16`.
        device: The compute device.
        recorded: Precision of the run if it is resumed, else None; `auto` keeps it.

    Raises:
        DeviceError: If the device does not support that precision.
    """
    if name == "auto" and recorded:
        name = recorded
    if name == "auto":
        if device.type == "cuda":
            return "bf16" if supports("bf16", device) else "fp16"
        return "bf16" if _has_fast_bf16() else "fp32"
    if not supports(name, device):
        advice = "resume it where it was trained" if recorded else "use auto or fp32"
        raise DeviceError(
            f"train.precision = {name}: this {device.type} device does not support it; {advice}"
        )
    return name


def supports(precision: str, device: torch.device) -> bool:
    """Returns whether a device supports `fp32`, `bf16` or `fp16` natively, without emulation."""
    if precision == "bf16":
        if device.type == "cuda":
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
        return bool(cpu_bf16_instructions())
    return precision == "fp32" or device.type == "cuda"


def _has_fast_bf16() -> bool:
    """Returns whether products in bf16 are faster than in float32 on this CPU.

    With AVX-512 alone they take half the time on AMD's CPUs, and twice the time on Intel's.
    """
    instructions = cpu_bf16_instructions()
    return "AMX" in instructions or (bool(instructions) and cpu_maker() != "GenuineIntel")


@cache
def cpu_maker() -> str:
    """Returns the CPU vendor as Linux names it, such as `GenuineIntel`, or `unknown`."""
    path = Path("/proc/cpuinfo")
    text = path.read_text() if path.exists() else ""
    vendor = re.search(r"^vendor_id\s*: (.+)$", text, re.MULTILINE)
    return vendor[1] if vendor else "unknown"


def has_fast_mkl() -> bool:
    """Returns whether MKL's matrix products are fast here.

    It uses AVX-512 only on Intel CPUs, so it is fast on these, and on CPUs without AVX-512.
    """
    has_mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    has_avx512 = "AVX512" in torch.backends.cpu.get_cpu_capability()
    return has_mkl and (cpu_maker() == "GenuineIntel" or not has_avx512)


def total_memory(device: torch.device) -> int:
    """Returns the total memory of a device in bytes; for a CPU, what this process may use of it."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([whole, *_memory_limits()])


def _memory_limits() -> Iterator[int]:
    """Reads the limits of this process's control group, such as a container's or a Slurm job's."""
    text = _OWN_GROUP.read_text() if _OWN_GROUP.exists() else ""
    name = re.search("^0::/(.*)", text, re.MULTILINE)
    # A container may see the name outside it; its own group is then the root.
    folder = _GROUPS / name[1] if name else _GROUPS
    for path in (folder, *folder.parents):
        limit = path / "memory.max"
        if limit.exists() and (value := limit.read_text().strip()).isdecimal():
            yield int(value)


def copy_to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copies a tensor on the CPU to a device, asynchronously if it is a GPU."""
    pinned = tensor.pin_memory() if device.type == "cuda" else tensor
    return pinned.to(device, non_blocking=True)


OUT_OF_MEMORY_ADVICE = (
    "to train, choose a smaller model or a lower data.max_length; to translate, lower"
    " --batch-tokens or --beam-size"
)


@contextmanager
def compute_settings(device: torch.device, tf32: bool) -> Iterator[None]:
    """Applies this program's process-wide CUDA settings and restores the previous ones at the end.

    cuDNN attention is disabled: it compiles a plan for every new shape, and nearly every batch has
    a new shape. On other devices nothing is changed.

    With `tf32`, float32 matrix products may use TF32. Training tolerates its rounding; decoding
    does not use it, so that every device produces the same text.
    """
    if device.type != "cuda":
        yield
        return
    cudnn_attention = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    # PyTorch has an older and a newer setting. The older is set, which its compiler reads, and both
    # are restored; it cannot be read if the caller has changed the newer one.
    newer = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    precisions = [setting.fp32_precision for setting in newer]
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:
        older = "highest"
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(cudnn_attention)
        torch.set_float32_matmul_precision(older)
        for setting, precision in zip(newer, precisions, strict=True):
            setting.fp32_precision = precision


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error from PyTorch or Python means that memory ran out."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # On the CPU PyTorch raises a plain RuntimeError, when it allocates and when it maps a file.
    cpu = "DefaultCPUAllocator", "Cannot allocate memory"
    # On CUDA a library that allocates by itself has an error of its own, and the driver another,
    # for instance if other programs have taken all memory. The compiler wraps either.
    cuda = "ALLOC_FAILED", "out of memory"
    return isinstance(error, RuntimeError) and any(text in str(error) for text in cpu + cuda)
