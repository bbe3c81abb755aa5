"""The loop over chunks, with a translator that reverses lines."""

import gzip
import json
import logging
import math
import os
import shutil
import threading
from itertools import chain, pairwise
from types import SimpleNamespace

import pytest
from conftest import peak_memory, refuses, translate_options

from transformer_mt.errors import DataError
from transformer_mt.system.output_record import OutputRecord
from transformer_mt.system.outputs import check_output
from transformer_mt.system.streams import open_input
from transformer_mt.translation import file_translation
from transformer_mt.translation.file_translation import translate_file
from transformer_mt.translation.formats import format_lines
from transformer_mt.translation.inputs import FilePair
from transformer_mt.translation.options import OutputOptions
from transformer_mt.translation.translator import Translation

CHUNK, FIRST = 10, 4
MADE_FROM = {"checkpoint": "a digest"}
JSONL = OutputOptions(format="jsonl")


class Reverser:
    """Stands for a translator: reverses lines, and notes how many at once."""

    chunk_lines, first_chunk_lines = CHUNK, FIRST

    def __init__(self) -> None:
        self.chunks, self.first_lines = [], []

    def n_best(self, lines, advance, first_line):
        self.chunks.append(len(lines))
        self.first_lines.append(first_line)
        advance(len(lines))
        best = [Translation(x[::-1], -1.0, min(len(x), 1) + (x == "abcd")) for x in lines]
        return [[each, each._replace(parts=1)] if each.parts > 1 else [each] for each in best]

    def translate_chunks(self, chunks, advance, first_line):
        """Takes a chunk before it has translated the one before it."""
        for lines, _ in pairwise(chain(chunks, [[]])):
            yield self.n_best(lines, advance, first_line)
            first_line += len(lines)


def translate(source, output, options=JSONL, made_from=MADE_FROM, record=None) -> list[int]:
    """Translates a file; gives the number of lines of each chunk."""
    translator = Reverser()
    pair = FilePair(source, check_output(output))
    translate_file(translator, pair, translate_options(output=options), made_from, record)
    resumed = (translator.first_lines or [1])[0]
    expected = [resumed + sum(translator.chunks[:i]) for i in range(len(translator.chunks))]
    assert translator.first_lines == expected
    return translator.chunks


@pytest.mark.parametrize(("lines", "chunks"), [(0, []), (1, [1]), (20, [4, 10, 6])])
def test_each_line_is_translated_once_and_in_order(lines, chunks, tmp_path):
    """The first chunk is small."""
    path = tmp_path / "in"
    path.write_text("".join(f"a{i}b\n" for i in range(lines)))
    assert translate(path, tmp_path / "out") == chunks
    rows = list(map(json.loads, (tmp_path / "out").read_text().splitlines()))
    same = {"file": str(path), "rank": 1, "score": -1.0, "parts": 1, "status": "ok"}
    assert rows == [{**same, "line": i + 1, "text": f"b{str(i)[::-1]}a"} for i in range(lines)]


def test_a_compressed_output_has_a_member_for_each_chunk(tmp_path):
    """An empty one, too, is valid."""
    for lines, members in ((47, 6), (0, 1)):
        (tmp_path / "in").write_text("ab\n" * lines)
        translate(tmp_path / "in", tmp_path / "out.gz", OutputOptions())
        data = (tmp_path / "out.gz").read_bytes()
        assert gzip.decompress(data) == b"ba\n" * lines
        assert data.count(b"\x1f\x8b\x08") == members


def test_a_pipe_waits_for_no_further_chunk(tmp_path):
    """Its writer may wait for an answer."""
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=["ab\n" * 30])
    writer.start()
    chunks = translate(tmp_path / "pipe", tmp_path / "out", OutputOptions())
    writer.join()
    assert chunks == [FIRST, CHUNK, CHUNK, 30 - FIRST - 2 * CHUNK]
    assert (tmp_path / "out").read_text() == "ba\n" * 30


def test_memory_stays_flat(tmp_path, monkeypatch):
    monkeypatch.setattr(Reverser, "chunk_lines", 1000)
    peaks = []
    for count in (4_000, 40_000):
        (tmp_path / "in").write_text("abc de fgh\n" * count)
        peaks.append(peak_memory(translate, tmp_path / "in", tmp_path / "out", OutputOptions()))
    assert peaks[1] < 1.2 * peaks[0]


