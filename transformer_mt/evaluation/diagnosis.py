"""Why is the BLEU of a run low? Reads what the run recorded and its text, for the checks."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from transformer_mt.checkpoints.checkpoint import Checkpoint
from transformer_mt.checkpoints.evaluations import VALIDATION, read_evaluations
from transformer_mt.checkpoints.run_directory import RecordedRun, read_run
from transformer_mt.errors import DataError, TransformerMTError
from transformer_mt.evaluation import findings
from transformer_mt.system.console import ProgressBar
from transformer_mt.text.batching import EncodedPairs, Indices, encode_pairs
from transformer_mt.text.corpus import RawPairs, load_split
from transformer_mt.text.prepared import PreparedCorpus, prepare
from transformer_mt.text.trained_here import readable_corpus
from transformer_mt.translation.options import LoadOptions
from transformer_mt.translation.pytorch_runtime import load_checkpoints, log_probabilities

logger = logging.getLogger(__name__)

_SAMPLE = 1_000
"""Pairs of each text that are looked at, evenly spaced: shares of 5% are then known to 1%."""
_LEAST_TOKENS, _LEAST_CHARACTERS = 8, 30
"""Tokens of each side of a pair, EOS included, that is not in two texts by chance; the second if a
token is a character."""
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
    untrained = [
        *findings.divergence(run.metrics),
        *findings.too_few_steps(run.metrics, warmup_steps),
    ]
    results: list[str] = []
    with TemporaryDirectory() as scratch:
        corpus, held_out = _load_training_text(run, Path(scratch)), _load_held_out(run)
        texts = {name: _sample(raw) for name, raw in held_out.items()}
        if corpus:
            training = _sample_training(corpus)
            results += _check_scripts(training, texts)
            by_characters = run.config.vocab.kind == "char"
            least = _LEAST_CHARACTERS if by_characters else _LEAST_TOKENS
            results += _check_known(corpus, held_out, least)
            texts = {_TRAINING: training, **texts}
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


def _load_training_text(run: RecordedRun, scratch: Path) -> PreparedCorpus | None:
    """Loads the text that the run was trained on, prepared again if need be."""
    recorded = run.progress.corpus_digest or (run.description and run.description.corpus_digest)
    vocab = run.checkpoint.vocab if run.checkpoint else None
    with _unless_missing(_TRAINING):
        if not vocab and run.config.train.init_from:
            raise DataError("the run, whose vocabulary is another's, has no checkpoint yet")
        data = readable_corpus(run.config.data, run.config.data.train)
        corpus = prepare(run.config.model_copy(update={"data": data}), vocab, scratch)
        if recorded in (None, corpus.digest):
            return corpus
        raise DataError(f"data.train = {run.config.data.train}: has changed since the run read it")
    return None


def _load_held_out(run: RecordedRun) -> dict[str, RawPairs]:
    """Loads the validation and the test text, as far as they are still there."""
    data, texts = run.config.data, dict[str, RawPairs]()
    recorded = run.progress.valid_digest or (run.description and run.description.validation.digest)
    with _unless_missing(_VALID):
        valid = load_split(readable_corpus(data, data.valid), data.valid)
        if recorded not in (None, valid.digest()):
            raise DataError(f"data.valid = {data.valid}: has changed since the run read it")
        texts[_VALID] = valid
    with _unless_missing("the test text"):
        texts["the test text"] = load_split(readable_corpus(data, data.test), data.test)
    return texts


def _spread(count: int) -> Indices:
    """Chooses evenly spaced positions."""
    return np.linspace(0, count - 1, min(count, _SAMPLE), dtype=np.int64)


def _sample(raw: RawPairs) -> RawPairs:
    positions = _spread(len(raw))
    return RawPairs([raw.src[i] for i in positions], [raw.tgt[i] for i in positions])


def _sample_training(corpus: PreparedCorpus) -> RawPairs:
    """Decodes the sample, so that it is of the pairs that cleaning has kept."""
    pairs, vocab = corpus.pairs, corpus.vocab
    positions = _spread(len(pairs))
    src = vocab.src.decode([pairs.src[i].tolist() for i in positions])
    tgt = vocab.tgt.decode([pairs.tgt[i].tolist() for i in positions])
    return RawPairs(src, tgt)


def _check_translations(run_dir: Path) -> Iterator[str]:
    """Checks the newest translations of the validation text, and of another test set."""
    newest = {record.test_set == VALIDATION: record for record in read_evaluations(run_dir)}
    if not newest:
        logger.warning("not checked: translations, since the run has no validation yet")
    for record in newest.values():
        name = _VALID
        if record.test_set != VALIDATION:
            name = f"{record.test_set} by {record.checkpoint}"
        references, hypotheses = record.references[0], record.hypotheses
        yield from findings.wrong_length(name, references, hypotheses)
        yield from findings.repeated_words(name, references, hypotheses)
        yield from findings.untranslated(name, record.sources, references, hypotheses)


def _check_scripts(training: RawPairs, others: Mapping[str, RawPairs]) -> Iterator[str]:
    """Checks the script of each side of each text."""
    for text, raw in {_TRAINING: training, **others}.items():
        yield from findings.wrong_script(f"the sources of {text}", raw.src, training.src)
        yield from findings.wrong_script(f"the targets of {text}", raw.tgt, training.tgt)


def _check_known(
    corpus: PreparedCorpus, held_out: Mapping[str, RawPairs], least: int
) -> Iterator[str]:
    """Looks for the pairs of held-out texts with `least` tokens a side among all training pairs."""
    keys = {
        name: list(_keys(encode_pairs(raw.src, raw.tgt, corpus.vocab), least))
        for name, raw in held_out.items()
    }
    wanted = set(chain.from_iterable(keys.values()))
    known = wanted.intersection(_keys(corpus.pairs, least))
    for name, own in keys.items():
        yield from findings.known_pairs(name, sum(key in known for key in own), len(own))


def _keys(pairs: EncodedPairs, least: int) -> Iterator[tuple[bytes, bytes]]:
    """Yields the ids of each longer pair in a form that can be looked up."""
    longer = np.flatnonzero(np.minimum(*pairs.lengths) >= least)
    for i in ProgressBar("comparing", "pairs", items=longer):
        yield pairs.src[i].astype(np.int32).tobytes(), pairs.tgt[i].astype(np.int32).tobytes()


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
