"""Scores are sacreBLEU's own."""

import pytest
import sacrebleu

from transformer_mt.errors import DataError
from transformer_mt.evaluation.scoring import bleu, paired_bootstrap, score_all

HYPOTHESES = [
    "The cat sat on the mat, quietly.",
    "",
    "He said: “No!” It is 3.5 % more",
    "A a b c d",
]
REFERENCES = [
    "The cat sat on a mat quietly.",
    "Nothing",
    "He said “No”. It is 3.5% more.",
    "a a b c d",
]


def test_bleu_is_sacrebleus():
    """BLEU, its signature and its line are those of sacreBLEU with its defaults."""
    direct = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES])
    metric = sacrebleu.metrics.BLEU()
    same = metric.corpus_score(HYPOTHESES, [REFERENCES])
    score = bleu(HYPOTHESES, [REFERENCES])
    assert 5 < score.value == direct.score == same.score < 95
    assert score.signature == str(metric.get_signature())
    assert "tok:13a" in score.signature and "case:mixed" in score.signature
    assert score.text == same.format(signature=score.signature)


def test_chrf_and_ter_are_sacrebleus():
    """Values and signatures are those of sacreBLEU with its defaults; TER only when asked for."""
    assert [score.name for score in score_all(HYPOTHESES, [REFERENCES])] == ["bleu", "chrf"]
    scores = score_all(HYPOTHESES, [REFERENCES], ter=True)
    assert scores[0] == bleu(HYPOTHESES, [REFERENCES])
    metrics = [sacrebleu.metrics.BLEU(), sacrebleu.metrics.CHRF(), sacrebleu.metrics.TER()]
    for score, metric in zip(scores, metrics, strict=True):
        direct = metric.corpus_score(HYPOTHESES, [REFERENCES])
        assert 5 < score.value == direct.score < 95
        assert score.signature == str(metric.get_signature())
        assert score.text == direct.format(signature=score.signature)


def test_systems_are_compared_by_ter_only_if_asked():
    """As they are scored."""
    for ter, names in ((False, ["BLEU", "chrF2"]), (True, ["BLEU", "chrF2", "TER"])):
        options = {"ter": True} if ter else {}
        differences = paired_bootstrap(HYPOTHESES, REFERENCES, [REFERENCES], **options)
        assert [difference.name for difference in differences] == names


def test_direction_matters():
    """Hypotheses come first: swapped arguments give another score."""
    assert bleu(HYPOTHESES, [REFERENCES]).value != bleu(REFERENCES, [HYPOTHESES]).value


def baseline_has_wrong_size(hypotheses, references):
    """Compares a system that has as many lines as the references."""
    return paired_bootstrap(references[0], hypotheses, references)


def system_has_wrong_size(hypotheses, references):
    """Compares with a baseline that has as many lines as the references."""
    return paired_bootstrap(hypotheses, references[0], references)


@pytest.mark.parametrize(
    "metric", [bleu, score_all, baseline_has_wrong_size, system_has_wrong_size]
)
def test_nothing_is_scored_that_does_not_match(metric):
    """Sides of different sizes are refused with both counts, in either direction, and no lines."""
    with pytest.raises(DataError, match="4 hypotheses for 3 references"):
        metric(HYPOTHESES, [REFERENCES[:3]])
    with pytest.raises(DataError, match="3 hypotheses for 4 references"):
        metric(HYPOTHESES[:3], [REFERENCES])
    with pytest.raises(DataError, match="no sentences"):
        metric([], [[]])
