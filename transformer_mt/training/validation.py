"""The validation of a model in training: perplexity, BLEU, and a few sample translations."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from transformer_mt.checkpoints.checkpoint import checkpoint_digest
from transformer_mt.checkpoints.evaluations import (
    VALIDATION,
    EvaluationRecord,
    SearchSetting,
    write_evaluation,
)
from transformer_mt.evaluation.evaluator import evaluate, mean_nll, perplexity
from transformer_mt.evaluation.scoring import score_all
from transformer_mt.system.processes import ALONE, Processes
from transformer_mt.text.batching import encode_pairs
from transformer_mt.text.corpus import RawPairs
from transformer_mt.text.vocabulary import Vocabulary
from transformer_mt.training.engine import Engine
from transformer_mt.translation.translator import Translator

logger = logging.getLogger(__name__)

_SAMPLES = 3


class _Stopped(Exception):
    """Validation was asked to stop."""


@dataclass(frozen=True)
class Validation:
    """The result of a validation.

    Attributes:
        nll: Negative log-likelihood of the weights, in nats per target token.
        bleu: BLEU of the weights.
        ema_bleu: BLEU of their moving average; None if there is none.
        hypotheses: One per sentence, by the moving average if there is one.
    """

    nll: float
    bleu: float
    ema_bleu: float | None
    hypotheses: list[str]

    @property
    def figures(self) -> dict[str, float]:
        """The values by their names in metrics.jsonl."""
        average = {} if self.ema_bleu is None else {"ema_bleu": self.ema_bleu}
        return {
            "nll": self.nll,
            "perplexity": perplexity(self.nll),
            "bleu": self.bleu,
            **average,
        }

    @property
    def score(self) -> float:
        """The BLEU that counts, the moving average's if there is one; -inf after divergence."""
        if not math.isfinite(perplexity(self.nll)):
            return -math.inf
        return self.bleu if self.ema_bleu is None else self.ema_bleu


class Validator:
    """Scores the model of an engine on the validation text.

    Args:
        engine: The engine in training.
        pairs: Raw validation text.
        vocab: The vocabulary of the run.
        processes: The processes that share the work.
    """

    def __init__(
        self, engine: Engine, pairs: RawPairs, vocab: Vocabulary, processes: Processes = ALONE
    ) -> None:
        self._engine, self._pairs, self._processes = engine, pairs, processes
        self._encoded = encode_pairs(pairs.src, pairs.tgt, vocab)
        max_length = engine.config.data.max_length
        self._translator = Translator(engine.model, vocab, max_length, processes=processes)

    def validate(self, must_stop: Callable[[], bool]) -> Validation | None:
        """Scores the weights, and their moving average if there is one.

        Args:
            must_stop: Called between batches.

        Returns:
            The scores; None if it had to stop.
        """
        engine = self._engine
        nll = mean_nll(engine.model, self._encoded, self._processes)
        try:
            hypotheses, bleu = self._evaluate(must_stop)
            ema_bleu = None
            if engine.ema:
                with engine.ema.in_place():
                    hypotheses, ema_bleu = self._evaluate(must_stop)
        except _Stopped:
            return None
        return Validation(nll, bleu, ema_bleu, hypotheses)

    def _evaluate(self, must_stop: Callable[[], bool]) -> tuple[list[str], float]:
        def stop_if_asked(lines: int) -> None:
            if must_stop():
                raise _Stopped

        hypotheses, bleu = evaluate(self._translator, self._pairs, stop_if_asked)
        return hypotheses, bleu.value

    def record(self, result: Validation, checkpoint: Path) -> None:
        """Saves the scores and translations of a validation for the report of the run.

        Args:
            result: The validation.
            checkpoint: The checkpoint of its weights, which may not have been saved.
        """
        max_length = self._engine.config.data.max_length
        references = [list(self._pairs.tgt)]
        scores = score_all(result.hypotheses, references)
        record = EvaluationRecord(
            test_set=VALIDATION,
            checkpoint=checkpoint.name,
            digest=checkpoint_digest(checkpoint) if checkpoint.exists() else "",
            search=SearchSetting(max_length=max_length),
            scores=scores,
            sources=list(self._pairs.src),
            references=references,
            hypotheses=result.hypotheses,
        )
        write_evaluation(checkpoint, record)

    def log(self, result: Validation, step: int, previous_best: float) -> None:
        """Reports a validation, with a few translations of the same sentences each time.

        Args:
            result: The validation.
            step: The step at which the weights were scored.
            previous_best: The best score before.
        """
        figures = result.figures
        average = f", of the moving average {result.ema_bleu:.2f}" if self._engine.ema else ""
        text = f"step {step}: validation BLEU {result.bleu:.2f}{average}"
        if not math.isfinite(figures["perplexity"]):
            logger.warning(
                "%s, which cannot be the best: perplexity is not finite, training has diverged;"
                " lower optim.lr_scale",
                text,
            )
        else:
            best = " (best)" if result.score > previous_best else f" (best {previous_best:.2f})"
            logger.info("%s, perplexity %.2f%s", text, figures["perplexity"], best)
        for i in np.linspace(0, len(self._pairs) - 1, _SAMPLES, dtype=int):
            logger.info("  source     %s", self._pairs.src[i])
            logger.info("  reference  %s", self._pairs.tgt[i])
            logger.info("  hypothesis %s", result.hypotheses[i])
