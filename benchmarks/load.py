"""Other load on the machine: busy processes started on purpose, and a measure of any others."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

STAT = Path("/proc/stat")
NOTEWORTHY = 0.1
"""A share of the cores above which a measurement says that other processes took it."""

_BUSY = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0))).start()
while True: pass
"""


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Keeps some processes busy, one core each, until the block or this program ends.

    Args:
        count: How many.
    """
    with ExitStack() as stack:
        for _ in range(count):
            # Each ends when its stdin closes, so it does not outlive a killed benchmark either.
            # In a group of its own it gets no Ctrl-C, on which it would print a traceback.
            command = [sys.executable, "-c", _BUSY]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0)
            stack.enter_context(process)
        yield


def _cpu_seconds() -> tuple[float, float] | None:
    """Reads the CPU time of all processes and of this one; None where there is no /proc/stat.

    To this process belong its threads and its children that have ended. CPU time that the
    hypervisor gave to other machines is not counted.
    """
    if not STAT.exists():
        return None
    user, nice, system = STAT.read_text().split()[1:4]
    total = (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")
    return total, sum(os.times()[:4])


class Load:
    """The CPU time that other processes take while something is measured, perhaps in parts."""

    def __init__(self) -> None:
        """Begins with no part."""
        self._others = self._available = 0.0
        self._known = True

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Adds the time that the block takes."""
        began, before = time.perf_counter(), _cpu_seconds()
        yield
        after = _cpu_seconds()
        if before is None or after is None:
            self._known = False
            return
        self._available += (time.perf_counter() - began) * (os.cpu_count() or 1)
        self._others += (after[0] - before[0]) - (after[1] - before[1])

    @property
    def share(self) -> float | None:
        """The others' share of the time of all cores; None if it is unknown."""
        if not (self._known and self._available):
            return None
        return max(self._others, 0.0) / self._available


def describe_share(share: float | None) -> str:
    """Says in a table what other processes took: nothing if that is little or unknown."""
    if share is None or share <= NOTEWORTHY:
        return ""
    return f"other processes took {share:.0%} of the cores"
