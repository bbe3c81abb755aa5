"""The launcher, `torchrun`: what it tells a process, and how the process ends, alone or with it.

Imported before anything that takes time, so that a launcher killed meanwhile is noticed.
"""

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, NoReturn

from transformer_mt.errors import ConfigError
from transformer_mt.system.process_settings import handle_signals

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

SECONDS_BETWEEN_CHECKS = 1.0
SECONDS_TO_END = 2.0
"""How long the launcher may take to end a process after another has ended, or to answer."""

_launcher_pid = 0
_store_of_ends: "Store | None" = None
"""What all processes can write once they have joined; `torch.distributed` does not use it."""
_ending = threading.Lock()


def is_launched() -> bool:
    """Tells whether a launcher such as `torchrun` has started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def read_variable(name: str) -> str:
    """Reads what the launcher has put into the environment."""
    if value := os.environ.get(name):
        return value
    raise ConfigError(f"environment variable {name} is missing: use torchrun")


def read_number(name: str) -> int:
    """Reads a number that the launcher has put into the environment."""
    if (value := read_variable(name)).isdecimal():
        return int(value)
    raise ConfigError(f"environment variable {name} = {value} is not a number: use torchrun")


def require_single_process(command: str) -> None:
    """Raises ConfigError if a launcher has started the command more than once."""
    if is_launched() and read_number("WORLD_SIZE") > 1:
        raise ConfigError(f"{command} works in one process: start it without torchrun")


def may_have_restarted() -> bool:
    """Tells whether this may not be the first attempt; several launchers count separately."""
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return restarts != "0" or os.environ.get("GROUP_WORLD_SIZE", "1") != "1"


def is_main_process() -> bool:
    """Tells whether this process shows progress; may be called before it joins the others."""
    return not is_launched() or read_number("RANK") == 0


@cache
def watch_launcher() -> None:
    """Ends this process once the launcher that started it has ended: nothing else would."""
    global _launcher_pid
    if is_launched():
        _launcher_pid = 0 if is_orphan() else os.getppid()
        threading.Thread(target=_end_with_launcher, daemon=True).start()


def is_orphan() -> bool:
    """Tells whether torchrun ended before this was called, so that process 1 is the parent.

    In a container torchrun itself may be process 1; its program is then Python, like this one's.
    """
    if os.getppid() != 1 or "TORCHELASTIC_RUN_ID" not in os.environ:
        return False
    try:
        return not os.path.samefile("/proc/1/exe", "/proc/self/exe")
    except OSError:  # the program of another user
        return True


def _end_with_launcher() -> None:
    while os.getppid() == _launcher_pid:
        time.sleep(SECONDS_BETWEEN_CHECKS)
    end_after_loss()


def connect_to_store(timeout: timedelta, serves: bool = False) -> "Store":
    """Connects to the store of the launcher or, if it has none, to one that a process serves.

    `torchrun` keeps its store when it restarts processes, so a prefix hides the addresses of those
    that have ended. Several launchers count their restarts separately: see docs/scaling.md.
    """
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    host, port = read_variable("MASTER_ADDR"), read_number("MASTER_PORT")
    store = TCPStore(host, port, None, serves, timeout, wait_for_workers=False)
    is_alone = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if is_alone else "all"
    return PrefixStore(f"transformer-mt/{attempt}", store)


def record_ends(store: "Store") -> None:
    """Lets the process that ends first be known by a store, so that it alone reports the reason."""
    global _store_of_ends
    _store_of_ends = store


def exit_with_error(message: str) -> NoReturn:
    """Prints an error and ends the process with code 2.

    Most errors are those of all processes: the main one prints its own and ends, and the launcher
    ends the others. One that still runs after two seconds prints its own error with its number.
    """
    rank = os.environ.get("RANK", "")
    if is_launched() and rank.isdecimal() and rank != "0":
        with handle_signals(signal.SIG_DFL):
            time.sleep(SECONDS_TO_END)
        message = f"process {rank} of {os.environ['WORLD_SIZE']}: {message}"
    # Before the end is announced, which lets the other processes end.
    print(message, file=sys.stderr, flush=True)
    exit_process(2)


def exit_process(code: int) -> NoReturn:
    """Ends the process; if it is one of several, without waiting for threads or the others."""
    if not is_launched():
        raise SystemExit(code)
    _is_first_to_end()
    _end_process(code)


def end_after_loss(reason: str = "another process has ended or is unreachable") -> NoReturn:
    """Ends this process for a reason that all processes have; one of them prints it."""
    _ending.acquire()  # never released: another thread that gets here waits until the process ends
    if _is_first_to_end():
        if os.getppid() != _launcher_pid:
            reason = "the launcher has ended or is unreachable"
        with suppress(OSError):  # the reader of stderr may have ended with the launcher
            print(f"error: {reason}; run the same command again", file=sys.stderr, flush=True)
    else:
        time.sleep(SECONDS_TO_END)
    _end_process(1)


def _is_first_to_end() -> bool:
    """Announces the end of this process; tells whether no other has announced its own before."""
    answers: list[bool] = []

    def announce(store: "Store") -> None:
        with suppress(RuntimeError):
            answers.append(store.add("ended", 1) == 1)

    if _store_of_ends:  # in a thread, since the machine of the store may no longer answer
        thread = threading.Thread(target=announce, args=(_store_of_ends,), daemon=True)
        thread.start()
        thread.join(SECONDS_TO_END)
    # Without a store, the first process of each machine reports the loss.
    return answers[0] if answers else os.environ.get("LOCAL_RANK", "0") == "0"


def _end_process(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # the reader may have ended
            if stream is not None:
                stream.flush()
    os._exit(code)
