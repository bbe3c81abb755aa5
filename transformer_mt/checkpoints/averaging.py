"""The mean of a run's last checkpoints, as the paper evaluates it (section 6.1)."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from transformer_mt.checkpoints.checkpoint import Checkpoint, save_checkpoint
from transformer_mt.checkpoints.layout import MODEL
from transformer_mt.checkpoints.run_description import write_description
from transformer_mt.checkpoints.run_directory import (
    RETRIES,
    description_if_sound,
    list_checkpoints,
    load_step,
)
from transformer_mt.errors import CheckpointError
from transformer_mt.system.console import logger
from transformer_mt.system.files import new_directory, require_new_directory


def average(run_dir: Path, last: int, output: Path | None, retries: int = RETRIES) -> Path:
    """Averages the weights of the newest checkpoints of a run.

    The result is a complete checkpoint, for translation or to start another run from. It cannot be
    resumed, since it has no optimizer moments.

    Returns:
        The directory written: `output`, or `averaged-N` in the run if that is None.

    Raises:
        CheckpointError: If `run_dir` is not a run or has fewer checkpoints, one of them is damaged
            or of another run, or an old one that is kept as the best; or the output exists or
            cannot be made.
    """
    paths = list_checkpoints(run_dir)
    if len(paths) < last:
        raise CheckpointError(
            f"{run_dir}: --last {last} needs {last} checkpoints, but there are {len(paths)};"
            " choose another run or a smaller --last, or raise train.keep_last and train on"
        )
    output = output or run_dir / f"averaged-{last}"
    require_new_directory(output)
    try:
        description = description_if_sound(run_dir)
        checkpoints = [load_step(path, description) for path in paths[:last]]
        _require_newest(run_dir, checkpoints)
        weights = _mean_weights(checkpoints)
    except CheckpointError:
        if retries and list_checkpoints(run_dir) != paths:
            return average(run_dir, last, output, retries - 1)
        raise
    newest = checkpoints[0]
    # The scores of the run were not measured on the averaged weights.
    progress = replace(
        newest.progress, best_bleu=-1.0, best_step=0, validations_since_best=0, valid_step=0
    )
    state = replace(newest.state, progress=progress)
    steps = [checkpoint.progress.step for checkpoint in checkpoints]
    logger.info("averaging steps %s", ", ".join(map(str, steps)))
    with new_directory(output) as folder:  # with run.json from the start
        save_checkpoint(folder, {MODEL: weights}, state, newest.config, newest.vocab)
        if description:
            write_description(folder, replace(description, averaged_steps=steps, complete=True))
    return output


def _require_newest(run_dir: Path, checkpoints: Sequence[Checkpoint]) -> None:
    """Refuses checkpoints of different runs, and an old best one behind the newest."""
    newest, oldest, last = checkpoints[0], checkpoints[-1].step, len(checkpoints)
    for checkpoint in checkpoints[1:]:
        newest.require_same_run(checkpoint)
    train, following = newest.config.train, checkpoints[-2:][0]  # of a single one, itself
    # In a larger gap, checkpoints were deleted before keep_last was raised.
    gap, save_every = following.step - oldest, following.config.train.save_every
    is_old = last > train.keep_last or gap > save_every
    if is_old and oldest == newest.progress.best_step:
        raise CheckpointError(
            f"{run_dir}: --last {last}: step {oldest} is kept as the best, not as one of the newest"
            f" (train.keep_last = {train.keep_last}); choose a smaller --last"
        )


def _mean_weights(checkpoints: Sequence[Checkpoint]) -> dict[str, torch.Tensor]:
    """Averages in float64, so that the order of the sum does not matter."""
    sums: dict[str, torch.Tensor] = {}
    for checkpoint in checkpoints:
        for name, tensor in checkpoint.load_tensors(MODEL).items():
            sums[name] = sums.get(name, 0.0) + tensor.double()
    return {name: (total / len(checkpoints)).float() for name, total in sums.items()}
