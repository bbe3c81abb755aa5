"""Translation quality by sacreBLEU, never without its signature."""

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from transformer_mt.errors import DataError


@dataclass(frozen=True)
class Score:
    """One metric on one set of hypotheses.

    Attributes:
        value: From 0 to 100.
        signature: sacreBLEU's record of how it was counted.
        text: sacreBLEU's own line, value, details and signature.
    """

    value: float
    signature: str
    text: str


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Scores detokenised hypotheses against raw references by corpus BLEU.

    Raises:
        DataError: If there are no sentences, or not as many of each.
    """
    return _score(BLEU(), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Scores detokenised hypotheses against raw references by chrF2.

    Raises:
        DataError: If there are no sentences, or not as many of each.
    """
    return _score(CHRF(), hypotheses, references)


def _score(metric: Metric, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    if len(hypotheses) != len(references):
        raise DataError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    if not references:
        raise DataError("there are no sentences to score")
    result = metric.corpus_score(hypotheses, [references])
    signature = metric.get_signature().format()
    return Score(result.score, signature, result.format(signature=signature))
