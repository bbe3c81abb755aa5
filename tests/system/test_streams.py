"""Lines in and out: none lost, none held back."""

import io
import os
import threading

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from transformer_mt.errors import DataError
from transformer_mt.system.streams import LineReader

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
    r"""Split at line feeds alone; a last line without one counts.

    Sabotage: `splitlines()`; forget what follows the last line feed.
    """
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
    """A replacement character is valid, and so is a line longer than any block.

    A byte order mark is dropped at the start alone. Sabotage: keep it; drop it from every line.
    """
    assert read(b"\xef\xbb\xbfa\n\xef\xbb\xbfb", 9)[0] == [["a", "\ufeffb"]]
    assert read("\ufffd\n\u2028\r".encode() + b"\n\xff\xff\n\xc3", 10)[1] == 2
    assert read(b"x" * 10_000_000 + b"\nend", 4)[0] == [["x" * 10_000_000, "end"]]


@pytest.mark.parametrize("mark", UTF_16)
def test_utf_16_is_refused(mark):
    """By its first bytes; without them the same bytes are text. Sabotage: replace all of it."""
    with pytest.raises(DataError, match="^in.de: is UTF-16; convert it with iconv -f UTF-16 "):
        list(LineReader(io.BytesIO(mark + b"a\0"), "in.de").chunks(9, 9))
    assert list(LineReader(io.BytesIO(b"a\n" + mark)).chunks(9, 9)) == [["a", "\ufffd\ufffd"]]


def test_the_first_chunk_may_be_smaller():
    """The others are full. Sabotage: make all of them small."""
    chunks = LineReader(io.BytesIO(b"a\n" * 12)).chunks(5, 2)
    assert list(map(len, chunks)) == [2, 5, 5]


def test_a_writer_that_waits_gets_its_lines():
    """Without closing the pipe, and without its half line. Sabotage: read until a chunk is full."""
    reading, writing = os.pipe()
    with open(reading, "rb") as stream:
        chunks = LineReader(stream).chunks(1000, 1000)
        os.write(writing, b"one\ntwo\nhal")
        assert next(chunks) == ["one", "two"]
        os.write(writing, b"f\n")
        os.close(writing)
        assert list(chunks) == [["half"]]
