"""The launcher, `torchrun`: what it tells a process, and how the process ends, alone or with it.

Imported before anything that takes time, so that a launcher killed meanwhile ends its workers.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

from transformer_mt.errors import ConfigError, TransformerMTError
from transformer_mt.system.signals import handle_signals

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

SECONDS_TO_END = 2.0
"""How long the launcher may take to end a process after another has ended."""
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


def is_launched() -> bool:
    """Returns whether a launcher such as `torchrun` has started this process."""
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


def attempt() -> str:
    """Numbers this attempt from 0; several launchers count separately, so theirs are all one."""
    is_alone = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if is_alone else "all"


def cpus_of_process() -> int:
    """Returns the CPUs that this process may use, shared with those that torchrun started here."""
    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS
    cpus = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    processes = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, cpus // int(processes)) if processes.isdecimal() and int(processes) else cpus


def is_main_process() -> bool:
    """Returns whether this process shows progress; may be called before it joins the others."""
    return not is_launched() or read_number("RANK") == 0


def end_with_launcher() -> None:
    """Asks Linux to kill this process when the thread that started it, the launcher's, ends."""
    if is_launched() and sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def connect_to_store(timeout: timedelta, serves: bool = False) -> "Store":
    """Connects to the store of the launcher or, if it has none, to one that a process serves.

    `torchrun` keeps its store when it restarts processes, so a prefix hides the addresses of those
    that have ended. Several launchers count their restarts separately: see docs/scaling.md.
    """
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    host, port = read_variable("MASTER_ADDR"), read_number("MASTER_PORT")
    store = TCPStore(host, port, None, serves, timeout, wait_for_workers=False)
    return PrefixStore(f"transformer-mt/{attempt()}", store)


def exit_with_error(message: str, code: int = TransformerMTError.exit_code) -> NoReturn:
    """Prints an error and ends the process with a code.

    Most errors are those of all processes: the main one prints its own and ends, and the launcher
    ends the others. One that still runs after two seconds prints its own error with its number.
    """
    rank = os.environ.get("RANK", "")
    if is_launched() and rank.isdecimal() and rank != "0":
        with handle_signals(signal.SIG_DFL):
            time.sleep(SECONDS_TO_END)
        message = f"process {rank} of {os.environ['WORLD_SIZE']}: {message}"
    print(message, file=sys.stderr, flush=True)
    exit_process(code)


def exit_process(code: int) -> NoReturn:
    """Ends the process; if it is one of several, without waiting for threads or the others."""
    if not is_launched():
        raise SystemExit(code)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # the reader may have ended
            stream.flush()
    os._exit(code)
