"""A run as its directory records it, for the report and the diagnosis of a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_mt.checkpoints.checkpoint import Checkpoint, Progress
from transformer_mt.checkpoints.layout import EXPORT, METRICS, RUN_FILE
from transformer_mt.checkpoints.metrics import RunMetrics, read_metrics
from transformer_mt.checkpoints.run_directory import (
    find_checkpoint,
    load_newest,
    not_a_run,
    read_description,
)
from transformer_mt.config.keys import Config
from transformer_mt.config.loading import parse_recorded_config
from transformer_mt.errors import CheckpointError
from transformer_mt.system.files import MANIFEST


@dataclass(frozen=True)
class RecordedRun:
    """What is recorded of a run, which may be in training and may lack parts.

    The checkpoint is the best, if there is one, but the progress is that of the newest. The
    description is the content of run.json.
    """

    config: Config
    checkpoint: Checkpoint | None
    progress: Progress
    description: dict[str, Any]
    metrics: RunMetrics


def read_run(run_dir: Path) -> RecordedRun:
    """Reads a run directory.

    Raises:
        CheckpointError: If there is no such run, all its checkpoints are damaged, or run.json or
            the metrics are.
    """
    for file, kind in ((EXPORT, "an exported model"), (MANIFEST, "a checkpoint")):
        if (run_dir / file).exists():
            raise CheckpointError(f"{run_dir}: is {kind}; name the run directory")
    newest = load_newest(run_dir)
    checkpoint = find_checkpoint(run_dir) if newest else None
    description = read_description(run_dir)
    if description:  # written when the run was last resumed, so it knows where the text is now
        config = parse_recorded_config(description["config"], str(run_dir / RUN_FILE))
    elif checkpoint:
        config = checkpoint.config
    else:
        raise not_a_run(run_dir, f"{RUN_FILE} and no checkpoint")
    records = read_metrics(run_dir) if (run_dir / METRICS).exists() else []
    progress = newest.progress if newest else Progress()
    metrics = RunMetrics(run_dir.resolve().name, records)
    return RecordedRun(config, checkpoint, progress, description, metrics)
