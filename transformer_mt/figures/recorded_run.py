"""The contents of a run directory, read for its report."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_mt.checkpoints.checkpoint import Checkpoint, Progress
from transformer_mt.checkpoints.evaluations import EvaluationRecord, read_evaluations, run_folders
from transformer_mt.checkpoints.run_directory import (
    METRICS,
    RUN_FILE,
    find_checkpoint,
    list_checkpoints,
    load_newest,
    read_description,
)
from transformer_mt.config.keys import Config
from transformer_mt.config.loading import parse_config
from transformer_mt.errors import CheckpointError, ConfigError
from transformer_mt.figures.metrics import RunMetrics, read_metrics
from transformer_mt.system.files import MANIFEST

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RecordedRun:
    """The contents of a run directory.

    Attributes:
        path: The directory.
        config: Its configuration.
        metrics: Its curves; without records if nothing was logged yet.
        description: The content of run.json; empty if there is none.
        evaluations: Scores and translations, oldest first.
        checkpoint: The checkpoint that represents the run; None if there is none yet.
        progress: How far training has come, according to the newest checkpoint.
    """

    path: Path
    config: Config
    metrics: RunMetrics
    description: dict[str, Any]
    evaluations: list[EvaluationRecord]
    checkpoint: Checkpoint | None
    progress: Progress

    @property
    def name(self) -> str:
        """The name of the directory."""
        return self.metrics.name


def read_run(run_dir: Path) -> RecordedRun:
    """Reads a run, which may be in training and may lack parts.

    Raises:
        CheckpointError: If there is no such run, or all its checkpoints are damaged.
    """
    if not run_dir.is_dir():
        raise CheckpointError(f"{run_dir}: no such run")
    if (run_dir / MANIFEST).exists():
        raise CheckpointError(f"{run_dir}: is a checkpoint; name the run directory")
    checkpoint = find_checkpoint(run_dir) if list_checkpoints(run_dir) else None
    description = read_description(run_dir)
    if not checkpoint and not description:
        raise CheckpointError(f"{run_dir}: has neither {RUN_FILE} nor a checkpoint; name a run")
    config = checkpoint.config if checkpoint else _parse(description, run_dir / RUN_FILE)
    has_metrics = (run_dir / METRICS).exists()
    metrics = read_metrics(run_dir) if has_metrics else RunMetrics(run_dir.resolve().name, [])
    evaluations = read_evaluations(run_folders(run_dir))
    newest = load_newest(run_dir)
    progress = newest.progress if newest else Progress()
    return RecordedRun(run_dir, config, metrics, description, evaluations, checkpoint, progress)


def _parse(description: dict[str, Any], path: Path) -> Config:
    try:
        return parse_config(description["config"], str(path))
    except ConfigError as error:
        raise CheckpointError(str(error)) from None
