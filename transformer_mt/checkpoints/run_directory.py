"""The checkpoints of a run directory: list, choose, prune."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path

from transformer_mt.checkpoints.checkpoint import TRAINING, Checkpoint, load_checkpoint
from transformer_mt.checkpoints.run_files import STEP_NAME, step_name
from transformer_mt.errors import ChangedModelError, CheckpointError
from transformer_mt.system.files import MANIFEST, delete_directory, read_manifest, write_manifest

logger = logging.getLogger(__name__)

RESUMABLE_CHECKPOINTS = 2
"""Checkpoints that keep the optimizer's moments: the newest, and the one to fall back to."""


def checkpoint_path(run_dir: Path, step: int) -> Path:
    """Gives the directory of a step's checkpoint."""
    return run_dir / step_name(step)


def list_checkpoints(run_dir: Path) -> list[Path]:
    """Lists the checkpoint directories of a run, newest first."""
    paths = [path for path in run_dir.glob("step-*") if STEP_NAME.fullmatch(path.name)]
    return sorted(paths, key=lambda path: int(path.name.removeprefix("step-")), reverse=True)


def load_newest(run_dir: Path) -> Checkpoint | None:
    """Reads the newest undamaged checkpoint of a run and warns about damaged ones.

    Returns None if the run has no checkpoint.

    Raises:
        CheckpointError: If there are checkpoints and all are damaged.
        ChangedModelError: If the newest undamaged one does not fit the changed source of the model.
    """
    paths = list_checkpoints(run_dir)
    for path in paths:
        try:
            return load_checkpoint(path)
        except ChangedModelError:
            raise  # the checkpoints before it do not fit either
        except CheckpointError as error:
            logger.warning("%s; trying the checkpoint before it", error)
    if paths:
        damaged = f"all of its {len(paths)} checkpoints are damaged; restore one"
        if len(paths) == 1:
            damaged = "its only checkpoint is damaged; restore it"
        raise CheckpointError(
            f"{run_dir}: {damaged} from a copy, or name another --run directory to start again"
        )
    return None


def find_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint directory, or the best checkpoint of a run, or else its newest.

    Warns if the best checkpoint is missing or damaged.

    Raises:
        CheckpointError: If there is none.
    """
    if (path / MANIFEST).exists():
        return load_checkpoint(path)
    newest = load_newest(path)
    if newest is None:
        reason = "contains no checkpoint" if path.is_dir() else "no such run or checkpoint"
        raise CheckpointError(f"{path}: {reason}")
    progress = newest.progress
    best = checkpoint_path(path, progress.best_step)
    if progress.best_bleu < 0 or best == newest.path:
        return newest
    try:
        # The text may have moved since the best checkpoint was saved.
        return replace(load_checkpoint(best), config=newest.config)
    except CheckpointError as error:
        logger.warning("%s; using the newest checkpoint instead of the best", error)
        return newest


def prune(run_dir: Path, saved_step: int, keep_last: int, best_step: int) -> None:
    """Deletes all but the newest and the best checkpoints, and moments that no resume will need.

    The run was resumed before any checkpoints later than `saved_step`: they are left alone and do
    not count.

    Raises:
        OSError: If something cannot be deleted.
    """
    for leftover in run_dir.glob(".step-*.partial"):
        shutil.rmtree(leftover)
    paths = list_checkpoints(run_dir)
    newest = paths.index(checkpoint_path(run_dir, saved_step))
    for age, path in enumerate(paths[newest:]):
        if age >= keep_last and path != checkpoint_path(run_dir, best_step):
            delete_directory(path)
        elif age >= RESUMABLE_CHECKPOINTS and (path / TRAINING).exists():
            try:
                files = read_manifest(path)
            except CheckpointError as error:  # a damaged checkpoint is left as it is
                logger.warning("%s", error)
                continue
            files.pop(TRAINING, None)
            write_manifest(path, files)
            (path / TRAINING).unlink()
