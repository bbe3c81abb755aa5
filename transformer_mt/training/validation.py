"""The validation of a model in training: perplexity, BLEU, and a few sample translations."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from transformer_mt.checkpoints.evaluations import (
    VALIDATION,
    EvaluationRecord,
    SearchSetting,
    write_evaluation,
)
from transformer_mt.checkpoints.layout import checkpoint_digest
from transformer_mt.evaluation.scoring import choose_metrics, corpus_score
from transformer_mt.model.transformer import Transformer, evaluation_mode
from transformer_mt.system.processes import ALONE, Processes
from transformer_mt.text.batching import EncodedPairs, encode_pairs
from transformer_mt.text.corpus import RawPairs
from transformer_mt.text.prepared import PreparedCorpus
from transformer_mt.text.splitting import LineSplitter
from transformer_mt.training.engine import Engine
from transformer_mt.translation.agreement import warn_of_decoding
from transformer_mt.translation.options import SearchOptions
from transformer_mt.translation.pytorch_runtime import PyTorchRuntime, log_probabilities
from transformer_mt.translation.translator import Translator

logger = logging.getLogger(__name__)

_SEARCH = SearchOptions(beam_size=1)
"""Greedy, whatever the default of `translate` is."""
_SAMPLES = 3


@dataclass(frozen=True)
class Validation:
    """The result of a validation.

    Attributes:
        metrics: Values by their names in metrics.jsonl: `nll` (in nats per target token),
            `perplexity` and `bleu` of the weights, `ema_bleu` of their moving average.
        score: The BLEU that counts, the moving average's if there is one; -inf after divergence.
        hypotheses: One per sentence, by the moving average if there is one.
    """

    metrics: dict[str, float]
    score: float
    hypotheses: list[str]


class Validator:
    """Scores the model of an engine on raw validation text, and reports the scores."""

    def __init__(self, engine: Engine, pairs: RawPairs, corpus: PreparedCorpus) -> None:
        self._engine, self._pairs, vocab = engine, pairs, corpus.vocab
        self._encoded = encode_pairs(pairs.src, pairs.tgt, vocab)
        self._has_compared = False
        self._metrics = choose_metrics(engine.config.data.tgt_lang)
        splitter = LineSplitter(vocab.src, engine.config.data, corpus.sources)
        runtime = PyTorchRuntime(engine.model, vocab.symbol_ids(engine.config.vocab.symbols))
        self._translator = Translator(runtime, vocab, splitter, _SEARCH, engine.processes)

    def validate(self, advance: Callable[[int], object]) -> Validation:
        """Scores the weights, and their moving average if there is one.

        Args:
            advance: Called with the number of lines translated, batch by batch; may raise to stop.
        """
        engine = self._engine
        if not self._has_compared:
            self._has_compared = True
            src, tgt = (side[0].tolist() for side in (self._encoded.src, self._encoded.tgt))
            warn_of_decoding(engine.model, src, tgt)
        nll = mean_nll(engine.model, self._encoded, engine.processes)
        hypotheses, bleu = self._translate(advance)
        metrics = {"nll": nll, "perplexity": perplexity(nll), "bleu": bleu}
        if engine.ema:
            with engine.ema.in_place():
                hypotheses, bleu = self._translate(advance)
            metrics["ema_bleu"] = bleu
        is_finite = math.isfinite(metrics["perplexity"])
        return Validation(metrics, bleu if is_finite else -math.inf, hypotheses)

    def _translate(self, advance: Callable[[int], object]) -> tuple[list[str], float]:
        """Translates the raw sources; returns the hypotheses and their BLEU by raw references."""
        hypotheses = self._translator.translate(self._pairs.src, advance)
        return hypotheses, corpus_score(hypotheses, [self._pairs.tgt], self._metrics[0]).value

    def record(self, result: Validation, checkpoint: Path) -> None:
        """Saves the scores and translations of a checkpoint for reports."""
        references = [list(self._pairs.tgt)]
        record = EvaluationRecord(
            test_set=VALIDATION,
            checkpoint=checkpoint.name,
            digest=checkpoint_digest(checkpoint),
            search=SearchSetting(_SEARCH.beam_size),
            scores=[corpus_score(result.hypotheses, references, m) for m in self._metrics],
            sources=list(self._pairs.src),
            references=references,
            hypotheses=result.hypotheses,
        )
        write_evaluation(checkpoint, record)

    def log(self, result: Validation, step: int, previous_best: float) -> None:
        """Logs the scores of a step, with a few translations of the same sentences each time."""
        metrics = result.metrics
        text = f"step {step}: validation BLEU {metrics['bleu']:.2f}"
        if "ema_bleu" in metrics:
            text += f", of the moving average {metrics['ema_bleu']:.2f}"
        if result.score == -math.inf:
            logger.warning(
                "%s, which cannot be the best: perplexity is not finite, training has diverged;"
                " start a new run with a lower optim.lr_scale",
                text,
            )
        else:
            best = " (best)" if result.score > previous_best else f" (best {previous_best:.2f})"
            logger.info("%s, perplexity %.2f%s", text, metrics["perplexity"], best)
        for i in np.linspace(0, len(self._pairs) - 1, _SAMPLES, dtype=int):
            logger.info("  source     %s", self._pairs.src[i])
            logger.info("  reference  %s", self._pairs.tgt[i])
            logger.info("  hypothesis %s", result.hypotheses[i])


def mean_nll(model: Transformer, pairs: EncodedPairs, processes: Processes = ALONE) -> float:
    """Computes the mean negative log-likelihood per target token, without label smoothing.

    The model is in evaluation mode during the computation, and each process has the same. No pair
    is left out, however long it is.

    Returns:
        Nats per target token, EOS included.
    """
    with evaluation_mode(model):
        sums = log_probabilities(model, pairs, processes)
    return -math.fsum(sums) / int(pairs.lengths[1].sum())


def perplexity(nll: float) -> float:
    """Computes the perplexity of nats per token; infinity if it exceeds the range of a float."""
    return math.exp(nll) if nll < 700 else math.inf
