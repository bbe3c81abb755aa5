"""Messages and progress bars on stderr.

Modules report through `logging`: progress as info, anything the user should know as warnings. Info
messages are hidden until `show_messages` is called, so programs that import the package show none.
"""

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

from tqdm import tqdm

from transformer_mt.system.launcher import is_main_process

logger = logging.getLogger("transformer_mt")

SECONDS_BETWEEN_LINES = 30.0
"""Minimum time between printed progress lines, used where there is no progress bar."""
_BAR_NAME = 24
"""Last characters of a name beside a bar, which needs the width of the terminal itself."""

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
    logger.addHandler(_HANDLER)
    logger.setLevel(logging.INFO)


def shows_progress() -> bool:
    """Returns whether progress messages are shown on stderr."""
    return _HANDLER in logger.handlers and _HANDLER.level <= logging.INFO


def shows_bars() -> bool:
    """Returns whether progress bars are shown, which requires progress messages and a terminal."""
    return shows_progress() and sys.stderr.isatty()


class ProgressBar(tqdm):  # type: ignore[misc]
    """Progress of a task: a bar on a terminal, otherwise lines.

    Nothing is shown unless progress messages are. Without `items` the caller moves the bar with
    `update`.

    Args:
        name: What is being done.
        unit: What is counted, in the plural.
        total: How many there will be, if known.
        items: What to iterate over.
        hidden: Whether to show nothing at all.
        done: How many were already done; they do not count towards the speed.
    """

    def __init__(
        self,
        name: str,
        unit: str,
        total: int | None = None,
        items: Iterable[Any] | None = None,
        hidden: bool = False,
        done: int = 0,
    ) -> None:
        self._name, self._unit = escape_controls(name), unit
        super().__init__(
            items,
            self._name[-_BAR_NAME:],
            total,
            initial=done,
            unit=f" {unit}",
            dynamic_ncols=True,
            disable=hidden or not shows_bars(),
            leave=False,
        )
        self._prints_lines = self.disable and shows_progress() and not hidden
        self._done = self._done_before = done
        self._began = self._last_line = time.monotonic()

    def __iter__(self) -> Iterator[Any]:
        """Yields the items; tqdm counts them only if it shows a bar."""
        for item in super().__iter__():
            yield item
            if self._prints_lines:
                self.update(1)

    def update(self, count: int) -> None:
        """Adds to the number of items done."""
        super().update(count)
        self._done += count
        now = time.monotonic()
        if self._prints_lines and now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            speed = (self._done - self._done_before) / (now - self._began)
            done, left = f"{self._name}: {self._done:,}", ""
            if self.total and speed:
                done += f" of {self.total:,}"
                left = f", {self.format_interval((self.total - self._done) / speed)} left"
            line = f"{done} {self._unit}, {speed:,.0f} per second{left}"
            print(line, file=sys.stderr, flush=True)
