"""Scores are sacreBLEU's own."""

import re
import subprocess
import sys

import pytest
import sacrebleu
from conftest import copy_lines

from transformer_mt.errors import DataError
from transformer_mt.evaluation.scoring import bleu, paired_bootstrap, score_all, sentence_chrf

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


@pytest.mark.parametrize("references", [[REFERENCES], [REFERENCES, HYPOTHESES[:1] * 4]])
def test_scores_are_sacrebleus(references):
    """Values, signatures and lines are those of sacreBLEU with its defaults; TER only when asked.

    Sabotage: exchange hypotheses and references; use the first reference alone.
    """
    assert [score.name for score in score_all(HYPOTHESES, references)] == ["bleu", "chrf"]
    scores = score_all(HYPOTHESES, references, ter=True)
    assert scores[0] == bleu(HYPOTHESES, references)
    assert "tok:13a" in scores[0].signature and "case:mixed" in scores[0].signature
    metrics = [sacrebleu.metrics.BLEU(), sacrebleu.metrics.CHRF(), sacrebleu.metrics.TER()]
    for score, metric in zip(scores, metrics, strict=True):
        direct = metric.corpus_score(HYPOTHESES, references)
        assert 5 < score.value == direct.score < 95
        assert score.signature == str(metric.get_signature())
        assert f"nrefs:{len(references)}" in score.signature
        assert score.text == direct.format(signature=score.signature)
    assert [score.title for score in scores] == ["BLEU", "chrF2", "TER"]


def test_systems_are_compared_as_the_program_does(tmp_path):
    """Scores, p-values and signatures of its paired bootstrap, which takes the baseline first."""
    first, second = copy_lines(40, 5), copy_lines(40, 6)
    first = [f"{line} and so on" for line in first]
    mixed = [pair[i % 2] for i, pair in enumerate(zip(first, second, strict=True))]
    worse = [line if i % 3 else line[1:] for i, line in enumerate(mixed)]
    texts = {"ref1": first, "ref2": second, "system": mixed, "baseline": worse}
    for name, lines in texts.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    metrics = paired_bootstrap(mixed, worse, [first, second])
    tool = [sys.executable, "-m", "sacrebleu", "ref1", "ref2", "-w", "10"]
    paired = "-m", "bleu", "chrf", "--paired-bs", "-f", "text"  # its JSON of this fails in 2.6.0
    command = [*tool, "-i", "baseline", "system", *paired]
    printed = subprocess.check_output(command, cwd=tmp_path, text=True, stderr=subprocess.DEVNULL)
    values = [float(value) for value in re.findall(r"(\d+\.\d{10}) \(", printed)]
    old, new = [metric.baseline for metric in metrics], [metric.value for metric in metrics]
    assert values == [round(value, 10) for value in old + new]
    p_values = [float(value) for value in re.findall(r"\(p = (\d\.\d+)\)", printed)]
    assert p_values == [round(metric.p_value, 4) for metric in metrics] and 0 < p_values[0] < 0.5
    signatures = re.findall(r"^ - (?:BLEU|chrF2) +(\S+)$", printed, re.MULTILINE)
    assert signatures == [metric.signature for metric in metrics]
    assert [metric.name for metric in metrics] == ["BLEU", "chrF2"]
    with_ter = paired_bootstrap(HYPOTHESES, REFERENCES, [REFERENCES], ter=True)
    assert [metric.name for metric in with_ter] == ["BLEU", "chrF2", "TER"]


def test_the_best_reference_counts_for_a_sentence():
    """Sabotage: score each sentence against the first reference."""
    hypotheses, references = ["a b c", "x y z"], [["a b c", "nothing"], ["else", "x y z"]]
    assert sentence_chrf(hypotheses, references) == [100.0, 100.0]
    direct = sacrebleu.sentence_chrf("a b d", ["a b c", "else"]).score
    assert sentence_chrf(["a b d"], [["a b c"], ["else"]]) == [direct]


@pytest.mark.parametrize(
    "metric",
    [
        bleu,
        score_all,
        lambda system, references: paired_bootstrap(system, references[0], references),
        lambda baseline, references: paired_bootstrap(references[0], baseline, references),
    ],
)
def test_nothing_is_scored_that_does_not_match(metric):
    """Sides of different sizes are refused with both counts, in either direction, and no lines.

    Sabotage: check the first reference alone.
    """
    with pytest.raises(DataError, match="4 hypotheses for 3 references"):
        metric(HYPOTHESES, [REFERENCES, REFERENCES[:3]])
    with pytest.raises(DataError, match="3 hypotheses for 4 references"):
        metric(HYPOTHESES[:3], [REFERENCES])
    with pytest.raises(DataError, match="no sentences"):
        metric([], [[]])
