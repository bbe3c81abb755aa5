"""The report of an evaluation, from functions with plain arguments."""

from functools import partial
from pathlib import Path

import pytest
from conftest import copy_lines

from transformer_mt.evaluation.report import EvaluationReport, evaluate_system
from transformer_mt.evaluation.scoring import score_all
from transformer_mt.system.outputs import check_output
from transformer_mt.text.test_sets import load_test_set
from transformer_mt.translation.options import LoadOptions, SearchOptions


@pytest.fixture
def texts(tmp_path) -> Path:
    """Gives a folder with a reference, which is its own source, and a translation of it."""
    lines = copy_lines(12, 8)
    (tmp_path / "ref").write_text("".join(f"{line}\n" for line in lines))
    changed = [line[::-1] if i % 2 == 0 else line for i, line in enumerate(lines)]
    (tmp_path / "hyp").write_text("".join(f"{line}\n" for line in changed))
    return tmp_path


def report(texts: Path, baseline: Path | None = None, **options) -> EvaluationReport:
    """Evaluates the translation in a file."""
    return evaluate_system(
        paths=[],
        hypotheses=texts / "hyp",
        baseline=baseline,
        load_test_set=lambda data: load_test_set(data, src=texts / "ref", refs=[texts / "ref"]),
        search=SearchOptions(),
        load=LoadOptions(),
        **options,
    )


def test_scores(texts):
    """Values and signatures are in the dictionary, sacreBLEU's lines in the text."""
    result = report(texts, ter=True)
    scores = score_all(result.system.lines, result.test_set.references, ter=True)
    assert result.scores == scores and len(scores) == 3
    values = result.to_dict()
    assert values["sentences"] == 12 and values["hypotheses"] == str(texts / "hyp")
    for score in scores:
        assert values[score.name] == score.value
        assert values[f"{score.name}_signature"] == score.signature
    assert result.format() == "\n".join(score.text for score in scores)
    assert "baseline" not in values


def test_samples(texts):
    """As many as requested, or all there are, before the scores."""
    result = report(texts)
    text = result.format(samples=2).splitlines()
    assert text[:4] == [
        f"source      {result.test_set.src[0]}",
        f"reference   {result.test_set.references[0][0]}",
        f"hypothesis  {result.system.lines[0]}",
        "",
    ]
    assert sum(line.startswith("source ") for line in text) == 2
    assert result.format(samples=99).count("hypothesis ") == 12


def test_a_baseline(texts):
    """It is named and compared; three changes in each direction unless told otherwise."""
    result = report(texts, baseline=texts / "ref")
    values = result.to_dict()
    assert values["baseline"] == str(texts / "ref")
    assert {"differences", "buckets", "changes"} <= set(values)
    text = result.format()
    assert f"compared with {texts / 'ref'}" in text and text.count("worse by") == 3
    assert result.format(samples=1).count("worse by") == 1
    assert "by" not in result.format(samples=0).split("equal")[1]


def test_saving(texts):
    """What was scored is in the file, even if scoring fails."""
    report(texts, save=check_output(texts / "saved"))
    assert (texts / "saved").read_bytes() == (texts / "hyp").read_bytes()


def test_a_model_is_evaluated_on_its_corpus(copy_run, texts):
    """Its configuration names the corpus; the checkpoint's name is in the report."""
    paths = []

    def load(data):
        paths.append(data.path)
        return load_test_set(data, src=texts / "ref", refs=[texts / "ref"])

    evaluate = partial(evaluate_system, load_test_set=load, load=LoadOptions())
    result = evaluate([copy_run], None, texts / "hyp", search=SearchOptions(beam_size=2))
    assert paths and Path(paths[0]).name.startswith("corpus")
    assert result.to_dict()["beam_size"] == 2 and result.system.seconds > 0
    assert result.system.name.startswith(f"{copy_run}/step-")
    again = evaluate([], texts / "hyp", copy_run, search=SearchOptions(beam_size=2))
    assert again.baseline.lines == result.system.lines
