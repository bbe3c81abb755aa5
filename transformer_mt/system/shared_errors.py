"""Errors of several processes on one stderr: an error that all of them have is printed once.

The processes communicate through the launcher's key-value store, which outlives them.
"""

import functools
import hashlib
import os
import sys
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from transformer_mt.errors import ConfigError

if TYPE_CHECKING:
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
