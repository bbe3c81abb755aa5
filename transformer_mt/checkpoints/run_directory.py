"""A run directory: its checkpoints (list, choose, prune), and all that it records.

PyTorch is imported only by what reads a checkpoint, so that `compare` and `plot training` start
quickly.
"""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_mt.checkpoints.layout import (
    EXPORT,
    GENERATION_CONFIG,
    LOCK,
    METRICS,
    RUN_FILE,
    STEP_NAME,
    TRAINING,
    checkpoint_path,
    not_a_run,
)
from transformer_mt.checkpoints.metrics import RunMetrics, read_metrics
from transformer_mt.checkpoints.run_description import RunDescription, read_description
from transformer_mt.config.keys import Config
from transformer_mt.errors import CheckpointError
from transformer_mt.system.console import logger
from transformer_mt.system.files import delete_directory, locked
from transformer_mt.system.manifest import MANIFEST, read_manifest, write_manifest

if TYPE_CHECKING:
    from transformer_mt.checkpoints.checkpoint import Checkpoint, Progress

RETRIES = 5  # of reading a run whose trainer has saved or deleted checkpoints meanwhile
RESUMABLE_CHECKPOINTS = 2
"""Checkpoints that keep the optimizer's moments: the newest, and the one to fall back to."""


def list_checkpoints(run_dir: Path) -> list[Path]:
    """Lists the checkpoint directories of a run, newest first."""
    paths = [path for path in run_dir.glob("step-*") if STEP_NAME.fullmatch(path.name)]
    return sorted(paths, key=lambda path: int(path.name.removeprefix("step-")), reverse=True)


def description_if_sound(run_dir: Path) -> RunDescription | None:
    """Reads run.json of a run whose checkpoints can be used without it; warns if it is damaged."""
    try:
        return read_description(run_dir)
    except CheckpointError as error:
        logger.warning("%s", error)
        return None


def load_step(path: Path, description: RunDescription | None = None) -> "Checkpoint":
    """Reads the checkpoint of a step; it must be what its name says.

    Args:
        path: The directory of the checkpoint.
        description: Of the run that it must be of; None is not compared.

    Raises:
        CheckpointError: If it is damaged, a link, of another step, or of another run.
    """
    from transformer_mt.checkpoints.checkpoint import load_checkpoint

    if STEP_NAME.fullmatch(path.name) and path.is_symlink():
        raise CheckpointError(f"{path}: is a symbolic link; put a copy of the directory here")
    checkpoint = load_checkpoint(path)
    name = checkpoint_path(path, checkpoint.step).name
    if path.resolve().name != name:
        raise CheckpointError(f"{path}: is {name} renamed; give it that name again, or delete it")
    if description:
        differing = checkpoint.differences(description.config, description.digests)
        if differing:
            names = ", ".join(differing)
            raise CheckpointError(f"{path}: of another run: {RUN_FILE} has other {names}")
        # Written when the run was last resumed, so it knows where the text is now.
        data = {"data": description.config.data}
        checkpoint = replace(checkpoint, config=checkpoint.config.model_copy(update=data))
    return checkpoint


def load_newest(run_dir: Path, retries: int = RETRIES) -> "Checkpoint | None":
    """Reads the newest usable checkpoint of a run and warns about newer ones.

    Begins again if a trainer has saved or deleted some meanwhile. Returns None if the run has none.

    Raises:
        CheckpointError: If there are checkpoints and none is usable.
    """
    paths, description = list_checkpoints(run_dir), description_if_sound(run_dir)
    for path in paths:
        try:
            return load_step(path, description)
        except CheckpointError as error:
            if retries and list_checkpoints(run_dir) != paths:
                return load_newest(run_dir, retries - 1)
            logger.warning("%s; trying the checkpoint before it", error)
    if paths:
        raise CheckpointError(
            f"{run_dir}: no checkpoint can be used; restore one from a copy, or name another --run"
            " directory to start again"
        )
    return None


def find_checkpoint(path: Path) -> "Checkpoint":
    """Reads a checkpoint directory, or the best checkpoint of a run, or else its newest.

    Warns if the best checkpoint is missing, damaged, or of another run.

    Raises:
        CheckpointError: If there is none.
    """
    from transformer_mt.checkpoints.checkpoint import load_checkpoint

    if (path / EXPORT).exists():
        raise CheckpointError(
            f"{path}: an exported model; name the run or the checkpoint that it was made from"
        )
    if (path / MANIFEST).exists():
        place = path.resolve()
        if STEP_NAME.fullmatch(place.name):
            return load_step(path, description_if_sound(place.parent))
        return load_checkpoint(path)
    if checkpoints := _load_newest_and_best(path):
        return checkpoints[1]
    reason = "contains no checkpoint" if path.exists() else "no such run or checkpoint"
    if (path / GENERATION_CONFIG).exists():
        reason = "a model for transformers; load it there, or name the run that it was made from"
    raise CheckpointError(f"{path}: {reason}")


