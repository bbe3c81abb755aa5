"""The loop over chunks, with a translator that reverses lines, in processes that are threads."""

import gzip
import logging
import math
import os
import shutil
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise
from types import SimpleNamespace

import pytest

from transformer_mt.errors import DataError
from transformer_mt.system.outputs import check_output
from transformer_mt.translation import run
from transformer_mt.translation.options import OutputOptions
from transformer_mt.translation.run import finish, serve, translate_stream
from transformer_mt.translation.translator import Translation, format_lines

CHUNK, FIRST = 10, 4
JSONL = OutputOptions(format="jsonl")


class Thread:
    """Stands for one of several processes."""

    def __init__(self, rank: int, shared: SimpleNamespace) -> None:
        self.rank, self.world_size, self._shared = rank, len(shared.slots), shared

    def broadcast(self, value):
        self._shared.slots[self.rank] = value
        self._shared.barrier.wait()
        value = self._shared.slots[0]
        self._shared.barrier.wait()
        return value

    def finish(self):
        self._shared.barrier.wait()


class Reverser:
    """Stands for a translator: reverses lines, and notes how many at once."""

    chunk_lines, first_chunk_lines = CHUNK, FIRST

    def __init__(self, processes: Thread) -> None:
        self.processes, self.rounds, self.first_lines = processes, [], []

    def n_best(self, lines, advance=lambda lines: None, first_line=1):
        self.rounds.append(len(lines))
        self.first_lines.append(first_line)
        advance(len(lines))
        best = [
            Translation(line[::-1], -1.0, min(len(line), 1) + (line == "abcd")) for line in lines
        ]
        return [[each, each._replace(parts=1)] if each.parts > 1 else [each] for each in best]

    def translate_chunks(self, chunks, advance, first_line):
        """Takes a chunk before it has translated the one before it."""
        for lines, _ in pairwise(chain(chunks, [[]])):
            yield self.n_best(lines, advance, first_line)
            first_line += len(lines)


def translate(
    world_size: int, source, output, options=JSONL, fingerprint=None, is_named=False
) -> list[int]:
    """Translates a file with several threads; gives the number of lines of each round."""
    barrier = threading.Barrier(world_size, timeout=10)
    shared = SimpleNamespace(slots=[None] * world_size, barrier=barrier)
    translators = [Reverser(Thread(rank, shared)) for rank in range(world_size)]
    with ThreadPoolExecutor(world_size) as pool:
        others = [pool.submit(serve, translator) for translator in translators[1:]]
        try:
            files = source, check_output(output)
            translate_stream(translators[0], *files, options, fingerprint, is_named)
        finally:
            finish(translators[0].processes)
    assert all(other.result() is None for other in others)
    for translator in translators:
        assert translator.rounds == translators[0].rounds
        assert translator.first_lines == translators[0].first_lines
    expected = [sum(translators[0].rounds[:i]) for i in range(len(translators[0].rounds))]
    resumed = (translators[0].first_lines or [1])[0]
    assert [line - resumed for line in translators[0].first_lines] == expected
    return translators[0].rounds


@pytest.mark.parametrize(
    ("world_size", "lines", "rounds"),
    [(1, 0, []), (1, 1, [1]), (1, 20, [4, 10, 6]), (2, 47, [4, 20, 20, 3]), (3, 10, [4, 6])],
)
def test_each_line_is_translated_once_and_in_order(world_size, lines, rounds, tmp_path):
    """The first chunk is small; a later round has a chunk for each process."""
    path = tmp_path / "in"
    path.write_text("".join(f"a{i}b\n" for i in range(lines)))
    assert translate(world_size, path, tmp_path / "out") == rounds
    assert (tmp_path / "out").read_text().splitlines() == [
        f'{{"line": {i + 1}, "rank": 1, "score": -1.0, "text": "b{str(i)[::-1]}a", "parts": 1,'
        ' "status": "ok"}'
        for i in range(lines)
    ]


def test_the_bytes_do_not_depend_on_the_number_of_processes(tmp_path):
    """A compressed output has a member for each chunk."""
    (tmp_path / "in").write_text("ab\n" * 47)
    for world_size in (1, 3):
        translate(world_size, tmp_path / "in", tmp_path / f"{world_size}.gz")
    one, three = ((tmp_path / f"{n}.gz").read_bytes() for n in (1, 3))
    assert one == three and one.count(b"\x1f\x8b\x08") == 6
    (tmp_path / "in").write_text("")
    translate(1, tmp_path / "in", tmp_path / "empty.gz", fingerprint={"made from": "text"})
    assert gzip.decompress((tmp_path / "empty.gz").read_bytes()) == b""


