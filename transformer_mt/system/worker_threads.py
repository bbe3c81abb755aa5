"""Work on a CPU by several threads, each with a batch of its own."""

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import TypeVar

import torch

MAX_WORKERS = 8
"""Each worker needs memory for a batch, and Python code runs in one of them at a time."""

Item = TypeVar("Item")
Result = TypeVar("Result")
Check = Callable[[], None]


def map_with_workers(
    function: Callable[[Item, Check], Result], items: Sequence[Item]
) -> Generator[Result]:
    """Applies a function to items, several at once, and gives the results in order.

    PyTorch's threads are divided among the workers. Threads that share each operation of one
    batch wait for each other after every operation; workers wait only at the end.

    Args:
        function: Takes an item and a function to call often, which raises an exception once the
            result is not needed any more. It is called in threads of its own.
        items: As long as there are fewer than threads, several threads share an item.

    Yields:
        The result of each item. If the iterator is closed, or an exception reaches it, the
        workers are stopped first.
    """
    threads, cancelled = torch.get_num_threads(), Event()
    workers = min(threads, len(items), MAX_WORKERS)

    def check() -> None:
        if cancelled.is_set():
            raise CancelledError

    if workers <= 1:
        yield from (function(item, check) for item in items)
        return
    set_threads = partial(torch.set_num_threads, threads // workers)
    try:
        with ThreadPoolExecutor(workers, initializer=set_threads) as pool:
            try:
                yield from pool.map(lambda item: function(item, check), items)
            finally:
                cancelled.set()
    finally:
        # A thread sets its own number, and that of threads which begin later.
        torch.set_num_threads(threads)
