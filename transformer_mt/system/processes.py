"""Several processes that work on one model: a thin layer over `torch.distributed`.

`torchrun` starts them and sets the rank of each in environment variables. Without those variables
there is one process, and PyTorch is not even imported. Only process 0, the main one, writes
files. Objects are exchanged by pickle, among the processes of one command alone.

`torchrun` ends the others when a process ends; a machine that vanishes is noticed by the time-out.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from transformer_mt.errors import DeviceError, LostProcessError
from transformer_mt.system import launcher
from transformer_mt.system.signals import handle_signals

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.distributed.distributed_c10d import ProcessGroup, Store

T = TypeVar("T")

TIMEOUT = timedelta(minutes=10)
"""Limit on joining, and on every wait for the other processes. One whose process has ended is
noticed at once, since the system closes its connections."""


@contextmanager
def _raise_if_lost() -> Iterator[None]:
    """Raises LostProcessError if PyTorch reports that a process has ended or does not answer."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).lower()
        if not any(part in text for part in ("connection", "timed out", "timeout", "broken pipe")):
            raise
        # The process that ended has said why; meanwhile the launcher ends this one.
        with handle_signals(signal.SIG_DFL):
            time.sleep(launcher.SECONDS_TO_END)
        raise LostProcessError(
            "another process has ended or is unreachable; run the same command again"
        ) from None


@dataclass(frozen=True)
class Processes:
    """The processes of a command, as one of them, whose number is `rank`, sees them.

    All processes must call the methods in the same order; each call waits for the others. With only
    one process, a method returns at once and leaves values unchanged.
    """

    rank: int = 0
    world_size: int = 1
    _control: "ProcessGroup | None" = None
    """Exchanges values of the CPU, also beside NCCL."""

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    @_raise_if_lost()
    def sum(self, tensor: "Tensor") -> None:
        """Replaces a tensor on the device with its sum over all processes, equal in every bit."""
        if self._control:
            import torch.distributed as dist

            dist.all_reduce(tensor)

    @_raise_if_lost()
    def max(self, *values: float) -> list[float]:
        """Returns, for each position, the largest value of all processes."""
        if not self._control:
            return list(values)
        import torch
        import torch.distributed as dist

        largest = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX, self._control)
        return largest.tolist()

    def min(self, value: int) -> int:
        """Returns the smallest value of all processes."""
        return -int(self.max(-value)[0])

    @_raise_if_lost()
    def gather(self, value: T) -> list[T]:
        """Returns the values of all processes, by rank."""
        values: list[T] = [value] * self.world_size
        if self._control:
            import torch.distributed as dist

            dist.all_gather_object(values, value, self._control)
        return values

    @_raise_if_lost()
    def broadcast(self, value: T) -> T:
        """Returns the main process's value; the values of the others are ignored."""
        values = [value]
        if self._control:
            import torch.distributed as dist

            dist.broadcast_object_list(values, 0, self._control)
        return values[0]

    def finish(self) -> None:
        """Waits until all processes have called this; afterwards they may end one by one."""
        self.gather(None)


ALONE = Processes()
"""The only process of a command."""


@contextmanager
def join_processes(device_type: str) -> Iterator[Processes]:
    """Joins the processes that `torchrun` started; without it, yields `ALONE`.

    Args:
        device_type: `cpu` or `cuda`; with `cuda`, each process of a machine uses its own GPU.

    Raises:
        ConfigError: If an environment variable of the launcher is missing or not a number.
        DeviceError: If there are fewer GPUs than processes on this machine, or processes use
            different devices.
    """
    if not launcher.is_launched():
        yield ALONE
        return
    # While PyTorch waits for the others, Python's own handlers would not be called.
    with handle_signals(signal.SIG_DFL), _raise_if_lost():
        processes = _join(device_type)
    yield processes
    from torch.distributed import destroy_process_group

    destroy_process_group()


def _join(device_type: str) -> Processes:
    import torch.distributed as dist

    rank, world_size = launcher.read_number("RANK"), launcher.read_number("WORLD_SIZE")
    backend, gpu = ("nccl", _choose_gpu()) if device_type == "cuda" else ("gloo", None)
    has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = launcher.connect_to_store(TIMEOUT, serves=rank == 0 and not has_store)
    _require_same_device(store, rank, world_size, device_type)
    dist.init_process_group(backend, None, TIMEOUT, world_size, rank, store, device_id=gpu)
    return Processes(rank, world_size, dist.new_group(backend="gloo", timeout=TIMEOUT))


def _require_same_device(store: "Store", rank: int, world_size: int, device_type: str) -> None:
    """Raises an error, in all processes, if they would use different devices."""
    store.set(f"device of {rank}", device_type)
    main, *others = (store.get(f"device of {i}").decode() for i in range(world_size))
    for other_rank, other in enumerate(others, 1):
        if other != main:
            raise DeviceError(
                f"process {other_rank} uses {other}, process 0 uses {main}; check the GPUs of its"
                " machine, or choose the same device for all"
            )


def _choose_gpu() -> "torch.device":
    import torch

    local_rank, count = launcher.read_number("LOCAL_RANK"), torch.cuda.device_count()
    if local_rank >= count:
        raise DeviceError(
            f"process {local_rank} of this machine has no GPU: there are {count}; lower"
            " --nproc-per-node"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
