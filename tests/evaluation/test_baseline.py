"""The comparison of two systems: the scores of both, and the sentences that changed most."""

from transformer_mt.evaluation.baseline import compare_with_baseline, format_comparison
from transformer_mt.evaluation.scoring import choose_metrics
from transformer_mt.text.test_sets import EvaluationSet


def test_a_comparison_by_hand():
    """With the largest change of either kind. Sabotage: exchange the systems; sort by line."""
    words = [f"w{i} " * length for i, length in enumerate((0, 10, 11, 60, 61))]
    reference = [f"{word}end" for word in words]
    test_set = EvaluationSet("words", "words", words, [reference])
    system, baseline = list(reference), list(reference)
    system[1], baseline[4] = "bad", "worse than that"
    baseline[3] = baseline[3].removesuffix("d")
    comparison = compare_with_baseline(test_set, system, baseline, choose_metrics("en"))
    assert [change.line for change in comparison.changes] == [5, 4, 2]
    text = format_comparison(comparison, test_set, system, baseline, 1)
    [bleu, chrf] = comparison.differences
    for part in (
        f" 92.79     49.61      +43.18  {bleu.p_value:.4f}  {bleu.signature}\n",
        f" 94.20     62.01      +32.20  {chrf.p_value:.4f}  {chrf.signature}\n",
        "2 better, 1 worse, 2 equal\n",
        f"line 5, better by 99.5\n  source     {words[4]}\n",
        f"line 2, worse by 98.2\n  source     {words[1]}\n  reference  {reference[1]}\n  system ",
    ):
        assert part in text


def test_several_references_and_no_source():
    test_set = EvaluationSet("texts", "texts", None, [["one " * 11], ["two"]])
    comparison = compare_with_baseline(test_set, ["one"], ["on"], choose_metrics("en"))
    lines = format_comparison(comparison, test_set, ["one"], ["on"], 1).splitlines()
    assert [line.split()[:2] for line in lines[-4:-2]] == [["reference", "1"], ["reference", "2"]]
    assert "source" not in "".join(lines)
