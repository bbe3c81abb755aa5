"""One checkpoint: an atomic, verified, self-contained directory.

    RUN/step-00001000/
        model.safetensors      weights; a tied matrix is stored once
        ema.safetensors        their moving average, if train.ema_decay is set
        training.safetensors   moments of the optimizer; the newest two checkpoints only
        state.json             step, best score, counters, environment
        config.json            the whole configuration
        vocab.model            or src.model and tgt.model
        manifest.json          SHA-256 of each file and of itself

Nothing in it is ever unpickled, and nothing half-written is ever loaded.
"""

import errno
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import safetensors
import safetensors.torch
import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt
from torch import Tensor

from transformer_mt.checkpoints.layout import CONFIG, EMA, MODEL, STATE, TRAINING, digest_of_files
from transformer_mt.config.changes import changed_keys
from transformer_mt.config.keys import Config, flat_values
from transformer_mt.config.loading import format_value
from transformer_mt.config.section import OnChange
from transformer_mt.errors import CheckpointError, DataError
from transformer_mt.model.transformer import Transformer, parameter_shapes
from transformer_mt.system.console import logger
from transformer_mt.system.files import (
    atomic_directory,
    canonical_json,
    read_json,
    set_mode,
    sha256,
)
from transformer_mt.system.manifest import read_manifest, verify_manifest, write_manifest
from transformer_mt.text.splitting import SourceStatistics
from transformer_mt.text.vocabulary import PAD_ID, SHARED, Vocabulary
from transformer_mt.version import source_digest

