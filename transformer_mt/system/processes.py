"""Several processes that work on one model: a thin layer over `torch.distributed`.

`torchrun` starts them and sets the rank of each in environment variables. Without those variables
there is one process, and `torch.distributed` is not used. Only process 0, the main one, writes
files.

A process that loses a peer or its launcher ends at once: running the same command again continues
from the last saved state.
"""

import functools
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from transformer_mt.errors import ConfigError, DeviceError

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.distributed import ProcessGroup
    from torch.distributed.distributed_c10d import Store


_ADVICE = "run the same command again"
_SECONDS_TO_CONNECT = 3
_SECONDS_FOR_MAIN = 2.0
"""How long the other processes wait for the main one to print an error that all have."""


def announce(message: str) -> None:
    """Prints an error once, however many processes have it, from the main one if possible."""
    rank = environment_integer("RANK")
    with suppress(RuntimeError):  # the launcher, which holds the store, may have ended
        if (store := connect()) and _was_announced(store, message, rank):
            return
    _print(message if rank == 0 else f"{message} ({_name(rank)})")
    _set("error")  # last, since it lets the other processes end, which ends this one too


def _was_announced(store: "Store", message: str, rank: int) -> bool:
    """Tells whether another process prints the message; otherwise this one must."""
    deadline = time.monotonic() + _SECONDS_FOR_MAIN
    while rank and not store.add(_key(message), 0) and time.monotonic() < deadline:
        time.sleep(0.05)
    return store.add(_key(message), 1) > 1


def announce_end() -> None:
    """Tells the other processes, without a message, that a signal is ending this one."""
    _set("signal")


def peer_has_announced() -> bool:
    """Tells whether another process has announced that an error or a signal is ending it."""
    with suppress(RuntimeError):
        store = connect()
        return bool(store and (store.add(_key("error"), 0) or store.add(_key("signal"), 0)))
    return False


def announce_lost_peer() -> None:
    """Prints, once, that a peer was lost, unless a process has announced an error."""
    try:
        store = connect()
        if store and (store.add(_key("error"), 0) or store.add(_key("lost"), 1) > 1):
            return
    except RuntimeError:
        announce_lost_launcher()
        return
    rank = environment_integer("RANK")
    _print(f"error: another process has ended or is unreachable; {_ADVICE} ({_name(rank)})")


def announce_lost_launcher() -> None:
    """Prints, once per machine, that the launcher was lost, and the store with it."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        _print(f"error: the launcher has ended or is unreachable; {_ADVICE}")


def count_arrivals(arriving: bool) -> int:
    """Counts the processes that are ready to join.

    Args:
        arriving: Whether to add this process to the count.

    Returns:
        Their number; the number of all processes if there is no store.

    Raises:
        RuntimeError: If the launcher has ended.
    """
    if (store := connect()) is None:
        return environment_integer("WORLD_SIZE")
    return int(store.add(_key("arrivals"), int(arriving)))


def environment_integer(name: str) -> int:
    """Reads a number that the launcher has put into the environment.

    Raises:
        ConfigError: If it is missing or not a number.
    """
    value = os.environ.get(name, "")
    if not value.isdecimal():
        raise ConfigError(f"environment variable {name} = {value!r}: not a number; use torchrun")
    return int(value)


def _set(name: str) -> None:
    """Sets a flag that the other processes can read, if the launcher is running."""
    with suppress(RuntimeError):
        if store := connect():
            store.add(_key(name), 1)


def _print(message: str) -> None:
    with suppress(OSError):  # the reader of stderr may have ended with the launcher
        print(message, file=sys.stderr, flush=True)


def _name(rank: int) -> str:
    return f"process {rank} of {os.environ.get('WORLD_SIZE')}"


def _key(text: str) -> str:
    """Names a key in the store; after a restart, keys of the previous attempt must not be found.

    Several launchers make a new store for each attempt, and may number the attempts differently.
    """
    alone = os.environ.get("GROUP_WORLD_SIZE") == "1"
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if alone else "all"
    return f"transformer-mt/{attempt}/{hashlib.sha256(text.encode()).hexdigest()}"


@functools.cache
def connect() -> "Store | None":
    """Connects to the launcher's store, once; returns None if it has none or has ended.

    A process that joins others connects early, since connecting to a lost store takes seconds.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    timeout = timedelta(seconds=_SECONDS_TO_CONNECT)
    try:
        host, port = os.environ["MASTER_ADDR"], environment_integer("MASTER_PORT")
        return TCPStore(host, port, None, False, timeout, wait_for_workers=False)
    except (KeyError, ConfigError, RuntimeError):
        return None


