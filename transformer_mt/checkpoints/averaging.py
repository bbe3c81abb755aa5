"""The mean of a run's last checkpoints, as the paper evaluates it (section 6.1)."""

from pathlib import Path

import safetensors.torch
import torch

from transformer_mt.checkpoints.checkpoint import (
    MODEL,
    list_checkpoints,
    load_checkpoint,
    write_checkpoint,
)
from transformer_mt.errors import CheckpointError


def average(run_dir: Path, last: int, output: Path | None) -> Path:
    """Averages the weights of the newest checkpoints of a run.

    The mean is taken in float64. What is written is a complete checkpoint to translate with or
    to begin another run from; it cannot be resumed, having no moments.

    Args:
        run_dir: The run.
        last: How many of its checkpoints.
        output: Where to put the result; None is `averaged-N` in the run.

    Returns:
        The directory written.

    Raises:
        CheckpointError: If there are not so many, one of them is damaged, or the directory exists.
    """
    paths = list_checkpoints(run_dir)
    if len(paths) < last or not paths:
        raise CheckpointError(
            f"{run_dir}: has {len(paths)} checkpoints, not {last}; choose --last accordingly, or"
            " raise train.keep_last and train on"
        )
    output = output or run_dir / f"averaged-{last}"
    if output.exists():
        raise CheckpointError(f"{output}: exists already; name another directory with -o")
    checkpoints = [load_checkpoint(path) for path in paths[:last]]
    sums: dict[str, torch.Tensor] = {}
    for checkpoint in checkpoints:
        for name, tensor in safetensors.torch.load_file(checkpoint.path / MODEL).items():
            sums[name] = sums.get(name, 0.0) + tensor.double()
    mean = {name: (total / last).float() for name, total in sums.items()}
    newest = checkpoints[0]
    return write_checkpoint(output, {MODEL: mean}, newest.config, newest.vocab, newest.state)