FORMAT = 2
"""Format of `state.json`. A new key with a default needs no new number; a renamed key needs one,
and checkpoints of the format before it are refused."""
TEXTS = {"corpus_digest": "training text", "valid_digest": "validation text"}
"""The texts of a run, by the fields of `Progress` that hold their digests."""
ORIGINS = {**TEXTS, "init_digest": "train.init_from"}
"""All that a run is made from, likewise."""
MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""What the optimizer keeps of each parameter: two tensors of its shape, and a number of steps."""


@dataclass(frozen=True)
class Progress:
    """How far a run has come. Weights and optimizer are stored as tensors."""

    step: NonNegativeInt = 0  # steps taken, skipped ones included
    epoch: NonNegativeInt = 0  # that of the next step, from 0
    epoch_step: NonNegativeInt = 0  # steps of this epoch that are done
    seconds: NonNegativeFloat = 0.0  # training time over all resumptions
    best_bleu: float = -1.0  # by `valid.metric`; 0 if that is nll, negative before any validation
    best_step: NonNegativeInt = 0
    validations_since_best: NonNegativeInt = 0
    valid_step: NonNegativeInt = 0  # that of the last validation
    # The values to which `auto` was resolved.
    precision: Annotated[str, Field(pattern="^(fp32|bf16|fp16)$")] = "fp32"
    micro_batch_tokens: NonNegativeInt = 0
    finer_step: NonNegativeInt = 0  # step at which it was lowered for lack of memory, or 0
    corpus_digest: str = ""  # of the training ids
    valid_digest: str = ""  # of the validation text
    # The checkpoint of `train.init_from`: its steps, its digest, and its name, the name of its text
    # and the digest of that.
    init_step: NonNegativeInt = 0
    init_digest: str = ""
    init_names: dict[str, str] = field(default_factory=dict)
    best_nll: float = 0.0  # decides between equal values of `best_bleu`
    changed_step: NonNegativeInt = 0  # step at which a resumption last ended bit-equality, or 0


@dataclass(frozen=True)
class RunState:
    """The content of `state.json`.

    Only the training engine interprets `counters`; `environment` names the properties that
    bit-identical results depend on. `sources` describes the training text, so that lines are split
    as the model needs it. `vocabulary` has the SHA-256 of the vocabulary's files, with which it is
    saved.
    """

    progress: Progress = field(default_factory=Progress)
    counters: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    sources: SourceStatistics | None = None
    vocabulary: list[str] = field(default_factory=list)
    format: int = FORMAT


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint that has been loaded; its tensors are read on demand.

    Only `files`, those that its manifest lists, are ever read. `digest` covers all of them but the
    optimizer's moments, which pruning deletes.
    """

    path: Path
    files: frozenset[str]
    digest: str
    config: Config = field(repr=False)
    vocab: Vocabulary = field(repr=False)
    state: RunState = field(repr=False)
    is_exported: ClassVar[Literal[False]] = False

    @property
    def progress(self) -> Progress:
        """Progress of the run."""
        return self.state.progress

    @property
    def step(self) -> int:
        """Step after which it was saved."""
        return self.progress.step

    @property
    def sources(self) -> SourceStatistics | None:
        """What the sources of the training text look like, if it is known."""
        return self.state.sources

    def is_averaged(self, raw: bool) -> bool:
        """Returns whether `build_model(raw)` gives the moving average of the weights."""
        return EMA in self.files and not raw

    def is_raw(self, raw: bool) -> bool:
        """Returns whether it gives the weights themselves although there is an average."""
        return EMA in self.files and raw

    def require_config(self, config: Config) -> None:
        """Raises an error for a configuration that would train a different model.

        Raises:
            CheckpointError: Naming each key that differs, with both values.
        """
        keys = changed_keys(self.config, config, OnChange.REFUSED, OnChange.SHAPES_CORPUS)
        if keys:
            old, new = flat_values(self.config), flat_values(config)
            changes = ", ".join(
                f"{key} (was {format_value(old[key])}, is {format_value(new[key])})" for key in keys
            )
            raise CheckpointError(
                f"{self.path.parent}: made with another configuration: {changes};"
                " name another --run directory, or change it back"
            )

    def differences(self, config: Config, digests: Mapping[str, object]) -> list[str]:
        """Names what keeps a run with this configuration from being the one of this checkpoint.

        Args:
            config: The configuration of the run.
            digests: What it is made from, by the keys of `ORIGINS`.
        """
        keys = changed_keys(self.config, config, OnChange.REFUSED, OnChange.SHAPES_CORPUS)
        own = asdict(self.progress)
        return keys + [name for key, name in ORIGINS.items() if own[key] != digests[key]]

    def require_same_run(self, other: "Checkpoint") -> None:
        """Raises an error for a checkpoint that cannot be of the same run.

        Raises:
            CheckpointError: Naming what differs.
        """
        differing = self.differences(other.config, asdict(other.progress))
        if not self.vocab.has_same_ids(other.vocab):
            differing.append("the vocabulary")
        if differing:
            raise CheckpointError(
                f"{other.path}: not of the same run as {self.path}: they differ in"
                f" {', '.join(differing)}"
            )

    def build_model(self, raw: bool = False) -> Transformer:
        """Builds the model on the CPU, in evaluation mode.

        Its weights are their moving average, if there is one and `raw` is False.
        """
        model = Transformer(self.config.model, self.vocab.src.size, self.vocab.tgt.size, PAD_ID)
        model.float()  # whatever PyTorch's default is
        name = EMA if self.is_averaged(raw) else MODEL
        model.load_state_dict(self.load_tensors(name))
        return model.eval()

    def load_tensors(self, name: str) -> dict[str, Tensor]:
        """Reads the tensors of one file, by name.

        Raises:
            CheckpointError: If the checkpoint does not have the file, or it cannot be read.
        """
        if name not in self.files:
            raise CheckpointError(f"{self.path}: has no {name}")
        path = self.path / name
        if not path.exists():
            raise CheckpointError(f"{path}: was deleted meanwhile; run the command again")
        return _read_tensors(path)


