"""Names of what a run directory and a checkpoint in it hold."""

import re
from collections.abc import Mapping
from pathlib import Path

from transformer_mt.errors import CheckpointError
from transformer_mt.system.files import json_digest
from transformer_mt.system.manifest import MANIFEST, read_manifest

METRICS = "metrics.jsonl"
"""Metrics of a run, one JSON object per line."""
RUN_FILE = "run.json"
"""Describes the text, model and environment of a run; holds its own SHA-256."""
RUN_CONFIG, RUN_DIFF = "config.toml", "source.diff"
"""From which `train` repeats a run: its configuration, and changes of the program."""
LOCK = ".lock"
"""Held while a run is trained; it stays."""
STEP_NAME = re.compile(r"step-\d{8,}")
"""The directory names of the checkpoints of steps."""
MODEL, EMA, TRAINING = "model.safetensors", "ema.safetensors", "training.safetensors"
"""Weights, their moving average, and the optimizer's moments, which old checkpoints lose."""
STATE, CONFIG = "state.json", "config.json"
EXPORT = "export.json"
"""Only a directory that `export` wrote for CTranslate2 has it."""
GENERATION_CONFIG = "generation_config.json"
"""A model for transformers has it, such as `export` writes."""


def checkpoint_path(run_dir: Path, step: int) -> Path:
    """Returns the directory of a step's checkpoint."""
    return run_dir / f"step-{step:08d}"


def find_config(config: Path, run_dir: Path | None) -> tuple[Path, Path]:
    """Returns the TOML file of a configuration or a run, and by default where it is trained.

    Raises:
        CheckpointError: If a run has none, or the path is a checkpoint.
    """
    if (config / EXPORT).exists():
        raise CheckpointError(f"{config}: an exported model cannot be trained; name its run")
    if (config / MANIFEST).exists():
        raise CheckpointError(
            f"{config}: is a checkpoint; name its run, or a configuration with train.init_from"
        )
    if (config / RUN_FILE).exists() and not (config / RUN_CONFIG).exists():
        raise CheckpointError(f"{config}: has no {RUN_CONFIG}; name its configuration file")
    if config.is_dir():
        return config / RUN_CONFIG, run_dir or config
    is_of_run = config.name == RUN_CONFIG and (config.parent / RUN_FILE).exists()
    default = config.parent if is_of_run else Path("checkpoints") / config.stem
    return config, run_dir or default


def not_a_run(path: Path, missing: str) -> CheckpointError:
    """Makes the error for a path that does not exist or lacks what a run directory holds."""
    reason = f"is no run directory: it has no {missing}" if path.exists() else "no such run"
    return CheckpointError(f"{path}: {reason}")


def checkpoint_digest(path: Path) -> str:
    """Computes the digest of a checkpoint, or of an exported model, from its manifest.

    The files are not verified. Moments do not count.

    Raises:
        CheckpointError: If the manifest is missing or damaged.
    """
    return digest_of_files(read_manifest(path))


def digest_of_files(digests: Mapping[str, str]) -> str:
    """Computes the same from the digests that the manifest has."""
    return json_digest({name: each for name, each in digests.items() if name != TRAINING})
