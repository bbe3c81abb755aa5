"""The evaluation of a run or of a translation, and its report."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
from conftest import copy_lines

from transformer_mt.checkpoints.evaluations import read_evaluations
from transformer_mt.errors import CheckpointError, ConfigError, DataError
from transformer_mt.evaluation import report
from transformer_mt.evaluation.report import EvaluationReport, SystemOutput, evaluate_system
from transformer_mt.evaluation.scoring import choose_metrics, corpus_score
from transformer_mt.system.outputs import check_output
from transformer_mt.text.test_sets import load_test_set
from transformer_mt.translation.options import LoadOptions, SearchOptions
from transformer_mt.version import source_digests


@pytest.fixture
def texts(tmp_path) -> Path:
    """Gives a folder with a reference, which is its own source, and a translation of it."""
    lines = copy_lines(12, 8)
    (tmp_path / "ref").write_text("".join(f"{line}\n" for line in lines))
    changed = [line[::-1] if i % 2 == 0 else line for i, line in enumerate(lines)]
    (tmp_path / "hyp").write_text("".join(f"{line}\n" for line in changed))
    (tmp_path / "short").write_text("".join(f"{line}\n" for line in lines[:11]))
    return tmp_path


def evaluate(
    texts: Path, *paths: Path, hyp="hyp", src="ref", refs=("ref",), baseline=None, **options
) -> EvaluationReport:
    """Evaluates a translation in a file of the folder, or runs if `hyp` is None."""
    refs = [texts / ref for ref in refs]
    load = partial(load_test_set, src=texts / src if src else None, refs=refs)
    metrics = partial(choose_metrics, ter=options.pop("ter", False))
    search = SearchOptions(beam_size=options.pop("beam_size", 1))
    hypotheses = texts / hyp if hyp else None
    baseline = texts / baseline if baseline else None
    return evaluate_system(
        paths, hypotheses, baseline, load, metrics, search, LoadOptions(), **options
    )


def test_scores(texts):
    """Values and signatures are in the dictionary, sacreBLEU's lines in the text.

    Before them as many sentences as requested, or all there are; without a source, none of it.
    """
    result = evaluate(texts, ter=True)
    lines = (texts / "hyp").read_text().splitlines()
    assert result.system == SystemOutput(lines, str(texts / "hyp"), 0.0)
    metrics = choose_metrics("en", ter=True)
    scores = [corpus_score(lines, result.test_set.references, metric) for metric in metrics]
    assert result.scores == scores and len(scores) == 3
    values = {score.name: score.value for score in scores}
    signatures = {f"{score.name}_signature": score.signature for score in scores}
    expected = {
        "sentences": 12,
        "tokenizer": "13a",
        "hypotheses": str(texts / "hyp"),
        **values,
        **signatures,
    }
    assert result.to_dict() == expected
    assert result.format() == "\n".join(score.text for score in scores)
    without_source = evaluate(texts, src=None, ter=True)
    assert without_source.to_dict() == expected
    text = result.format(samples=2).splitlines()
    assert text[:4] == [
        f"source      {result.test_set.src[0]}",
        f"reference   {result.test_set.references[0][0]}",
        f"hypothesis  {result.system.lines[0]}",
        "",
    ]
    assert sum(line.startswith("source ") for line in text) == 2
    assert text[8:] == result.format().splitlines()
    assert result.format(samples=99).count("hypothesis ") == 12
    assert without_source.format(samples=1).splitlines()[:2] == text[1:3]


def test_a_baseline(texts):
    """It is named and compared; three changes in each direction unless told otherwise."""
    result = evaluate(texts, baseline="ref")
    values = result.to_dict()
    assert values["baseline"] == str(texts / "ref")
    assert values["differences"][0]["value"] == values["bleu"] < 100
    assert {"differences", "buckets", "changes"} <= set(values) and json.dumps(values)
    text = result.format()
    assert f"compared with {texts / 'ref'}" in text and text.count("worse by") == 3
    assert result.format(samples=1).count("worse by") == 1
    assert "by" not in result.format(samples=0).split("equal")[1]


def test_a_model_is_evaluated_and_recorded(copy_run, texts, tmp_path):
    """With the corpus and the name of its checkpoint; as a baseline it gives the same."""
    run = shutil.copytree(copy_run, tmp_path / "run")
    saved = check_output(texts / "saved")
    result = evaluate(texts, run, hyp=None, baseline="hyp", beam_size=2, save=saved)
    assert (texts / "saved").read_text().splitlines() == result.system.lines
    values = result.to_dict()
    assert values["beam_size"] == 2 and result.system.seconds > 0
    [record] = read_evaluations([run / "evaluations"])[-1:]
    assert values["checkpoint"] == f"{run}/{record.checkpoint}"
    assert (record.test_set, record.search.beam_size, record.search.length_penalty) == (
        "ref",
        2,
        SearchOptions().length_penalty,
    )
    assert record.hypotheses == result.system.lines and record.sources == result.test_set.src
    assert [(s.name, s.value) for s in record.scores] == [(s.name, s.value) for s in result.scores]
    again = evaluate(texts, hyp="saved", baseline=run, beam_size=2)
    assert again.baseline.lines == result.system.lines and not again.comparison.changes


def test_saving_comes_first(texts, monkeypatch):
    """What is scored is in the file, even if scoring fails. Sabotage: save the translation last."""
    monkeypatch.setattr(report, "corpus_score", None)
    with pytest.raises(TypeError):
        evaluate(texts, save=check_output(texts / "saved"))
    assert (texts / "saved").read_bytes() == (texts / "hyp").read_bytes()


def test_a_checkpoint_that_training_deletes_meanwhile(texts, copy_run, tmp_path, monkeypatch):
    """Its scores are reported. Sabotage: read its digest after translating."""
    run = shutil.copytree(copy_run, tmp_path / "run")
    translate = report._translate

    def delete(checkpoints, sources, **options):
        output = translate(checkpoints, sources, **options)
        shutil.rmtree(checkpoints[0].path)
        return output

    monkeypatch.setattr(report, "_translate", delete)
    assert evaluate(texts, run, hyp=None).scores[0].value > 0


@pytest.mark.parametrize(
    ("choice", "error", "message"),
    [
        ({"refs": ("ref", "short")}, DataError, "{}/ref has 12 lines and {}/short has 11"),
        ({"src": "short"}, DataError, "{}/short has 11 lines and {}/ref has 12"),
        ({"hyp": "short"}, DataError, "{}/short has 11 lines, but {}/ref has 12"),
        ({"hyp": None, "baseline": "short"}, DataError, "{}/short has 11 lines, but {}/ref has"),
        ({"refs": ("nope",)}, DataError, "{}/nope: no such file"),
        ({"hyp": None, "baseline": "nope"}, CheckpointError, "{}/nope: no such run"),
        ({"hyp": None, "src": None}, ConfigError, "to translate with it, name --src"),
        ({"baseline": "run", "src": None}, ConfigError, "{}/run/step-.*, name --src"),
    ],
)
def test_a_mistake_shows_first(texts, copy_run, monkeypatch, choice, error, message):
    """Before anything is translated. Sabotage: look for the baseline when its turn comes."""
    monkeypatch.setattr(report, "build_translation_model", None)
    shutil.copytree(copy_run, texts / "run")
    with pytest.raises(error, match=message.format(texts, texts)):
        evaluate(texts, copy_run, **choice)


def test_a_baseline_trained_with_other_source_is_reported(texts, copy_run, caplog, monkeypatch):
    """Once, like any checkpoint that is used; a translation in a file is not a checkpoint."""
    monkeypatch.setitem(source_digests(), "source of model/", "other")
    evaluate(texts, baseline=copy_run)
    [message] = [text for text in caplog.messages if "source of model/ has changed" in text]
    assert message.startswith(f"{copy_run}/step-00000001: ")