CHANGES = {
    "appended": lambda path: path.write_text(path.read_text() + "more\n"),
    "replaced": lambda path: shutil.copy2(path, path.with_name("new")).replace(path),
    "same size": lambda path: path.write_text(path.read_text().upper()),
    "deleted": os.unlink,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_input_that_changes(tmp_path, monkeypatch, caplog, change):
    """Only what was read before is kept. Sabotage: ask only at the end; compare sizes alone."""
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text("ab\n" * 47)
    os.utime(source, (1e9, 1e9))  # the clock of a file system may stand still for milliseconds
    n_best = Reverser.n_best

    def change_in_third_chunk(self, lines, *others):
        if len(self.chunks) == 2:
            change(source)
        return n_best(self, lines, *others)

    monkeypatch.setattr(Reverser, "n_best", change_in_third_chunk)
    with pytest.raises(DataError, match=f"^{source}: (changed while it was read|cannot be read)"):
        translate(source, output)
    assert not output.exists() and f"{FIRST + CHUNK} finished lines are kept" in caplog.text


def test_an_input_that_is_emptied_before_it_is_read(tmp_path, monkeypatch):
    """Or an empty output would be complete. Sabotage: ask only before a chunk is written."""
    source = tmp_path / "in"
    source.write_text("ab\n")
    monkeypatch.setattr(
        file_translation, "open_input", lambda x: x.write_bytes(b"") or open_input(x)
    )
    refuses(DataError, "changed while it was read", translate, source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_was_read_before_an_error_is_kept(tmp_path, caplog):
    text = "".join(f"{number:>9999}\n" for number in range(FIRST + 4 * CHUNK + 8)).encode()
    source, output = tmp_path / "in.de", tmp_path / "out"
    source.write_bytes(text[:-9000] + b"\0" * 10**8)
    for _ in range(2):
        with pytest.raises(DataError, match="in.de: has a line of more than "):
            translate(source, output, OutputOptions())
        kept = f"stopped: {FIRST + 4 * CHUNK} finished lines are kept"
        assert caplog.messages[-1].startswith(kept)


def test_what_is_reported(tmp_path, caplog, monkeypatch):
    """Lines read, split and repaired, of one of several files with its name."""
    times = iter([7.0, 9.0, 20.0, 20.5])
    monkeypatch.setattr(file_translation, "time", SimpleNamespace(monotonic=times.__next__))
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"\xef\xbb\xbfab\xff\n" + b"abcd\n" * 10 + b"\n" + b"cd")
    with caplog.at_level(logging.INFO, "transformer_mt"):
        translate(source, output)
        translate(source, output, record=OutputRecord(tmp_path, overwrite=True))
    replaced = "1 line not in UTF-8; invalid bytes were replaced by U+FFFD"
    first = ["13 lines in 2.0 s, 6 per second", "10 lines translated in parts", replaced]
    assert caplog.messages[:3] == first and caplog.records[2].levelname == "WARNING"
    again = ["13 lines in 0.5 s, 26 per second", *first[1:]]
    assert caplog.messages[-3:] == [f"{source}: {message}" for message in again]


def test_what_is_written_for_a_line():
    """Text, with the score in four digits before a tab, or objects."""
    ranked = [[Translation("x y", -1.23456), Translation("ä", math.nan, 2, True)]]
    ranked.append([Translation("", 0)] * 2)
    best = [[first] for first, _ in ranked]
    assert format_lines(best, 7, OutputOptions()) == "x y\n\n"
    scored = OutputOptions(with_scores=True)
    assert format_lines(ranked, 7, scored) == "-1.2346\tx y\nnan\tä\n0.0000\t\n0.0000\t\n"
    assert format_lines(ranked[:1], 7, JSONL) == (
        '{"file": null, "line": 7, "rank": 1, "score": -1.23456, "text": "x y", "parts": 1,'
        ' "status": "ok"}\n{"file": null, "line": 7, "rank": 2, "score": null, "text": "ä",'
        ' "parts": 2, "status": "cut"}\n'
    )
