"""Messages and progress bars on stderr.

Modules report through `logging`: progress as info, what a user should know as warnings. Nothing is
shown of the former before `show_messages`, so importing programs stay silent.
"""

import logging
import sys
from collections.abc import Iterable
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")

PACKAGE_LOGGER = logging.getLogger("transformer_mt")


class _StderrHandler(logging.Handler):
    """Writes messages to stderr, above any progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one line."""
        tqdm.write(self.format(record), file=sys.stderr)


class MessageFormatter(logging.Formatter):
    """Marks warnings as such."""

    def format(self, record: logging.LogRecord) -> str:
        """Gives the message, after `warning: ` if it is one."""
        prefix = "warning: " if record.levelno >= logging.WARNING else ""
        return prefix + super().format(record)


def show_messages(quiet: bool = False) -> None:
    """Shows the package's messages on stderr from now on; called again, it changes `quiet`.

    Args:
        quiet: Whether to show only warnings, and no progress bars.
    """
    for handler in PACKAGE_LOGGER.handlers[:]:
        if isinstance(handler, _StderrHandler):
            PACKAGE_LOGGER.removeHandler(handler)
    handler = _StderrHandler(logging.WARNING if quiet else logging.INFO)
    handler.setFormatter(MessageFormatter())
    PACKAGE_LOGGER.addHandler(handler)
    PACKAGE_LOGGER.setLevel(logging.INFO)


def shows_progress() -> bool:
    """Tells whether messages of progress are shown on stderr."""
    return any(
        isinstance(handler, _StderrHandler) and handler.level <= logging.INFO
        for handler in PACKAGE_LOGGER.handlers
    )


def shows_bars() -> bool:
    """Tells whether progress bars are shown: not without messages or a terminal."""
    return shows_progress() and sys.stderr.isatty()


def progress_bar(
    name: str,
    unit: str,
    total: int | None = None,
    items: Iterable[T] | None = None,
    hidden: bool = False,
) -> "tqdm[T]":
    """Makes a progress bar, which is invisible unless bars are shown.

    Args:
        name: What is being done.
        unit: What is counted, in the plural.
        total: How many there will be, if known.
        items: What to iterate over; without it the caller moves the bar with `update`.
        hidden: Whether to show nothing in any case.
    """
    hidden = hidden or not shows_bars()
    return tqdm(
        items, name, total, unit=f" {unit}", dynamic_ncols=True, disable=hidden, leave=False
    )
