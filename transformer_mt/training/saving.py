"""Saves the checkpoints of a run: a thread writes and hashes copies while training goes on."""

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any, Self

from torch import Tensor

from transformer_mt.checkpoints.checkpoint import (
    Progress,
    RunState,
    find_nonfinite,
    save_checkpoint,
)
from transformer_mt.checkpoints.layout import EMA, MODEL, TRAINING, checkpoint_path
from transformer_mt.checkpoints.run_directory import prune
from transformer_mt.errors import CheckpointError, Interrupted, TrainingError
from transformer_mt.system.console import logger
from transformer_mt.text.prepared import PreparedCorpus
from transformer_mt.training.environment import numeric_environment
from transformer_mt.training.fit import StepFitter

TENSOR_FILES = {"model": MODEL, "optimizer": TRAINING, "ema": EMA}
"""Files of a checkpoint by their keys in the state of the engine."""


def tensor_files(state: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
    """Returns the tensors of the state of an engine by file and name."""
    return {file: state[key] for key, file in TENSOR_FILES.items() if key in state}


class CheckpointSaver:
    """Saves the state of an engine, one checkpoint at a time.

    As a context manager it waits at the end for the checkpoint that is being written, unless a
    second signal ends the run at once.

    Args:
        run_dir: Where checkpoints go.
        fitter: Its engine has the state, which is copied before `start` returns.
        corpus: Its vocabulary and statistics are part of a checkpoint.
        saved: Progress of the newest complete checkpoint.

    Attributes:
        saved: Likewise, after `wait`.
    """

    def __init__(
        self, run_dir: Path, fitter: StepFitter, corpus: PreparedCorpus, saved: Progress | None
    ) -> None:
        self._run_dir, self._fitter, self._corpus, self.saved = run_dir, fitter, corpus, saved
        self._writing: tuple[Thread, Future[None]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Interrupted):
            self.wait()

    def start(self, progress: Progress) -> None:
        """Starts to save a checkpoint, after a `wait` for the one before.

        Raises:
            TrainingError: If a tensor is not finite; then nothing is saved.
        """
        state = self._fitter.engine.state_dict()
        tensors: dict[str, dict[str, Tensor]] = {}
        for file, content in tensor_files(state).items():
            if name := find_nonfinite(content):
                raise TrainingError(
                    f"step {progress.step}: {name} of {file} is not finite: training has"
                    " diverged; this step is not saved; start a new run with a lower optim.lr_scale"
                )
            tensors[file] = {key: value.to("cpu", copy=True) for key, value in content.items()}
        environment = numeric_environment(self._fitter)
        run_state = RunState(progress, state["counters"], environment, self._corpus.sources)
        written: Future[None] = Future()

        def write() -> None:
            try:
                self._write(tensors, run_state)
                written.set_result(None)
            except BaseException as error:  # `wait` raises it
                written.set_exception(error)

        thread = Thread(target=write, daemon=True)  # a second signal does not wait for it
        thread.start()
        self._writing = thread, written

    def wait(self, final: bool = False) -> None:
        """Waits until the checkpoint that was started is complete.

        Raises:
            CheckpointError: If it cannot be written and is `final`; otherwise that is a warning.
        """
        if self._writing is None:
            return
        (thread, written), self._writing = self._writing, None
        thread.join()  # a thread that still frees its copies while Python ends would abort it
        try:
            written.result()
        except CheckpointError as error:
            if final:
                raise
            logger.warning("%s; training continues", error)

    def _write(self, tensors: Mapping[str, Mapping[str, Tensor]], state: RunState) -> None:
        """Writes a checkpoint, and then deletes those that are no longer needed."""
        step, config = state.progress.step, self._fitter.engine.config
        path = checkpoint_path(self._run_dir, step)
        try:
            save_checkpoint(path, tensors, state, config, self._corpus.vocab)
        except OSError as error:
            raise CheckpointError(
                f"{error.filename or path}: cannot save step {step}: {error.strerror}"
            ) from None
        self.saved = state.progress
        try:
            prune(self._run_dir, step, config.train.keep_last, state.progress.best_step)
        except OSError as error:
            logger.warning("%s: cannot delete: %s", error.filename or self._run_dir, error.strerror)
