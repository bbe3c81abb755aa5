r"""Lines from a stream of bytes and back: split at `\n` alone, passed on as they arrive."""

import os
import select
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from transformer_mt.errors import DataError
from transformer_mt.system.files import atomic_file

BLOCK_BYTES = 2**16
IDLE_SECONDS = 0.05
"""After this long without input, the writer is taken to be waiting for an answer."""


class LineReader:
    """Reads lines in chunks: as many as requested, or fewer when the writer pauses.

    Args:
        stream: A file or pipe opened for bytes.

    Attributes:
        lines_replaced: Lines so far that were not valid UTF-8; their invalid bytes were replaced
            by U+FFFD.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._descriptor, self.lines_replaced = stream.fileno(), 0

    def chunks(self, size: int) -> Iterator[list[str]]:
        """Yields lists of 1 to `size` lines; every line is in one of them."""
        ready: list[bytes] = []
        incomplete: list[bytes] = []  # the blocks of a line whose end has not been read yet
        while block := os.read(self._descriptor, BLOCK_BYTES):
            head, newline, rest = block.rpartition(b"\n")
            if newline:
                ready += b"".join((*incomplete, head)).split(b"\n")
                incomplete = []
            incomplete.append(rest)
            while len(ready) >= size:
                yield self._decode(ready[:size])
                ready = ready[size:]
            if ready and not self._has_more():
                yield self._decode(ready)
                ready = []
        if any(incomplete):
            ready.append(b"".join(incomplete))
        if ready:
            yield self._decode(ready)

    def _has_more(self) -> bool:
        return bool(select.select([self._descriptor], [], [], IDLE_SECONDS)[0])

    def _decode(self, lines: list[bytes]) -> list[str]:
        try:
            return [line.decode("utf-8") for line in lines]
        except UnicodeDecodeError:
            texts = [line.decode("utf-8", errors="replace") for line in lines]
            pairs = zip(lines, texts, strict=True)
            self.lines_replaced += sum(line != text.encode("utf-8") for line, text in pairs)
            return texts


def require_input(path: Path | None) -> None:
    """Refuses an input that does not exist, before any work is done for it.

    Args:
        path: A file or named pipe; None is no file or stdin.

    Raises:
        DataError: If it does not exist or is a directory.
    """
    if path is not None and (not path.exists() or path.is_dir()):
        raise DataError(f"{path}: no such file")


def count_lines(path: Path) -> int:
    r"""Counts the lines of a file, including a last one without `\n`."""
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(2**20):
            count, last = count + block.count(b"\n"), block
    return count + (not last.endswith(b"\n"))


def write_lines(chunks: Iterable[list[str]], output: Path | None) -> int:
    """Writes lines to stdout, or to a file that appears once it is complete.

    Returns:
        The number of lines.
    """
    if output is None:
        return _write_to(sys.stdout.buffer, chunks)
    with atomic_file(output) as file:
        return _write_to(file, chunks)


def _write_to(stream: BinaryIO, chunks: Iterable[list[str]]) -> int:
    count = 0
    for lines in chunks:
        stream.writelines(line.encode("utf-8") + b"\n" for line in lines)
        stream.flush()  # the reader may be waiting for these lines
        count += len(lines)
    return count
