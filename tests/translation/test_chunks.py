"""Chunks of lines distributed over processes, which are threads here."""

import gzip
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from transformer_mt.errors import CheckpointError, DataError
from transformer_mt.system.outputs import check_output
from transformer_mt.translation.chunks import ChunkTranslator, translate_stream
from transformer_mt.translation.options import OutputFormat, OutputOptions, TranslateOptions
from transformer_mt.translation.translation_model import find_checkpoints, share_checkpoints
from transformer_mt.translation.translator import Translation

CHUNK = 10


class Thread:
    """Stands for one of several processes."""

    def __init__(self, rank: int, shared: SimpleNamespace) -> None:
        self.rank, self.world_size, self._shared = rank, len(shared.slots), shared

    def gather(self, value):
        self._shared.slots[self.rank] = value
        self._shared.barrier.wait()
        values = list(self._shared.slots)
        self._shared.barrier.wait()
        return values

    def broadcast(self, value):
        return self.gather(value)[0]

    def finish(self):
        self._shared.barrier.wait()


class Reverser:
    """Stands for a translator: reverses lines, and notes which rank did so, and with which."""

    chunk_lines, batch_tokens, lines_split = CHUNK, 100, 0

    def __init__(self, rank: int, world_size: int, log: list) -> None:
        self.rank, self.world_size, self.log = rank, world_size, log

    def translate_chunk(self, lines, advance):
        self.log.append((self.rank, self.world_size, len(lines)))
        advance(len(lines))
        self.lines_split += sum(len(line) > 3 for line in lines)
        return [[Translation(line[::-1], -1.0)] for line in lines]


def reverser(rank: int, shared: SimpleNamespace, log: list, written: OutputOptions):
    """Gives a translator of chunks that reverses lines."""

    def make(options, threads=None):
        return Reverser(rank, threads.world_size if threads else 1, log)

    model = SimpleNamespace(translator=make)
    return ChunkTranslator(model, TranslateOptions(output=written), Thread(rank, shared))


def translate(world_size: int, path, tmp_path, written: OutputOptions):
    """Translates a file with several threads; gives its counts, text and the log of the work."""
    barrier, log = threading.Barrier(world_size, timeout=10), []
    shared = SimpleNamespace(slots=[None] * world_size, barrier=barrier)

    def run(rank: int):
        translator = reverser(rank, shared, log, written)
        if rank:
            return translator.serve()
        counts = translate_stream(translator, path, check_output(tmp_path / "out"))
        translator.finish()
        return counts

    with ThreadPoolExecutor(world_size) as pool:
        counts = list(pool.map(run, range(world_size)))[0]
    return counts, (tmp_path / "out").read_text(), log


@pytest.mark.parametrize("lines", [0, 1, 9, 10, 47])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_each_line_is_translated_once_and_in_order(world_size, lines, tmp_path):
    """And counted once. Sabotage: deal chunks without their order; let all translate each."""
    path = tmp_path / "in"
    path.write_text("".join(f"a{i}b\n" for i in range(lines)))
    written = OutputOptions(format=OutputFormat.JSONL)
    counts, text, _ = translate(world_size, path, tmp_path, written)
    rows = [
        f'{{"line": {i + 1}, "rank": 1, "score": -1.0, "text": "b{str(i)[::-1]}a"}}'
        for i in range(lines)
    ]
    assert text.splitlines() == rows
    assert counts.lines == lines and counts.lines_split == max(0, lines - 10)


def test_a_round_has_a_chunk_for_each_process(tmp_path):
    """And the last chunks, fewer than processes, are distributed batch by batch.

    Sabotage: let process 0 translate them alone.
    """
    path = tmp_path / "in"
    path.write_text("ab\n" * 47)
    _, text, log = translate(3, path, tmp_path, OutputOptions())
    assert text == "ba\n" * 47
    whole = [(rank, 1, CHUNK) for rank in range(3)]
    shared = [(rank, 3, size) for rank in range(3) for size in (CHUNK, 7)]
    assert sorted(log) == sorted(whole + shared)


def test_a_pipe_waits_for_no_further_chunk(tmp_path):
    """Its writer may wait for an answer. Sabotage: fill the round."""
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=["ab\n" * 30])
    writer.start()
    _, text, log = translate(2, tmp_path / "pipe", tmp_path, OutputOptions())
    writer.join()
    assert text == "ba\n" * 30
    assert sorted(log) == sorted((rank, 2, CHUNK) for rank in range(2) for _ in range(3))


@pytest.mark.parametrize("world_size", [1, 3])
def test_what_is_read_before_an_error_is_written(world_size, tmp_path):
    """Whole chunks, however many processes. Sabotage: drop a round that is not full."""
    text = "".join(f"{number:>9999}\n" for number in range(2 * CHUNK + 8)).encode()
    whole = gzip.compress(text, compresslevel=0)
    (tmp_path / "in.gz").write_bytes(whole[: len(whole) - 3_000])
    output, task = check_output(tmp_path / "out"), {"made from": "text"}
    barrier = threading.Barrier(world_size, timeout=10)
    shared = SimpleNamespace(slots=[None] * world_size, barrier=barrier)
    with ThreadPoolExecutor(world_size) as pool:
        translators = [reverser(rank, shared, [], OutputOptions()) for rank in range(world_size)]
        others = [pool.submit(translator.serve) for translator in translators[1:]]
        with pytest.raises(DataError, match=f"{2 * CHUNK} finished lines are kept"):
            translate_stream(translators[0], tmp_path / "in.gz", output, task)
        translators[0].finish()
    assert all(other.result() is None for other in others)


def test_processes_with_different_checkpoints(copy_run):
    """Are refused. Sabotage: compare no digests."""
    [checkpoint] = find_checkpoints([copy_run])
    peers = SimpleNamespace(
        is_main=True, broadcast=lambda value: value, gather=lambda value: [value, ["another"]]
    )
    with pytest.raises(CheckpointError, match=f"{checkpoint.path}: not the same checkpoint"):
        share_checkpoints([checkpoint], peers)
