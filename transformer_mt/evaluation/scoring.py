"""Translation quality by sacreBLEU; every value comes with its signature."""

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest

from transformer_mt.checkpoints.evaluations import Score
from transformer_mt.errors import DataError


@dataclass(frozen=True)
class Difference:
    """The values of one metric for a system and a baseline.

    Attributes:
        name: sacreBLEU's name of the metric.
        value: Value of the system.
        baseline: Value of the baseline.
        p_value: Probability of a difference at least as large if both were equally good.
        signature: sacreBLEU's record of how it was computed.
    """

    name: str
    value: float
    baseline: float
    p_value: float
    signature: str


def bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """Computes corpus BLEU of detokenised hypotheses against raw references.

    Args:
        hypotheses: One per sentence.
        references: One or more reference translations, each with one line per sentence.

    Raises:
        DataError: If there are no sentences, or their numbers differ.
    """
    _check(hypotheses, references)
    return _score(BLEU(), hypotheses, references)


def score_all(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], ter: bool = False
) -> list[Score]:
    """Computes BLEU, chrF2 and, if requested, TER of detokenised hypotheses.

    Args:
        hypotheses: One per sentence.
        references: One or more reference translations of raw text, each with one line per
            sentence.
        ter: Whether to compute TER as well.

    Raises:
        DataError: If there are no sentences, or their numbers differ.
    """
    _check(hypotheses, references)
    return [_score(metric, hypotheses, references) for metric in _metrics(ter)]


def _score(metric: Metric, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    score = metric.corpus_score(hypotheses, references)
    signature = metric.get_signature().format()
    text = score.format(signature=signature)
    return Score(type(metric).__name__.lower(), score.score, signature, text)


def paired_bootstrap(
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    references: Sequence[Sequence[str]],
    ter: bool = False,
) -> list[Difference]:
    """Compares two systems by sacreBLEU's paired bootstrap test, as `sacrebleu --paired-bs` does.

    Args:
        hypotheses: Translations by the system, one per sentence.
        baseline: Translations by the baseline, one per sentence.
        references: One or more reference translations, each with one line per sentence.
        ter: Whether to compare TER as well.

    Raises:
        DataError: If there are no sentences, or their numbers differ.

    Reference:
        Koehn 2004, Statistical Significance Tests for Machine Translation Evaluation.
    """
    _check(hypotheses, references)
    _check(baseline, references)
    systems = [("baseline", baseline), ("system", hypotheses)]
    metrics = {type(metric).__name__: metric for metric in _metrics(ter)}
    signatures, results = PairedTest(systems, metrics, references, test_type="bs")()
    differences = []
    for name, signature in signatures.items():
        of_baseline, of_system = results[name]
        differences.append(
            Difference(
                name=name,
                value=float(of_system.score),  # type: ignore[union-attr]
                baseline=float(of_baseline.score),  # type: ignore[union-attr]
                p_value=float(of_system.p_value or 0.0),  # type: ignore[union-attr]
                signature=signature.format(),
            )
        )
    return differences


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Computes chrF2 of each sentence; BLEU is unreliable on single sentences.

    Args:
        hypotheses: One per sentence.
        references: One or more reference translations, each with one line per sentence.

    Returns:
        One value from 0 to 100 per sentence; with several references, that of the best match.
    """
    metric = CHRF()
    alternatives = zip(*references, strict=True)
    return [
        metric.sentence_score(hypothesis, texts).score
        for hypothesis, texts in zip(hypotheses, alternatives, strict=True)
    ]


def _metrics(ter: bool) -> list[Metric]:
    return [BLEU(), CHRF(), TER()] if ter else [BLEU(), CHRF()]


def _check(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    for reference in references:
        if len(hypotheses) != len(reference):
            raise DataError(f"{len(hypotheses)} hypotheses for {len(reference)} references")
    if not hypotheses:
        raise DataError("there are no sentences to score")
