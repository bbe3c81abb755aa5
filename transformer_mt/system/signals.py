"""What SIGINT, SIGTERM and SIGPIPE do to the program."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import FrameType

from transformer_mt.errors import Interrupted


def end_at_once_on_sigint() -> None:
    """Lets Ctrl-C end the process without a traceback of Python, unless it is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass
class StopRequest:
    """The number of the signal that asked training to stop; 0 if none was received."""

    signum: int = 0


@contextmanager
def catch_stop_signals(hides_errors: bool = False) -> Iterator[StopRequest]:
    """Records SIGINT and SIGTERM instead of ending the program.

    A second signal raises Interrupted at once: checkpoints are atomic, so nothing is damaged.

    Args:
        hides_errors: Whether Interrupted replaces an error that follows a signal. A launcher
            sends the signal after another process has failed, which has printed its error.
    """
    request = StopRequest()

    def record(signum: int, frame: FrameType | None) -> None:
        if request.signum:
            raise Interrupted(signum)
        request.signum = signum

    try:
        with handle_signals(record):
            yield request
    except Exception as error:
        if hides_errors and request.signum:
            raise Interrupted(request.signum) from error
        raise


def interrupt_on_signals() -> AbstractContextManager[None]:
    """Raises Interrupted on SIGINT and SIGTERM, the default of which ends without any cleanup."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise Interrupted(signum)

    return handle_signals(interrupt)


@contextmanager
def handle_signals(
    handler: Callable[[int, FrameType | None], object] | signal.Handlers,
) -> Iterator[None]:
    """Handles SIGINT and SIGTERM by a function or a default; restores their handlers afterwards.

    Outside the main thread, where Python allows no signal handlers, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {s: signal.signal(s, handler) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, before in previous.items():
            # None is a handler that Python did not install and cannot restore.
            signal.signal(signum, signal.SIG_DFL if before is None else before)


@contextmanager
def end_by_broken_pipe() -> Iterator[None]:
    """Ends the process as other tools end whose reader, such as `head`, has closed their stdout."""
    try:
        yield
    except BrokenPipeError:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.raise_signal(signal.SIGPIPE)
