"""Lines in and out: none lost, none held back."""

import errno
import fcntl
import gzip
import io
import os
import resource
import sys
import threading

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from transformer_mt.errors import DataError
from transformer_mt.system import streams
from transformer_mt.system.streams import (
    LineReader,
    count_lines,
    open_input,
    reading,
    require_input,
)

UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def read(raw: bytes, size: int, pieces: int = 1) -> tuple[list[list[str]], int]:
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
        reader = LineReader(stream)
        chunks = list(reader.chunks(size, size))
    sender.join()
    return chunks, reader.lines_replaced


@given(st.lists(st.binary(max_size=9)), st.booleans(), st.integers(1, 5), st.integers(1, 4))
def test_every_line_once_and_in_order(lines, ended, size, pieces):
    r"""Split at line feeds alone; a last line without one counts."""
    raw = b"\n".join(line.replace(b"\n", b"\r") for line in lines) + b"\n" * ended
    assume(not raw.startswith(UTF_16))
    expected = raw.split(b"\n")
    if not expected[-1]:
        expected.pop()
    chunks, replaced = read(raw, size, pieces)
    assert [line for chunk in chunks for line in chunk] == [
        line.decode("utf-8", errors="replace") for line in expected
    ]
    assert all(0 < len(chunk) <= size for chunk in chunks)
    assert replaced == sum(line.decode("utf-8", "ignore").encode() != line for line in expected)


def test_only_what_is_not_utf_8_is_counted():
    """U+FFFD is valid, and a line longer than any chunk. Only a mark at the start goes."""
    assert read(b"\xef\xbb\xbfa\n\xef\xbb\xbfb", 9)[0] == [["a", "\ufeffb"]]
    assert read("\ufffd\n\u2028\r".encode() + b"\n\xff\xff\n\xc3", 10)[1] == 2
    assert read(b"x" * 10_000_000 + b"\nend", 4)[0] == [["x" * 10_000_000], ["end"]]


def test_long_lines_make_short_chunks(monkeypatch):
    """The same ones however the bytes arrive."""
    monkeypatch.setattr(streams, "CHUNK_BYTES", 6)
    for block_bytes in (1, 5, 100):
        monkeypatch.setattr(streams, "BLOCK_BYTES", block_bytes)
        chunks = read(b"aa\nbbb\n\nc\n1234567\nd\n\n\n\n", 4)[0]
        assert chunks == [["aa", "bbb", "", "c"], ["1234567"], ["d", "", "", ""]]


@pytest.mark.parametrize("mark", UTF_16)
def test_utf_16_is_refused(mark):
    """By its first bytes; without them the same bytes are text."""
    with pytest.raises(DataError, match="^in.de: is UTF-16; convert it with iconv -f UTF-16 "):
        list(LineReader(io.BytesIO(mark + b"a\0"), "in.de").chunks(9, 9))
    assert list(LineReader(io.BytesIO(b"a\n" + mark)).chunks(9, 9)) == [["a", "\ufffd\ufffd"]]


def test_a_writer_that_waits_gets_its_lines():
    """Without closing the pipe, and without its half line."""
    reading, writing = os.pipe()
    with open(reading, "rb") as stream:
        chunks = LineReader(stream).chunks(1000, 1000)
        os.write(writing, b"one\ntwo\nhal")
        assert next(chunks) == ["one", "two"]
        os.write(writing, b"f\n")
        os.close(writing)
        assert list(chunks) == [["half"]]


def test_inputs_that_cannot_be_read(tmp_path, monkeypatch):
    """The file is named, with the system's reason or that of the compression."""
    path = tmp_path / "in.gz"
    path.write_bytes(gzip.compress(b"text")[:10] + b"\xff" * 9)
    with open_input(path) as file, pytest.raises(DataError, match=r"in.gz: cannot be read: Error"):
        list(LineReader(file, str(path)).chunks(9, 9))
    assert count_lines(path) is None
    message = "^in: cannot be read: Input/output error$"
    with pytest.raises(DataError, match=message), reading("in"):
        raise OSError(errno.EIO, "Input/output error", "in")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.R_OK)
    with pytest.raises(DataError, match=f"^{path}: not readable$"):
        require_input(path)


def test_lines_are_counted(tmp_path, monkeypatch):
    """Of stdin those that are left, which are then read; of a pipe none."""
    (tmp_path / "in").write_bytes(b"a\nb\n\nc")
    assert count_lines(tmp_path / "in") == 4
    with (tmp_path / "in").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        stdin.buffer.readline()
        assert count_lines(None) == 3 and stdin.buffer.read() == b"b\n\nc"
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
            assert next(chunks) == ["a"]
            os.close(writer)
            assert list(chunks) == []
    finally:
        os.close(reader)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
