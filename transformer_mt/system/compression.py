"""Compressed files by their extension: .gz, .xz and .zst."""

import gzip
import io
import lzma
import zlib
from pathlib import Path
from typing import BinaryIO, cast

COMPRESSION_SUFFIXES = (".gz", ".xz", ".zst")
DECOMPRESSION_ERRORS = (OSError, EOFError, lzma.LZMAError, zlib.error)
"""Exceptions that reading a compressed file may raise."""


def open_decompressed(path: Path) -> BinaryIO:
    """Opens a file for reading bytes, decompressed if it has one of `COMPRESSION_SUFFIXES`.

    Raises:
        OSError: If it cannot be opened; reading may raise `DECOMPRESSION_ERRORS`.
    """
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    if path.suffix == ".xz":
        return cast(BinaryIO, lzma.open(path))
    if path.suffix == ".zst":
        import pyarrow

        stream = pyarrow.CompressedInputStream(str(path), "zstd")
        return io.BufferedReader(stream)
    return path.open("rb")


def compress(data: bytes, suffix: str) -> bytes:
    """Compresses bytes into one complete member of a file; equal input gives equal output.

    A file of several members is valid in all three formats, so a compressed file can be written and
    extended chunk by chunk.

    Args:
        data: Any bytes.
        suffix: One of `COMPRESSION_SUFFIXES`; any other leaves the bytes as they are.
    """
    if suffix == ".gz":
        return gzip.compress(data, mtime=0)  # a timestamp would make equal data differ
    if suffix == ".xz":
        return lzma.compress(data)
    if suffix == ".zst":
        import pyarrow

        return cast(bytes, pyarrow.compress(data, codec="zstd", asbytes=True))
    return data
