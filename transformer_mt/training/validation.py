"""The validation of a model in training: perplexity, BLEU, and a few sample translations."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from transformer_mt.checkpoints.checkpoint import Progress
from transformer_mt.checkpoints.evaluations import (
    VALIDATION,
    EvaluationRecord,
    SearchSetting,
    write_evaluation,
)
from transformer_mt.checkpoints.layout import checkpoint_digest
from transformer_mt.evaluation.scoring import choose_metrics, corpus_score
from transformer_mt.model.transformer import Transformer, evaluation_mode
from transformer_mt.system.console import logger
from transformer_mt.text.batching import EncodedPairs, encode_pairs
from transformer_mt.text.corpus import RawPairs
from transformer_mt.text.prepared import PreparedCorpus
from transformer_mt.text.splitting import LineSplitter
from transformer_mt.training.engine import Engine
from transformer_mt.translation.agreement import warn_of_decoding
from transformer_mt.translation.options import SearchOptions
from transformer_mt.translation.pytorch_runtime import MapBatches, PyTorchRuntime, log_probabilities
from transformer_mt.translation.sharing import SharedRuntime
from transformer_mt.translation.translator import Translator

_SEARCH = SearchOptions(beam_size=1)
"""Greedy, whatever the default of `translate` is."""
_SAMPLES = 3
_COMPARED = 64
"""Pieces of a side with which decoding is compared: a line of validation may be a document."""


@dataclass(frozen=True)
class Validation:
    """The result of a validation.

    Attributes:
        metrics: Values by their names in metrics.jsonl: `nll` (in nats per target token),
            `perplexity`, `bleu` and, if it counts, `chrf` of the weights, and with `ema_` before
            them those of their moving average. With `old_` before all these, of `valid.old_text`.
        score: What `valid.metric` names, 0 if that is `nll`; -inf after divergence.
        nll: What decides between equal scores; like them of the moving average if there is one.
        hypotheses: One per sentence, by the moving average if there is one.
    """

    metrics: dict[str, float]
    score: float
    nll: float
    hypotheses: list[str]

    def is_better(self, best: Progress) -> bool:
        """Returns whether it is better than the best so far."""
        return (self.score, -self.nll) > (best.best_bleu, -best.best_nll)


class Validator:
    """Scores the model of an engine on raw validation text, and reports the scores.

    Args:
        engine: The engine.
        pairs: The text.
        corpus: What the model is trained on.
        old_text: Is scored, too: validation text of the run that training started from.
    """

    def __init__(
        self,
        engine: Engine,
        pairs: RawPairs,
        corpus: PreparedCorpus,
        old_text: RawPairs | None = None,
    ) -> None:
        self._engine, self._pairs, vocab = engine, pairs, corpus.vocab
        self._encoded = encode_pairs(pairs.src, pairs.tgt, vocab)
        self._has_compared = False
        self._valid, tgt_lang = engine.config.valid, engine.config.data.tgt_lang
        self._metrics = choose_metrics(
            tgt_lang, references=[pairs.tgt], configured=self._valid.tokenize
        )
        data, symbols = engine.config.data, engine.config.vocab.symbols
        self._splitter = LineSplitter(vocab.src, data, corpus.sources, symbols=symbols)
        self._vocab, never = vocab, vocab.symbol_ids(symbols)
        models = [engine.model, *([engine.ema.model] if engine.ema else [])]
        self._runtimes = {
            model: SharedRuntime(PyTorchRuntime(model, never), engine.processes) for model in models
        }
        self._of_old_text = Validator(engine, old_text, corpus) if old_text else None

    def validate(self, advance: Callable[[int], object]) -> Validation:
        """Scores the weights, and their moving average if there is one.

        Args:
            advance: Called with the number of lines translated, batch by batch; may raise to stop.
        """
        engine = self._engine
        result = self._validate(engine.model, advance)
        # Weights that have diverged would give other warnings.
        if not self._has_compared and math.isfinite(result.score):
            self._has_compared = True
            src, tgt = (side[0][:_COMPARED] for side in (self._encoded.src, self._encoded.tgt))
            warn_of_decoding(engine.model, src.tolist(), tgt.tolist())
        if engine.ema:
            average = self._validate(engine.ema.model, advance)
            metrics = {f"ema_{name}": value for name, value in average.metrics.items()}
            score = average.score if math.isfinite(result.score) else result.score
            result = replace(average, metrics=result.metrics | metrics, score=score)
        if self._of_old_text:
            old = self._of_old_text.validate(advance).metrics.items()
            result = replace(result, metrics=result.metrics | {f"old_{k}": v for k, v in old})
        return result

    def _validate(self, model: Transformer, advance: Callable[[int], object]) -> Validation:
        """Scores a model on the raw references."""
        runtime = self._runtimes[model]
        nll = mean_nll(model, self._encoded, runtime.map)
        hypotheses, bleu = self._translate(runtime, advance)
        metrics = {"nll": nll, "perplexity": perplexity(nll), "bleu": bleu}
        if self._valid.metric == "chrf":
            metrics["chrf"] = corpus_score(hypotheses, [self._pairs.tgt], self._metrics[1]).value
        score = 0.0 if self._valid.metric == "nll" else metrics[self._valid.metric]
        is_finite = math.isfinite(metrics["perplexity"])
        return Validation(metrics, score if is_finite else -math.inf, nll, hypotheses)

    def _translate(
        self, runtime: SharedRuntime, advance: Callable[[int], object]
    ) -> tuple[list[str], float]:
        """Translates the raw sources; returns the hypotheses and their BLEU by raw references."""
        translator = Translator(runtime, self._vocab, self._splitter, _SEARCH)
        hypotheses = translator.translate(self._pairs.src, advance)
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

    def log(self, result: Validation, step: int, previous: Progress) -> None:
        """Logs the scores of a step, with a few translations of the same sentences each time."""
        metrics = result.metrics
        text = f"step {step}: validation BLEU {metrics['bleu']:.2f}"
        if "ema_bleu" in metrics:
            text += f", of the moving average {metrics['ema_bleu']:.2f}"
        if "chrf" in metrics:
            text += f", chrF2 {metrics.get('ema_chrf', metrics['chrf']):.2f}"
        if "old_bleu" in metrics:
            text += f", of the old text {metrics.get('old_ema_bleu', metrics['old_bleu']):.2f}"
        if result.score == -math.inf:
            logger.warning(
                "%s, which cannot be the best: perplexity is not finite, training has diverged;"
                " start a new run with a lower optim.lr_scale",
                text,
            )
        else:
            is_bleu = self._valid.metric == "bleu"
            best = f" {previous.best_bleu:.2f}" if is_bleu else f" at step {previous.best_step}"
            best = "" if result.is_better(previous) else best
            value = metrics["perplexity"]
            shown = f"{value:.2f}" if value < 1e6 else f"{value:.1e}"
            logger.info("%s, perplexity %s (best%s)", text, shown, best)
        count = len(self._pairs)
        for i in np.linspace(0, count - 1, min(count, _SAMPLES), dtype=int):
            logger.info("  source     %s", self._pairs.src[i])
            logger.info("  reference  %s", self._pairs.tgt[i])
            logger.info("  hypothesis %s", result.hypotheses[i])


def mean_nll(model: Transformer, pairs: EncodedPairs, map_batches: MapBatches) -> float:
    """Computes the mean negative log-likelihood per target token, without label smoothing.

    The model is in evaluation mode meanwhile; `map_batches` is that of `log_probabilities`.

    Returns:
        Nats per target token, EOS included.
    """
    with evaluation_mode(model):
        sums = log_probabilities(model, pairs, map_batches)
    return -math.fsum(sums) / int(pairs.lengths[1].sum())


def perplexity(nll: float) -> float:
    """Computes the perplexity of nats per token; infinity if it exceeds the range of a float."""
    return math.exp(nll) if nll < 700 else math.inf
