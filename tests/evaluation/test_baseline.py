"""The comparison of two systems: the scores of both, and the sentences that changed most."""

import pytest

from transformer_mt.evaluation.baseline import compare_with_baseline, format_comparison
from transformer_mt.evaluation.scoring import choose_metrics
from transformer_mt.text.test_sets import EvaluationSet


def test_a_comparison_by_hand():
    words = [f"w{i} " * length for i, length in enumerate((0, 10, 11, 60, 61))]
    reference = [f"{word}end" for word in words]
    test_set = EvaluationSet("words", "words", words, [reference])
    system, baseline = list(reference), list(reference)
    system[1], baseline[4] = "bad", "worse than that"
    baseline[3] = baseline[3].removesuffix("d")
    comparison = compare_with_baseline(test_set, system, baseline, choose_metrics("en"))
    changes = comparison.changes
    assert [change.line for change in changes] == [5, 4, 2]
    assert changes[0].difference > 1 > changes[1].difference > 0 > changes[2].difference
    [bleu, chrf] = comparison.differences
    lines = format_comparison(comparison, test_set, system, baseline, 1).splitlines()
    assert lines[:6] == [
        "               system  baseline  difference       p",
        f"BLEU            92.79     49.61      +43.18  {bleu.p_value:.4f}  {bleu.signature}",
        f"chrF2           94.20     62.01      +32.20  {chrf.p_value:.4f}  {chrf.signature}",
        "",
        "chrF2 per sentence: 2 better, 1 worse, 2 equal",
        "",
    ]
    assert [lines[i] for i in (6, 10, 12, 15)] == [
        "line 5, better by 99.5",
        "  baseline   worse than that",
        "line 2, worse by 98.2",
        "  system     bad",
    ]


@pytest.mark.parametrize("src", [None, ["quelle"]])
def test_several_references(src):
    test_set = EvaluationSet("texts", "texts", src, [["one " * 11], ["two"]])
    comparison = compare_with_baseline(test_set, ["one"], ["on"], choose_metrics("en"))
    lines = format_comparison(comparison, test_set, ["one"], ["on"], 1).splitlines()
    assert lines[-4:] == [
        f"  reference 1  {'one ' * 11}",
        "  reference 2  two",
        "  system       one",
        "  baseline     on",
    ]
    assert (f"  source       {src and src[0]}" in lines) == (src is not None)
