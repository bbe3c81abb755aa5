"""Process-wide settings, made only by the command line.

The Python API does not call these functions: a notebook or another program that imports the
package keeps its own settings.
"""

import io
import logging
import os
import sys
from contextlib import suppress
from threading import RLock
from typing import Any, TextIO, cast


def configure_process() -> None:
    """Makes all settings; works only before torch is imported."""
    tolerate_lost_messages()
    allow_any_text()
    configure_libraries()


def configure_libraries() -> None:
    """Sets how libraries use memory, threads and stderr; works only before torch is imported.

    A variable set by the user is kept.
    """
    # By default, oneDNN and PyTorch's bridge to it keep a compiled kernel with its buffers for each
    # of the last thousand shapes; with sentences of all lengths, memory grows for hours. Training
    # in bf16 reuses the most, some 15 for each of about ten different numbers of rows (`pad_rows`).
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")
    os.environ.setdefault("LRU_CACHE_CAPACITY", "64")
    # GNU OpenMP threads that wait would spin for milliseconds and, if another program is busy, take
    # cores from the threads they wait for. A count of 1,000 is about 50 microseconds, longer than
    # the time between two operations of a step.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # Python 3.14 reports tqdm's usual lock, for several processes, as leaked if a signal ends this
    # one. Imported here, since the program uses this module before it imports anything else.
    from tqdm import tqdm

    tqdm.set_lock(RLock())
    # The program itself reports lost connections, and what matters of Matplotlib's messages.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    logging.getLogger("matplotlib").setLevel(logging.ERROR)


def open_closed_streams() -> None:
    """Opens the null device in place of standard streams that are closed, as in a daemon.

    Otherwise the next files opened would get their descriptors. With the null device, stdin is
    empty, messages are dropped, and writing to stdout is an error, so no output is lost silently.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # It gets the lowest free descriptor, that of the stream.
            os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))


def allow_any_text() -> None:
    """Makes stdout UTF-8 in every locale; a file name that is not UTF-8 is printed as its bytes.

    Only an error handler in PYTHONIOENCODING, such as `ascii:replace`, changes that.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        if sys.stdout.errors in ("strict", "surrogateescape"):
            sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")


class _OptionalStream:
    """A text stream that drops what cannot be written: its reader has ended, or the disk is full.

    Messages are worth less than the work that they tell of.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def tolerate_lost_messages() -> None:
    """Lets the program go on when stderr can no longer be written."""
    sys.stderr = cast(TextIO, _OptionalStream(sys.stderr))
