"""What a run directory holds beside its checkpoints; reading it imports no torch."""

import re
from pathlib import Path
from typing import Any

from transformer_mt.errors import CheckpointError
from transformer_mt.system.files import read_json

METRICS = "metrics.jsonl"
"""Metrics of a run, one JSON object per line."""
RUN_FILE = "run.json"
"""Describes the text, model and environment of a run."""

_DESCRIBED = {"config", "corpus", "lengths", "validation", "vocabulary", "environment", "software"}
_NAME = re.compile(r"step-\d{8,}")


def is_step_name(name: str) -> bool:
    """Tells whether a directory name is that of a step's checkpoint."""
    return _NAME.fullmatch(name) is not None


def step_name(step: int) -> str:
    """Gives the directory name of a step's checkpoint."""
    return f"step-{step:08d}"


def read_description(directory: Path) -> dict[str, Any]:
    """Reads run.json in a directory; returns an empty dict if there is none.

    Raises:
        CheckpointError: If it is damaged.
    """
    path = directory / RUN_FILE
    if not path.exists():
        return {}
    description = read_json(path)
    if not isinstance(description, dict) or not _DESCRIBED <= description.keys():
        raise CheckpointError(f"{path}: damaged; resume the run, which writes it again")
    return description
