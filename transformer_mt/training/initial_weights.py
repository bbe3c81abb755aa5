"""What a new run takes from the checkpoint of `train.init_from`."""

from dataclasses import replace
from pathlib import Path

from transformer_mt.checkpoints.checkpoint import Checkpoint, Progress
from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.config.changes import keep_normalization, without_folder
from transformer_mt.config.keys import Config, flat_values
from transformer_mt.config.loading import searched_folders
from transformer_mt.errors import CheckpointError, ConfigError
from transformer_mt.text.prepared import load_configured_vocabulary


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
    if name is None:
        return None
    if not Path(name).exists():
        searched = searched_folders(name)
        raise CheckpointError(f"train.init_from = {name}: no such run or checkpoint{searched}")
    checkpoint = find_checkpoint(Path(name))
    vocab = checkpoint.vocab
    old, new = flat_values(checkpoint.config), flat_values(keep_normalization(config, vocab.form))
    keys = ["data.normalize"]
    keys += [key for key in new if key.startswith("model.") and not key.endswith("dropout")]
    if load_configured_vocabulary(config, None) is None:
        keys += ["vocab.kind", "vocab.size", "vocab.shared", "vocab.symbols"]
        kind, size = vocab.tgt.kind, max(vocab.src.size, vocab.tgt.size)
        if kind in ("word", "char"):  # may have fewer than configured
            size = max(size, config.vocab.size)
        old |= {"vocab.kind": kind, "vocab.size": size, "vocab.shared": vocab.shared}
    if different := [key for key in keys if old[key] != new[key]]:
        differences = ", ".join(f"{key} = {old[key]}, not {new[key]}" for key in different)
        sections = " and ".join(dict.fromkeys(f"[{key.partition('.')[0]}]" for key in different))
        raise ConfigError(
            f"train.init_from = {name}: it has {differences}; use its values in {sections}, or"
            " leave out train.init_from"
        )
    return checkpoint


def describe_initial(initial: Checkpoint, progress: Progress, config: Config) -> Progress:
    """Records in the progress of a new run what it starts from, without folders."""
    names = {
        "name": Path(config.train.init_from or "").resolve().name,
        "text": without_folder(initial.config.data.path),
        "text_digest": initial.progress.corpus_digest,
    }
    return replace(progress, init_step=initial.step, init_digest=initial.digest, init_names=names)
