"""The state that a run starts with: its own newest, or that of the run of `train.init_from`."""

from dataclasses import replace
from pathlib import Path

from transformer_mt.checkpoints.checkpoint import TEXTS, Checkpoint, Progress
from transformer_mt.checkpoints.layout import STATE, TRAINING
from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.config.changes import without_folder
from transformer_mt.config.keys import Config, flat_values
from transformer_mt.config.loading import format_value, searched_folders
from transformer_mt.errors import CheckpointError, ConfigError
from transformer_mt.system.console import logger
from transformer_mt.text.prepared import load_configured_vocabulary
from transformer_mt.training.engine import Engine
from transformer_mt.training.environment import CUT_BY, numeric_changes, numeric_environment
from transformer_mt.training.fit import StepFitter
from transformer_mt.training.saving import TENSOR_FILES


def resume(
    fitter: StepFitter, checkpoint: Checkpoint, new: Progress, initial: Checkpoint | None
) -> Progress:
    """Restores the engine, and says what has changed since.

    Args:
        fitter: Its engine is restored.
        checkpoint: Of the run.
        new: The progress of a new run.
        initial: The checkpoint of `train.init_from` if `valid.old_text` needs it.

    Returns:
        The progress to continue from.
    """
    config = fitter.engine.config
    _warn_of_unused(checkpoint.config, config)
    if initial and initial.digest != checkpoint.progress.init_digest:
        logger.warning(
            "valid.old_text: %s is not the checkpoint that the run began with; its validation text"
            " may be another",
            initial.path,
        )
    _require_same_text(checkpoint.path.parent, checkpoint.progress, new)
    restore_engine(fitter.engine, checkpoint)
    environment = numeric_environment(fitter)
    recorded = checkpoint.state.environment
    changes = numeric_changes(checkpoint.config, recorded, config, environment)
    progress = replace(checkpoint.progress, precision=new.precision)
    if changes:
        logger.warning(
            "from here on the run is not bit-equal to an uninterrupted one: %s",
            ", ".join(changes.values()),
        )
        progress = replace(progress, changed_step=progress.step)
    if CUT_BY.isdisjoint(changes):
        return progress
    return replace(progress, micro_batch_tokens=new.micro_batch_tokens, finer_step=0)


def restore_engine(engine: Engine, checkpoint: Checkpoint) -> None:
    """Restores an engine to the state of a checkpoint, which must have moments and fit it."""
    if TRAINING not in checkpoint.files:
        raise CheckpointError(
            f"{checkpoint.path}: has no {TRAINING}, so training cannot resume from it; start a new"
            f" run with train.init_from = {checkpoint.path}"
        )
    files = {key: file for key, file in TENSOR_FILES.items() if key != "ema" or engine.ema}
    tensors = {key: checkpoint.load_tensors(file) for key, file in files.items()}
    try:
        engine.load_state_dict({**tensors, "counters": checkpoint.state.counters})
    except (ValueError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{checkpoint.path / STATE}: counters: {reason}") from None


def _warn_of_unused(old: Config, new: Config) -> None:
    """Warns if a resumed run is given a different value of a key that only a new run reads."""
    old_values, new_values = flat_values(old), flat_values(new)
    for key in ("vocab.path", *([] if new.valid.old_text else ["train.init_from"])):
        if new_values[key] not in (old_values[key], None):
            logger.warning("%s = %s is not used: the run is resumed", key, new_values[key])


def _require_same_text(run_dir: Path, old: Progress, new: Progress) -> None:
    """Refuses to resume with different text; its location does not matter."""
    for name, text in TEXTS.items():
        if getattr(old, name) != getattr(new, name):
            raise CheckpointError(
                f"{run_dir}: the {text} has changed since the run began; restore it, or start a new"
                " run with another --run directory"
            )


def initial_checkpoint(config: Config) -> Checkpoint | None:
    """Reads the checkpoint of `train.init_from`, if set.

    The configuration must have the sizes of its model, and the kind, size and symbols of its
    vocabulary. If `vocab.path` is set, `prepare` compares that vocabulary instead.

    Raises:
        CheckpointError: If there is no such checkpoint.
        ConfigError: Naming each key that differs, with both values.
        DataError: If there is no vocabulary at `vocab.path`.
    """
    name = config.train.init_from
    if name is None and config.valid.old_text:
        raise ConfigError("valid.old_text requires train.init_from")
    if name is None:
        return None
    if not Path(name).exists():
        searched = searched_folders(name)
        raise CheckpointError(f"train.init_from = {name}: no such run or checkpoint{searched}")
    checkpoint = find_checkpoint(Path(name))
    vocab = checkpoint.vocab
    old, new = flat_values(checkpoint.config), flat_values(config)
    keys = ["data.normalize"]
    keys += [key for key in new if key.startswith("model.") and not key.endswith("dropout")]
    if load_configured_vocabulary(config, None) is None:
        keys += ["vocab.kind", "vocab.size", "vocab.shared", "vocab.symbols"]
        kind, size = vocab.tgt.kind, max(vocab.src.size, vocab.tgt.size)
        if kind in ("word", "char"):  # may have fewer than configured
            size = max(size, config.vocab.size)
        old |= {"vocab.kind": kind, "vocab.size": size, "vocab.shared": vocab.shared}
    if different := [key for key in keys if old[key] != new[key]]:
        differences = ", ".join(
            f"{key} = {format_value(old[key])}, not {format_value(new[key])}" for key in different
        )
        sections = " and ".join(dict.fromkeys(f"[{key.partition('.')[0]}]" for key in different))
        raise ConfigError(
            f"train.init_from = {name}: it has {differences}; use its values in {sections}, or"
            " leave out train.init_from"
        )
    return checkpoint


def begin_from(initial: Checkpoint, engine: Engine, progress: Progress) -> Progress:
    """Gives a new engine the weights of a checkpoint; records in its progress where they are from.

    The record has no folders.
    """
    weights = initial.build_model().state_dict()
    engine.load_state_dict({"model": weights, "ema": weights, "optimizer": {}, "counters": {}})
    names = {
        "name": Path(engine.config.train.init_from or "").resolve().name,
        "text": without_folder(initial.config.data.path),
        "text_digest": initial.progress.corpus_digest,
    }
    return replace(progress, init_step=initial.step, init_digest=initial.digest, init_names=names)
