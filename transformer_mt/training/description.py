"""What a run records of itself when it starts: the head of train.log, and run.json."""

import logging
import sys

import numpy as np

from transformer_mt.checkpoints.layout import RUN_FILE
from transformer_mt.checkpoints.run_description import (
    InitialWeights,
    LengthCounts,
    RunDescription,
    ValidationText,
    VocabularySizes,
    write_description,
)
from transformer_mt.text.batching import Lengths
from transformer_mt.training.environment import describe_software
from transformer_mt.training.run_log import RunLog
from transformer_mt.training.trainer import Trainer

logger = logging.getLogger(__name__)

_BINS = 40


def log_start(log: RunLog, trainer: Trainer, environment: dict[str, str]) -> None:
    """Logs what is trained, by which command and software, and from where it goes on."""
    progress, corpus = trainer.progress, trainer.corpus
    log.note(f"command: {' '.join(sys.argv)}")
    log.note(f"configuration: {trainer.config.model_dump_json()}")
    log.note(f"software: {describe_software()}")
    log.note(f"numeric environment: {environment}")
    logger.info(f"{corpus.summary}; {trainer.engine.device.type}, {progress.precision}")
    if progress.step:
        logger.info("resuming at step %d, epoch %d", progress.step, progress.epoch)
    elif progress.init_digest:
        origin = f"{trainer.config.train.init_from} at step {progress.init_step}"
        logger.info("starting from %s (digest %s)", origin, progress.init_digest)


def describe_run(trainer: Trainer, environment: dict[str, str], complete: bool = False) -> None:
    """Writes run.json when a run is started, resumed, or has reached one of its limits.

    Logs a warning if that fails.
    """
    corpus, progress, vocab = trainer.corpus, trainer.progress, trainer.corpus.vocab
    initial = None
    if progress.init_digest:
        initial = InitialWeights(progress.init_step, progress.init_digest, **progress.init_names)
    description = RunDescription(
        config=trainer.config,
        corpus=corpus.report,
        corpus_digest=corpus.digest,
        lengths=_count_lengths(*corpus.pairs.lengths),
        validation=ValidationText(len(trainer.valid), progress.valid_digest),
        init_from=initial,
        vocabulary=VocabularySizes(vocab.src.size, vocab.tgt.size, vocab.tgt.kind),
        complete=complete,
        parameters=sum(p.numel() for p in trainer.engine.model.parameters()),
        precision=trainer.engine.precision,
        software=describe_software(),
        environment=environment,
    )
    try:
        write_description(trainer.run_dir, description)
    except OSError as error:
        path = trainer.run_dir / RUN_FILE
        logger.warning("%s: cannot be written: %s", path, error.strerror)


def _count_lengths(src: Lengths, tgt: Lengths) -> LengthCounts:
    """Counts sentences by their length in pieces, EOS included, (pairs,), in bins of one width."""
    width = -(-int(max(src.max(), tgt.max()) + 1) // _BINS)
    mean = {"src": round(float(src.mean()), 2), "tgt": round(float(tgt.mean()), 2)}
    counts = (np.bincount(lengths // width).tolist() for lengths in (src, tgt))
    return LengthCounts(width, mean, *counts)
