"""Comparison of two systems: significance, and the largest changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sacrebleu.metrics.base import Metric

from transformer_mt.evaluation.scoring import Difference, compare_scores, sentence_chrf
from transformer_mt.system.console import escape_controls
from transformer_mt.text.test_sets import EvaluationSet


@dataclass(frozen=True)
class Change:
    """A sentence whose chrF2 differs: its line, from 1, and the system's gain."""

    line: int
    difference: float


@dataclass(frozen=True)
class Comparison:
    """The differences between two systems on one test set.

    Changes are all sentences whose chrF2 differs, the largest gain first.
    """

    differences: list[Difference]
    changes: list[Change]


def compare_with_baseline(
    test_set: EvaluationSet,
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    metrics: Sequence[Metric],
) -> Comparison:
    """Compares the hypotheses of a system with those of a baseline, one of each per sentence."""
    differences = compare_scores(hypotheses, baseline, test_set.references, metrics)
    system_chrf = sentence_chrf(hypotheses, test_set.references)
    baseline_chrf = sentence_chrf(baseline, test_set.references)
    gains = [new - old for new, old in zip(system_chrf, baseline_chrf, strict=True)]
    changes = [Change(line, gain) for line, gain in enumerate(gains, 1) if gain]
    changes.sort(key=lambda change: -change.difference)
    return Comparison(differences, changes)


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
    lines = [f"{'':12}{'system':>9}{'baseline':>10}{'difference':>12}{'p':>8}"]
    for metric in comparison.differences:
        values = f"{metric.name:12}{metric.value:9.2f}{metric.baseline:10.2f}"
        values += f"{metric.value - metric.baseline:+z12.2f}{metric.p_value:z8.4f}"
        lines.append(f"{values}  {metric.signature}")
    lines += ["", f"chrF2 per sentence: {len(better)} better, {len(worse)} worse, {equal} equal"]
    for name, changes in (("better", better), ("worse", worse)):
        for change in changes[:samples]:
            i = change.line - 1
            lines += ["", f"line {change.line}, {name} by {abs(change.difference):.1f}"]
            translations = {"system": hypotheses[i], "baseline": baseline[i]}
            lines += [f"  {line}" for line in format_sentence(test_set, i, translations)]
    return "\n".join(lines)


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
