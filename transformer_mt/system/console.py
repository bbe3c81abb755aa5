"""Messages and progress bars on stderr.

Modules report through `logging`: progress as info, anything the user should know as warnings. Info
messages are hidden until `show_messages` is called, so programs that import the package show none.
"""

import logging
import sys
import time
from collections.abc import Iterable
from typing import Self, TypeVar

from tqdm import tqdm

from transformer_mt.system.launcher import is_main_process

T = TypeVar("T")

PACKAGE_LOGGER = logging.getLogger("transformer_mt")

SECONDS_BETWEEN_LINES = 10.0
"""Minimum time between printed progress lines, used where there is no progress bar."""
_INTERVAL_GROWTH, _LONGEST_INTERVAL = 1.5, 600.0
"""How the time between lines grows in a long task, up to so many seconds."""
_BAR_NAME = 24
"""Characters of a name beside a bar, which needs the width of the terminal itself."""

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}


def escape_controls(text: str) -> str:
    r"""Shows control characters as `\x1b` and the like, so that terminals do not obey them."""
    return text.translate(_CONTROLS)


class _StderrHandler(logging.Handler):
    """Writes messages to stderr, above any progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)


class MessageFormatter(logging.Formatter):
    """Adds the prefix `warning: ` to warnings."""

    def format(self, record: logging.LogRecord) -> str:
        """Formats the message, with the prefix if it is a warning."""
        prefix = "warning: " if record.levelno >= logging.WARNING else ""
        return escape_controls(prefix + super().format(record))


_HANDLER = _StderrHandler()
_HANDLER.setFormatter(MessageFormatter())


def show_messages(quiet: bool = False) -> None:
    """Shows the package's messages on stderr; with `quiet` only warnings, and no progress bars.

    With several processes, only the main one shows messages: the others would repeat them.
    """
    level = logging.WARNING if quiet else logging.INFO
    _HANDLER.setLevel(level if is_main_process() else logging.CRITICAL)
    PACKAGE_LOGGER.addHandler(_HANDLER)
    PACKAGE_LOGGER.setLevel(logging.INFO)


def shows_progress() -> bool:
    """Tells whether progress messages are shown on stderr."""
    return _HANDLER in PACKAGE_LOGGER.handlers and _HANDLER.level <= logging.INFO


def shows_bars() -> bool:
    """Tells whether progress bars are shown, which requires progress messages and a terminal."""
    return shows_progress() and sys.stderr.isatty()


def progress_bar(
    name: str,
    unit: str,
    total: int | None = None,
    items: Iterable[T] | None = None,
    hidden: bool = False,
    done: int = 0,
) -> "tqdm[T]":
    """Makes a progress bar, which is invisible unless `shows_bars` is true.

    Args:
        name: What is being done.
        unit: What is counted, in the plural.
        total: How many there will be, if known.
        items: What to iterate over; without it the caller moves the bar with `update`.
        hidden: Whether to show nothing at all.
        done: How many were already done; they do not count towards the speed.
    """
    name = escape_controls(name)
    return tqdm(
        items,
        name if len(name) <= _BAR_NAME else f"{name[: _BAR_NAME - 8]}…{name[-7:]}",
        total,
        initial=done,
        unit=f" {unit}",
        dynamic_ncols=True,
        disable=hidden or not shows_bars(),
        leave=False,
    )


class GrowingInterval:
    """The time until the next line of progress: lines become rarer in a long task.

    Args:
        last: When the last line was printed, by the monotonic clock.
    """

    def __init__(self, last: float) -> None:
        self._last, self._seconds = last, SECONDS_BETWEEN_LINES

    def has_passed(self) -> bool:
        """Tells whether a line is due."""
        return time.monotonic() - self._last >= self._seconds

    def restart(self, grows: bool = True) -> None:
        """Begins the next interval, which is longer if it `grows`."""
        self._last = time.monotonic()
        if grows:
            self._seconds = min(self._seconds * _INTERVAL_GROWTH, _LONGEST_INTERVAL)


class ProgressDisplay:
    """Progress of a long task on stderr: a bar on a terminal, otherwise lines at growing intervals.

    The arguments are those of `progress_bar`.
    """

    def __init__(
        self, name: str, unit: str, total: int | None, done: int = 0, hidden: bool = False
    ) -> None:
        self._bar: tqdm[int] = progress_bar(name, unit, total, hidden=hidden, done=done)
        self._prints_lines = shows_progress() and not shows_bars() and not hidden
        self._name, self._unit, self._total = escape_controls(name), unit, total
        self._done = self._done_before = done
        self._began = time.monotonic()
        self._interval = GrowingInterval(self._began)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def update(self, count: int) -> None:
        """Adds to the number of items done."""
        self._bar.update(count)
        self._done += count
        if self._prints_lines and self._interval.has_passed():
            self._interval.restart()
            speed = (self._done - self._done_before) / (time.monotonic() - self._began)
            done, left = f"{self._name}: {self._done:,}", ""
            if self._total and speed:
                done += f" of {self._total:,}"
                left = f", {tqdm.format_interval((self._total - self._done) / speed)} left"
            line = f"{done} {self._unit}, {speed:,.0f} per second{left}"
            print(line, file=sys.stderr, flush=True)
