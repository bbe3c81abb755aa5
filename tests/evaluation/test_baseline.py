"""The comparison of two systems: sentences by length, and those that changed most."""

import pytest

from transformer_mt.evaluation.baseline import (
    compare_with_baseline,
    format_comparison,
)
from transformer_mt.evaluation.scoring import choose_metrics, corpus_score
from transformer_mt.text.test_sets import EvaluationSet


def test_a_comparison_by_hand():
    """A bound belongs to the bucket that it ends; an empty line counts as one word."""
    words = [f"w{i} " * length for i, length in enumerate((0, 10, 11, 60, 61))]
    reference = [f"{word}end" for word in words]
    test_set = EvaluationSet("words", "words", words, [reference])
    system, baseline = list(reference), list(reference)
    system[1], baseline[4] = "bad", "worse than that"
    baseline[3] = baseline[3].removesuffix("d")
    metrics = choose_metrics("en")
    comparison = compare_with_baseline(test_set, system, baseline, metrics)
    buckets, changes = comparison.buckets, comparison.changes
    names = [(bucket.words, bucket.sentences) for bucket in buckets]
    assert names == [("1-10", 2), ("11-20", 1), ("41-60", 1), ("over 60", 1)]
    assert buckets[0].bleu == corpus_score(system[:2], [reference[:2]], metrics[0]).value
    assert buckets[0].baseline > 99 > buckets[3].baseline
    assert [change.line for change in changes] == [5, 4, 2]
    assert changes[0].difference > 1 > changes[1].difference > 0 > changes[2].difference
    [bleu, chrf] = comparison.differences
    lines = format_comparison(comparison, test_set, system, baseline, 1).splitlines()
    assert lines[:12] == [
        "               system  baseline  difference       p",
        f"BLEU            92.79     49.61      +43.18  {bleu.p_value:.4f}  {bleu.signature}",
        f"chrF2           94.20     62.01      +32.20  {chrf.p_value:.4f}  {chrf.signature}",
        "",
        "source words     BLEU  baseline  difference  sentences",
        "1-10             0.00    100.00     -100.00          2",
        "11-20          100.00    100.00       +0.00          1",
        "41-60          100.00     98.32       +1.68          1",
        "over 60        100.00      0.00     +100.00          1",
        "",
        "chrF2 per sentence: 2 better, 1 worse, 2 equal",
        "",
    ]
    assert [lines[i] for i in (12, 16, 18, 21)] == [
        "line 5, better by 99.5",
        "  baseline   worse than that",
        "line 2, worse by 98.2",
        "  system     bad",
    ]


@pytest.mark.parametrize("src", [None, ["quelle"], ["来源"]])
def test_several_references(src):
    """Words are those of the source, or of the first reference without one or its spaces."""
    test_set = EvaluationSet("texts", "texts", src, [["one " * 11], ["two"]])
    comparison = compare_with_baseline(test_set, ["one"], ["on"], choose_metrics("en"))
    has_words = src == ["quelle"]
    assert comparison.buckets[0].words == ("1-10" if has_words else "11-20")
    lines = format_comparison(comparison, test_set, ["one"], ["on"], 1).splitlines()
    assert lines[4].startswith("source words" if has_words else "ref. words")
    assert lines[-4:] == [
        f"  reference 1  {'one ' * 11}",
        "  reference 2  two",
        "  system       one",
        "  baseline     on",
    ]
    assert (f"  source       {src and src[0]}" in lines) == (src is not None)
