"""CUDA simulated on a CPU: tensors that report `cuda:0` while the CPU computes on them.

Within `SimulatedCuda()` every `device="cuda"` of this thread succeeds. The device is a property of
a tensor's storage, so views, parameters and what autograd saves have it too. As on CUDA, an
operation whose operands lie on both devices fails, but for host scalars of no dimension.

`cuda.synchronisations` counts, by file and line of the package, what makes the host wait: reading a
value (`item`, `tolist`, `if`, `equal`), a copy to the host that is not asynchronous, one to the
device that is not both asynchronous and from pinned memory (such as `torch.tensor(values,
device="cuda")` or an index on the host), and a result whose size depends on values (`nonzero`, a
bool mask as an index). `cuda.operations` counts operations on the device by name.

A CUDA graph records every operation with its operands and results; a replay repeats them on the
same tensors, whatever was written to those meanwhile. `torch.compile` returns the function itself,
and `flex_attention` computes all products. Autocast runs with the lists of the CPU, which are those
of CUDA for everything the model does. Not simulated: other threads, streams, kernels that only CUDA
has, and memory that is freed or overwritten before an asynchronous copy has read it.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.attention import flex_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PACKAGE = Path(__file__).parents[1] / "transformer_mt"
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
aten = torch.ops.aten

COPIES = {aten.copy_.default, aten._foreach_copy_.default}
READ_VALUES = {aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default}
SIZE_FROM_VALUES = {aten.nonzero.default, aten.masked_select.default}
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}


def is_on_cuda(tensor: Tensor) -> bool:
    """Tells whether a tensor's storage, which Python keeps while a tensor has it, is marked."""
    return getattr(tensor.untyped_storage(), "is_on_cuda", False)


def put_on_cuda(tensor: Tensor, is_on_cuda: bool = True) -> None:
    """Marks the storage of a tensor as memory of the device, or of the host."""
    tensor.untyped_storage().is_on_cuda = is_on_cuda


class _Dispatch(TorchDispatchMode):
    """Looks at every operation: its operands, what it waits for, where its results lie."""

    def __init__(self, cuda: "SimulatedCuda") -> None:
        super().__init__()
        self._cuda = cuda

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        cuda, kwargs = self._cuda, kwargs or {}
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        on_device = [is_on_cuda(tensor) for tensor in inputs]
        if any(on_device):
            self._check(func, args, kwargs, inputs, on_device)
        result = func(*args, **kwargs)
        if any(on_device) or (not inputs and cuda.makes_on_device):
            cuda.operations[str(func)] += 1
            old = {tensor.untyped_storage()._cdata for tensor in inputs}
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in old:
                    put_on_cuda(leaf)
        return result

    def _check(self, func, args, kwargs, inputs: list[Tensor], on_device: list[bool]) -> None:
        """Counts an operation that waits, and refuses one with operands on both devices."""
        cuda = self._cuda
        if func in COPIES:
            if not all(on_device):
                cuda.count_copy(inputs[-1], non_blocking=bool(args[2:] and args[2]))
            return
        if func in READ_VALUES or func in SIZE_FROM_VALUES:
            cuda.count(func.overloadpacket.__name__)
        indices = [index for index in args[1] if index is not None] if func in INDEXING else []
        # A single value at a mask is written by masked_fill, whose size is known.
        fills = len(args) > 2 and isinstance(args[2], Tensor) and args[2].numel() == 1
        if any(index.dtype in (torch.bool, torch.uint8) for index in indices) and not fills:
            cuda.count("mask as index")
        if not all(map(is_on_cuda, indices)):
            cuda.count("index on the host")
        arguments = zip(func._schema.arguments, args, strict=False)
        written = {id(v) for a, v in arguments if a.alias_info and a.alias_info.is_write}
        for tensor, is_on_device in zip(inputs, on_device, strict=True):
            is_index = any(tensor is index for index in indices)
            if not is_on_device and not is_index and (tensor.dim() or id(tensor) in written):
                raise RuntimeError(
                    f"{func}: expected all tensors to be on the same device, but found cuda:0 and"
                    f" a tensor {tuple(tensor.shape)} on cpu"
                )


