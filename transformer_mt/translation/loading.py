"""Loading of checkpoints as a model that translates."""

from collections.abc import Sequence
from pathlib import Path

import torch

from transformer_mt.checkpoints.checkpoint import Checkpoint
from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.errors import CheckpointError, ConfigError, DeviceError
from transformer_mt.model.cpu_kernels import pack_weights
from transformer_mt.model.ensemble import Ensemble
from transformer_mt.system.device import DTYPES, choose_device, supports
from transformer_mt.system.processes import Processes
from transformer_mt.translation.options import DEFAULT_LOAD, LoadOptions
from transformer_mt.translation.translation_model import TranslationModel


def find_checkpoints(paths: Sequence[Path]) -> list[Checkpoint]:
    """Reads and verifies the checkpoints of an ensemble, or a single one.

    Args:
        paths: Each is a run (its best checkpoint) or a checkpoint.

    Raises:
        CheckpointError: If one is missing or damaged, or the vocabularies differ.
    """
    checkpoints = [find_checkpoint(path) for path in paths]
    first = checkpoints[0]
    for other in checkpoints[1:]:
        if not other.vocab.has_same_ids(first.vocab):
            raise CheckpointError(
                f"{other.path}: its vocabulary differs from that of {first.path};"
                " the models of an ensemble need the same (train with vocab.path)"
            )
    return checkpoints


def share_checkpoints(checkpoints: list[Checkpoint], processes: Processes) -> list[Checkpoint]:
    """Gives all processes the main process's checkpoints; each reads them from its own disk.

    Args:
        checkpoints: The checkpoints of the main process; the others' argument is ignored.
        processes: The processes; all of them call this.

    Raises:
        CheckpointError: If one is missing or damaged, or differs on another machine.
    """
    paths = processes.broadcast([checkpoint.path for checkpoint in checkpoints])
    if not processes.is_main:
        checkpoints = find_checkpoints(paths)
    digests = [checkpoint.digest for checkpoint in checkpoints]
    if any(other != digests for other in processes.gather(digests)):
        names = " and ".join(map(str, paths))
        raise CheckpointError(f"{names}: not the same checkpoint on all machines")
    return checkpoints


def build_translation_model(
    checkpoints: list[Checkpoint], options: LoadOptions = DEFAULT_LOAD
) -> TranslationModel:
    """Builds the model or ensemble from verified checkpoints.

    Args:
        checkpoints: At least one, all with the same vocabulary.
        options: Device, precision, maximum length and choice of weights.

    Raises:
        CheckpointError: If the weights do not fit the configuration of a checkpoint.
        ConfigError: If the precision is unknown or the maximum length below 1.
        DeviceError: If the device is absent or does not support the precision.
    """
    device, precision = choose_device(options.device), options.precision
    if precision not in DTYPES:
        raise ConfigError(f"precision {precision}: choose {', '.join(DTYPES)}")
    if not supports(precision, device):
        raise DeviceError(
            f"precision {precision}: this {device.type} does not support it; choose fp32"
        )
    if options.max_length is not None and options.max_length < 1:
        raise ConfigError(f"maximum length {options.max_length}: choose 1 or more")
    # A new model draws initial weights; this must not affect the caller's random numbers.
    with torch.random.fork_rng(devices=[]):
        models = [checkpoint.build_model(options.raw) for checkpoint in checkpoints]
    models = [model.to(device, DTYPES[precision]) for model in models]
    model = models[0] if len(models) == 1 else Ensemble(models).eval()
    pack_weights(model)  # once, not for each chunk of lines
    max_length = options.max_length or min(c.config.data.max_length for c in checkpoints)
    return TranslationModel(checkpoints, model, checkpoints[0].vocab, max_length)
