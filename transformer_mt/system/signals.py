"""SIGINT and SIGTERM: a training step is finished first, a translation stops at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from transformer_mt.errors import Interrupted


@dataclass
class StopRequest:
    """A request by a signal to stop training.

    Attributes:
        signum: Number of the signal; 0 if none was received.
    """

    signum: int = 0


@contextmanager
def catch_stop_signals() -> Iterator[StopRequest]:
    """Records SIGINT and SIGTERM instead of ending the program; restores their handlers afterwards.

    A second signal raises Interrupted at once: checkpoints are atomic, so nothing is damaged.
    Outside the main thread, where Python allows no signal handlers, nothing is recorded.
    """
    request = StopRequest()

    def handle(signum: int, frame: FrameType | None) -> None:
        if request.signum:
            raise Interrupted(signum)
        request.signum = signum

    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    previous = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for signum, handler in previous.items():
            # None is a handler that Python did not install and cannot restore.
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Raises Interrupted on SIGINT and SIGTERM; restores their handlers afterwards.

    By default SIGTERM ends the process without any cleanup.
    """

    def handle(signum: int, frame: FrameType | None) -> None:
        raise Interrupted(signum)

    previous = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
