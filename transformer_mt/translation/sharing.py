"""Work that the processes of a command share: batches are dealt to them, and results gathered.

Nothing else that translates knows of processes: the main one runs the command, with a runtime that
is shared, and the others decode for it.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

from transformer_mt.checkpoints.layout import EXPORT
from transformer_mt.errors import CheckpointError
from transformer_mt.system.launcher import is_launched
from transformer_mt.system.processes import Processes, join_processes
from transformer_mt.translation.options import Device, LoadOptions, SearchOptions
from transformer_mt.translation.runtime import Hypothesis, Runtime, Source
from transformer_mt.translation.translation_model import (
    SavedModels,
    TranslationModel,
    build_translation_model,
    find_models,
)

Item = TypeVar("Item")
Result = TypeVar("Result")

LoadModels = Callable[[SavedModels, LoadOptions], TranslationModel]
"""As `build_translation_model`."""

ROUND_BATCHES = 8
"""Most batches that each process decodes before they all exchange results."""


@dataclass(frozen=True)
class _Load:
    """Asks the other processes to load models."""

    paths: list[Path]
    options: LoadOptions


@dataclass(frozen=True)
class _Round:
    """Asks the other processes to decode their shares of these batches."""

    batches: list[Sequence[Source]]
    options: SearchOptions


class SharedRuntime:
    """A runtime that deals batches to all processes, each of which has the same model.

    They all make it together.

    All processes decode the same batches, or else those of the main one by `decode_round`.

    Args:
        runtime: Decodes the batches of this process.
        processes: All processes.
    """

    def __init__(self, runtime: Runtime, processes: Processes) -> None:
        self._runtime, self._processes = runtime, processes
        self.device_type, self.precision = runtime.device_type, runtime.precision
        # All must cut the same batches, even if one has less memory.
        self.batch_tokens = processes.min(runtime.batch_tokens)
        self.chunk_lines = runtime.chunk_lines
        self.score = runtime.score

    def decode(
        self, batches: Iterable[Sequence[Source]], options: SearchOptions
    ) -> Generator[list[list[Hypothesis]]]:
        """Decodes batches, each as a single process would; see `Runtime`."""
        if self._processes.world_size == 1:
            yield from self._runtime.decode(batches, options)
            return
        batches, size = iter(batches), self._processes.world_size
        while dealt := list(islice(batches, size)):
            yield from self.decode_round(self._processes.broadcast(_Round(dealt, options)))
            # The first results show soon; later, processes seldom wait for each other.
            size = min(2 * size, ROUND_BATCHES * self._processes.world_size)

    def decode_round(self, task: _Round) -> list[list[list[Hypothesis]]]:
        """Decodes this process's share of a round; gives the hypotheses of all its batches."""
        return self.map(lambda share: list(self._runtime.decode(share, task.options)), task.batches)

    def map(
        self, function: Callable[[Sequence[Item]], list[Result]], items: Sequence[Item]
    ) -> list[Result]:
        """Applies a function, which takes and gives several, to all items, a share per process."""
        rank, world_size = self._processes.rank, self._processes.world_size
        shares = self._processes.gather(function(items[rank::world_size]))
        return [shares[i % world_size][i // world_size] for i in range(len(items))]


@contextmanager
def share_work(paths: Iterable[Path], device: Device) -> Iterator[LoadModels | None]:
    """Gives the main process a function that loads models in all that `torchrun` started.

    The other processes do their share until the main one leaves the context; they enter it
    only then, and are given None.

    Args:
        paths: Those of the models; paths of files are those of translations.
        device: The device that the user chose.

    Raises:
        CheckpointError: If another process misses a checkpoint, or has a different one.
    """
    with join_processes(_device_to_join(paths, device)) as processes:
        if processes.is_main:
            yield partial(_load, processes)
            processes.broadcast(None)
        else:
            _serve(processes)
            yield None
        processes.finish()


def _device_to_join(paths: Iterable[Path], device: Device) -> str:
    """Returns the type of device whose processes are joined; CTranslate2's exchange no tensors."""
    folders = [path for path in paths if path.is_dir()]
    if not is_launched() or (folders and all((path / EXPORT).exists() for path in folders)):
        return "cpu"
    from transformer_mt.system.device import choose_device

    return choose_device(device).type


def _load(processes: Processes, models: SavedModels, options: LoadOptions) -> TranslationModel:
    """Loads the main process's models in all processes, each from its own disk."""
    processes.broadcast(_Load([model.path for model in models], options))
    return _load_same(processes, models, options)


def _load_same(processes: Processes, models: SavedModels, options: LoadOptions) -> TranslationModel:
    digests = [model.digest for model in models]
    if any(other != digests for other in processes.gather(digests)):
        names = " and ".join(str(model.path) for model in models)
        raise CheckpointError(f"{names}: not the same checkpoint on all machines")
    model = build_translation_model(models, options)
    return replace(model, runtime=SharedRuntime(model.runtime, processes))


def _serve(processes: Processes) -> None:
    """Loads and decodes what the main process does, until its command ends."""
    runtime: Any = None
    while task := processes.broadcast(cast(_Load | _Round | None, None)):
        if isinstance(task, _Load):
            runtime = _load_same(processes, find_models(task.paths), task.options).runtime
        else:
            runtime.decode_round(task)
