r"""Lines from a stream of bytes and back: split at `\n` alone, given out once they are there."""

import os
import select
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from transformer_mt.system.files import atomic_file

BLOCK = 2**16
IDLE_SECONDS = 0.05
"""So long nothing has come when a writer seems to wait for an answer."""


class LineReader:
    """Reads lines in chunks: as many as asked for, or fewer where the writer pauses.

    Args:
        stream: A file or pipe opened for bytes.

    Attributes:
        replaced: Lines so far that were not UTF-8; what was not is U+FFFD in them.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._descriptor, self.replaced = stream.fileno(), 0

    def chunks(self, size: int) -> Iterator[list[str]]:
        """Gives lists of at most `size` lines, never an empty one; no line is ever lost."""
        ready: list[bytes] = []
        begun: list[bytes] = []  # pieces of a line whose end has not come yet
        while block := os.read(self._descriptor, BLOCK):
            head, newline, rest = block.rpartition(b"\n")
            if newline:
                ready += b"".join((*begun, head)).split(b"\n")
                begun = []
            begun.append(rest)
            while len(ready) >= size:
                yield self._decode(ready[:size])
                ready = ready[size:]
            if ready and not self._has_more():
                yield self._decode(ready)
                ready = []
        if any(begun):
            ready.append(b"".join(begun))
        if ready:
            yield self._decode(ready)

    def _has_more(self) -> bool:
        return bool(select.select([self._descriptor], [], [], IDLE_SECONDS)[0])

    def _decode(self, lines: list[bytes]) -> list[str]:
        try:
            return [line.decode("utf-8") for line in lines]
        except UnicodeDecodeError:
            found = [line.decode("utf-8", errors="replace") for line in lines]
            both = zip(lines, found, strict=True)
            self.replaced += sum(line != text.encode("utf-8") for line, text in both)
            return found


def count_lines(path: Path) -> int:
    r"""Counts the lines of a file; a last one without `\n` is one too."""
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(2**20):
            count, last = count + block.count(b"\n"), block
    return count + (not last.endswith(b"\n"))


def write_lines(chunks: Iterable[list[str]], output: Path | None) -> int:
    """Writes lines to stdout, or to a file that appears when it is whole; counts them."""
    if output is None:
        # When the reader has what it wants, as `head` has, end as other tools do.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        return _write_to(sys.stdout.buffer, chunks)
    with atomic_file(output) as file:
        return _write_to(file, chunks)


def _write_to(stream: BinaryIO, chunks: Iterable[list[str]]) -> int:
    count = 0
    for lines in chunks:
        stream.writelines(line.encode("utf-8") + b"\n" for line in lines)
        stream.flush()  # somebody may be waiting for it
        count += len(lines)
    return count
