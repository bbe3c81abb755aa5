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
import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from transformer_mt.checkpoints.state import Progress, RunState, parse_state
from transformer_mt.config.keys import Config, changed_keys, flat_values
from transformer_mt.config.loading import parse_config
from transformer_mt.errors import CheckpointError, ConfigError, DataError
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.files import (
    atomic_directory,
    canonical_json,
    read_json,
    read_manifest,
    sha256,
    verify_manifest,
    write_manifest,
)
from transformer_mt.text.vocabulary import PAD_ID, SHARED, Vocabulary

MODEL, EMA, TRAINING = "model.safetensors", "ema.safetensors", "training.safetensors"
STATE, CONFIG = "state.json", "config.json"


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint that has been loaded; its tensors are read on demand.

    Attributes:
        path: Its directory.
        files: File names that its manifest lists; nothing else is read.
        digest: Digest of all files but the optimizer's moments, which pruning deletes.
        config: The run's configuration.
        vocab: Its vocabulary.
        state: Progress, counters and environment.
    """

    path: Path
    files: frozenset[str]
    digest: str
    config: Config
    vocab: Vocabulary
    state: RunState

    @property
    def progress(self) -> Progress:
        """Progress of the run."""
        return self.state.progress

    def require_config(self, config: Config) -> None:
        """Raises an error for a configuration that would train a different model.

        Raises:
            CheckpointError: Naming each key that differs, with both values.
        """
        if keys := changed_keys(self.config, config):
            old, new = flat_values(self.config), flat_values(config)
            changes = ", ".join(f"{key} (was {old[key]}, is {new[key]})" for key in keys)
            raise CheckpointError(
                f"{self.path.parent}: made with another configuration: {changes};"
                " name another --run directory, or change it back"
            )

    def build_model(self, raw: bool = False) -> Transformer:
        """Builds the model with its weights, on the CPU, in evaluation mode.

        Args:
            raw: Whether to use the weights themselves even if there is a moving average.

        Raises:
            CheckpointError: If the weights do not fit the configuration.
        """
        model = Transformer(self.config.model, self.vocab.src_size, self.vocab.tgt_size, PAD_ID)
        name = EMA if EMA in self.files and not raw else MODEL
        try:
            model.load_state_dict(self.load_tensors(name))
        except RuntimeError as error:
            raise CheckpointError(f"{self.path / name}: {_one_line(error)}") from None
        return model.eval()

    def load_tensors(self, name: str) -> dict[str, Tensor]:
        """Reads the tensors of one file, by name.

        Raises:
            CheckpointError: If the checkpoint does not have the file, or it is malformed.
        """
        if name not in self.files:
            raise CheckpointError(f"{self.path}: has no {name}")
        try:
            return safetensors.torch.load_file(self.path / name)
        except (OSError, safetensors.SafetensorError) as error:
            raise CheckpointError(f"{self.path / name}: {_one_line(error)}") from None


def checkpoint_digest(path: Path) -> str:
    """Computes the digest of a checkpoint from its manifest, without verifying the files.

    Raises:
        CheckpointError: If the manifest is missing or damaged.
    """
    digests = read_manifest(path)
    digests.pop(TRAINING, None)
    return hashlib.sha256(canonical_json(digests)).hexdigest()


def save_checkpoint(
    path: Path,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: RunState,
    config: Config,
    vocab: Vocabulary,
) -> None:
    """Writes a checkpoint, replacing one of the same name.

    Args:
        path: Its directory.
        tensors: Tensors by name for each file.
        state: Progress, counters and environment.
        config: The run's configuration.
        vocab: Its vocabulary.

    Raises:
        OSError: If it cannot be written; the previous checkpoint is unchanged.
    """
    try:
        with atomic_directory(path) as folder:
            (folder / STATE).write_bytes(state.to_json())
            (folder / CONFIG).write_bytes(canonical_json(config.model_dump(mode="json")))
            vocab.save(folder)
            for name, content in tensors.items():
                contiguous = {key: tensor.contiguous() for key, tensor in content.items()}
                safetensors.torch.save_file(contiguous, folder / name)
                # safetensors lets only the owner read its files, regardless of the umask.
                shutil.copymode(folder / STATE, folder / name)
            write_manifest(folder, {file.name: sha256(file) for file in folder.iterdir()})
    except safetensors.SafetensorError as error:  # raised by safetensors for a full disk
        raise OSError(errno.EIO, _one_line(error), str(path)) from error


def load_checkpoint(path: Path) -> Checkpoint:
    """Verifies and reads one checkpoint directory.

    Raises:
        CheckpointError: Naming the file that is missing or damaged.
    """
    files, digest = verify_manifest(path), checkpoint_digest(path)
    try:
        state = parse_state(read_json(path / STATE), path / STATE)
        config = parse_config(read_json(path / CONFIG), str(path / CONFIG))
        names = (SHARED, SHARED) if SHARED in files else ("src.model", "tgt.model")
        if missing := set(names) - files:
            raise CheckpointError(f"{path}: its manifest does not list {min(missing)}")
        vocab = Vocabulary.load_files(*(path / name for name in names))
        return Checkpoint(path, files, digest, config, vocab, state)
    except (ConfigError, DataError) as error:
        raise CheckpointError(str(error)) from None
    except (ValueError, TypeError, OSError) as error:
        raise CheckpointError(f"{path}: not readable: {_one_line(error)}") from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
