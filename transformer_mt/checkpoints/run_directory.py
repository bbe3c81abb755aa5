"""A run directory: its checkpoints (list, choose, prune), and what it holds beside them.

PyTorch is imported only by what reads a checkpoint, so that `compare` and `plot training` start
quickly.
"""

import logging
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from transformer_mt.checkpoints.layout import EXPORT, RUN_FILE, STEP_NAME, TRAINING, checkpoint_path
from transformer_mt.config.changes import changed_keys
from transformer_mt.config.loading import parse_recorded_config
from transformer_mt.config.section import OnChange
from transformer_mt.errors import ChangedModelError, CheckpointError, ConfigError
from transformer_mt.system.files import (
    MANIFEST,
    atomic_file,
    canonical_json,
    delete_directory,
    json_digest,
    read_json,
    read_manifest,
    write_manifest,
)

if TYPE_CHECKING:
    from transformer_mt.checkpoints.checkpoint import Checkpoint

logger = logging.getLogger(__name__)

RETRIES = 5  # of reading a run whose trainer has saved or deleted checkpoints meanwhile
RESUMABLE_CHECKPOINTS = 2
"""Checkpoints that keep the optimizer's moments: the newest, and the one to fall back to."""
_OBJECT = TypeAdapter(dict[str, Any])


def list_checkpoints(run_dir: Path) -> list[Path]:
    """Lists the checkpoint directories of a run, newest first."""
    paths = [path for path in run_dir.glob("step-*") if STEP_NAME.fullmatch(path.name)]
    return sorted(paths, key=lambda path: int(path.name.removeprefix("step-")), reverse=True)


def load_own(path: Path) -> "Checkpoint":
    """Reads a checkpoint; that of a step must be what its name and its run directory say.

    Raises:
        CheckpointError: If it is damaged, a link, of another step, or of another run.
    """
    from transformer_mt.checkpoints.checkpoint import load_checkpoint

    checkpoint, place = load_checkpoint(path), path.resolve()
    if not STEP_NAME.fullmatch(place.name):
        return checkpoint
    if STEP_NAME.fullmatch(path.name) and path.is_symlink():
        raise CheckpointError(f"{path}: is a symbolic link; put a copy of the directory here")
    name = checkpoint_path(place, checkpoint.step).name
    if place.name != name:
        raise CheckpointError(f"{path}: is {name} renamed; give it that name again, or delete it")
    progress, description = checkpoint.progress, dict[str, Any]()
    with suppress(CheckpointError):  # a damaged one tells nothing
        description = read_description(place.parent)
    for part, own in ("corpus", progress.corpus_digest), ("validation", progress.valid_digest):
        recorded = description.get(part)
        if isinstance(recorded, dict) and recorded.get("digest", own) != own:
            raise CheckpointError(f"{path}: of another run: {RUN_FILE} names another {part}")
    with suppress(ConfigError, KeyError):
        config = parse_recorded_config(description["config"], RUN_FILE)
        fixed = OnChange.REFUSED, OnChange.SHAPES_CORPUS
        if keys := changed_keys(config, checkpoint.config, *fixed):
            raise CheckpointError(f"{path}: of another run: {RUN_FILE} has other {', '.join(keys)}")
    return checkpoint


def load_newest(run_dir: Path, retries: int = RETRIES) -> "Checkpoint | None":
    """Reads the newest usable checkpoint of a run and warns about newer ones.

    Begins again if a trainer has saved or deleted some meanwhile. Returns None if the run has none.

    Raises:
        CheckpointError: If there are checkpoints and none is usable.
        ChangedModelError: If the newest undamaged one does not fit the changed source of the model.
    """
    paths = list_checkpoints(run_dir)
    for path in paths:
        try:
            return load_own(path)
        except ChangedModelError:
            raise  # the checkpoints before it do not fit either
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


def find_checkpoint(path: Path, retries: int = RETRIES) -> "Checkpoint":
    """Reads a checkpoint directory, or the best checkpoint of a run, or else its newest.

    Warns if the best checkpoint is missing, damaged, or of another run.

    Raises:
        CheckpointError: If there is none.
    """
    if (path / EXPORT).exists():
        raise CheckpointError(
            f"{path}: an exported model; name the run or the checkpoint that it was made from"
        )
    if (path / MANIFEST).exists():
        return load_own(path)
    newest = load_newest(path)
    if newest is None:
        reason = "contains no checkpoint" if path.is_dir() else "no such run or checkpoint"
        if (path / "model.bin").exists():
            reason = "not written by `export`, or by an earlier version's: export it again"
        raise CheckpointError(f"{path}: {reason}")
    progress = newest.progress
    best = checkpoint_path(path, progress.best_step)
    if progress.best_bleu < 0 or best == newest.path:
        return newest
    try:
        checkpoint = load_own(best)
        newest.require_same_run(checkpoint)
        # The text may have moved since the best checkpoint was saved.
        return replace(checkpoint, config=newest.config)
    except CheckpointError as error:
        if retries and list_checkpoints(path)[:1] != [newest.path]:
            return find_checkpoint(path, retries - 1)
        logger.warning("%s; using the newest checkpoint instead of the best", error)
        return newest


def prune(run_dir: Path, saved_step: int, keep_last: int, best_step: int) -> None:
    """Deletes all but the newest and the best checkpoints, and moments that no resume will need.

    The run was resumed before any checkpoints later than `saved_step`: they are left alone and do
    not count. Neither do links, which may lead to another run.

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


def not_a_run(path: Path, missing: str) -> CheckpointError:
    """Makes the error for a path that does not exist or lacks what a run directory holds."""
    reason = f"is no run directory: it has no {missing}" if path.exists() else "no such run"
    return CheckpointError(f"{path}: {reason}")


def write_description(directory: Path, description: dict[str, Any]) -> None:
    """Writes run.json into a directory.

    Raises:
        OSError: If it cannot be written.
    """
    with atomic_file(directory / RUN_FILE) as file:
        file.write(canonical_json({**description, "sha256": json_digest(description)}))


def read_description(directory: Path) -> dict[str, Any]:
    """Reads run.json in a directory, as it was written; returns an empty dict if there is none.

    Raises:
        CheckpointError: If it is damaged or was edited.
    """
    path = directory / RUN_FILE
    if not path.exists():
        return {}
    try:
        description: dict[str, Any] = read_json(path, _OBJECT)
        if description.pop("sha256", None) != json_digest(description):
            raise CheckpointError(f"{path}: damaged (its own SHA-256 does not match)")
    except CheckpointError as error:
        raise CheckpointError(f"{error}; resume the run, which writes it again") from None
    return description
