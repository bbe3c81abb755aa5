r"""Lines from a byte stream: split only at `\n`, which stays, and passed on as they arrive.

The first bytes tell what is compressed, whatever its name, and what is not text.
"""

import gzip
import io
import lzma
import os
import re
import select
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from transformer_mt.errors import DataError, NotTextError

COMPRESSION_SUFFIXES = (".gz", ".xz", ".zst")
_NO_TEXT = re.compile(
    rb"(?P<gzip>\x1f\x8b\x08)|(?P<xz>\xfd7zXZ\0)|(?P<zstd>\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18)"
    rb"|(?P<bzip2>BZh[1-9](?:1AY&SY|\x17rE8P))|(?P<PDF>%PDF-)"
    rb"|(?P<Zip_or_Office>PK(?:\x03\x04|\x05\x06|\x07\x08)|\xd0\xcf\x11\xe0|\{\\rtf)"
    rb"|(?P<archive>\x1f[\x9d\xa0]|LZIP\x01|\x04\"M\x18|]\0\0.\0|7z\xbc\xaf|Rar!\x1a"
    rb"|.{257}ustar(?:\0|  \0))"
    rb"|(?P<picture>\x89PNG|\xff\xd8\xff|GIF8[79]a.[\0-\x08]|II\*\0|MM\0\*|RIFF.{4}WEBP)"
    rb"|(?P<binary>\n.\n.<\w+>\x15|.{4}\0{4}\{\"|\x80[\x02-\x05][]}(KX\x8a\x95]|\x93NUMPY|\x89HDF"
    rb"|PAR1\x15|ARROW1\0|SQLite format 3\0|\x7fELF|ID3[\2-\4]\0)"
    rb"|(?P<UTF_16LE>(?:[^\0\n]\0){8})|(?P<UTF_16BE>(?:\0[^\0\n]){8})",
    re.DOTALL,
)
"""How files begin that hold no UTF-8 text; the names are for messages."""
_BYTE_ORDER_MARK = re.compile(rb"\xff\xfe\0\0|\0\0\xfe\xff|\xff\xfe|\xfe\xff")
"""Of UTF-32, then of UTF-16."""


def compression_suffix(path: Path) -> str:
    """Returns the suffix of a file's name that tells its compression, or an empty string."""
    return path.suffix if path.suffix.lower() in COMPRESSION_SUFFIXES else ""


@contextmanager
def reading(name: object) -> Iterator[None]:
    """Raises DataError, naming the file, if it cannot be opened, read or decompressed."""
    try:
        yield
    except (OSError, EOFError, MemoryError, lzma.LZMAError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error) or "not enough memory"
        raise DataError(f"{name}: cannot be read: {reason}") from None


def read_blocks(stream: io.BufferedIOBase, name: object) -> Iterator[bytes]:
    """Reads a file, or what of a pipe has arrived, decompressed if its first bytes say so.

    Raises:
        DataError: Naming it, if it cannot be read or decompressed to its end, is not compressed
            although its name says so, or is not text.
    """
    with reading(name):
        kind, blocks = _recognise(iter(partial(stream.read1, BLOCK_BYTES), b""))
        if kind in _DECOMPRESS:
            kind, blocks = _recognise(_DECOMPRESS[kind](blocks))
        elif not kind and (suffix := compression_suffix(Path(str(name)))):
            reason = "is not compressed" if next(blocks) else "is empty"
            raise DataError(f"{name}: {reason}, although its name ends in {suffix}")
        if kind.startswith("UTF"):
            raise _not_utf_8(name, kind.replace("_", "-"))
        if kind:
            raise NotTextError(
                f"{name}: holds {kind.replace('_', ' ')} data, not text; convert it first, such as"
                " with bzip2 -dc, unzip -p, pdftotext or pandoc -t plain"
            )
        yield from blocks


def _recognise(blocks: Iterator[bytes]) -> tuple[str, Iterator[bytes]]:
    """Names the kind of data, empty for text; also returns all blocks, the first included."""
    head = b""
    # A line that is complete does not wait for bytes that follow it.
    while len(head) < 16 and b"\n" not in head and (block := next(blocks, b"")):
        head += block
    match = _NO_TEXT.match(head)
    return (match and match.lastgroup) or "", chain([head], blocks)


def _decompress(new_decoder: Callable[[], Any], blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Decompresses all members; Python's `lzma.open` takes a damaged later one for the end."""
    decoder = new_decoder()
    for data in blocks:
        while data:
            if decoder.eof and (data := data.lstrip(b"\0")):  # padding between members
                decoder = new_decoder()
            if data:
                if block := decoder.decompress(data):
                    yield block
                data = decoder.unused_data
    if not decoder.eof:
        raise EOFError("it ends before its compressed data does")


def _decompress_zstd(blocks: Iterator[bytes]) -> Iterator[bytes]:
    import pyarrow

    # pyarrow asks for more than a block has.
    file = SimpleNamespace(read=lambda _: next(blocks, b""), close=lambda: None, closed=False)
    stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), "zstd")
    return iter(partial(stream.read, BLOCK_BYTES), b"")


_DECOMPRESS: dict[str, Callable[[Iterator[bytes]], Iterator[bytes]]] = {
    "gzip": partial(_decompress, partial(zlib.decompressobj, 16 + zlib.MAX_WBITS)),
    # `xz -9` needs 65 MiB; a file can ask for 4 GiB.
    "xz": partial(_decompress, partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, memlimit=2**29)),
    "zstd": _decompress_zstd,
}


