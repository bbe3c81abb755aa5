"""Several processes that work on one model: a thin layer over `torch.distributed`.

`torchrun` starts them and sets the rank of each in environment variables. Without those variables
there is one process, and PyTorch is not even imported. Only process 0, the main one, writes
files. Objects are exchanged by pickle, among the processes of one command alone.

A process that loses a peer or its launcher ends at once.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from transformer_mt.errors import DeviceError
from transformer_mt.system import launcher
from transformer_mt.system.process_settings import handle_signals

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.distributed.distributed_c10d import ProcessGroup, Store

T = TypeVar("T")

PEER_TIMEOUT = timedelta(seconds=60)
"""A peer that does not answer for this long counts as lost. If its process has ended, this is
noticed at once, since the system closes its connections."""
WORK_TIMEOUT = timedelta(minutes=10)
"""Limit on joining, and on a sum over all processes, for which process 0 may have to wait until
a checkpoint is written."""
GPU_TIMEOUT = timedelta(minutes=9)
"""Limit on the work of a GPU; less than for a sum, after which NCCL would abort the process."""
VALUE_TIMEOUT = timedelta(hours=24)
"""Limit on waiting for a value: process 0 may prepare a large corpus, or read a slow pipe."""


@contextmanager
def _end_if_peer_is_lost() -> Iterator[None]:
    """Ends this process if PyTorch reports that a peer has ended or does not answer."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).lower()
        if not any(part in text for part in ("connection", "timed out", "timeout", "broken pipe")):
            raise
        launcher.end_after_loss()


class _Peers:
    """The connections to the other processes: for values, and for the thread that watches them."""

    def __init__(
        self, control: "ProcessGroup", heartbeat: "ProcessGroup", gpu: "torch.device | None"
    ) -> None:
        self.control, self._heartbeat, self._gpu = control, heartbeat, gpu
        self.finished = threading.Event()
        self.watcher = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        """Exchanges a number every second, which fails if a peer is lost; looks at the GPU, too.

        Runs in a thread, since the main one may be inside a kernel that waits for the lost peer.
        """
        import torch
        import torch.distributed as dist

        work: Any = None
        began = 0.0
        while True:
            finished = torch.tensor([int(self.finished.is_set())])
            with _end_if_peer_is_lost():
                dist.all_reduce(finished, dist.ReduceOp.MIN, self._heartbeat)
            if finished.item():
                return
            if self._gpu and (work is None or work.query()):  # what was given to it is done
                began, work = time.monotonic(), torch.cuda.Event()  # type: ignore[no-untyped-call]
                work.record(torch.cuda.default_stream(self._gpu))
            if work and time.monotonic() - began > GPU_TIMEOUT.total_seconds():
                launcher.end_after_loss(f"a GPU has hung for {GPU_TIMEOUT.seconds // 60} minutes")
            self.finished.wait(launcher.SECONDS_BETWEEN_CHECKS)


@dataclass(frozen=True)
class Processes:
    """The processes of a command, as one of them, whose number is `rank`, sees them.

    All processes must call the methods in the same order; each call waits for the others. With only
    one process, a method returns at once and leaves values unchanged.
    """

    rank: int = 0
    world_size: int = 1
    _peers: _Peers | None = None

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    @_end_if_peer_is_lost()
    def sum(self, tensor: "Tensor") -> None:
        """Replaces a tensor on the device with its sum over all processes, equal in every bit."""
        if self._peers:
            import torch.distributed as dist

            dist.all_reduce(tensor)

    @_end_if_peer_is_lost()
    def max(self, *values: float) -> list[float]:
        """Returns, for each position, the largest value of all processes."""
        if not self._peers:
            return list(values)
        import torch
        import torch.distributed as dist

        largest = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX, self._peers.control)
        return largest.tolist()

    @_end_if_peer_is_lost()
    def gather(self, value: T) -> list[T]:
        """Gives the values of all processes, by rank."""
        values: list[T] = [value] * self.world_size
        if self._peers:
            import torch.distributed as dist

            dist.all_gather_object(values, value, self._peers.control)
        return values

    @_end_if_peer_is_lost()
    def broadcast(self, value: T) -> T:
        """Returns the main process's value; the values of the others are ignored."""
        values = [value]
        if self._peers:
            import torch.distributed as dist

            dist.broadcast_object_list(values, 0, self._peers.control)
        return values[0]

    def watch_peers(self) -> None:
        """Waits for all processes; afterwards this one ends if a peer is lost.

        Call it only when no process will hold Python's global lock for long any more.
        """
        if self._peers:
            self.gather(None)
            if self._peers.watcher.ident is None:
                self._peers.watcher.start()

    def finish(self) -> None:
        """Waits until all processes have called this; afterwards they may end one by one."""
        if self._peers:
            self._peers.finished.set()
            while self._peers.watcher.is_alive():
                self._peers.watcher.join(0.1)  # with a timeout, so that a second signal is handled


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
    launcher.watch_launcher()
    # While PyTorch waits for the others, Python's own handlers would not be called.
    with handle_signals(signal.SIG_DFL), _end_if_peer_is_lost():
        processes = _join(device_type)
    yield processes
    from torch.distributed import destroy_process_group

    destroy_process_group()


def _join(device_type: str) -> Processes:
    import torch.distributed as dist

    rank, world_size = launcher.read_number("RANK"), launcher.read_number("WORLD_SIZE")
    backend, gpu = ("nccl", _choose_gpu()) if device_type == "cuda" else ("gloo", None)
    limit = threading.Timer(WORK_TIMEOUT.total_seconds(), launcher.end_after_loss)
    limit.daemon = True
    limit.start()
    has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = launcher.connect_to_store(WORK_TIMEOUT, serves=rank == 0 and not has_store)
        _require_same_device(store, rank, world_size, device_type)
        dist.init_process_group(backend, None, WORK_TIMEOUT, world_size, rank, store, device_id=gpu)
        control = dist.new_group(backend="gloo", timeout=VALUE_TIMEOUT)
        heartbeat = dist.new_group(backend="gloo", timeout=PEER_TIMEOUT)
        launcher.record_ends(launcher.connect_to_store(WORK_TIMEOUT))
    finally:
        limit.cancel()
    return Processes(rank, world_size, _Peers(control, heartbeat, gpu))


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
