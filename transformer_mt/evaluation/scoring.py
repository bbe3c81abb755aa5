"""Translation quality by sacreBLEU; every value comes with its signature.

Hypotheses are detokenised text, one line per sentence; references are one or more reference
translations, each raw text with one line per sentence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result

from transformer_mt.checkpoints.evaluations import Score
from transformer_mt.errors import DataError


@dataclass(frozen=True)
class Difference:
    """The values of one metric for a system and a baseline.

    `p_value` is the probability of a difference at least as large if both were equally good.
    """

    name: str
    value: float
    baseline: float
    p_value: float
    signature: str


def bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """Computes corpus BLEU of detokenised hypotheses against one or more raw references.

    Raises:
        DataError: If there are no sentences, or their numbers differ.
    """
    _check(hypotheses, references)
    return _score(BLEU(), hypotheses, references)


def score_all(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], ter: bool = False
) -> list[Score]:
    """Computes BLEU, chrF2 and, if requested, TER, in that order.

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
        old, new = cast(list[Result], results[name])
        p_value, text = float(new.p_value or 0.0), signature.format()
        differences.append(Difference(name, float(new.score), float(old.score), p_value, text))
    return differences


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Computes chrF2 of each sentence; BLEU is unreliable on single sentences.

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
