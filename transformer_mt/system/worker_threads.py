"""Worker threads that compute several items at once on a CPU, each item in one thread."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cached_property
from itertools import chain, islice
from threading import Event, Lock
from typing import TypeVar

import torch

MAX_WORKERS = 8
"""Each worker needs its own memory, and Python code runs in only one of them at a time."""

_lock = Lock()
_threads_of_callers: list[int] = []
"""PyTorch's threads before each call of `WorkerThreads.map` that has not ended, in order."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerThreads:
    """Worker threads that divide PyTorch's threads among them.

    Threads that share each operation of one item wait for each other after every operation,
    especially if another program has taken a core from one of them; workers wait only at the end.

    Args:
        limit: Largest number of workers; 1 computes in the calling thread.
    """

    def __init__(self, limit: int = MAX_WORKERS) -> None:
        self._limit = limit

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        """The threads, which start when they are needed and end with this object."""
        return ThreadPoolExecutor(self.count())

    def count(self, items: int = MAX_WORKERS) -> int:
        """Returns how many of the given number of items are computed at once."""
        return min(torch.get_num_threads(), items, self._limit)

    def map(
        self, function: Callable[[Item, Callable[[], None]], Result], items: Iterable[Item]
    ) -> Generator[Result]:
        """Applies a function to items, several at once, and yields the results in order.

        Args:
            function: Takes an item and `raise_if_cancelled`, a function to call often, which raises
                an exception once the result is no longer needed.
            items: If there is only one, the calling thread computes it.

        Only a few items are taken, and results computed, in advance. If the iterator is closed or
        an exception is raised in it, the workers are stopped first.
        """
        threads, cancelled = torch.get_num_threads(), Event()
        items = iter(items)
        first = list(islice(items, MAX_WORKERS + 1))
        remaining, workers = chain(first, items), self.count(len(first))

        def raise_if_cancelled() -> None:
            if cancelled.is_set():
                raise CancelledError

        def compute(item: Item) -> Result:
            torch.set_num_threads(threads // workers)  # for this worker
            return function(item, raise_if_cancelled)

        if workers <= 1:
            yield from (function(item, raise_if_cancelled) for item in remaining)
            return
        pending = deque[Future[Result]]()
        with _restored_threads(threads):
            try:
                # One item more than workers, so that none is idle; later items are not begun.
                for item in islice(remaining, workers + 1):
                    pending.append(self._pool.submit(compute, item))
                while pending:
                    wait([pending[0]])
                    for item in islice(remaining, 1):
                        pending.append(self._pool.submit(compute, item))
                    yield pending.popleft().result()
            finally:
                cancelled.set()
                for future in pending:
                    future.cancel()
                wait(pending)


@contextmanager
def _restored_threads(threads: int) -> Iterator[None]:
    """Restores PyTorch's threads once the last of several calls at the same time has ended.

    The number that a worker sets holds for all threads that start later, new callers included.
    """
    with _lock:
        _threads_of_callers.append(threads)
    try:
        yield
    finally:
        with _lock:
            first = _threads_of_callers[0]
            _threads_of_callers.pop()
            if not _threads_of_callers:
                torch.set_num_threads(first)
