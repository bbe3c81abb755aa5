"""Translation quality by sacreBLEU, never without its signature."""

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest

from transformer_mt.errors import DataError


@dataclass(frozen=True)
class Score:
    """One metric on one set of hypotheses.

    Attributes:
        name: `bleu`, `chrf` or `ter`.
        value: From 0 to 100; TER counts mistakes and may be larger.
        signature: sacreBLEU's record of how it was counted.
        text: sacreBLEU's own line, value, details and signature.
    """

    name: str
    value: float
    signature: str
    text: str


@dataclass(frozen=True)
class Difference:
    """One metric on two sets of hypotheses.

    Attributes:
        name: What sacreBLEU calls the metric.
        value: Of the system.
        baseline: Of what it is compared with.
        p_value: Probability of a difference as large if both were equally good.
        signature: sacreBLEU's record of how it was counted.
    """

    name: str
    value: float
    baseline: float
    p_value: float
    signature: str


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Scores detokenised hypotheses against raw references by corpus BLEU.

    Raises:
        DataError: If there are no sentences, or not as many of each.
    """
    return score_all(hypotheses, references)[0]


def score_all(
    hypotheses: Sequence[str], references: Sequence[str], ter: bool = False
) -> list[Score]:
    """Scores detokenised hypotheses against raw references by BLEU, chrF2 and, if asked, TER.

    Raises:
        DataError: If there are no sentences, or not as many of each.
    """
    _check(hypotheses, references)
    scores = []
    for metric in _metrics(ter):
        found = metric.corpus_score(hypotheses, [references])
        signature = metric.get_signature().format()
        name = type(metric).__name__.lower()
        scores.append(Score(name, found.score, signature, found.format(signature=signature)))
    return scores


def paired_bootstrap(
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    references: Sequence[str],
    ter: bool = False,
) -> list[Difference]:
    """Compares two systems by sacreBLEU's paired bootstrap test, as `sacrebleu --paired-bs` does.

    Raises:
        DataError: If there are no sentences, or not as many of each.

    Reference:
        Koehn 2004, Statistical Significance Tests for Machine Translation Evaluation.
    """
    _check(hypotheses, references)
    _check(baseline, references)
    systems = [("baseline", baseline), ("system", hypotheses)]
    metrics = {type(metric).__name__: metric for metric in _metrics(ter)}
    signatures, results = PairedTest(systems, metrics, [references], test_type="bs")()
    differences = []
    for name, signature in signatures.items():
        before, after = results[name]
        value, p_value = float(after.score), float(after.p_value or 0.0)  # type: ignore[union-attr]
        old = float(before.score)  # type: ignore[union-attr]
        differences.append(Difference(name, value, old, p_value, signature.format()))
    return differences


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """Scores each sentence for itself by chrF2, which is steadier there than BLEU."""
    metric = CHRF()
    pairs = zip(hypotheses, references, strict=True)
    return [metric.sentence_score(hypothesis, [reference]).score for hypothesis, reference in pairs]


def _metrics(ter: bool) -> list[Metric]:
    return [BLEU(), CHRF(), TER()] if ter else [BLEU(), CHRF()]


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):
        raise DataError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    if not references:
        raise DataError("there are no sentences to score")
