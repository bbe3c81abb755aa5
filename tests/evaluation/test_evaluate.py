"""`evaluate`: what it is tested on, what it compares with, and that sacreBLEU agrees."""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from conftest import copy_lines, run_program

from transformer_mt.config.keys import DataConfig
from transformer_mt.errors import CheckpointError, DataError
from transformer_mt.evaluation import report
from transformer_mt.evaluation.comparison import compare, format_comparison
from transformer_mt.evaluation.report import EvaluationReport
from transformer_mt.evaluation.scoring import bleu
from transformer_mt.text.test_sets import EvaluationSet, load_test_set
from transformer_mt.translation.options import LoadOptions, SearchOptions


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """Gives source, reference and two translations of sixty lines, the second with more slips."""
    folder = tmp_path_factory.mktemp("texts")
    lines = [" ".join([line] * (1 + i % 9)) for i, line in enumerate(copy_lines(60, 5))]
    texts = {"src": lines, "ref": lines, "one": list(lines), "two": list(lines)}
    for i in range(0, 60, 7):
        texts["one"][i] = texts["one"][i][::-1]
    for i in range(0, 60, 3):
        texts["two"][i] = " ".join(texts["two"][i].split()[:-1]) + " zzz"
    for name, text in texts.items():
        (folder / name).write_text("".join(f"{line}\n" for line in text))
    return folder


def evaluate(*arguments: object) -> dict[str, object]:
    done = run_program("evaluate", *arguments, "--json", "--quiet")
    assert done.returncode == 0 and not done.stderr, done.stderr.decode()
    return json.loads(done.stdout)


def sacrebleu(*arguments: object) -> str:
    tool = [sys.executable, "-m", "sacrebleu", *map(str, arguments), "-w", "10"]
    return subprocess.run(tool, capture_output=True, text=True, check=True).stdout


def test_a_translation_is_scored_as_sacrebleu_does(texts):
    """No model is loaded; BLEU, chrF2 and TER agree to the last digit."""
    files = "--src", texts / "src", "--ref", texts / "ref"
    result = evaluate("--hypotheses", texts / "two", *files, "--ter")
    printed = sacrebleu(texts / "ref", "-i", texts / "two", "-m", "bleu", "chrf", "ter")
    for score, name in zip(json.loads(printed), ("bleu", "chrf", "ter"), strict=True):
        assert score["score"] == round(result[name], 10)
        assert score["signature"] == result[f"{name}_signature"]


def test_a_baseline_is_compared_as_sacrebleu_does(texts):
    """Scores, p-values and signatures of its paired bootstrap, which takes the baseline first."""
    files = "--src", texts / "src", "--ref", texts / "ref"
    result = evaluate("--hypotheses", texts / "one", *files, "--baseline", texts / "two")
    paired = "-m", "bleu", "chrf", "--paired-bs", "-f", "text"  # its JSON of this fails in 2.6.0
    printed = sacrebleu(texts / "ref", "-i", texts / "two", texts / "one", *paired)
    values = [float(value) for value in re.findall(r"(\d+\.\d{10}) \(", printed)]
    p_values = [float(value) for value in re.findall(r"\(p = (\d\.\d+)\)", printed)]
    metrics = result["differences"]
    assert values == [round(metric[key], 10) for key in ("baseline", "value") for metric in metrics]
    assert p_values == [round(metric["p_value"], 4) for metric in metrics]
    signatures = re.findall(r"^ - (?:BLEU|chrF2) +(\S+)$", printed, re.MULTILINE)
    assert signatures == [metric["signature"] for metric in metrics]
    assert result["baseline"] == str(texts / "two")
    assert 0 < metrics[0]["p_value"] < 0.5


def test_a_comparison_by_hand():
    """Buckets hold every sentence once, changes are sorted, equal sentences left out.

    Sabotage: ignore changes of less than one point.
    """
    words = [f"w{i} " * length for i, length in enumerate((1, 10, 11, 60, 61))]
    reference = [f"{word}end" for word in words]
    test_set = EvaluationSet("words", "words", words, [reference])
    system, baseline = list(reference), list(reference)
    system[1], baseline[4] = "bad", "worse than that"
    baseline[3] = baseline[3].removesuffix("d")
    comparison = compare(test_set, system, baseline)
    buckets, changes = comparison.buckets, comparison.changes
    names = [(bucket.words, bucket.sentences) for bucket in buckets]
    assert names == [("1-10", 2), ("11-20", 1), ("41-60", 1), ("over 60", 1)]
    assert buckets[0].bleu == bleu(system[:2], [reference[:2]]).value
    assert buckets[0].baseline > 99 > buckets[3].baseline
    assert [change.line for change in changes] == [5, 4, 2]
    assert changes[0].difference > 1 > changes[1].difference > 0 > changes[2].difference
    text = format_comparison(comparison, test_set, system, baseline, 3)
    assert "2 better, 1 worse, 2 equal" in text and "line 5, better by" in text
    details = text[text.index("line 2, worse by") :].splitlines()
    assert details[1:] == [
        f"  source     {words[1]}",
        f"  reference  {reference[1]}",
        f"  system     {system[1]}",
        f"  baseline   {baseline[1]}",
    ]


