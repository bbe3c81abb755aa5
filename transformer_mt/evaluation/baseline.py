"""Comparison of two systems: significance, BLEU by length, and the largest changes."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sacrebleu.metrics.base import Metric

from transformer_mt.evaluation.scoring import (
    Difference,
    compare_scores,
    corpus_score,
    sentence_chrf,
)
from transformer_mt.system.console import escape_controls
from transformer_mt.text.cleaning import WITHOUT_SPACES, usual_script
from transformer_mt.text.test_sets import EvaluationSet

_LENGTH_BOUNDS = (0, 10, 20, 30, 40, 60, sys.maxsize)
"""A bucket holds the sentences with more words than one bound and at most as many as the next."""


@dataclass(frozen=True)
class Bucket:
    """BLEU of both systems on sentences with a range of words, such as `11-20`."""

    words: str
    sentences: int
    bleu: float
    baseline: float


@dataclass(frozen=True)
class Change:
    """A sentence whose chrF2 differs: its line, from 1, and the system's gain."""

    line: int
    difference: float


@dataclass(frozen=True)
class Comparison:
    """The differences between two systems on one test set.

    Buckets are by the length of the source, or of the first reference if there is no source.
    Changes are all sentences whose chrF2 differs, the largest gain first.
    """

    differences: list[Difference]
    buckets: list[Bucket]
    changes: list[Change]


def compare_with_baseline(
    test_set: EvaluationSet,
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    metrics: Sequence[Metric],
) -> Comparison:
    """Compares the hypotheses of a system with those of a baseline, one of each per sentence.

    The first of the metrics is BLEU.
    """
    differences = compare_scores(hypotheses, baseline, test_set.references, metrics)
    system_chrf = sentence_chrf(hypotheses, test_set.references)
    baseline_chrf = sentence_chrf(baseline, test_set.references)
    gains = [new - old for new, old in zip(system_chrf, baseline_chrf, strict=True)]
    changes = [Change(line, gain) for line, gain in enumerate(gains, 1) if gain]
    changes.sort(key=lambda change: -change.difference)
    buckets = _buckets(test_set, hypotheses, baseline, metrics[0])
    return Comparison(differences, buckets, changes)


def _measured(test_set: EvaluationSet) -> tuple[str, Sequence[str]]:
    """Gives the text whose words are counted: the source, if there is one with spaces."""
    src = test_set.src
    if src is None or usual_script(src) in WITHOUT_SPACES:
        return "ref. words", test_set.references[0]
    return "source words", src


def _buckets(
    test_set: EvaluationSet, hypotheses: Sequence[str], baseline: Sequence[str], bleu: Metric
) -> list[Bucket]:
    words = [max(1, len(line.split())) for line in _measured(test_set)[1]]
    buckets = []
    for low, high in pairwise(_LENGTH_BOUNDS):
        lines = [i for i, count in enumerate(words) if low < count <= high]
        if lines:
            references = [[text[i] for i in lines] for text in test_set.references]
            system_bleu = corpus_score([hypotheses[i] for i in lines], references, bleu).value
            baseline_bleu = corpus_score([baseline[i] for i in lines], references, bleu).value
            name = f"{low + 1}-{high}" if high < sys.maxsize else f"over {low}"
            buckets.append(Bucket(name, len(lines), system_bleu, baseline_bleu))
    return buckets


def format_comparison(
    comparison: Comparison,
    test_set: EvaluationSet,
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    samples: int,
) -> str:
    """Formats a comparison for people, with `samples` of the largest gains and of the losses."""
    better = [change for change in comparison.changes if change.difference > 0]
    worse = [change for change in reversed(comparison.changes) if change.difference < 0]
    equal = len(test_set) - len(better) - len(worse)
    measured, _ = _measured(test_set)
    lines = [f"{'':12}{'system':>9}{'baseline':>10}{'difference':>12}{'p':>8}"]
    for metric in comparison.differences:
        values = _format_values(metric.name, metric.value, metric.baseline)
        lines.append(f"{values}{metric.p_value:z8.4f}  {metric.signature}")
    lines += ["", f"{measured:12}{'BLEU':>9}{'baseline':>10}{'difference':>12}{'sentences':>11}"]
    for bucket in comparison.buckets:
        values = _format_values(bucket.words, bucket.bleu, bucket.baseline)
        lines.append(f"{values}{bucket.sentences:11}")
    lines += ["", f"chrF2 per sentence: {len(better)} better, {len(worse)} worse, {equal} equal"]
    for name, changes in (("better", better), ("worse", worse)):
        for change in changes[:samples]:
            i = change.line - 1
            lines += ["", f"line {change.line}, {name} by {abs(change.difference):.1f}"]
            translations = {"system": hypotheses[i], "baseline": baseline[i]}
            lines += [f"  {line}" for line in format_sentence(test_set, i, translations)]
    return "\n".join(lines)


def _format_values(name: str, system: float, baseline: float) -> str:
    return f"{name:12}{system:9.2f}{baseline:10.2f}{system - baseline:+z12.2f}"


def format_sentence(
    test_set: EvaluationSet, index: int, translations: Mapping[str, str]
) -> list[str]:
    """Formats one sentence: its source if known, all references, and labelled translations."""
    texts = {} if test_set.src is None else {"source": test_set.src[index]}
    for number, reference in enumerate(test_set.references, start=1):
        label = "reference" if len(test_set.references) == 1 else f"reference {number}"
        texts[label] = reference[index]
    texts |= translations
    width = max(len(label) for label in texts)
    return [escape_controls(f"{label:{width}}  {text}") for label, text in texts.items()]