def _load_newest_and_best(
    run_dir: Path, retries: int = RETRIES
) -> "tuple[Checkpoint, Checkpoint] | None":
    """Reads the newest checkpoint of a run, if there is one, and the best by what it records.

    The newest is also given for the best if there is none yet, or, with a warning, if that is
    missing, damaged, or of another run.
    """
    newest = load_newest(run_dir)
    if newest is None:
        return None
    best = checkpoint_path(run_dir, newest.progress.best_step)
    if newest.progress.best_bleu < 0 or best == newest.path:
        return newest, newest
    try:
        checkpoint = load_step(best)
        newest.require_same_run(checkpoint)
        # The text may have moved since the best checkpoint was saved.
        return newest, replace(checkpoint, config=newest.config)
    except CheckpointError as error:
        if retries and list_checkpoints(run_dir)[:1] != [newest.path]:
            return _load_newest_and_best(run_dir, retries - 1)
        logger.warning("%s; using the newest checkpoint instead of the best", error)
        return newest, newest


def prune(run_dir: Path, saved_step: int, keep_last: int, best_step: int) -> None:
    """Deletes all but the `keep_last` newest checkpoints and the best, and most of the moments.

    A checkpoint of a later step than `saved_step`, the one just saved, could not be used when the
    run was resumed: it is left alone and does not count. Neither does a link, which may lead to
    another run. Only the newest that are kept can be resumed from, and keep their moments.

    Raises:
        OSError: If something cannot be deleted.
    """
    for leftover in run_dir.glob(".step-*.partial"):
        shutil.rmtree(leftover, ignore_errors=True)  # what stays must not stop the rest
    paths = [path for path in list_checkpoints(run_dir) if not path.is_symlink()]
    paths = paths[paths.index(checkpoint_path(run_dir, saved_step)) :]
    best = checkpoint_path(run_dir, best_step)
    kept = [path for age, path in enumerate(paths) if age < keep_last or path == best]
    for path in paths:
        if path not in kept:
            delete_directory(path)
        elif kept.index(path) >= RESUMABLE_CHECKPOINTS and (path / TRAINING).exists():
            try:
                files = read_manifest(path)
            except CheckpointError as error:  # a damaged checkpoint is left as it is
                logger.warning("%s", error)
                continue
            files.pop(TRAINING, None)
            write_manifest(path, files)
            (path / TRAINING).unlink()


@dataclass(frozen=True)
class RecordedRun:
    """What is recorded of a run, which may be in training and may lack parts.

    The checkpoint is the best, if there is one, but the progress is that of the newest.
    """

    config: Config
    checkpoint: "Checkpoint | None"
    progress: "Progress"
    description: RunDescription | None
    metrics: RunMetrics


def read_run(run_dir: Path) -> RecordedRun:
    """Reads a run directory, for the report and the diagnosis of a run.

    Raises:
        CheckpointError: If there is no such run, all its checkpoints are damaged, or run.json or
            the metrics are.
    """
    from transformer_mt.checkpoints.checkpoint import Progress

    for file, kind in ((EXPORT, "an exported model"), (MANIFEST, "a checkpoint")):
        if (run_dir / file).exists():
            raise CheckpointError(f"{run_dir}: is {kind}; name the run directory")
    newest, checkpoint = _load_newest_and_best(run_dir) or (None, None)
    description = read_description(run_dir)
    recorded = description or checkpoint
    if recorded is None:
        raise not_a_run(run_dir, f"{RUN_FILE} and no checkpoint")
    records = read_metrics(run_dir) if (run_dir / METRICS).exists() else []
    progress = newest.progress if newest else Progress()
    metrics = RunMetrics(run_dir.resolve().name, records)
    return RecordedRun(recorded.config, checkpoint, progress, description, metrics)


def lock_run(run_dir: Path) -> AbstractContextManager[Callable[[], bool]]:
    """Holds the lock of a run; refuses if another trainer holds it."""

    def refuse(holder: str) -> None:
        raise CheckpointError(
            f"{run_dir}: process {holder} is training this run; stop it, or name another --run"
            " directory"
        )

    return locked(run_dir / LOCK, refuse)
