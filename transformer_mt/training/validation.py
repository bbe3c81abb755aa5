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
from transformer_mt.translation.options import SearchOptions
from transformer_mt.translation.translator import Translator

logger = logging.getLogger(__name__)

_SEARCH = SearchOptions(beam_size=1)
"""Greedy, whatever the default of `translate` is."""
_SAMPLES = 3


@dataclass(frozen=True)
class Validation:
    """The result of a validation.

    Attributes:
        nll: Negative log-likelihood of the weights, in nats per target token.
        bleu, ema_bleu: BLEU of the weights, and of their moving average if there is one.
        hypotheses: One per sentence, by the moving average if there is one.
    """

    nll: float
    bleu: float
    ema_bleu: float | None
    hypotheses: list[str]

    @property
    def metrics(self) -> dict[str, float]:
        """The values by their names in metrics.jsonl."""
        average = {} if self.ema_bleu is None else {"ema_bleu": self.ema_bleu}
        return {"nll": self.nll, "perplexity": perplexity(self.nll), "bleu": self.bleu, **average}

    @property
    def score(self) -> float:
        """The BLEU that counts, the moving average's if there is one; -inf after divergence."""
        if not math.isfinite(perplexity(self.nll)):
            return -math.inf
        return self.bleu if self.ema_bleu is None else self.ema_bleu


class Validator:
    """Scores the model of an engine on raw validation text, and reports the scores."""

    def __init__(
        self, engine: Engine, pairs: RawPairs, vocab: Vocabulary, processes: Processes = ALONE
    ) -> None:
        self._engine, self._pairs, self._processes = engine, pairs, processes
        self._encoded = encode_pairs(pairs.src, pairs.tgt, vocab)
        max_length = engine.config.data.max_length
        self._translator = Translator(engine.model, vocab, max_length, _SEARCH, processes)

    def validate(self, advance: Callable[[int], object]) -> Validation:
        """Scores the weights, and their moving average if there is one.

        Args:
            advance: Called with the number of lines translated, batch by batch; may raise to stop.
        """
        engine = self._engine
        nll = mean_nll(engine.model, self._encoded, self._processes)
        hypotheses, bleu = evaluate(self._translator, self._pairs, advance)
        ema_bleu = None
        if engine.ema:
            with engine.ema.in_place():
                hypotheses, average = evaluate(self._translator, self._pairs, advance)
            ema_bleu = average.value
        return Validation(nll, bleu.value, ema_bleu, hypotheses)

    def record(self, result: Validation, checkpoint: Path) -> None:
        """Saves scores and translations for reports; the checkpoint may not have been saved."""
        references = [list(self._pairs.tgt)]
        record = EvaluationRecord(
            test_set=VALIDATION,
            checkpoint=checkpoint.name,
            digest=checkpoint_digest(checkpoint) if checkpoint.exists() else "",
            search=SearchSetting(_SEARCH.beam_size, max_length=self._engine.config.data.max_length),
            scores=score_all(result.hypotheses, references),
            sources=list(self._pairs.src),
            references=references,
            hypotheses=result.hypotheses,
        )
        write_evaluation(checkpoint, record)

    def log(self, result: Validation, step: int, previous_best: float) -> None:
        """Logs the scores of a step, with a few translations of the same sentences each time."""
        text = f"step {step}: validation BLEU {result.bleu:.2f}"
        if result.ema_bleu is not None:
            text += f", of the moving average {result.ema_bleu:.2f}"
        if result.score == -math.inf:
            logger.warning(
                "%s, which cannot be the best: perplexity is not finite, training has diverged;"
                " lower optim.lr_scale",
                text,
            )
        else:
            best = " (best)" if result.score > previous_best else f" (best {previous_best:.2f})"
            logger.info("%s, perplexity %.2f%s", text, perplexity(result.nll), best)
        for i in np.linspace(0, len(self._pairs) - 1, _SAMPLES, dtype=int):
            logger.info("  source     %s", self._pairs.src[i])
            logger.info("  reference  %s", self._pairs.tgt[i])
            logger.info("  hypothesis %s", result.hypotheses[i])
