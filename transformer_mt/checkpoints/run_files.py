"""What a run directory holds beside its checkpoints; reading it imports no torch."""

import hashlib
import re
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from transformer_mt.errors import CheckpointError
from transformer_mt.system.files import atomic_file, canonical_json, read_json

METRICS = "metrics.jsonl"
"""Metrics of a run, one JSON object per line."""
RUN_FILE = "run.json"
"""Describes the text, model and environment of a run; holds its own SHA-256."""
STEP_NAME = re.compile(r"step-\d{8,}")
"""The directory names of the checkpoints of steps."""
_OBJECT = TypeAdapter(dict[str, Any])


def step_name(step: int) -> str:
    """Gives the directory name of a step's checkpoint."""
    return f"step-{step:08d}"


def not_a_run(path: Path, missing: str) -> CheckpointError:
    """Makes the error for a path that does not exist or lacks what a run directory holds."""
    reason = f"is no run directory: it has no {missing}" if path.exists() else "no such run"
    return CheckpointError(f"{path}: {reason}")


def write_description(directory: Path, description: dict[str, Any]) -> None:
    """Writes run.json into a directory.

    Raises:
        OSError: If it cannot be written.
    """
    digest = hashlib.sha256(canonical_json(description)).hexdigest()
    with atomic_file(directory / RUN_FILE) as file:
        file.write(canonical_json({**description, "sha256": digest}))


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
        digest = description.pop("sha256", None)
        if digest != hashlib.sha256(canonical_json(description)).hexdigest():
            raise CheckpointError(f"{path}: damaged (its own SHA-256 does not match)")
    except CheckpointError as error:
        raise CheckpointError(f"{error}; resume the run, which writes it again") from None
    return description