class SimulatedGraph(TorchDispatchMode):
    """A CUDA graph: within it operations are recorded, and `replay` repeats them in place."""

    def __init__(self) -> None:
        super().__init__()
        self._recorded: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: D105
        result = func(*args, **(kwargs or {}))
        self._recorded.append((func, args, kwargs or {}, result))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        """Computes everything anew from what its inputs hold now."""
        for func, args, kwargs, result in self._recorded:
            new = func(*args, **kwargs)
            for old_leaf, new_leaf in zip(tree_leaves(result), tree_leaves(new), strict=True):
                if isinstance(old_leaf, Tensor) and old_leaf.data_ptr() != new_leaf.data_ptr():
                    put_on_cuda(new_leaf)
                    old_leaf.copy_(new_leaf)


def dense_attention(q: Tensor, k: Tensor, v: Tensor, block_mask: SimpleNamespace) -> Tensor:
    """Computes `flex_attention`: keys in listed blocks that the mask allows; NaN without any."""
    counts, indices = block_mask.counts[0, 0], block_mask.indices[0, 0].long()
    size, n_blocks = block_mask.BLOCK_SIZE, indices.size(1)
    is_listed = torch.arange(n_blocks, device=q.device) < counts[:, None]
    blocks = torch.zeros_like(is_listed).scatter(1, indices, is_listed)
    mask = blocks.repeat_interleave(size, 0, output_size=q.size(2))
    mask = mask.repeat_interleave(size, 1, output_size=k.size(2))
    queries, keys = (torch.arange(x.size(2), device=q.device) for x in (q, k))
    mask = mask & block_mask.mask_mod(queries[0], queries[0], queries[:, None], keys[None])
    scores = q.float() @ k.float().transpose(-2, -1) * q.size(-1) ** -0.5
    return (scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v.float()).to(q.dtype)


class SimulatedCuda(TorchFunctionMode):
    """The simulated device; `makes_on_device` is for operations without operands."""

    def __init__(self) -> None:
        super().__init__()
        self.synchronisations: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()
        self.makes_on_device = False
        self._stack = ExitStack()

    def __enter__(self) -> Self:  # noqa: D105
        for replacement in _replacements(self):
            self._stack.enter_context(replacement)
        self._stack.enter_context(_Dispatch(self))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:  # noqa: D105
        super().__exit__(*error)
        self._stack.close()

    def count(self, kind: str) -> None:
        """Counts a synchronisation at the innermost line of the package, else of the test."""
        frame, place = sys._getframe(), "elsewhere"
        while frame := frame.f_back:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(PACKAGE):
                place = f"{path.relative_to(PACKAGE)}:{frame.f_lineno}"
                break
        self.synchronisations[f"{place} {kind}"] += 1

    def count_copy(self, source: Tensor, non_blocking: bool) -> None:
        """Counts a copy between host and device if the host waits for it."""
        if is_on_cuda(source):
            if not non_blocking:
                self.count("copy to the host")
        elif not (non_blocking and hasattr(source.untyped_storage(), "is_pinned_here")):
            self.count("copy to the device")

    @contextmanager
    def counted(self) -> Iterator[Counter[str]]:
        """Gives a counter that holds, at the end, the synchronisations meanwhile."""
        before, during = self.synchronisations.copy(), Counter[str]()
        yield during
        during.update(self.synchronisations - before)

    def __torch_function__(self, func, types, args=(), kwargs=None):  # noqa: D105
        kwargs = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        any_on_device = any(map(is_on_cuda, tensors))
        if special := self._special(func):
            return special(*args, **kwargs)
        device = kwargs.pop("device", None)
        if device is None:
            return self._call(any_on_device, func, args, kwargs)
        to_cuda = torch.device(device).type == "cuda"
        result = self._call(to_cuda, func, args, kwargs)
        if to_cuda and func in (torch.tensor, torch.as_tensor, torch.asarray):
            self.count("copy to the device")
        put_on_cuda(result, to_cuda)
        return result

    def _call(self, on_device: bool, func: Any, args: Any, kwargs: Any) -> Any:
        before, self.makes_on_device = self.makes_on_device, on_device
        try:
            return func(*args, **kwargs)
        finally:
            self.makes_on_device = before

    def _special(self, func: Any) -> Callable[..., Any] | None:
        """Gives what replaces a function that has to do with devices."""
        handlers: dict[Any, Callable[..., Any]] = {
            torch.Tensor.device.__get__: lambda x, *_: CUDA if is_on_cuda(x) else CPU,
            torch.Tensor.is_cuda.__get__: lambda x, *_: is_on_cuda(x),
            torch.Tensor.is_cpu.__get__: lambda x, *_: not is_on_cuda(x),
            torch.Tensor.to: self._to,
            torch.Tensor.cpu: lambda x: self._move(x, CPU, None, False, False),
            torch.Tensor.pin_memory: self._pin_memory,
            torch.Tensor.tolist: self._tolist,
        }
        return handlers.get(func)

    def _to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        copy = bool(kwargs.pop("copy", False))
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        return self._move(tensor, device, dtype, copy, non_blocking)

    def _move(self, tensor: Tensor, device, dtype, copy: bool, non_blocking=False) -> Tensor:
        on_device = is_on_cuda(tensor)
        dtype = dtype or tensor.dtype
        if device is None or on_device == (device.type == "cuda"):
            return self._call(on_device, torch.Tensor.to, (tensor, dtype), {"copy": copy})
        self.count_copy(tensor, non_blocking)
        moved: Tensor = self._call(False, torch.Tensor.to, (tensor, dtype), {"copy": True})
        put_on_cuda(moved, not on_device)
        return moved

    def _pin_memory(self, tensor: Tensor) -> Tensor:
        pinned = tensor.clone()
        pinned.untyped_storage().is_pinned_here = True
        return pinned

    def _tolist(self, tensor: Tensor) -> Any:
        if is_on_cuda(tensor):
            self.count("tolist")
        return tensor.tolist()