T = TypeVar("T")

PEER_TIMEOUT = timedelta(seconds=60)
"""A peer that does not answer for this long counts as lost. If its process has ended, this is
noticed at once, since the system closes its connections."""
_WAIT = timedelta(hours=24)
"""Limit on every other wait: one process may prepare a large corpus while the others wait."""
_SECONDS_BETWEEN_CHECKS = 1.0
_SECONDS_BETWEEN_ARRIVALS = 0.05
_SECONDS_FOR_SIGNAL = 1.0
_SECONDS_TO_JOIN = 600.0
_ending = threading.Lock()


@dataclass(frozen=True)
class Processes:
    """The processes of a command, as one of them sees them.

    All processes must call the methods in the same order; each call waits for the others. With only
    one process, a method returns at once and leaves values unchanged.

    Attributes:
        rank: Number of this process, from 0.
        world_size: Number of processes.
    """

    rank: int = 0
    world_size: int = 1
    _peers: "_Peers | None" = None

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    @property
    def is_launched(self) -> bool:
        """Whether a launcher has started this process, even if it is the only one."""
        return self._peers is not None

    def sum(self, tensor: "Tensor") -> None:
        """Replaces a tensor with its sum over all processes, bit-identical in every process.

        Args:
            tensor: On the device whose type was given to `join_processes`.
        """
        if peers := self._peers:
            import torch.distributed as dist

            peers.run(lambda: dist.all_reduce(tensor, group=peers.tensors))

    def max(self, *values: float) -> list[float]:
        """Returns, for each position, the largest value of all processes."""
        if not (peers := self._peers):
            return list(values)
        import torch
        import torch.distributed as dist

        largest = torch.tensor(values, dtype=torch.float64)
        peers.run(lambda: dist.all_reduce(largest, dist.ReduceOp.MAX, peers.control))
        return largest.tolist()

    def gather(self, value: T) -> list[T]:
        """Gives the values of all processes, by rank."""
        if not (peers := self._peers):
            return [value]
        import torch.distributed as dist

        values: list[T] = [value] * self.world_size
        peers.run(lambda: dist.all_gather_object(values, value, peers.control))
        return values

    def broadcast(self, value: T) -> T:
        """Returns the main process's value; the values of the others are ignored."""
        if not (peers := self._peers):
            return value
        import torch.distributed as dist

        values = [value]
        peers.run(lambda: dist.broadcast_object_list(values, 0, peers.control))
        return values[0]

    def broadcast_tensors(self, tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
        """Returns the main process's tensors by name, on the CPU, bit-identical in every process.

        Tensors are copied one at a time, so little memory is needed.
        """
        if not (peers := self._peers):
            return dict(tensors)
        import torch
        import torch.distributed as dist

        layout = self.broadcast({name: (t.shape, t.dtype) for name, t in tensors.items()})
        copies = {}
        for name, (shape, dtype) in layout.items():
            copy = torch.empty(shape, dtype=dtype)
            if self.is_main:
                copy.copy_(tensors[name])
            peers.run(partial(dist.broadcast, copy, 0, peers.control))
            copies[name] = copy
        return copies

    def watch_peers(self) -> None:
        """Waits for all processes; afterwards this one ends if a peer is lost.

        Call it only when no process will hold Python's global lock for long any more.
        """
        if self._peers:
            self.gather(None)
            self._peers.start_heartbeat()

    def finish(self) -> None:
        """Waits until all processes have called this; afterwards they may end one by one."""
        if self._peers:
            self._peers.stop_heartbeat()


ALONE = Processes()
"""The only process of a command."""


class _Peers:
    """The connections to the other processes.

    Args:
        tensors: For tensors on the device.
        control: For decisions and objects, on the CPU.
        heartbeat: For the thread that watches the others.
    """

    def __init__(
        self, tensors: "ProcessGroup", control: "ProcessGroup", heartbeat: "ProcessGroup"
    ) -> None:
        self.tensors, self.control, self._heartbeat = tensors, control, heartbeat
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def run(self, collective: Callable[[], object]) -> None:
        """Runs a collective operation; ends this process if a peer is lost."""
        try:
            collective()
        except RuntimeError as error:
            if not _is_lost_connection(error):
                raise
            _end_after_lost_peer()

    def start_heartbeat(self) -> None:
        """Starts the thread that watches the others, once."""
        if self._thread.ident is None:
            self._thread.start()

    def stop_heartbeat(self) -> None:
        """Stops the thread in all processes, once each has called this."""
        self._finished.set()
        while self._thread.is_alive():
            self._thread.join(0.1)  # with a timeout, so that a second signal is handled

    def _beat(self) -> None:
        """Exchanges a number every second, which fails if a peer is lost.

        Runs in a thread, since the main one may be inside a kernel that waits for the lost peer.
        """
        import torch
        import torch.distributed as dist

        while True:
            finished = torch.tensor([int(self._finished.is_set())])
            try:
                dist.all_reduce(finished, dist.ReduceOp.MIN, self._heartbeat)
            except RuntimeError:
                _end_after_lost_peer()
            if finished.item():
                return
            self._finished.wait(_SECONDS_BETWEEN_CHECKS)


def _is_lost_connection(error: RuntimeError) -> bool:
    """Tells whether a collective failed because a peer ended or does not answer."""
    text = str(error).lower()
    return any(part in text for part in ("connection", "timed out", "timeout", "broken pipe"))


def _end_after_lost_peer() -> None:
    _ending.acquire()  # never released: another thread that gets here waits until the process ends
    if peer_has_announced():
        time.sleep(_SECONDS_FOR_SIGNAL)  # a signal sent to the peer reaches this process too
    announce_lost_peer()
    end_process(1)


def _watch_launcher(launcher: int) -> None:
    """Ends this process once its parent has ended: nothing else would stop it."""
    while os.getppid() == launcher:
        time.sleep(_SECONDS_BETWEEN_CHECKS)
    _ending.acquire()
    announce_lost_launcher()
    end_process(1)


@contextmanager
def join_processes(device_type: str) -> Iterator[Processes]:
    """Joins the processes that `torchrun` started; without it, yields `ALONE`.

    Args:
        device_type: `cpu` or `cuda`; with `cuda`, each process of a machine uses its own GPU.

    Raises:
        ConfigError: If environment variables are missing or malformed.
        DeviceError: If there are fewer GPUs than processes on this machine.
    """
    if not is_launched():
        yield ALONE
        return
    threading.Thread(target=_watch_launcher, args=(os.getppid(),), daemon=True).start()
    if missing := {"MASTER_ADDR", "MASTER_PORT"} - os.environ.keys():
        raise ConfigError(
            f"the environment has RANK and WORLD_SIZE, but not {', '.join(sorted(missing))}: start"
            " several processes with torchrun, and one without these variables"
        )
    yield _join(device_type)
    import torch.distributed as dist

    dist.destroy_process_group()


def _join(device_type: str) -> Processes:
    import torch.distributed as dist

    rank, world_size = environment_integer("RANK"), environment_integer("WORLD_SIZE")
    backend, device = "gloo", None
    if device_type == "cuda":
        backend, device = "nccl", _choose_gpu()
    if _launcher_has_store():
        _wait_for_arrivals(world_size)
    try:
        dist.init_process_group(
            backend,
            store=_fresh_store(),
            rank=rank,
            world_size=world_size,
            timeout=_WAIT,
            device_id=device,
        )
        connect()
        control = dist.new_group(backend="gloo", timeout=_WAIT)
        heartbeat = dist.new_group(backend="gloo", timeout=PEER_TIMEOUT)
    except RuntimeError as error:
        if not _is_lost_connection(error):
            raise
        _end_after_lost_peer()
    assert dist.group.WORLD is not None
    return Processes(rank, world_size, _Peers(dist.group.WORLD, control, heartbeat))


def _wait_for_arrivals(world_size: int) -> None:
    """Waits until all processes are about to join; ends this one if another cannot.

    `torch.distributed` would not notice signals or failed peers while it waits.
    """
    deadline = time.monotonic() + _SECONDS_TO_JOIN
    try:
        arrived = count_arrivals(arriving=True)
        while arrived < world_size and time.monotonic() < deadline and not peer_has_announced():
            time.sleep(_SECONDS_BETWEEN_ARRIVALS)
            arrived = count_arrivals(arriving=False)
    except RuntimeError:
        arrived = 0  # the launcher has ended
    if arrived < world_size:
        _end_after_lost_peer()


def _launcher_has_store() -> bool:
    """Tells whether the launcher provides a key-value store before the processes join."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _fresh_store() -> "Store | None":
    """Returns a store without the addresses of processes that ended before a restart.

    The launcher of a single machine keeps one store across restarts, unless it is started with
    `--standalone`. Several launchers with `--rdzv-backend c10d` make a new one each time; their
    restart counts may differ.

    Returns:
        The store; None to let `torch.distributed` choose it.
    """
    if not _launcher_has_store() or os.environ.get("GROUP_WORLD_SIZE") != "1":
        return None
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    host, port = os.environ["MASTER_ADDR"], environment_integer("MASTER_PORT")
    store = TCPStore(host, port, None, False, _WAIT, wait_for_workers=False)
    return PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT')}", store)


def _choose_gpu() -> "torch.device":
    """Selects this process's own GPU as its current device."""
    import torch

    local_rank, count = environment_integer("LOCAL_RANK"), torch.cuda.device_count()
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


def require_single_process(command: str) -> None:
    """Refuses to run a command several times at once.

    Raises:
        ConfigError: If a launcher has started more than one process.
    """
    if is_launched() and environment_integer("WORLD_SIZE") > 1:
        raise ConfigError(f"{command} works in one process: start it without torchrun")


def may_have_restarted() -> bool:
    """Tells whether the launcher may have restarted all processes after losing one.

    With several machines, each launcher counts only the restarts that it began itself.
    """
    if not is_launched():
        return False
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return restarts != "0" or os.environ.get("GROUP_WORLD_SIZE", "1") != "1"


def is_main_process() -> bool:
    """Tells whether this process shows progress; may be called before it joins the others."""
    return not is_launched() or environment_integer("RANK") == 0


def exit_with_error(message: str) -> None:
    """Prints an error, once for all processes that have it, and ends the process with code 2."""
    if not is_launched():
        print(message, file=sys.stderr)
        raise SystemExit(2)
    announce(message)
    end_process(2)


def exit_process(code: int) -> None:
    """Ends the process; if it is one of several, without waiting for the others."""
    if is_launched():
        announce_end()
        end_process(code)
    raise SystemExit(code)


def end_process(code: int) -> None:
    """Ends this process without waiting for threads or peers."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # the reader may have ended
            if stream is not None:
                stream.flush()
    os._exit(code)


@dataclass(frozen=True)
class Agreement:
    """The information that all processes share after a step.

    Attributes:
        signum: Number of the signal that any of them has received; 0 if none.
        seconds: Training time so far, by the main process's clock.
        save_is_due: Whether a checkpoint is due by that clock.
    """

    signum: int = 0
    seconds: float = 0.0
    save_is_due: bool = False


def agree(processes: Processes, own: Agreement) -> Agreement:
    """Combines what each process knows, so that all make the same decisions."""
    seconds, save_is_due = (own.seconds, own.save_is_due) if processes.is_main else (0.0, False)
    signum, seconds, due = processes.max(own.signum, seconds, save_is_due)
    return Agreement(int(signum), seconds, bool(due))
