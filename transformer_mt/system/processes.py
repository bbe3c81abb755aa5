"""Several processes that work on one model: a thin layer over `torch.distributed`.

`torchrun` starts them and sets the rank of each in environment variables. Without those variables
there is one process, and `torch.distributed` is not used. Only process 0, the main one, writes
files. Objects are exchanged by pickle, among the processes of one command alone.

A process that loses a peer or its launcher ends at once.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn, TypeVar

from transformer_mt.errors import ConfigError, DeviceError
from transformer_mt.system.process_settings import handle_signals

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.distributed.distributed_c10d import ProcessGroup, Store

T = TypeVar("T")

PEER_TIMEOUT = timedelta(seconds=60)
"""A peer that does not answer for this long counts as lost. If its process has ended, this is
noticed at once, since the system closes its connections."""
_WAIT = timedelta(hours=24)
"""Limit on every other wait: one process may prepare a large corpus while the others wait."""
_SECONDS_TO_JOIN = 600.0
_SECONDS_BETWEEN_CHECKS = 1.0
_SECONDS_FOR_LAUNCHER = 2.0
"""How long the launcher may take to end a process after another has ended."""

_launcher_pid = os.getppid()
_launcher_store: "Store | None" = None
"""What all processes can read once they have joined; `torch.distributed` does not use it."""
_ending = threading.Lock()


class _Peers:
    """The connections to the other processes: for values, and for the thread that watches them."""

    def __init__(self, control: "ProcessGroup", heartbeat: "ProcessGroup") -> None:
        self.control, self._heartbeat = control, heartbeat
        self.finished = threading.Event()
        self.watcher = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        """Exchanges a number every second, which fails if a peer is lost.

        Runs in a thread, since the main one may be inside a kernel that waits for the lost peer.
        """
        import torch
        import torch.distributed as dist

        while True:
            finished = torch.tensor([int(self.finished.is_set())])
            with _end_if_peer_is_lost():
                dist.all_reduce(finished, dist.ReduceOp.MIN, self._heartbeat)
            if finished.item():
                return
            self.finished.wait(_SECONDS_BETWEEN_CHECKS)


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

    @property
    def is_launched(self) -> bool:
        """Whether a launcher has started this process, even if it is the only one."""
        return self._peers is not None

    def sum(self, tensor: "Tensor") -> None:
        """Replaces a tensor on the device with its sum over all processes, equal in every bit."""
        if self._peers:
            import torch.distributed as dist

            with _end_if_peer_is_lost():
                dist.all_reduce(tensor)

    def max(self, *values: float) -> list[float]:
        """Returns, for each position, the largest value of all processes."""
        if not self._peers:
            return list(values)
        import torch
        import torch.distributed as dist

        largest = torch.tensor(values, dtype=torch.float64)
        with _end_if_peer_is_lost():
            dist.all_reduce(largest, dist.ReduceOp.MAX, self._peers.control)
        return largest.tolist()

    def gather(self, value: T) -> list[T]:
        """Gives the values of all processes, by rank."""
        if not self._peers:
            return [value]
        import torch.distributed as dist

        values: list[T] = [value] * self.world_size
        with _end_if_peer_is_lost():
            dist.all_gather_object(values, value, self._peers.control)
        return values

    def broadcast(self, value: T) -> T:
        """Returns the main process's value; the values of the others are ignored."""
        if not self._peers:
            return value
        import torch.distributed as dist

        values = [value]
        with _end_if_peer_is_lost():
            dist.broadcast_object_list(values, 0, self._peers.control)
        return values[0]

    def broadcast_tensors(self, tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
        """Copies the main process's tensors to the CPU, one at a time to need little memory."""
        if not self._peers:
            return dict(tensors)
        copies = {}
        for name in self.broadcast(list(tensors)):
            own = tensors[name].detach().cpu().clone() if self.is_main else None
            if (copy := self.broadcast(own)) is not None:
                copies[name] = copy
        return copies

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
        DeviceError: If there are fewer GPUs than processes on this machine.
    """
    if not is_launched():
        yield ALONE
        return
    import torch.distributed as dist

    threading.Thread(target=_watch_launcher, daemon=True).start()
    # While PyTorch waits for the others, Python's own handlers would not be called.
    with handle_signals(signal.SIG_DFL), _end_if_peer_is_lost():
        processes = _join(device_type)
    yield processes
    dist.destroy_process_group()


def _join(device_type: str) -> Processes:
    global _launcher_store
    import torch.distributed as dist

    rank, world_size = _read_number("RANK"), _read_number("WORLD_SIZE")
    backend, device = ("nccl", _choose_gpu()) if device_type == "cuda" else ("gloo", None)
    limit = threading.Timer(_SECONDS_TO_JOIN, _end_after_loss)
    limit.daemon = True
    limit.start()
    has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = _connect(serves=rank == 0 and not has_store)
    dist.init_process_group(backend, None, _WAIT, world_size, rank, store, device_id=device)
    control = dist.new_group(backend="gloo", timeout=_WAIT)
    heartbeat = dist.new_group(backend="gloo", timeout=PEER_TIMEOUT)
    limit.cancel()
    _launcher_store = _connect()
    return Processes(rank, world_size, _Peers(control, heartbeat))


def _connect(serves: bool = False) -> "Store":
    """Connects to the store of the launcher or, if it has none, to one that a process serves.

    `torchrun` keeps its store when it restarts processes, so a prefix hides the addresses of those
    that have ended. Several launchers count their restarts separately: see docs/scaling.md.
    """
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    host, port = _read("MASTER_ADDR"), _read_number("MASTER_PORT")
    store = TCPStore(host, port, None, serves, _WAIT, wait_for_workers=False)
    is_alone = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if is_alone else "all"
    return PrefixStore(f"transformer-mt/{attempt}", store)


def _choose_gpu() -> "torch.device":
    import torch

    local_rank, count = _read_number("LOCAL_RANK"), torch.cuda.device_count()
    if local_rank >= count:
        raise DeviceError(
            f"process {local_rank} of this machine has no GPU: there are {count}; lower"
            " --nproc-per-node"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def is_launched() -> bool:
    """Tells whether a launcher such as `torchrun` has started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def _read(name: str) -> str:
    """Reads what the launcher has put into the environment."""
    if value := os.environ.get(name):
        return value
    raise ConfigError(f"environment variable {name} is missing: use torchrun")


def _read_number(name: str) -> int:
    if (value := _read(name)).isdecimal():
        return int(value)
    raise ConfigError(f"environment variable {name} = {value} is not a number: use torchrun")


def require_single_process(command: str) -> None:
    """Raises ConfigError if a launcher has started the command more than once."""
    if is_launched() and _read_number("WORLD_SIZE") > 1:
        raise ConfigError(f"{command} works in one process: start it without torchrun")


def may_have_restarted() -> bool:
    """Tells whether this may not be the first attempt; several launchers count separately."""
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return restarts != "0" or os.environ.get("GROUP_WORLD_SIZE", "1") != "1"


def is_main_process() -> bool:
    """Tells whether this process shows progress; may be called before it joins the others."""
    return not is_launched() or _read_number("RANK") == 0


def exit_with_error(message: str) -> NoReturn:
    """Prints an error and ends the process with code 2.

    Most errors are those of all processes: the main one prints its own and ends, and the launcher
    ends the others. One that still runs after two seconds prints its own error with its number.
    """
    rank = os.environ.get("RANK", "")
    if is_launched() and rank.isdecimal() and rank != "0":
        with handle_signals(signal.SIG_DFL):
            time.sleep(_SECONDS_FOR_LAUNCHER)
        message = f"process {rank} of {os.environ['WORLD_SIZE']}: {message}"
    print(
        message, file=sys.stderr, flush=True
    )  # before the end is announced, which lets the other processes end
    exit_process(2)


def exit_process(code: int) -> NoReturn:
    """Ends the process; if it is one of several, without waiting for threads or the others."""
    if not is_launched():
        raise SystemExit(code)
    _is_first_to_end()
    _end_process(code)


def _end_process(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # the reader may have ended
            if stream is not None:
                stream.flush()
    os._exit(code)


@contextmanager
def _end_if_peer_is_lost() -> Iterator[None]:
    """Ends this process if PyTorch reports that a peer has ended or does not answer."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).lower()
        if not any(part in text for part in ("connection", "timed out", "timeout", "broken pipe")):
            raise
        _end_after_loss()


def _watch_launcher() -> None:
    """Ends this process once its parent has ended: nothing else would stop it."""
    while os.getppid() == _launcher_pid:
        time.sleep(_SECONDS_BETWEEN_CHECKS)
    _end_after_loss()


def _end_after_loss() -> NoReturn:
    """Ends this process because a peer or the launcher has ended; one process prints this."""
    _ending.acquire()  # never released: another thread that gets here waits until the process ends
    if _is_first_to_end():
        lost = "another process" if os.getppid() == _launcher_pid else "the launcher"
        message = f"error: {lost} has ended or is unreachable; run the same command again"
        print(message, file=sys.stderr, flush=True)
    else:
        time.sleep(_SECONDS_FOR_LAUNCHER)
    _end_process(1)


def _is_first_to_end() -> bool:
    """Announces the end of this process; tells whether no other has announced its own before."""
    if _launcher_store:
        with suppress(RuntimeError):
            return bool(_launcher_store.add("ended", 1) == 1)
    # Without a launcher, the first process of each machine reports the loss.
    return os.environ.get("LOCAL_RANK", "0") == "0"