def _replacements(cuda: SimulatedCuda) -> list[Any]:
    """Lists the functions that look at the device by its name or below Python."""

    def on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(device: str, *args: Any, **kwargs: Any) -> Any:
            return function(device.replace("cuda", "cpu"), *args, **kwargs)

        return call

    def grouped(lists: list[list[Tensor | None]], with_indices: bool = False) -> dict[Any, Any]:
        groups: dict[Any, Any] = {}
        for (_, dtype), (columns, indices) in group(lists, with_indices).items():
            device = CUDA if is_on_cuda(columns[0][0]) else CPU
            groups[device, dtype] = (columns, indices)
        return groups

    group = torch._C._group_tensors_by_device_and_dtype
    properties = SimpleNamespace(total_memory=10**12, name="simulated")
    functions: dict[Any, dict[str, Any]] = {
        torch._C: {"_group_tensors_by_device_and_dtype": grouped},
        torch: {
            "compile": lambda function, **options: function,
            "autocast": on_cpu(torch.autocast),
            "is_autocast_enabled": on_cpu(torch.is_autocast_enabled),
            "get_autocast_dtype": on_cpu(torch.get_autocast_dtype),
        },
        torch.compiler: {"reset": lambda: None},
        torch.accelerator: {"is_available": lambda: False},  # else CUDA builds look for a driver
        torch.amp: {"GradScaler": on_cpu(torch.amp.GradScaler)},
        torch.cuda: {
            "is_available": lambda: True,
            "is_bf16_supported": lambda including_emulation=True: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "get_device_name": lambda device=None: properties.name,
            "get_device_properties": lambda device=None: properties,
            "is_current_stream_capturing": lambda: False,
            "max_memory_reserved": lambda device=None: 0,
            "synchronize": lambda device=None: cuda.count("synchronize"),
            "Stream": lambda: SimpleNamespace(wait_stream=lambda other: None),
            "current_stream": lambda: SimpleNamespace(wait_stream=lambda other: None),
            "stream": lambda stream: nullcontext(),
            "CUDAGraph": SimulatedGraph,
            "graph": lambda graph, **options: graph,
        },
        flex_attention: {"flex_attention": dense_attention},
        flex_attention.BlockMask: {
            "from_kv_blocks": lambda counts, indices, **others: SimpleNamespace(
                counts=counts, indices=indices, **others
            )
        },
    }
    pairs = [(owner, name) for owner in functions for name in functions[owner]]
    return [patch.object(owner, name, functions[owner][name]) for owner, name in pairs]
