"""One system against another: significance, by length, and the sentences that changed most."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from transformer_mt.evaluation.scoring import Difference, bleu, paired_bootstrap, sentence_chrf
from transformer_mt.text.corpus import RawPairs

_BOUNDS = (0, 10, 20, 30, 40, 60, sys.maxsize)
"""A bucket holds sources with more words than one bound, and at most as many as the next."""


@dataclass(frozen=True)
class Bucket:
    """BLEU on the sentences of some length.

    Attributes:
        words: Words of the source, such as `11-20`.
        sentences: How many there are.
        bleu: Of the system.
        baseline: Of what it is compared with.
    """

    words: str
    sentences: int
    bleu: float
    baseline: float


@dataclass(frozen=True)
class Change:
    """A sentence on which the systems differ.

    Attributes:
        line: Its number, from 1.
        difference: chrF2 of the system less that of the baseline.
    """

    line: int
    difference: float


@dataclass(frozen=True)
class Comparison:
    """What distinguishes two systems on one test set.

    Attributes:
        differences: Each metric with its p-value.
        buckets: BLEU by source length.
        changes: The sentences that differ, the one that gained most first.
    """

    differences: list[Difference]
    buckets: list[Bucket]
    changes: list[Change]


def compare(
    pairs: RawPairs, hypotheses: Sequence[str], baseline: Sequence[str], ter: bool = False
) -> Comparison:
    """Compares hypotheses with those of a baseline.

    Raises:
        DataError: If there are no sentences, or not as many of each.
    """
    differences = paired_bootstrap(hypotheses, baseline, pairs.tgt, ter)
    chrf = (sentence_chrf(some, pairs.tgt) for some in (hypotheses, baseline))
    changes = [
        Change(line, ours - theirs)
        for line, (ours, theirs) in enumerate(zip(*chrf, strict=True), 1)
        if ours != theirs
    ]
    changes.sort(key=lambda change: -change.difference)
    return Comparison(differences, _buckets(pairs, hypotheses, baseline), changes)


def _buckets(pairs: RawPairs, hypotheses: Sequence[str], baseline: Sequence[str]) -> list[Bucket]:
    words = [max(1, len(line.split())) for line in pairs.src]
    buckets = []
    for low, high in pairwise(_BOUNDS):
        lines = [i for i, count in enumerate(words) if low < count <= high]
        if lines:
            references = [pairs.tgt[i] for i in lines]
            ours, theirs = (
                bleu([some[i] for i in lines], references).value for some in (hypotheses, baseline)
            )
            name = f"{low + 1}-{high}" if high < sys.maxsize else f"over {low}"
            buckets.append(Bucket(name, len(lines), ours, theirs))
    return buckets


def show(
    found: Comparison,
    pairs: RawPairs,
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    changes: int,
) -> str:
    """Writes a comparison for people.

    Args:
        found: What `compare` gave.
        pairs: The test set.
        hypotheses: Of the system.
        baseline: Of the baseline.
        changes: Sentences shown that became better, and as many that became worse.
    """
    lines = [f"{'':12}{'system':>9}{'baseline':>10}{'difference':>12}{'p':>8}"]
    for some in found.differences:
        gain = some.value - some.baseline
        lines.append(
            f"{some.name:12}{some.value:9.2f}{some.baseline:10.2f}{gain:+12.2f}{some.p_value:8.4f}"
            f"  {some.signature}"
        )
    lines += ["", f"{'words':12}{'BLEU':>9}{'baseline':>10}{'difference':>12}{'sentences':>11}"]
    for bucket in found.buckets:
        gain = bucket.bleu - bucket.baseline
        lines.append(
            f"{bucket.words:12}{bucket.bleu:9.2f}{bucket.baseline:10.2f}{gain:+12.2f}{bucket.sentences:11}"
        )
    better = [change for change in found.changes if change.difference > 0]
    worse = [change for change in reversed(found.changes) if change.difference < 0]
    same = len(pairs) - len(better) - len(worse)
    lines += ["", f"chrF2 of the sentence: {len(better)} better, {len(worse)} worse, {same} equal"]
    for name, some_changes in (("better", better), ("worse", worse)):
        for change in some_changes[:changes]:
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
