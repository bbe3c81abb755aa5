"""One system against another: significance, BLEU by length, and the largest changes."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from transformer_mt.evaluation.scoring import Difference, bleu, paired_bootstrap, sentence_chrf
from transformer_mt.text.corpus import RawPairs

_LENGTH_BOUNDS = (0, 10, 20, 30, 40, 60, sys.maxsize)
"""A bucket holds the sources with more words than one bound and at most as many as the next."""


@dataclass(frozen=True)
class Bucket:
    """BLEU on the sentences of similar length.

    Attributes:
        words: Range of source lengths in words, such as `11-20`.
        sentences: Number of sentences.
        bleu: BLEU of the system.
        baseline: BLEU of the baseline.
    """

    words: str
    sentences: int
    bleu: float
    baseline: float


@dataclass(frozen=True)
class Change:
    """A sentence whose chrF2 differs between the systems.

    Attributes:
        line: Its line number, from 1.
        difference: chrF2 of the system minus that of the baseline.
    """

    line: int
    difference: float


@dataclass(frozen=True)
class Comparison:
    """The differences of two systems on one test set.

    Attributes:
        differences: Each metric with its p-value.
        buckets: BLEU by source length.
        changes: The sentences that differ, in order of falling difference.
    """

    differences: list[Difference]
    buckets: list[Bucket]
    changes: list[Change]


def compare(
    pairs: RawPairs, hypotheses: Sequence[str], baseline: Sequence[str], ter: bool = False
) -> Comparison:
    """Compares the hypotheses of a system with those of a baseline.

    Args:
        pairs: The test set.
        hypotheses: Translations by the system, one per source.
        baseline: Translations by the baseline, one per source.
        ter: Whether to compute TER as well.

    Raises:
        DataError: If there are no sentences, or their numbers differ.
    """
    differences = paired_bootstrap(hypotheses, baseline, pairs.tgt, ter)
    system_chrf = sentence_chrf(hypotheses, pairs.tgt)
    baseline_chrf = sentence_chrf(baseline, pairs.tgt)
    changes = [
        Change(line, system_score - baseline_score)
        for line, (system_score, baseline_score) in enumerate(
            zip(system_chrf, baseline_chrf, strict=True), 1
        )
        if system_score != baseline_score
    ]
    changes.sort(key=lambda change: -change.difference)
    return Comparison(differences, _buckets(pairs, hypotheses, baseline), changes)


def _buckets(pairs: RawPairs, hypotheses: Sequence[str], baseline: Sequence[str]) -> list[Bucket]:
    words = [max(1, len(line.split())) for line in pairs.src]
    buckets = []
    for low, high in pairwise(_LENGTH_BOUNDS):
        lines = [i for i, count in enumerate(words) if low < count <= high]
        if lines:
            references = [pairs.tgt[i] for i in lines]
            system_bleu = bleu([hypotheses[i] for i in lines], references).value
            baseline_bleu = bleu([baseline[i] for i in lines], references).value
            name = f"{low + 1}-{high}" if high < sys.maxsize else f"over {low}"
            buckets.append(Bucket(name, len(lines), system_bleu, baseline_bleu))
    return buckets


def format_comparison(
    comparison: Comparison,
    pairs: RawPairs,
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    samples: int,
) -> str:
    """Formats a comparison for people.

    Args:
        comparison: The result of `compare`.
        pairs: The test set.
        hypotheses: Translations by the system.
        baseline: Translations by the baseline.
        samples: Sentences shown of those that gained most, and of those that lost most.
    """
    better = [change for change in comparison.changes if change.difference > 0]
    worse = [change for change in reversed(comparison.changes) if change.difference < 0]
    equal = len(pairs) - len(better) - len(worse)
    lines = [
        *_format_metrics(comparison.differences),
        "",
        *_format_buckets(comparison.buckets),
        "",
        f"chrF2 per sentence: {len(better)} better, {len(worse)} worse, {equal} equal",
    ]
    for name, changes in (("better", better), ("worse", worse)):
        for change in changes[:samples]:
            i = change.line - 1
            lines += [
                "",
                f"line {change.line}, {name} by {abs(change.difference):.1f}",
                f"  source     {pairs.src[i]}",
                f"  reference  {pairs.tgt[i]}",
                f"  system     {hypotheses[i]}",
                f"  baseline   {baseline[i]}",
            ]
    return "\n".join(lines)


def _format_metrics(differences: Sequence[Difference]) -> list[str]:
    lines = [f"{'':12}{'system':>9}{'baseline':>10}{'difference':>12}{'p':>8}"]
    for metric in differences:
        lines.append(
            f"{metric.name:12}{metric.value:9.2f}{metric.baseline:10.2f}"
            f"{metric.value - metric.baseline:+12.2f}{metric.p_value:8.4f}  {metric.signature}"
        )
    return lines


def _format_buckets(buckets: Sequence[Bucket]) -> list[str]:
    lines = [f"{'words':12}{'BLEU':>9}{'baseline':>10}{'difference':>12}{'sentences':>11}"]
    for bucket in buckets:
        lines.append(
            f"{bucket.words:12}{bucket.bleu:9.2f}{bucket.baseline:10.2f}"
            f"{bucket.bleu - bucket.baseline:+12.2f}{bucket.sentences:11}"
        )
    return lines
