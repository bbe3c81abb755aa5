"""The data, settings and environment of a run: run.json, which reports read."""

import logging
from typing import Any

import numpy as np

from transformer_mt.checkpoints.run_directory import RUN_FILE
from transformer_mt.system.files import atomic_file, canonical_json
from transformer_mt.training.environment import describe_software, numeric_environment
from transformer_mt.training.trainer import Trainer

logger = logging.getLogger(__name__)

_BINS = 40


def write_description(trainer: Trainer, world_size: int) -> None:
    """Writes run.json when a run is started or resumed; logs a warning if that fails.

    Args:
        trainer: The run.
        world_size: Number of processes.
    """
    path = trainer.run_dir / RUN_FILE
    try:
        with atomic_file(path) as file:
            file.write(canonical_json(describe(trainer, world_size)))
    except OSError as error:
        logger.warning("%s: cannot be written: %s; training continues", path, error.strerror)


def describe(trainer: Trainer, world_size: int) -> dict[str, Any]:
    """Describes corpus, configuration, model and environment of a run, for JSON.

    Args:
        trainer: The run.
        world_size: Number of processes.
    """
    corpus, progress = trainer.data.corpus, trainer.progress
    return {
        "config": trainer.config.model_dump(mode="json"),
        "corpus": corpus.report,
        "lengths": _count_lengths(*trainer.lengths),
        "validation": {"pairs": len(trainer.data.valid), "digest": progress.valid_digest},
        "vocabulary": {"src": corpus.vocab.src_size, "tgt": corpus.vocab.tgt_size},
        "parameters": sum(p.numel() for p in trainer.engine.model.parameters()),
        "precision": progress.precision,
        "software": describe_software(),
        "environment": numeric_environment(trainer.engine, world_size),
    }


def _count_lengths(src: Any, tgt: Any) -> dict[str, Any]:
    """Counts training sentences by their length in pieces, EOS included, in bins of equal width.

    Args:
        src: Lengths of the sources, (pairs,).
        tgt: Lengths of the targets, (pairs,).
    """
    width = -(-int(max(src.max(), tgt.max()) + 1) // _BINS)
    counts = {"src": src, "tgt": tgt}
    return {
        "width": width,
        "mean": {side: round(float(lengths.mean()), 2) for side, lengths in counts.items()},
        **{side: np.bincount(lengths // width).tolist() for side, lengths in counts.items()},
    }
