"""Information from a launcher such as `torchrun`, and functions that end the process.

Imports nothing heavy, since every command needs it.
"""

import os
import sys
from contextlib import suppress

from transformer_mt.errors import ConfigError
from transformer_mt.system.shared_errors import announce, announce_end, environment_integer


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
