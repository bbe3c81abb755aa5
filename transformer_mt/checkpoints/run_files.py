"""What a run directory holds beside its checkpoints; reading it imports no torch."""

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from transformer_mt.errors import CheckpointError
from transformer_mt.system.files import read_json

METRICS = "metrics.jsonl"
"""Metrics of a run, one JSON object per line."""
RUN_FILE = "run.json"
"""Describes the text, model and environment of a run."""

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
    try:
        description: _Description = read_json(path, _DESCRIPTION)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; resume the run, which writes it again") from None
    return description.model_dump(exclude_unset=True)


_Count = Annotated[int, Field(ge=0)]
_Counts = Annotated[list[_Count], Field(min_length=1)]


class _Section(BaseModel):
    """A part of run.json: what is shown must be there; more may be, and is kept."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Corpus(_Section):
    pairs: _Count
    kept: _Count
    dropped: dict[str, _Count]
    pieces: _Count
    pieces_per_word: float
    unknown: _Count
    longest: _Count
    digest: str


class _Sides(_Section):
    src: int | float
    tgt: int | float


class _Lengths(_Section):
    width: Annotated[int, Field(ge=1)]
    mean: _Sides
    src: _Counts
    tgt: _Counts


class _Validation(_Section):
    pairs: _Count
    digest: str


class _Description(_Section):
    config: dict[str, Any]
    corpus: _Corpus
    lengths: _Lengths
    validation: _Validation
    vocabulary: _Sides
    parameters: _Count
    precision: str
    software: str
    environment: dict[str, str]
    averaged_steps: list[_Count] = []


_DESCRIPTION = TypeAdapter(_Description)