def save_checkpoint(
    path: Path,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: RunState,
    config: Config,
    vocab: Vocabulary,
) -> None:
    """Writes a checkpoint, replacing one of the same name; `tensors` are by file and name.

    Raises:
        OSError: If it cannot be written; the previous checkpoint is unchanged.
    """
    with atomic_directory(path) as folder:
        state = replace(state, vocabulary=[sha256(file) for file in vocab.save(folder)])
        (folder / STATE).write_bytes(canonical_json(state))
        (folder / CONFIG).write_bytes(canonical_json(config))
        for name, content in tensors.items():
            write_tensors(folder / name, content)
        write_manifest(folder, {file.name: sha256(file) for file in folder.iterdir()})


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Writes tensors by name to a new file.

    Raises:
        OSError: If it cannot be written.
    """
    path.touch()
    mode = path.stat().st_mode
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    try:
        safetensors.torch.save_file(contiguous, path, metadata)
    except safetensors.SafetensorError as error:  # raised by safetensors for a full disk
        raise OSError(errno.EIO, str(error)) from error
    set_mode(path, mode)  # safetensors lets only the owner read its files, whatever the umask is


def load_checkpoint(path: Path) -> Checkpoint:
    """Verifies and reads one checkpoint directory.

    Every file is what the manifest says; every tensor has the name, shape and type that the
    configuration says, and is finite.

    Raises:
        CheckpointError: Naming the file, and the tensor or key, that is missing or damaged.
    """
    listed = read_manifest(path)
    try:
        return _load(path)
    except CheckpointError:
        if read_manifest(path) == listed:
            raise
        return load_checkpoint(path)  # its trainer has deleted the moments meanwhile


def _load(path: Path) -> Checkpoint:
    files = verify_manifest(path)
    names = (SHARED, SHARED) if SHARED in files else ("src.model", "tgt.model")
    if missing := {MODEL, STATE, CONFIG, *names} - files.keys():
        raise CheckpointError(f"{path}: its manifest does not list {min(missing)}")
    state: RunState = read_json(path / STATE, RunState, FORMAT)
    config: Config = read_json(path / CONFIG, Config)
    src_path, tgt_path = (path / name for name in names)
    if state.vocabulary != [files[name] for name in dict.fromkeys(names)]:
        raise CheckpointError(f"{src_path}: not the vocabulary of the trained model")
    try:
        vocab = Vocabulary.load_files(src_path, tgt_path, config.data.normalize)
        weights = parameter_shapes(config.model, vocab.src.size, vocab.tgt.size)
        _verify_tensors(path / MODEL, weights, state)
        if EMA in files:
            _verify_tensors(path / EMA, weights, state)
        if TRAINING in files:
            moments = {
                f"{key}.{name}": () if key == "step" else shape
                for name, shape in weights.items()
                for key in MOMENTS
            }
            _verify_tensors(path / TRAINING, moments, state)
        return Checkpoint(path, frozenset(files), digest_of_files(files), config, vocab, state)
    except DataError as error:
        raise CheckpointError(str(error)) from None
    except (ValueError, TypeError, OSError) as error:
        raise CheckpointError(f"{path}: not readable: {error}") from None


def find_nonfinite(tensors: Mapping[str, Tensor]) -> str | None:
    """Returns the name of a tensor with NaN or infinity in it; None if all are finite."""
    for name, tensor in tensors.items():
        if not torch.stack(tensor.aminmax()).isfinite().all():  # four times faster than isfinite()
            return name
    return None


def _verify_tensors(path: Path, shapes: Mapping[str, tuple[int, ...]], state: RunState) -> None:
    """Requires the tensors of a file to have the given names and shapes and to be finite float32.

    The optimizer has no moments before the first step.

    Raises:
        CheckpointError: Naming the file and the first tensor that is not as it must be.
    """
    tensors = _read_tensors(path)
    if path.name == TRAINING and state.progress.step == 0 and not tensors:
        return
    if mismatch := _find_mismatch(tensors, shapes):
        if _has_changed_model(state):
            mismatch += "; the source of model/ has changed since it was trained"
        raise CheckpointError(f"{path}: {mismatch}")
    if bad := find_nonfinite(tensors):
        raise CheckpointError(f"{path}: {bad} is not finite: training has diverged")


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def _find_mismatch(
    tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]
) -> str | None:
    """Describes the first tensor whose name, shape or type is wrong."""
    actual = {name: f"{each.dtype} {tuple(each.shape)}" for name, each in tensors.items()}
    expected = {name: f"torch.float32 {shape}" for name, shape in shapes.items()}
    for name in sorted(actual.keys() | expected.keys()):
        if actual.get(name) != expected.get(name):
            return f"{name} is {actual.get(name, 'missing')}, not {expected.get(name, 'known')}"
    return None


def _has_changed_model(state: RunState) -> bool:
    """Tells if the model's source files are known to differ from those it was trained with."""
    current = source_digest("model")
    return state.environment.get("source of model/", current) != current


def warn_of_changed_model(checkpoints: Iterable[Checkpoint]) -> None:
    """Warns of each checkpoint that was trained with other source files of the model."""
    for checkpoint in checkpoints:
        if _has_changed_model(checkpoint.state):
            logger.warning(
                "%s: the source of model/ has changed since it was trained; it may translate"
                " differently",
                checkpoint.path,
            )
