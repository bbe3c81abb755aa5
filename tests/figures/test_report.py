"""The report of a run, and the evaluations that it shows."""

import json
import re
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from conftest import HOSTILE_JSON, records, refuses, replace_file, tiny_config

from transformer_mt.checkpoints import run_description as stored
from transformer_mt.checkpoints.evaluations import read_evaluations
from transformer_mt.checkpoints.run_directory import find_checkpoint, list_checkpoints
from transformer_mt.cli.program import main
from transformer_mt.errors import CheckpointError
from transformer_mt.evaluation.scoring import sentence_chrf
from transformer_mt.figures.canvas import ACCENT, FOREGROUND, GRID
from transformer_mt.figures.report import build_report
from transformer_mt.figures.training import training_figure
from transformer_mt.system.manifest import read_manifest
from transformer_mt.training.run import train


def visible(html: str) -> str:
    """Gives the text of a page without pictures, every word followed by one blank."""
    text = re.sub(r"<style>.*?</style>|<svg .*?</svg>|<[^>]+>", " ", html, flags=re.DOTALL)
    return " ".join([*unescape(text).split(), ""])


def report_text(run: Path) -> str:
    """Gives the text of the report of a run, whose charts are made but not rendered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformer_mt.figures.report.inline", lambda figure, description: "")
        return visible(build_report(run))


@pytest.fixture(scope="module")
def run(corpus_dir, tmp_path_factory) -> Path:
    """Gives a run of twelve steps, validated, and evaluated on lines that look like HTML."""
    run_dir = tmp_path_factory.mktemp("report") / "run<b>"
    steps = {"train__max_steps": 12, "valid__every": 6, "train__ema_decay": 0.5}
    text = {"data__train": "train[:600]", "data__drop_identical": False, "data__max_length": 10}
    test = {"src": str(corpus_dir / "test.de"), "tgt": "test.en"}
    train(tiny_config(corpus_dir, **steps, **text, data__test=test), run_dir)
    folder = tmp_path_factory.mktemp("text")
    (folder / "src").write_text("<script>alert(1)</script>\na & b\n\nab cd ef\ngh\n")
    (folder / "ref").write_text("x\ny\nz\nab cd ef\ngh ij kl\n")
    with pytest.MonkeyPatch.context() as patch:
        text = ["--src", str(folder / "src"), "--ref", str(folder / "ref"), "--quiet"]
        patch.setattr("sys.argv", ["transformer-mt", "evaluate", str(run_dir), *text])
        main()
    return run_dir


@pytest.fixture(scope="module")
def html(run, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["transformer-mt", "report", str(run), "-o", str(path), "-q"])
        main()
    return path.read_text()


def test_the_page_is_whole_and_needs_no_network(html, run):
    """Text is escaped, and no folder of this machine is named; pictures have the page's colours."""
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(set(ids)) == len(ids) > 10
    links = re.findall(r'href="([^"]+)"', html)
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert all(link.startswith(("#", "data:image/png")) for link in links)
    assert not re.search(r"<(script|link|img|iframe)|@import|url\(http| src=", html)
    assert "currentColor" in html and "var(--line)" in html and "<metadata" not in html
    assert not re.search(f"{FOREGROUND}|{GRID}|{ACCENT}|fill: #ffffff|stroke: #000000", html)
    assert '<svg role="img" aria-label="Validation BLEU"' in html
    text = visible(html)
    assert "<script>alert(1)</script>" in text and "run<b>" in text
    assert str(run.parents[1]) not in text
    assert 'data.test { src = "test.de", tgt = "test.en" }' in text