def test_buckets_by_source_length():
    """A bound belongs to the bucket that it ends; an empty line counts as one word."""
    counts = (0, 1, 10, 11, 20, 21, 30, 31, 40, 41, 60, 61)
    reference = [f"line {count}" for count in counts]
    test_set = EvaluationSet("words", "words", ["w " * count for count in counts], [reference])
    buckets = compare(test_set, reference, reference).buckets
    assert [(bucket.words, bucket.sentences) for bucket in buckets] == [
        ("1-10", 3),
        ("11-20", 2),
        ("21-30", 2),
        ("31-40", 2),
        ("41-60", 2),
        ("over 60", 1),
    ]


def test_saved_translations_are_those_that_were_scored(copy_run, texts, tmp_path):
    """They score the same, and compared with themselves nothing differs."""
    files = "--src", texts / "src", "--ref", texts / "ref"
    result = evaluate(copy_run, *files, "--save", tmp_path / "hyp")
    done = run_program("translate", copy_run, stdin=(texts / "src").read_bytes())
    assert (tmp_path / "hyp").read_bytes() == done.stdout
    again = evaluate("--hypotheses", tmp_path / "hyp", *files, "--baseline", copy_run)
    assert again["bleu"] == result["bleu"] and not again["changes"]
    done = run_program("evaluate", copy_run, *files, "--baseline", texts / "two", "--samples", 2)
    printed = done.stdout.decode()
    assert f"compared with {texts / 'two'}" in printed and printed.count("better by") == 2


def evaluate_run(run: Path, texts: Path, baseline: Path | None = None) -> EvaluationReport:
    test_set = partial(load_test_set, src=texts / "src", refs=[texts / "ref"])
    return report.evaluate_system([run], None, baseline, test_set, SearchOptions(), LoadOptions())


def test_a_mistake_in_the_baseline_shows_first(texts, copy_run, monkeypatch):
    """Before anything is translated. Sabotage: look for the run when its turn comes."""
    monkeypatch.setattr(report, "_translate", lambda *arguments, **options: pytest.fail())
    with pytest.raises(CheckpointError, match="nope"):
        evaluate_run(copy_run, texts, baseline=texts / "nope")


def test_a_checkpoint_that_training_deletes_meanwhile(texts, copy_run, tmp_path, monkeypatch):
    """Its scores are reported. Sabotage: read its digest after translating."""
    run = tmp_path / "run"
    shutil.copytree(copy_run, run)
    translate = report._translate

    def delete(checkpoints, sources, **options):
        output = translate(checkpoints, sources, **options)
        shutil.rmtree(checkpoints[0].path)
        return output

    monkeypatch.setattr(report, "_translate", delete)
    assert evaluate_run(run, texts).scores[0].value > 0


def test_one_of_sacrebleus_own_sets(copy_run, texts, tmp_path):
    """From its folder, without network; with the configured run's languages."""
    folder = tmp_path / "wmt16"
    folder.mkdir()
    for name in ("src", "ref"):
        (folder / f"wmt16.de-en.{name}").write_bytes((texts / name).read_bytes())
    for name in ("docid", "genre", "origlang"):
        (folder / f"wmt16.de-en.{name}").write_text("x\n" * 60)
    arguments = "evaluate", "--hypotheses", texts / "one", "--test-set", "wmt16", "--json"
    environment = {**os.environ, "SACREBLEU": str(tmp_path)}
    program = [sys.executable, "-m", "transformer_mt", *map(str, arguments)]
    done = subprocess.run(program, env=environment, capture_output=True, check=True)
    lines = [(texts / name).read_text().splitlines() for name in ("one", "ref")]
    assert json.loads(done.stdout)["bleu"] == bleu(lines[0], lines[1:]).value
    # Nothing listens there, so what is not in the folder cannot be downloaded.
    environment["https_proxy"] = "http://127.0.0.1:9"
    program[-2] = "wmt14"
    done = subprocess.run(program, env=environment, capture_output=True)
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1
    assert b"--test-set wmt14: cannot download it" in done.stderr


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"test_set": "wtm16"}, "--test-set wtm16: .* did you mean wmt16"),
        ({"test_set": "wmt19/google/ar"}, "has en-de, not de-en"),
        ({"test_set": "wmt16", "split": "test"}, "choose one of"),
        ({"src": Path("a")}, "--src needs --ref"),
        ({"refs": [Path("a")], "split": "test"}, "choose one of"),
        ({"refs": [Path("a")], "test_set": "wmt16"}, "choose one of"),
        ({"refs": [Path("nope")]}, "nope: no such file"),
    ],
)
def test_a_choice_that_is_none(choice, message):
    """It is named, with what to do."""
    with pytest.raises(DataError, match=message):
        load_test_set(DataConfig(path="none"), **choice)
