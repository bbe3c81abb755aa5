"""A file that one process at a time may hold."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, when_busy: Callable[[str], None]) -> Iterator[None]:
    """Holds a lock file, waiting for it if another process does; it is free when that one dies.

    Args:
        path: The file; it stays behind.
        when_busy: Told the number of the process that holds it, before waiting; may raise instead.
    """
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            when_busy(file.read().strip() or "unknown")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