def test_what_it_shows_is_what_the_run_recorded(run, html):
    """Counts, every score with its signature, settings, digests, translations."""
    text, described = visible(html), json.loads((run / "run.json").read_text())
    corpus = described["corpus"]
    assert corpus["dropped"]
    for reason, count in corpus["dropped"].items():
        assert f"dropped: {reason} {count:,} " in text
    assert f"pairs read {corpus['pairs']:,} " in text and described["corpus_digest"] in text
    assert f"training pairs {corpus['kept']:,} " in text
    assert f"vocabulary, pieces {described['vocabulary']['src']:,} vocabulary, kind bpe " in text
    assert "unknown or single bytes, source and target 0 and 0 pieces " in text
    mean = described["lengths"]["mean"]
    means = f"{mean['src']} and {mean['tgt']} pieces, end of sentence included "
    assert f"mean length, source and target {means}" in text
    validation, evaluation = read_evaluations(run)
    assert validation.test_set == "validation"
    for record in (validation, evaluation):
        assert [score.name for score in record.scores] == ["bleu", "chrf"]
        for score in record.scores:
            assert f"{score.value:.2f} {score.signature} " in text
    speed = len(evaluation.sources) / evaluation.seconds
    assert f"greedy, fp32, {speed:,.1f} sentences/s " in text
    checkpoint = find_checkpoint(run)
    assert f"best validation BLEU {checkpoint.progress.best_bleu:.2f} " in text
    assert evaluation.digest == checkpoint.digest
    assert "train.ema_decay 0.5 " in text and "torch version" in text
    origin = f"{evaluation.test_set}, {checkpoint.path.name}, greedy, fp32"
    assert f"-norm. BLEU, {origin} {evaluation.scores[0].value:.2f} best validation" in text
    for name, digest in read_manifest(checkpoint.path).items():
        assert f"{checkpoint.path.name}/{name} {digest} " in text
    seconds = round(max(checkpoint.progress.seconds, records(run)[-1]["seconds"]))
    assert f" steps 12 training time 0:00:{seconds:02} " in text
    changed = text[text.index(" Configuration ") : text.index(" Keys that have their defaults ")]
    assert "model.d_model 16 " in changed and "model.n_heads 4 " in changed
    assert "model.dropout " not in changed and "model.dropout 0.1 " in text


def test_the_best_and_the_worst_translations(run, tmp_path):
    """Of the newest test, ranked by chrF2."""
    run = shutil.copytree(run, tmp_path / "run")
    validation, record = read_evaluations(run)
    newer = run / "evaluations" / validation.file_name
    newer.write_text(json.dumps({**json.loads(newer.read_text()), "time": 1e11}))
    path = run / "evaluations" / record.file_name
    hypotheses, values = ["x", "no", "", "ab cd", "gh"], json.loads(path.read_text())
    path.with_name("older.json").write_text(json.dumps({**values, "time": 0.0}))
    path.write_text(json.dumps({**values, "hypotheses": hypotheses}))
    scores = sentence_chrf(hypotheses, record.references)
    order = [0, 3, 4, 1, 2]  # of two that are equally bad, the longer source is first
    assert scores[0] > scores[3] > scores[4] > scores[1] == scores[2]
    text = report_text(run)
    groups = {"Best": order[:3], "Median": order[1:4], "Worst": order[:1:-1]}
    for name, end in (("Best", "Median"), ("Median", "Worst"), ("Worst", "Configuration")):
        section = text[text.index(f" {name} line ") : text.index(f" {end} ")]
        shown = re.findall(r"line (\d) chrF2 ([\d.]+) ", section)
        assert shown == [(str(i + 1), f"{scores[i]:.1f}") for i in groups[name]]


def test_the_headline_is_the_score_of_the_test_set(run, tmp_path):
    """Or else that of validation. Sabotage: take the newest evaluation."""
    run = shutil.copytree(run, tmp_path / "run")
    _, record = read_evaluations(run)
    folder, corpus = run / "evaluations", Path(find_checkpoint(run).config.data.path).name
    values = json.loads((folder / record.file_name).read_text())
    shutil.rmtree(folder)
    assert "-norm. best validation BLEU " in report_text(run)
    folder.mkdir()
    signed = {"signature": "nrefs:1|tok:char", "confidence": 0.5}
    score = {**values["scores"][0], "value": 12.34, **signed}
    part = {**values, "test_set": f"{corpus}, split train[:9] (0123abcd)"}
    (folder / "part.json").write_text(json.dumps(part))
    assert "-norm. best validation BLEU " in report_text(run)
    own = {"test_set": f"{corpus}, split test (0123abcd)", "scores": [score], "time": 1.0}
    other = {"test_set": f"{corpus}, split test2 (0123abcd)", "time": 1e11}
    for name, changes in {"own": own, "other": other, "text": {}}.items():
        (folder / f"{name}.json").write_text(json.dumps({**values, **changes}))
    text, name = report_text(run), f"{own['test_set']}, {record.checkpoint}, greedy, fp32"
    assert f"-norm. BLEU (char), {name} 12.34 ± 0.50 " in text and f" Translations {name}; " in text
    assert " BLEU 12.34 ± 0.50 nrefs:1|tok:char " in text


