"""Lines in and out: none lost, none held back."""

import bz2
import errno
import fcntl
import gzip
import io
import lzma
import os
import pickle
import resource
import sys
import tarfile
import threading
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.numpy
from conftest import peak_memory, refuses
from hypothesis import assume, given
from hypothesis import strategies as st

from transformer_mt.errors import DataError
from transformer_mt.system import streams
from transformer_mt.system.streams import LineReader, compress, count_lines, read_blocks
from transformer_mt.text.corpus import read_lines

UTF_16 = (b"\xff\xfe", b"\xfe\xff")
UTF_32 = (b"\xff\xfe\0\0", b"\0\0\xfe\xff")
SUFFIXES = (".gz", ".xz", ".zst")
TEXT = b"".join(b"%d\n" % number for number in range(20_000))


def read(raw: bytes, size: int, pieces: int = 1) -> list[list[bytes]]:
    """Sends bytes through a pipe in some pieces and gives the chunks."""
    reading, writing = os.pipe()

    def send() -> None:
        block = max(1, -(-len(raw) // pieces))
        with open(writing, "wb", buffering=0) as stream:
            for start in range(0, len(raw), block):
                stream.write(raw[start : start + block])

    sender = threading.Thread(target=send)
    sender.start()
    with open(reading, "rb") as stream:
        chunks = list(LineReader(stream).chunks(size, size))
    sender.join()
    return chunks


@given(st.lists(st.binary(max_size=9)), st.booleans(), st.integers(1, 5), st.integers(1, 4))
def test_every_line_once_and_in_order(lines, ended, size, pieces):
    r"""Split at line feeds alone; a last line without one counts."""
    raw = b"\n".join(line.replace(b"\n", b"\r") for line in lines) + b"\n" * ended
    assume(not raw.startswith(UTF_16))
    chunks = read(raw, size, pieces)
    assert b"".join(b"".join(chunk) for chunk in chunks) == raw
    assert all(line.find(b"\n") in (-1, len(line) - 1) for chunk in chunks for line in chunk)
    assert sum(map(len, chunks)) == raw.count(b"\n") + (not raw.endswith(b"\n") and raw != b"")
    assert all(0 < len(chunk) <= size for chunk in chunks)


def test_long_lines_make_short_chunks(monkeypatch):
    """The same ones however the bytes arrive."""
    assert read(b"x" * 10_000_000 + b"\nend", 4) == [[b"x" * 10_000_000 + b"\n"], [b"end"]]
    monkeypatch.setattr(streams, "CHUNK_BYTES", 6)
    for block_bytes in (1, 5, 100):
        monkeypatch.setattr(streams, "BLOCK_BYTES", block_bytes)
        chunks = read(b"aa\nbbb\n\nc\n1234567\nd\n\n\n\n", 4)
        assert [len(chunk) for chunk in chunks] == [4, 1, 4]


@pytest.mark.parametrize(
    ("encoding", "start"),
    [
        *(("UTF-16", mark + b"a\0") for mark in UTF_16),
        *(("UTF-32", mark + b"a\0\0\0") for mark in UTF_32),
        *((name, "Hallo Welt".encode(name)) for name in ("UTF-16LE", "UTF-16BE")),
    ],
)
@pytest.mark.parametrize("suffix", ["", *SUFFIXES])
def test_other_encodings_are_refused(encoding, start, suffix):
    """By their first bytes, compressed or not; elsewhere a mark is text."""
    message = f"^in.de: is {encoding}; convert it with iconv -f {encoding} -t UTF-8$"
    chunks = LineReader(io.BytesIO(compress(start, suffix)), "in.de").chunks(9, 9)
    refuses(DataError, message, list, chunks)
    if start.startswith(UTF_16) and encoding == "UTF-16":
        assert read(b"a\n" + start[:2], 9) == [[b"a\n", start[:2]]]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_member_counts(suffix):
    """Cut, damaged or followed by more, it is refused. Sabotage: read `.xz` by `lzma.open`."""
    first, second = compress(TEXT, suffix), compress(b"end\n" * 99, suffix.upper())
    assert b"".join(read_blocks(io.BytesIO(first + second), "in")) == TEXT + b"end\n" * 99
    damaged = bytearray(first + second)
    damaged[len(first) + len(second) // 2] ^= 1
    others = first[:-1], first + second[:-1], first + second[:4], first + b"more text\n" * 9
    for data in (damaged, *others):
        refuses(DataError, "^in: cannot be read: ", list, read_blocks(io.BytesIO(data), "in"))
    if suffix != ".zst":
        padded = first + b"\0" * 8 + second + b"\0" * 20_000
        assert b"".join(read_blocks(io.BytesIO(padded), "in")) == TEXT + b"end\n" * 99


class ByteByByte(io.BytesIO):
    """A stream of which one byte at a time has arrived."""

    def read1(self, size: int = -1) -> bytes:
        return super().read1(1)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_compressed_is_told_by_its_content(tmp_path, suffix):
    """In a pipe, too; but a name must not lie. Sabotage: look at what comes first, if short."""
    data = compress(TEXT, suffix)
    assert b"".join(sum(read(data, 99_999, 50), [])) == TEXT
    assert b"".join(read_blocks(ByteByByte(data), "in")) == TEXT
    for name in ("in.de", "in.gz", "in.txt.xz", "in.zst"):
        (tmp_path / name).write_bytes(data)
        assert count_lines(tmp_path / name) == 20_000
        assert list(read_lines(tmp_path / name)) == TEXT.decode().split()
    for text, reason in (
        (b"plain\n", "not compressed"),
        (data[:1], "not compressed"),
        (b"", "empty"),
    ):
        message, blocks = f"^in{suffix}: is {reason}, although ", io.BytesIO(text)
        refuses(DataError, message, list, read_blocks(blocks, f"in{suffix}"))


def test_text_that_resembles_an_archive():
    """Its 257th byte begins the word; sabotage: look for no more."""
    text = b"a" * 257 + b"ustard\n"
    assert b"".join(read_blocks(io.BytesIO(text), "in")) == text


def zipped() -> bytes:
    with zipfile.ZipFile(file := io.BytesIO(), "w") as archive:
        archive.writestr("word/document.xml", "<w:t>Hallo</w:t>")
    return file.getvalue()


def tarred() -> bytes:
    with tarfile.open(fileobj=(file := io.BytesIO()), mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.de"))
    return file.getvalue()


NOT_TEXT = {
    "bzip2": bz2.compress(TEXT),
    "bzip2 of nothing": bz2.compress(b""),
    "Zip or Office": zipped(),
    "Zip or Office, old": bytes.fromhex("d0cf11e0a1b11ae1") + bytes(99),
    "Zip or Office, RTF": rb"{\rtf1\ansi Hallo}",
    "PDF": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n",
    "archive": tarred(),
    "archive, .lzma": lzma.compress(TEXT, lzma.FORMAT_ALONE),
    "archive, lz4": b'\x04"M\x18' + TEXT,
    "archive, 7-Zip": b"7z\xbc\xaf\x27\x1c" + TEXT,
    "picture": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "picture, JPEG": b"\xff\xd8\xff\xe0\0\x10JFIF\0",
    "picture, GIF": b"GIF89a\x01\0\x01\0\x80\0\0",
    "binary": pickle.dumps({"a": TEXT}),
    "binary, MP3": b"ID3\x03\0\0\0\0\x1fv",
    "binary, safetensors": safetensors.numpy.save({"a": np.zeros(3)}),
    "binary, SentencePiece": b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02",
    "gzip": gzip.compress(gzip.compress(TEXT)),
}


@pytest.mark.parametrize("kind", NOT_TEXT)
def test_what_is_not_text_is_refused_by_name(kind):
    """In a compressed file, too. Sabotage: look only at the outer bytes."""
    message = f"^in: holds {kind.split(' of ')[0].split(',')[0]} data, not text; convert it first, "
    for suffix in ("", *SUFFIXES):
        data = io.BytesIO(compress(NOT_TEXT[kind], suffix))
        refuses(DataError, message, list, read_blocks(data, "in"))


def test_a_writer_that_waits_gets_its_lines():
    """Whatever they begin with, as soon as they are complete, but not its half line."""
    starts = "\x1f PK BZh9 %PDF P (  \x7f\0 { II ARROW1 GIF89a"
    for first in (*starts.split(" "), "GIF89a is old"):
        reading, writing = os.pipe()
        with open(reading, "rb") as stream:
            chunks = LineReader(stream).chunks(1000, 1000)
            os.write(writing, first.encode()[:1])
            os.write(writing, first.encode()[1:] + b"\ntwo\nhal")
            assert next(chunks) == [first.encode() + b"\n", b"two\n"]
            os.write(writing, b"f\n")
            os.close(writing)
            assert list(chunks) == [[b"half\n"]]


@pytest.mark.parametrize("suffix", ["", *SUFFIXES])
def test_a_line_without_end_does_not_fill_the_memory(monkeypatch, suffix):
    """As a small compressed file may hold one. Sabotage: read on."""
    monkeypatch.setattr(streams, "MAX_LINE_BYTES", 10**6)
    data = compress(b"a\n" + bytes(3 * 10**7), suffix)
    message = "^in: has a line of more than 1,000,000 bytes$"

    def read():
        refuses(DataError, message, list, LineReader(io.BytesIO(data), "in").chunks(9, 9))

    assert peak_memory(read) < 8 * 10**7


def test_inputs_that_cannot_be_read(tmp_path, monkeypatch):
    """The file is named, with the system's reason or that of the compression."""
    path = tmp_path / "in.gz"
    path.write_bytes(gzip.compress(b"text")[:10] + b"\xff" * 9)
    with streams.open_input(path) as file:
        chunks = LineReader(file, str(path)).chunks(9, 9)
        refuses(DataError, "in.gz: cannot be read: Error", list, chunks)
    assert count_lines(path) is None
    reasons = {OSError(errno.EIO, "Broken", "in"): "Broken", MemoryError(): "not enough memory"}
    for error, reason in reasons.items():
        with pytest.raises(DataError, match=f"^in: cannot be read: {reason}$"):
            with streams.reading("in"):
                raise error
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.R_OK)
    refuses(DataError, f"^{path}: not readable$", streams.require_input, path)


def test_lines_are_counted(tmp_path, monkeypatch):
    """Of stdin those that are left, which are then read; of a pipe none."""
    (tmp_path / "in").write_bytes(b"a\nb\n\nc")
    assert count_lines(tmp_path / "in") == 4
    with (tmp_path / "in").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        stdin.buffer.readline()
        assert count_lines(None) == 3 and stdin.buffer.read() == b"b\n\nc"
    for content in (compress(b"a\n" * 999, ".gz")[:-9], b"%PDF-1.7\n" + 99_999 * b"a\n"):
        (tmp_path / "in").write_bytes(content)
        with (tmp_path / "in").open("rb") as stdin:
            monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stdin, fileno=stdin.fileno))
            assert count_lines(None) is None and stdin.read() == content  # the reader refuses it
    reading_end, writing_end = os.pipe()
    os.close(writing_end)
    with open(reading_end) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert count_lines(None) is None


def test_a_pipe_with_a_high_descriptor():
    """As after a thousand locked outputs. Sabotage: wait by `select.select`."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(2000, limits[0]), limits[1]))
    reader, writer = os.pipe()
    try:
        high = fcntl.fcntl(reader, fcntl.F_DUPFD, 1500)
        os.write(writer, b"a\n")
        with open(high, "rb") as stream:
            chunks = LineReader(stream).chunks(9, 9)
            assert next(chunks) == [b"a\n"]
            os.close(writer)
            assert list(chunks) == []
    finally:
        os.close(reader)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
