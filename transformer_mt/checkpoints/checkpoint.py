"""Checkpoints: atomic, verified, self-contained directories.

    RUN/step-00001000/
        model.safetensors      weights, a tied matrix once
        ema.safetensors        their moving average, with train.ema_decay
        training.safetensors   Adam's moments; the newest two checkpoints only
        state.json             position, best score, loss scale, precision
        config.json            the whole configuration
        vocab.model            or src.model and tgt.model
        manifest.json          SHA-256 of each file and of itself

Nothing in it is ever unpickled, and nothing half-written is ever loaded.
"""

import errno
import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import safetensors
import safetensors.torch
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from transformer_mt.config import Config, changed_keys, flat_values, parse_config
from transformer_mt.errors import CheckpointError, ConfigError, DataError
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.files import (
    MANIFEST,
    atomic_directory,
    canonical_json,
    delete_directory,
    read_json,
    read_manifest,
    sha256,
    verify_manifest,
    write_manifest,
)
from transformer_mt.text.vocabulary import PAD_ID, SHARED, Vocabulary
from transformer_mt.training.engine import Engine, LogWindow

logger = logging.getLogger(__name__)

MODEL, EMA, TRAINING = "model.safetensors", "ema.safetensors", "training.safetensors"
STATE, CONFIG = "state.json", "config.json"
KEEP_TRAINING = 2
"""Checkpoints that keep optimizer moments: the newest, and the one to fall back to."""

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")
_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class TrainState:
    """Where a run stands, apart from weights and moments.

    Attributes:
        step: Steps of data consumed, skipped ones included.
        epoch: Epoch the next step belongs to, from 0.
        index: Steps of that epoch already consumed.
        seconds: Training time so far, over all resumptions.
        skipped: Steps left out because their numbers were not finite.
        best_bleu: Best validation BLEU so far; below 0 before the first validation.
        best_step: Step of that validation.
        bad_validations: Validations since.
        valid_step: Step of the latest validation.
        precision: What `auto` was resolved to.
        corpus: Digest of the training ids.
        scaler: State of the fp16 loss scaler; empty without one.
        bad_in_row: Steps just before with non-finite numbers.
        window: Sums since the last log line.
    """

    step: int = 0
    epoch: int = 0
    index: int = 0
    seconds: float = 0.0
    skipped: int = 0
    best_bleu: float = -1.0
    best_step: int = 0
    bad_validations: int = 0
    valid_step: int = 0
    precision: str = "fp32"
    corpus: str = ""
    scaler: dict[str, Any] | None = None
    bad_in_row: int = 0
    window: LogWindow = field(default_factory=LogWindow)

    def with_(self, **changes: Any) -> Self:
        """Gives a copy with some attributes changed."""
        return replace(self, **changes)


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint, read back.

    Attributes:
        path: Its directory.
        files: The names its manifest vouches for; nothing else is read.
        config: The run's configuration.
        vocab: Its vocabulary.
        state: Where the run stood.
    """

    path: Path
    files: frozenset[str]
    config: Config
    vocab: Vocabulary
    state: TrainState

    def require_config(self, config: Config) -> None:
        """Refuses to resume under a configuration that would make another model.

        Raises:
            CheckpointError: Naming each key that differs, with both values.
        """
        if keys := changed_keys(self.config, config):
            was, is_ = flat_values(self.config), flat_values(config)
            changes = ", ".join(f"{key} (was {was[key]}, is {is_[key]})" for key in keys)
            raise CheckpointError(
                f"{self.path.parent}: made with another configuration: {changes};"
                " name another --run directory, or change it back"
            )

    def build_model(self, raw: bool = False) -> Transformer:
        """Builds the model with its weights, on the CPU, in evaluation mode.

        Args:
            raw: Takes the weights themselves although there is a moving average of them.

        Raises:
            CheckpointError: If the weights are not those of the configuration.
        """
        model = Transformer(self.config.model, self.vocab.src_size, self.vocab.tgt_size, PAD_ID)
        self.load_weights(model, EMA if EMA in self.files and not raw else MODEL)
        return model.eval()

    def load_weights(self, model: nn.Module, name: str = MODEL) -> None:
        """Copies the weights of a file into a model.

        Raises:
            CheckpointError: If a name or shape differs.
        """
        try:
            safetensors.torch.load_model(model, self.path / name)
        except (RuntimeError, OSError, safetensors.SafetensorError) as error:
            raise CheckpointError(f"{self.path / name}: {_one_line(error)}") from None

    def restore(self, engine: Engine) -> None:
        """Copies weights, moments, their moving average and the loss scale into an engine.

        Raises:
            CheckpointError: If the checkpoint holds no moments, or other weights.
        """
        if TRAINING not in self.files:
            raise CheckpointError(f"{self.path}: holds no {TRAINING}, so training cannot resume")
        self.load_weights(engine.model)
        try:
            tensors = safetensors.torch.load_file(self.path / TRAINING)
            optimizer = engine.optimizer.state_dict()
            optimizer["state"] = {
                index: {key: tensors[f"{key}.{name}"] for key in _MOMENTS}
                for index, (name, _) in enumerate(engine.model.named_parameters())
            }
            engine.optimizer.load_state_dict(optimizer)
        except (safetensors.SafetensorError, OSError, KeyError, ValueError) as error:
            raise CheckpointError(f"{self.path / TRAINING}: {_one_line(error)}") from None
        if engine.ema:
            with engine.ema.in_place():
                self.load_weights(engine.model, EMA)
        if engine.scaler.is_enabled() and self.state.scaler:
            engine.scaler.load_state_dict(self.state.scaler)
        engine.skipped.fill_(self.state.skipped)
        engine.bad_in_row.fill_(self.state.bad_in_row)
        engine.new_window(self.state.window)


def save_checkpoint(
    run_dir: Path, engine: Engine, config: Config, vocab: Vocabulary, state: TrainState
) -> Path:
    """Writes the checkpoint of a step.

    Returns:
        The checkpoint directory.

    Raises:
        OSError: If the disk does not take it; what was there before is untouched.
    """
    files = {MODEL: _weights(engine.model), TRAINING: _moments(engine.model, engine.optimizer)}
    if engine.ema:
        with engine.ema.in_place():
            files[EMA] = {name: tensor.clone() for name, tensor in files[MODEL].items()}
    return write_checkpoint(run_dir / f"step-{state.step:08d}", files, config, vocab, state)


def write_checkpoint(
    final: Path,
    files: Mapping[str, dict[str, Tensor]],
    config: Config,
    vocab: Vocabulary,
    state: TrainState,
) -> Path:
    """Writes a checkpoint beside its final name, syncs it to disk and renames it.

    Args:
        final: Its name.
        files: The tensors of each safetensors file.
        config: The run's configuration.
        vocab: Its vocabulary.
        state: Where the run stands.

    Returns:
        The checkpoint directory.

    Raises:
        OSError: If the disk does not take it; what was there before is untouched.
    """
    try:
        with atomic_directory(final) as folder:
            for name, tensors in files.items():
                safetensors.torch.save_file(tensors, folder / name)
            (folder / STATE).write_bytes(canonical_json(asdict(state)))
            (folder / CONFIG).write_bytes(canonical_json(config.model_dump(mode="json")))
            vocab.save(folder)
            write_manifest(folder, {path.name: sha256(path) for path in folder.iterdir()})
    except safetensors.SafetensorError as error:  # raised when the disk is full
        raise OSError(errno.EIO, _one_line(error), str(final)) from error
    return final


def prune(run_dir: Path, keep_last: int, best_step: int) -> None:
    """Deletes all but the newest checkpoints and the best, and moments no resume will need."""
    for leftover in run_dir.glob(".step-*.partial"):
        shutil.rmtree(leftover)
    for age, path in enumerate(list_checkpoints(run_dir)):
        if age >= keep_last and _step(path) != best_step:
            delete_directory(path)
        elif age >= KEEP_TRAINING and (path / TRAINING).exists():
            files = read_manifest(path)
            files.pop(TRAINING, None)
            write_manifest(path, files)
            (path / TRAINING).unlink()


def list_checkpoints(run_dir: Path) -> list[Path]:
    """Lists the checkpoint directories of a run, newest first."""
    if not run_dir.is_dir():
        return []
    return sorted((path for path in run_dir.iterdir() if _NAME.fullmatch(path.name)), reverse=True)


def load_checkpoint(path: Path) -> Checkpoint:
    """Verifies and reads one checkpoint directory.

    Raises:
        CheckpointError: Naming the file that is missing or damaged.
    """
    files = verify_manifest(path)
    try:
        config = parse_config(read_json(path / CONFIG), str(path / CONFIG))
        state = _parse_state(read_json(path / STATE), path / STATE)
        vocab = Vocabulary.load(path / SHARED if SHARED in files else path)
        return Checkpoint(path, files, config, vocab, state)
    except (ConfigError, DataError) as error:
        raise CheckpointError(str(error)) from None
    except (ValueError, TypeError, OSError) as error:
        raise CheckpointError(f"{path}: not readable: {_one_line(error)}") from None


def _parse_state(values: Any, path: Path) -> TrainState:
    try:
        state = TypeAdapter(TrainState).validate_json(canonical_json(values), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(f"{path}: {first['loc'] or 'all of it'}: {first['msg']}") from None
    if values != asdict(state) or min(state.step, state.epoch, state.index) < 0:
        raise CheckpointError(f"{path}: not the state of a run of this version")
    return state


def load_newest(run_dir: Path) -> Checkpoint | None:
    """Reads the newest undamaged checkpoint of a run, warning about each damaged one.

    Returns:
        The checkpoint; None if the run has none.

    Raises:
        CheckpointError: If there are checkpoints and none is good.
    """
    paths = list_checkpoints(run_dir)
    for path in paths:
        try:
            return load_checkpoint(path)
        except CheckpointError as error:
            logger.warning("%s; trying the checkpoint before it", error)
    if paths:
        raise CheckpointError(f"{run_dir}: none of its {len(paths)} checkpoints is undamaged")
    return None


def find_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint directory, or a run's best checkpoint, or else its newest.

    Raises:
        CheckpointError: If there is none.
    """
    if (path / MANIFEST).exists():
        return load_checkpoint(path)
    newest = load_newest(path)
    if newest is None:
        what = "no checkpoint in it" if path.is_dir() else "no such run or checkpoint"
        raise CheckpointError(f"{path}: {what}")
    best = path / f"step-{newest.state.best_step:08d}"
    if newest.state.best_bleu < 0 or best == newest.path:
        return newest
    try:
        return load_checkpoint(best)
    except CheckpointError as error:
        logger.warning("%s; using the newest instead of the best", error)
        return newest


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in model.state_dict().items()}


def _moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    states = optimizer.state_dict()["state"]
    return {
        f"{key}.{name}": states[index][key].contiguous()
        for index, (name, _) in enumerate(model.named_parameters())
        for key in _MOMENTS
        if index in states
    }


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