def test_what_a_run_began_with_is_named(run, tmp_path):
    initial = stored.InitialWeights(2000, "d" * 64, "both", "x", "e" * 9)
    stored.write_description(tmp_path, replace(stored.read_description(run), init_from=initial))
    text = report_text(tmp_path)
    assert "began with both at step 2,000 " in text
    assert f" initial checkpoint {'d' * 64} training text of the initial checkpoint, x, " in text


def test_a_run_may_lack_parts(run, tmp_path):
    young = tmp_path / "young"
    young.mkdir()
    shutil.copy(run / "run.json", young)
    page = build_report(young)
    text = visible(page)
    assert page.count("no finite value yet") == 6
    assert "None are recorded with a signature" in text and "pairs read" in text
    names = {"loss", "mfu", "nll", "perplexity", "grad_norm"}
    lines = [{k: None if k in names else v for k, v in line.items()} for line in records(run)]
    changes = {"skipped": 7, "seconds": 3700.4}
    metrics = "".join(json.dumps({**line, **changes}) + "\n" for line in lines)
    (young / "metrics.jsonl").write_text(metrics)
    text = report_text(young)
    assert "the last logged loss is not finite" in text and "steps skipped, not finite 7 " in text
    assert " training time 1:01:40 " in text
    old = shutil.copytree(run, tmp_path / "old")
    shutil.rmtree(old / "evaluations")
    (old / "run.json").unlink()
    best = find_checkpoint(run).progress
    for metric, name, value in (("chrf", "chrF2", best.best_bleu), ("nll", "NLL", best.best_nll)):
        for checkpoint in list_checkpoints(old):
            config = json.loads((checkpoint / "config.json").read_text())
            config["valid"]["metric"] = metric
            replace_file(checkpoint, "config.json", json.dumps(config).encode())
        text = report_text(old)
        assert f"best validation {name} {value:.2f} " in text
    assert "Counts are not recorded" in text and "Translations None are recorded; transf" in text
    assert "The last validation BLEU of training is" in text
    (old / "metrics.jsonl").unlink()
    newest = list_checkpoints(old)[0]
    state = json.loads((newest / "state.json").read_text())
    state["progress"]["best_step"] = 6
    replace_file(newest, "state.json", json.dumps(state).encode())
    assert find_checkpoint(old).progress.step == 6 and " steps 12 " in report_text(old)


def test_its_checkpoint_may_be_deleted_meanwhile(run, tmp_path, monkeypatch):
    """By the process that trains it. Sabotage: read the manifest after the charts are drawn."""
    pruned = shutil.copytree(run, tmp_path / "run")

    def delete_and_draw(*arguments, **options):
        for checkpoint in list_checkpoints(pruned):
            shutil.rmtree(checkpoint)
        return training_figure(*arguments, **options)

    monkeypatch.setattr("transformer_mt.figures.report.training_figure", delete_and_draw)
    assert read_manifest(find_checkpoint(run).path)["model.safetensors"] in build_report(pruned)


def test_an_edited_description_is_named(run, tmp_path):
    description = json.loads((run / "run.json").read_text())
    vocabulary = {**description.pop("vocabulary"), "src": "HERE"}
    text = json.dumps({**description, "vocabulary": vocabulary})
    edited = [text.replace('"HERE"', value) for value in HOSTILE_JSON]
    for content in (*edited, json.dumps(description), "[]", "{}"):
        (tmp_path / "run.json").write_text(content)
        message = r"run\.json: damaged .*resume the run"
        assert "\n" not in str(refuses(CheckpointError, message, build_report, tmp_path))