def compress(data: bytes, suffix: str) -> bytes:
    """Compresses bytes into one complete member of a file, or returns them for another suffix.

    Equal input gives equal output. A file of several members is valid in all three formats, so a
    compressed file can be written chunk by chunk.
    """
    suffix = suffix.lower()
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
BLOCK_BYTES = 2**14
"""Small, since decompression makes up to 7,000 times as much of it."""
MAX_LINE_BYTES = 2**26
"""A longer line is no text, but what a small compressed file was made to hold."""
IDLE_SECONDS = 0.05
"""After this long without input, the writer is assumed to be waiting for an answer."""


def _not_utf_8(name: object, encoding: str) -> DataError:
    return DataError(f"{name}: is {encoding}; convert it with iconv -f {encoding} -t UTF-8")


def split_lines(stream: io.BufferedIOBase, name: object) -> Iterator[list[bytes]]:
    """Yields the lines that end in each block of a file or pipe, then a last one without an end.

    All but that one keep their line feeds.

    Raises:
        DataError: As `read_blocks`, or if a line is too long to be text.
    """
    incomplete, size, blocks = list[bytes](), 0, read_blocks(stream, name)
    first = next(blocks, b"")
    if match := _BYTE_ORDER_MARK.match(first):  # of XML, it is a mark that its parser reads
        raise _not_utf_8(name, "UTF-32" if len(match[0]) == 4 else "UTF-16")
    for block in chain([first], blocks):
        head, newline, rest = block.rpartition(b"\n")
        if newline:
            yield io.BytesIO(b"".join((*incomplete, head, newline))).readlines()
            incomplete, size = [], 0
        incomplete.append(rest)
        size += len(rest)
        if size > MAX_LINE_BYTES:
            raise DataError(f"{name}: has a line of more than {MAX_LINE_BYTES:,} bytes")
    if size:
        yield [b"".join(incomplete)]


class LineReader:
    """Reads lines in chunks of a fixed size, or of fewer lines if they are long or a pipe pauses.

    Args:
        stream: A file or pipe opened in binary mode.
        name: The input's name, for messages.

    Attributes:
        is_pipe: Whether bytes arrive as they are written, not from a file.
    """

    def __init__(self, stream: io.BufferedIOBase, name: str = "stdin") -> None:
        self._stream, self._name = stream, name
        # A regular file never pauses: its chunks are the same each time it is read.
        raw = getattr(stream, "raw", None)
        self.is_pipe = isinstance(raw, io.FileIO) and not os.path.isfile(raw.fileno())

    def chunks(self, size: int, first_size: int) -> Iterator[list[bytes]]:
        """Yields lists of 1 to `size` lines, the first of `first_size`, with their line feeds.

        Raises:
            DataError: If the input cannot be read or decompressed to its end, or is not text.
        """
        chunk, length, limit = list[bytes](), 0, first_size
        for lines in split_lines(self._stream, self._name):
            for line in lines:
                chunk.append(line)
                length += len(line) - line.endswith(b"\n")
                if len(chunk) == limit or length >= CHUNK_BYTES:
                    yield chunk
                    chunk, length, limit = [], 0, size
            if chunk and self.is_pipe and not self._has_more():
                yield chunk
                chunk, length = [], 0
        if chunk:
            yield chunk

    def _has_more(self) -> bool:
        poll = select.poll()  # unlike select, it takes descriptors above 1,023
        poll.register(self._stream.fileno(), select.POLLIN)
        return bool(poll.poll(1_000 * IDLE_SECONDS))


def open_input(path: Path | None) -> AbstractContextManager[io.BufferedIOBase]:
    """Opens an input in binary mode; None is stdin.

    Raises:
        DataError: If it cannot be opened.
    """
    if path is None:
        return nullcontext(cast(io.BufferedIOBase, sys.stdin.buffer))
    with reading(path):
        return path.open("rb")


def watch(path: Path | None) -> Callable[[], None]:
    """Returns a function that raises DataError if a file has changed since; None is stdin.

    What is at the path is compared, so a file that replaces it is noticed, too; a pipe has no
    changes.
    """

    def version() -> object:
        with reading(path or "stdin"):
            status = os.stat(sys.stdin.fileno() if path is None else path)
        is_file = stat.S_ISREG(status.st_mode)
        return is_file and (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def require_unchanged() -> None:
        if version() != before:
            raise DataError(f"{path or 'stdin'}: changed while it was read; run the command again")

    before = version()
    return require_unchanged


def require_input(path: Path | None) -> None:
    """Raises an error for an input that does not exist or is not readable, before any work is done.

    Raises:
        DataError: If it does not exist, is a directory, or is not readable; None is always right.
    """
    if path is None:
        return
    try:
        if stat.S_ISDIR(path.stat().st_mode):
            raise DataError(f"{path}: is a directory; name a file")
    except FileNotFoundError:
        hint = "; stdin is /dev/stdin" if str(path) == "-" else ""
        raise DataError(f"{path}: no such file{hint}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
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
        with open_input(path) as file:
            position = file.tell()
            try:
                return sum(map(len, split_lines(file, path)))
            finally:  # also of a file that cannot be read, so that its reader meets the same error
                file.seek(position)
    except (DataError, OSError):
        return None
