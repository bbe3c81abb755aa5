"""The data that a checkpoint stores besides tensors: progress, counters, environment."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from transformer_mt.errors import CheckpointError
from transformer_mt.system.files import canonical_json

FORMAT = 2
"""Format of `state.json`. A new key with a default needs no new number; a renamed key needs one,
and an entry in `_upgrade`."""

Count = Annotated[int, Field(ge=0)]

_FORMAT_1_PROGRESS = {
    "step": "step",
    "epoch": "epoch",
    "index": "epoch_step",
    "seconds": "seconds",
    "best_bleu": "best_bleu",
    "best_step": "best_step",
    "bad_validations": "validations_since_best",
    "valid_step": "valid_step",
    "precision": "precision",
    "corpus": "corpus_digest",
}


@dataclass(frozen=True)
class Progress:
    """Progress of a run: step, epoch, best score. Weights and optimizer are stored as tensors.

    Attributes:
        step: Optimizer steps taken, skipped ones included.
        epoch: Epoch of the next step, from 0.
        epoch_step: Steps of that epoch already taken.
        seconds: Training time so far, over all resumptions.
        best_bleu: Best validation BLEU so far; negative before the first validation.
        best_step: Step of that validation.
        validations_since_best: Validations after it.
        valid_step: Step of the latest validation.
        precision: `fp32`, `bf16` or `fp16`; the value to which `auto` was resolved.
        corpus_digest: Digest of the training ids.
        valid_digest: Digest of the validation text; empty if it was not recorded.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    step: Count = 0
    epoch: Count = 0
    epoch_step: Count = 0
    seconds: float = 0.0
    best_bleu: float = -1.0
    best_step: Count = 0
    validations_since_best: Count = 0
    valid_step: Count = 0
    precision: str = "fp32"
    corpus_digest: str = ""
    valid_digest: str = ""


@dataclass(frozen=True)
class RunState:
    """The content of `state.json`.

    Attributes:
        progress: Progress of the run.
        counters: Counters of the training engine; only the engine interprets them.
        environment: Properties that bit-identical results depend on, by name.
        format: Format of the file.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    progress: Progress = field(default_factory=Progress)
    counters: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT

    def to_json(self) -> bytes:
        """Encodes the state as the content of `state.json`."""
        return canonical_json(asdict(self))


def parse_state(values: Any, path: Path) -> RunState:
    """Reads a state of this format or an older one; keys that are missing get their defaults.

    Args:
        values: Parsed JSON.
        path: The file it comes from, for messages.

    Raises:
        CheckpointError: If it is malformed, or of a newer format.
    """
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: not a training state")
    version = values.get("format", 1)
    if isinstance(version, int) and version > FORMAT:
        raise CheckpointError(
            f"{path}: format {version} is newer than this program's format {FORMAT};"
            " use a newer transformer-mt"
        )
    try:
        upgraded = _upgrade(values) if version == 1 else values
        return TypeAdapter(RunState).validate_json(canonical_json(upgraded), strict=True)
    except ValidationError as error:
        raise CheckpointError(f"{path}: {_describe(error)}") from None
    except (KeyError, AttributeError) as error:
        raise CheckpointError(f"{path}: not a training state ({error})") from None


def _describe(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"])) or "the whole file"
    if first["type"] == "extra_forbidden":
        return f"{key} is unknown to this version; use a newer transformer-mt"
    return f"{key}: {first['msg']}"


def _upgrade(values: Mapping[str, Any]) -> dict[str, Any]:
    """Converts format 1, which was flat."""
    progress = {new: values[old] for old, new in _FORMAT_1_PROGRESS.items() if old in values}
    counters = {
        "skipped_steps": values["skipped"],
        "nonfinite_in_row": values["bad_in_row"],
        "loss_scaler": values["scaler"] or {},
        "window": {"flops" if k == "operations" else k: v for k, v in values["window"].items()},
    }
    return {"progress": progress, "counters": counters, "format": FORMAT}
