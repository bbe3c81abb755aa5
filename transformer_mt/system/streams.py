r"""Lines from a byte stream: split only at `\n`, passed on as they arrive."""

import gzip
import io
import lzma
import os
import select
import sys
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO, cast

from transformer_mt.errors import DataError

COMPRESSION_SUFFIXES = (".gz", ".xz", ".zst")


def compression_suffix(path: Path) -> str:
    """Returns the suffix of a file's name that tells its compression, or an empty string."""
    return path.suffix if path.suffix in COMPRESSION_SUFFIXES else ""


@contextmanager
def reading(name: Path | str) -> Iterator[None]:
    """Raises DataError, naming the file, if it cannot be opened, read or decompressed."""
    try:
        yield
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{name}: cannot be read: {reason}") from None


def open_decompressed(path: Path) -> BinaryIO:
    """Opens a file for bytes, decompressed by its suffix; use it and read inside `reading`."""
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    if path.suffix == ".xz":
        return cast(BinaryIO, lzma.open(path))
    if path.suffix == ".zst":
        import pyarrow

        return io.BufferedReader(pyarrow.CompressedInputStream(str(path), "zstd"))
    return path.open("rb")


def compress(data: bytes, suffix: str) -> bytes:
    """Compresses bytes into one complete member of a file, or returns them for another suffix.

    Equal input gives equal output. A file of several members is valid in all three formats, so a
    compressed file can be written chunk by chunk.
    """
    if suffix == ".gz":
        return gzip.compress(data, mtime=0)  # a timestamp would make equal data differ
    if suffix == ".xz":
        return lzma.compress(data)
    if suffix == ".zst":
        import pyarrow

        return cast(bytes, pyarrow.compress(data, codec="zstd", asbytes=True))
    return data


CHUNK_BYTES = 2**22
"""A chunk also ends with the line at which it reaches this size: lines may be whole documents."""
BLOCK_BYTES = 2**16
IDLE_SECONDS = 0.05
"""After this long without input, the writer is assumed to be waiting for an answer."""


def _end_of_chunk(lines: Sequence[bytes], limit: int) -> int:
    """Gives how many of the lines are the first chunk; 0 if it may become longer."""
    read = 0
    for count, line in enumerate(lines[:limit], 1):
        read += len(line)
        if count == limit or read >= CHUNK_BYTES:
            return count
    return 0


class LineReader:
    """Reads lines in chunks of a fixed size, or of fewer lines if they are long or a pipe pauses.

    A byte order mark at the start is dropped.

    Args:
        stream: A file or pipe opened in binary mode.
        name: The input's name, for messages.

    Attributes:
        is_pipe: Whether bytes arrive as they are written: neither from a file nor decompressed.
        lines_read: Number of lines read so far.
        lines_replaced: Number of those whose invalid UTF-8 was replaced by U+FFFD.
    """

    def __init__(self, stream: BinaryIO, name: str = "stdin") -> None:
        self._stream, self._name = stream, name
        # A regular file never pauses: its chunks are the same each time it is read.
        raw = getattr(stream, "raw", None)
        self.is_pipe = isinstance(raw, io.FileIO) and not os.path.isfile(raw.fileno())
        self.lines_read, self.lines_replaced = 0, 0

    def chunks(self, size: int, first_size: int) -> Iterator[list[str]]:
        """Yields lists of 1 to `size` lines, the first of `first_size`; all lines are in them.

        Raises:
            DataError: If the input cannot be read or decompressed to its end, or is UTF-16.
        """
        ready: list[bytes] = []
        limit = first_size
        incomplete: list[bytes] = []  # the blocks of a line whose end has not been read yet
        while block := self._read():
            head, newline, rest = block.rpartition(b"\n")
            if newline:
                ready += b"".join((*incomplete, head)).split(b"\n")
                incomplete = []
            incomplete.append(rest)
            while end := _end_of_chunk(ready, limit):
                yield self._decode(ready[:end])
                ready, limit = ready[end:], size
            if ready and self.is_pipe and not self._has_more():
                yield self._decode(ready)
                ready = []
        if any(incomplete):
            ready.append(b"".join(incomplete))
        if ready:
            yield self._decode(ready)

    def _read(self) -> bytes:
        with reading(self._name):
            if self.is_pipe:  # what has arrived, without waiting for a whole block
                return os.read(self._stream.fileno(), BLOCK_BYTES)
            return self._stream.read(BLOCK_BYTES)

    def _has_more(self) -> bool:
        poll = select.poll()  # unlike select, it takes descriptors above 1,023
        poll.register(self._stream.fileno(), select.POLLIN)
        return bool(poll.poll(1_000 * IDLE_SECONDS))

    def _decode(self, lines: list[bytes]) -> list[str]:
        if not self.lines_read:
            refuse_utf16(lines[0], self._name)
            lines = [lines[0].removeprefix(BOM_UTF8), *lines[1:]]
        self.lines_read += len(lines)
        try:
            return [line.decode("utf-8") for line in lines]
        except UnicodeDecodeError:
            texts = [line.decode("utf-8", errors="replace") for line in lines]
            pairs = zip(lines, texts, strict=True)
            self.lines_replaced += sum(line != text.encode("utf-8") for line, text in pairs)
            return texts


def refuse_utf16(first_line: bytes, name: object) -> None:
    """Raises DataError for text that begins with a byte order mark of UTF-16."""
    if first_line.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise DataError(f"{name}: is UTF-16; convert it with iconv -f UTF-16 -t UTF-8")


def open_input(path: Path | None) -> AbstractContextManager[BinaryIO]:
    """Opens an input in binary mode, decompressed according to its extension; None is stdin.

    Raises:
        DataError: If it cannot be opened.
    """
    if path is None:
        return nullcontext(sys.stdin.buffer)
    with reading(path):
        return open_decompressed(path)


def require_input(path: Path | None) -> None:
    """Raises an error for an input that does not exist or is not readable, before any work is done.

    Raises:
        DataError: If it does not exist, is a directory, or is not readable; None is always right.
    """
    if path is None:
        return
    if path.is_dir():
        raise DataError(f"{path}: is a directory; name a file")
    if not path.exists():
        raise DataError(f"{path}: no such file")
    if not os.access(path, os.R_OK):
        raise DataError(f"{path}: not readable")


def count_lines(path: Path | None) -> int | None:
    r"""Counts the lines of a file or stdin (None), including a last one without `\n`.

    Returns:
        The number of lines; None for a pipe, or if the file cannot be read.
    """
    try:
        if not os.path.isfile(sys.stdin.fileno() if path is None else path):
            return None
        with reading("input"), open_input(path) as file:
            position = file.tell() if path is None else 0
            count = sum(1 for _ in file)
            if path is None:
                file.seek(position)
            return count
    except (DataError, OSError):
        return None
