"""Work by several threads: order, their number, and how they are stopped."""

import threading
import time
from contextlib import closing

import pytest
import torch

from transformer_mt.system.worker_threads import MAX_WORKERS, WorkerThreads

SECONDS = 20.0
"""Limit on what takes a moment."""


@pytest.mark.parametrize("threads", [1, 3])
def test_results_are_in_order(threads):
    torch.set_num_threads(threads)

    def wait(item: int, check) -> int:
        time.sleep(0.02 if item % 3 == 0 else 0)
        return -item

    items = iter(range(99))
    results = WorkerThreads().map(wait, items)
    assert next(results) == 0 and next(items) <= MAX_WORKERS + 1  # not all are taken in advance
    results.close()
    assert list(WorkerThreads().map(wait, range(10))) == [-item for item in range(10)]
    assert list(WorkerThreads().map(wait, [])) == []


def test_several_run_at_once_in_threads_that_end_with_their_owner():
    """Each waits for the other, so one after the other would not end."""
    torch.set_num_threads(2)
    both = threading.Barrier(2, timeout=SECONDS)

    def meet(item: int, check) -> threading.Thread:
        both.wait()
        return threading.current_thread()

    workers = set(WorkerThreads().map(meet, range(6)))
    assert len(workers) == 2 and threading.current_thread() not in workers
    for worker in workers:
        worker.join(SECONDS)
        assert not worker.is_alive()


class Waiting:
    """Returns item 0, fails for 2, and waits for the stop with others."""

    def __init__(self) -> None:
        self.running: list[int] = []

    def __call__(self, item: int, check) -> int:
        self.running.append(item)
        try:
            if item == 2:
                raise ValueError("wrong")
            while item:
                check()
                time.sleep(0.001)
            return item
        finally:
            time.sleep(0.02)
            self.running.remove(item)


def test_closing_and_an_error_stop_the_workers():
    """And wait until they have stopped; the threads can be used again."""
    torch.set_num_threads(2)
    waiting, workers, began = Waiting(), WorkerThreads(), time.monotonic()
    with closing(workers.map(waiting, [0, 1, 1, 1])) as results:
        assert next(results) == 0
    assert not waiting.running and torch.get_num_threads() == 2
    for _ in range(2):
        with pytest.raises(ValueError, match="wrong"):
            list(workers.map(waiting, [0, 2, 1, 1]))
        assert not waiting.running and torch.get_num_threads() == 2
    assert list(workers.map(waiting, [0, 0, 0])) == [0, 0, 0]
    assert time.monotonic() - began < SECONDS


def test_threads_that_start_later_have_as_many_as_before():
    """Whichever of two calls ends last. Sabotage: let each restore the number that it found."""
    torch.set_num_threads(8)
    first = WorkerThreads(2).map(lambda item, check: item, range(9))
    next(first)

    def call_meanwhile() -> None:
        second = WorkerThreads(2).map(lambda item, check: item, range(9))
        next(second)
        first.close()
        second.close()

    numbers = list[int]()
    for target in (call_meanwhile, lambda: numbers.append(torch.get_num_threads())):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join(SECONDS)
    assert numbers == [8]
