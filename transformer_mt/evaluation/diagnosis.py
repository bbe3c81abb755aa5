"""Why is the BLEU of a run low? Reads what the run recorded and its text, for the checks."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from transformer_mt.checkpoints.checkpoint import Checkpoint
from transformer_mt.checkpoints.evaluations import VALIDATION, read_evaluations
from transformer_mt.checkpoints.run_directory import RecordedRun, read_run
from transformer_mt.config.splits import Split
from transformer_mt.errors import DataError, TransformerMTError
from transformer_mt.evaluation import findings
from transformer_mt.system.console import logger
from transformer_mt.system.files import scratch_directory
from transformer_mt.text.batching import Indices, encode_pairs
from transformer_mt.text.corpus import RawPairs, load_split
from transformer_mt.text.prepared import prepare
from transformer_mt.text.trained_here import readable_corpus
from transformer_mt.translation.options import LoadOptions
from transformer_mt.translation.pytorch_runtime import load_checkpoints, log_probabilities

_SAMPLE = 1_000
"""Pairs of each text that are looked at, evenly spaced: shares of 5% are then known to 1%."""
_TRAINING, _VALID = "the training text", "the validation text"


def diagnose(run_dir: Path) -> list[str]:
    """Looks for what may make the BLEU of a run low.

    Warns of what cannot be checked, since the run or its text lacks it.

    Returns:
        A line for each finding; none if nothing is wrong.

    Raises:
        CheckpointError: If there is no such run, or its records are damaged.
    """
    run = read_run(run_dir)
    # Fine-tuning may end within the warm-up.
    warmup_steps = 0 if run.config.train.init_from else run.config.optim.warmup_steps
    untrained = list(findings.divergence(run.metrics))
    if not untrained:  # a run that has diverged is not to be trained on
        untrained = list(findings.too_few_steps(run.metrics, warmup_steps))
    texts = {**_sample_training(run), **_sample_held_out(run)}
    results = list(_check_scripts(texts))
    if run.checkpoint is None:
        logger.warning("not checked: whether sides match, since the run has no checkpoint yet")
    elif untrained:
        logger.warning("not checked: whether sides match, since the model has not learned enough")
    else:
        results += _check_sides(run.checkpoint, texts)
    results += [*untrained, *findings.overfitting(run.metrics), *_check_translations(run_dir)]
    return results


@contextmanager
def _unless_missing(what: str) -> Iterator[None]:
    """Warns of what cannot be checked for lack of something."""
    try:
        yield
    except TransformerMTError as error:
        logger.warning("not checked: %s: %s", what, error)


def _sample_training(run: RecordedRun) -> dict[str, RawPairs]:
    """Samples the pairs that cleaning has kept of the training text, prepared again if need be."""
    recorded = run.progress.corpus_digest or (run.description and run.description.corpus_digest)
    vocab = run.checkpoint.vocab if run.checkpoint else None
    with _unless_missing(_TRAINING), scratch_directory() as scratch:
        if not vocab and run.config.train.init_from:
            raise DataError("the run, whose vocabulary is another's, has no checkpoint yet")
        data = readable_corpus(run.config.data, run.config.data.train)
        corpus = prepare(run.config.model_copy(update={"data": data}), vocab, scratch)
        if recorded not in (None, corpus.digest):
            raise DataError(f"data.train = {data.train}: has changed since the run read it")
        positions, pairs, vocab = _spread(len(corpus.pairs)), corpus.pairs, corpus.vocab
        src = vocab.src.decode([pairs.src[i].tolist() for i in positions])
        tgt = vocab.tgt.decode([pairs.tgt[i].tolist() for i in positions])
        return {_TRAINING: RawPairs(src, tgt)}
    return {}


def _sample_held_out(run: RecordedRun) -> dict[str, RawPairs]:
    """Samples the validation and the test text, as far as they are still there."""
    data, texts = run.config.data, dict[str, RawPairs]()
    recorded = run.progress.valid_digest or (run.description and run.description.validation.digest)
    for name, key, digest in ((_VALID, "valid", recorded), ("the test text", "test", None)):
        with _unless_missing(name):
            split: Split = getattr(data, key)
            raw = load_split(readable_corpus(data, split), split)
            if digest not in (None, raw.digest()):
                raise DataError(f"data.{key} = {split}: has changed since the run read it")
            positions = _spread(len(raw))
            texts[name] = RawPairs([raw.src[i] for i in positions], [raw.tgt[i] for i in positions])
    return texts


def _spread(count: int) -> Indices:
    """Chooses evenly spaced positions."""
    return np.linspace(0, count - 1, min(count, _SAMPLE), dtype=np.int64)


def _check_translations(run_dir: Path) -> Iterator[str]:
    """Checks the newest translations of the validation text, and of another test set."""
    newest = {record.test_set == VALIDATION: record for record in read_evaluations(run_dir)}
    if not newest:
        logger.warning("not checked: translations, since the run has recorded none")
    for record in newest.values():
        name = _VALID
        if record.test_set != VALIDATION:
            name = f"{record.test_set} by {record.checkpoint}"
        references, hypotheses = record.references[0], record.hypotheses
        yield from findings.wrong_length(name, references, hypotheses)
        yield from findings.untranslated(name, record.sources, references, hypotheses)


def _check_scripts(texts: Mapping[str, RawPairs]) -> Iterator[str]:
    """Compares the script of each side of each text with that of the training text, if known."""
    if training := texts.get(_TRAINING):
        for text, raw in texts.items():
            yield from findings.wrong_script(f"the sources of {text}", raw.src, training.src)
            yield from findings.wrong_script(f"the targets of {text}", raw.tgt, training.tgt)


def _check_sides(checkpoint: Checkpoint, texts: Mapping[str, RawPairs]) -> Iterator[str]:
    """Compares the scores of given pairs with those of shuffled ones.

    In these each target has the source of the pair before it, cyclically. Pairs that share a side
    with the one before them are left out.
    """
    model = load_checkpoints([checkpoint], LoadOptions()).model
    for name, raw in texts.items():
        chosen = [
            i
            for i in range(len(raw))
            if raw.src[i] != raw.src[i - 1] and raw.tgt[i] != raw.tgt[i - 1]
        ]
        if not chosen:
            continue
        logger.info("scoring given and shuffled pairs of %s", name)
        src, tgt = ([side[i] for i in chosen] for side in (raw.src, raw.tgt))
        pairs = encode_pairs(src, tgt, checkpoint.vocab)
        shuffled = encode_pairs([raw.src[i - 1] for i in chosen], tgt, checkpoint.vocab)
        given, others = (np.array(log_probabilities(model, each)) for each in (pairs, shuffled))
        gains = (given - others) / pairs.lengths[1]
        yield from findings.mismatched_sides(name, gains.tolist(), src, tgt)