def test_a_pipe_waits_for_no_further_chunk(tmp_path):
    """Its writer may wait for an answer."""
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=["ab\n" * 30])
    writer.start()
    rounds = translate(2, tmp_path / "pipe", tmp_path / "out", OutputOptions())
    writer.join()
    assert (
        rounds == [FIRST, CHUNK, CHUNK, 30 - FIRST - 2 * CHUNK]
        and (tmp_path / "out").read_text() == "ba\n" * 30
    )


def test_memory_stays_flat(tmp_path, monkeypatch):
    """It takes no more for ten times as many lines."""
    monkeypatch.setattr(Reverser, "chunk_lines", 1000)
    peaks = []
    for count in (10_000, 100_000):
        (tmp_path / "in").write_text("abc de fgh\n" * count)
        tracemalloc.start()
        translate(1, tmp_path / "in", tmp_path / "out", OutputOptions())
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


CHANGES = {
    "appended": lambda path: path.write_text(path.read_text() + "more\n"),
    "replaced": lambda path: shutil.copy2(path, path.with_name("new")).replace(path),
    "same size": lambda path: path.write_text(path.read_text().upper()),
    "deleted": os.unlink,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_input_that_changes(tmp_path, monkeypatch, caplog, change):
    """Nothing is published, and only what was read before is kept.

    Sabotage: ask only at the end; compare sizes alone.
    """
    source, output, made_from = tmp_path / "in", tmp_path / "out", {"made from": "text"}
    source.write_text("ab\n" * 47)
    n_best = Reverser.n_best

    def change_in_third_round(self, lines, *others):
        if len(self.rounds) == 2:
            change(source)
        return n_best(self, lines, *others)

    monkeypatch.setattr(Reverser, "n_best", change_in_third_round)
    with pytest.raises(DataError, match=f"^{source}: (changed while it was read|cannot be read)"):
        translate(1, source, output, OutputOptions(), made_from)
    assert not output.exists() and f"{FIRST + CHUNK} finished lines are kept" in caplog.text


def test_another_number_of_processes_continues(tmp_path, caplog):
    """After the chunks that were read before an error."""
    text = "".join(f"{number:>9999}\n" for number in range(FIRST + 4 * CHUNK + 8)).encode()
    source, output = tmp_path / "in.gz", tmp_path / "out"
    whole = gzip.compress(text, compresslevel=0)
    source.write_bytes(whole[: len(whole) - 3_000])
    options, made_from = OutputOptions(), {"made from": "text"}
    for processes in (1, 3):
        with pytest.raises(DataError, match="in.gz: cannot be read: "):
            translate(processes, source, output, options, made_from)
        kept = f"stopped: {FIRST + 4 * CHUNK} finished lines are kept"
        assert caplog.messages[-1].startswith(kept)
    source.write_bytes(whole)
    assert translate(3, source, output, options, made_from) == [8]
    assert output.read_bytes() == b"".join(line[::-1] + b"\n" for line in text.splitlines())


def test_what_is_reported(tmp_path, caplog, monkeypatch):
    """Lines read, split and repaired; those that an earlier process split count too."""
    times = iter([7.0, 9.0, 20.0, 20.5])
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=times.__next__))
    source, output, made_from = tmp_path / "in", tmp_path / "out", {"made from": "text"}
    source.write_bytes(b"\xef\xbb\xbfab\xff\n" + b"abcd\n" * 10 + b"\n" + b"cd")
    with caplog.at_level(logging.INFO, "transformer_mt"):
        translate(1, source, output, JSONL, made_from)
        output.rename(tmp_path / ".out.partial")  # as if it had been killed just before
        assert translate(1, source, output, JSONL, made_from, is_named=True) == []
    replaced = "1 line not in UTF-8; invalid bytes were replaced by U+FFFD"
    first = ["13 lines in 2.0 s, 6 per second", "10 lines translated in parts", replaced]
    assert caplog.messages[:3] == first and caplog.records[2].levelname == "WARNING"
    again = ["0 lines in 0.5 s, 0 per second", *first[1:]]
    assert caplog.messages[-3:] == [f"{source}: {message}" for message in again]


def test_what_is_written_for_a_line():
    """Text, with the score in four digits before a tab, or objects."""
    ranked = [
        [Translation("x y", -1.23456), Translation("ä", math.nan, 2, True)],
        [Translation("", 0), Translation("", 0)],
    ]
    best = [[first] for first, _ in ranked]
    assert format_lines(best, 7, OutputOptions()) == "x y\n\n"
    scored = OutputOptions(with_scores=True)
    assert format_lines(ranked, 7, scored) == "-1.2346\tx y\nnan\tä\n0.0000\t\n0.0000\t\n"
    jsonl = OutputOptions(format="jsonl")
    assert format_lines(ranked[:1], 7, jsonl) == (
        '{"line": 7, "rank": 1, "score": -1.23456, "text": "x y", "parts": 1, "status": "ok"}\n'
        '{"line": 7, "rank": 2, "score": null, "text": "ä", "parts": 2, "status": "cut"}\n'
    )
