"""Work shared by processes, which are threads here."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from transformer_mt.errors import CheckpointError
from transformer_mt.system.processes import ALONE
from transformer_mt.translation import sharing
from transformer_mt.translation.options import DEFAULT_SEARCH, LoadOptions
from transformer_mt.translation.runtime import Hypothesis, Source
from transformer_mt.translation.sharing import ROUND_BATCHES, SharedRuntime, share_work
from transformer_mt.translation.translation_model import find_models


class Thread:
    """Stands for one of several processes."""

    def __init__(self, rank: int, slots: list[object], barrier: threading.Barrier) -> None:
        self.rank, self.world_size, self.is_main = rank, len(slots), rank == 0
        self._slots, self._barrier = slots, barrier

    def gather(self, value):
        self._slots[self.rank] = value
        self._barrier.wait()
        values = list(self._slots)
        self._barrier.wait()
        return values

    def broadcast(self, value):
        return self.gather(value)[0]

    def min(self, value):
        return min(self.gather(value))

    def finish(self):
        self._barrier.wait()


def threads(count: int) -> list[Thread]:
    slots, barrier = [None] * count, threading.Barrier(count, timeout=10)
    return [Thread(rank, slots, barrier) for rank in range(count)]


class Reverser:
    """Stands for a runtime: reverses ids, and notes what it decoded."""

    device_type, precision, batch_tokens, chunk_lines = "cpu", "fp32", 8, (4, 8)
    describe = score = None

    def __init__(self) -> None:
        self.decoded = []

    def decode(self, batches, options):
        for batch in batches:
            self.decoded.append(batch)
            yield [[Hypothesis([*reversed(source.ids)], 0.0)] for source in batch]


BATCHES = [[Source((i, 1)), Source((i, 2))] for i in range(70)]


def decode(runtime: Reverser, processes: object) -> list[list[list[Hypothesis]]]:
    return list(SharedRuntime(runtime, processes).decode(BATCHES, DEFAULT_SEARCH))


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_all_processes_decode_the_same_batches(world_size):
    """Equal shares, results in order. Sabotage: let each decode all; give results by process."""
    expected = decode(Reverser(), ALONE)
    runtimes = [Reverser() for _ in range(world_size)]
    with ThreadPoolExecutor(world_size) as pool:
        results = list(pool.map(decode, runtimes, threads(world_size)))
    assert results == [expected] * world_size
    shares = [runtime.decoded for runtime in runtimes]
    assert sorted(batch for share in shares for batch in share) == BATCHES
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_the_least_memory_decides_the_size_of_batches():
    """Of all processes, which must have the same batches. Sabotage: let each use its own."""
    runtimes = [Reverser(), Reverser()]
    runtimes[1].batch_tokens = 5
    with ThreadPoolExecutor(2) as pool:
        shared = list(pool.map(SharedRuntime, runtimes, threads(2)))
    assert [runtime.batch_tokens for runtime in shared] == [5, 5]


def test_the_first_results_wait_for_few_batches():
    """One for each process, then more, but not all of a large text. Sabotage: one round."""
    taken = []
    processes = SimpleNamespace(
        rank=0,
        world_size=2,
        min=int,
        gather=lambda value: [value, value],
        broadcast=lambda task: taken.append(len(task.batches)) or task,
    )
    decoded = SharedRuntime(Reverser(), processes).decode(iter(BATCHES), DEFAULT_SEARCH)
    next(decoded)
    assert taken == [2]
    assert len(list(decoded)) == len(BATCHES) - 1
    assert taken[1:4] == [4, 8, 16] and max(taken) == 2 * ROUND_BATCHES


def test_processes_with_different_checkpoints(copy_run, monkeypatch):
    peers = Mock(is_main=True, gather=lambda value: [value, ["another"]])
    monkeypatch.setattr(sharing, "join_processes", lambda device: nullcontext(peers))
    checkpoints = find_models([copy_run])
    message = f"{checkpoints[0].path}: not the same checkpoint"
    with share_work([copy_run], "cpu") as load, pytest.raises(CheckpointError, match=message):
        load(checkpoints, LoadOptions())


@pytest.mark.parametrize(
    ("model", "launched", "device", "joined"),
    [
        ("copy", True, "auto", "cuda"),
        ("copy", True, "cpu", "cpu"),
        ("exported", True, "auto", "cpu"),
        ("copy", False, "auto", "cpu"),
        ("missing", True, "auto", "cuda"),
        ("exported copy", True, "auto", "cuda"),
        ("exported missing", True, "auto", "cpu"),
    ],
)
def test_the_device_of_joined_processes(exported_run, monkeypatch, model, launched, device, joined):
    """Those of CTranslate2 exchange no tensors, and a single process neither."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    join = Mock(side_effect=InterruptedError)
    monkeypatch.setattr(sharing, "join_processes", join)
    monkeypatch.setattr(sharing, "is_launched", lambda: launched)
    paths = map(exported_run.with_name, model.split())
    with pytest.raises(InterruptedError), share_work(paths, device):
        pass
    join.assert_called_once_with(joined)
