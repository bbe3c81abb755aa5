"""The model card of exported weights, here of an average."""

import json
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml
from conftest import tiny_config

from transformer_mt.checkpoints.averaging import average
from transformer_mt.checkpoints.checkpoint import Checkpoint, Progress, RunState, load_checkpoint
from transformer_mt.checkpoints.layout import EMA, METRICS
from transformer_mt.checkpoints.run_description import read_description, write_description
from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.config.keys import OptimConfig
from transformer_mt.evaluation.evaluate import EvaluationReport, evaluate_systems
from transformer_mt.evaluation.scoring import choose_metrics
from transformer_mt.text.splitting import SourceStatistics
from transformer_mt.text.test_sets import load_test_set
from transformer_mt.training.run import train
from transformer_mt.translation.export import export
from transformer_mt.translation.model_card import model_card
from transformer_mt.translation.options import LoadOptions, SearchOptions, TranslateOptions


@pytest.fixture(scope="module")
def trained(corpus_dir, tmp_path_factory) -> Path:
    """Gives the average of two checkpoints, in its run."""
    sizes = {"data__train": "train[:600]"}
    steps = {"train__max_steps": 4, "train__save_every": 2, "valid__every": 4}
    run_dir = tmp_path_factory.mktemp("card") / "run"
    train(tiny_config(corpus_dir, data__max_length=10, **steps, **sizes), run_dir)
    return average(run_dir, 2, None)


@pytest.fixture
def averaged(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained.parent, tmp_path / "run")) / trained.name


def section(card: str, title: str) -> str:
    """Gives the text below a title."""
    return card.split(f"\n## {title}\n\n")[1].split("\n\n## ")[0]


def evaluate(averaged: Path, beam_size: int = 1) -> EvaluationReport:
    text = averaged.parent.parent / "text: x"
    text.write_text("ab cd\nef\n")
    load = partial(load_test_set, src=text, refs=[text])
    options = TranslateOptions(LoadOptions(), SearchOptions(beam_size))
    [report] = evaluate_systems([[averaged]], None, None, load, choose_metrics, options, {})
    return report


def card_of(checkpoint: Checkpoint, **options: bool) -> str:
    """Gives the card of a checkpoint."""
    return model_card(checkpoint, "m", "lib", "usage", **options)


NAMES = {"name": "both", "text": "pairs", "text_digest": "f" * 64}


def test_the_card_of_an_average_has_what_is_known(averaged, caplog):
    """Data, recipe, no scores of the run's, no licence; little of its text without run.json."""
    checkpoint, description = load_checkpoint(averaged), read_description(averaged)
    began = replace(checkpoint.progress, init_step=1, init_names=NAMES)
    lines = [{"step": step, "kind": "valid", "old_bleu": 1.0} for step in (0, checkpoint.step)]
    (averaged.parent / METRICS).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    begun = replace(checkpoint, state=replace(checkpoint.state, progress=began))
    assert "BLEU of its validation" not in card_of(begun)  # that was measured on another
    corpus, card = description.corpus, card_of(checkpoint)
    assert yaml.safe_load(card.split("---\n")[1]) == {
        "language": ["de", "en"],
        "library_name": "lib",
        "pipeline_tag": "translation",
    }
    parameters = sum(parameter.numel() for parameter in checkpoint.build_model().parameters())
    for part in (
        f"\n{parameters:,} parameters, stored in float32. Its vocabulary\n(bpe) has 292 pieces.\n",
        "4 steps of about 500 tokens, Adam with",
        "\nThe weights are the mean of the checkpoints of steps 4, 2.\n",
        f"de to en: {corpus.kept} of 600 pairs (dropped: {600 - corpus.kept} over 10 pieces), ",
        f" digest of the encoded text is `{description.corpus_digest}`.",
        "\n\n## Scores\n\nNone were measured on these weights",
        "\n\n## How to use it\n\nusage\n",
    ):
        assert part in card
    assert "Training began" not in card and "moving average" not in card
    (averaged / "run.json").write_text("{}")
    assert re.fullmatch("Trained on `corpus[0-9]`, de to en.", section(card_of(checkpoint), "Data"))
    assert caplog.messages[0].startswith(f"{averaged}/run.json: damaged")


def test_a_card_of_other_training(averaged):
    """With Muon, from other weights, a moving average, statistics of the sources."""
    checkpoint = load_checkpoint(averaged)
    write_description(averaged, replace(read_description(averaged), averaged_steps=[]))
    progress = Progress(step=4, init_step=2000, init_digest="e" * 64, init_names=NAMES)
    metrics = averaged.parent / "metrics.jsonl"
    lines = map(json.loads, metrics.read_text().splitlines())
    *_, last = (line for line in lines if line["kind"] == "valid")
    with metrics.open("a") as file:
        for step, bleu in ((0, 30.0), (4, 20.5)):
            old = {"step": step, "old_bleu": bleu, "old_ema_bleu": bleu + 1}
            file.write(json.dumps({**last, **old}) + "\n")
    known = SourceStatistics(longest=9, percentile=8, several_sentences=0.25)
    config = checkpoint.config.model_copy(update={"optim": OptimConfig(muon=True)})
    other = replace(checkpoint, config=config, state=RunState(progress, sources=known))
    other = replace(other, files=checkpoint.files | {EMA})
    card = card_of(other)
    for part in (
        " tokens, Muon and Adam with",
        "\nTraining began with the weights of `both` after 2,000 steps on `pairs`.\nThe SHA-256"
        f" digest of that checkpoint is `{'e' * 64}`,\nthat of its encoded text `{'f' * 64}`."
        "\nBLEU of its validation text was 31.00 then, and is 21.50 now.\n",
        "\nThe weights are a moving average with decay 0.",
        "transformer-mt splits lines of more than 8 pieces into sentences, a",
    ):
        assert part in card
    assert "moving average" not in card_of(other, raw=True)


def test_scores_are_in_the_card_of_an_export(averaged, tmp_path):
    """With their signatures. Those of the average are not in the card of the run's best.

    Sabotage: do not compare the digests of records.
    """
    reports = [evaluate(averaged), evaluate(averaged, beam_size=2)]
    checkpoint = load_checkpoint(averaged)
    card = (export(checkpoint, tmp_path / "out") / "README.md").read_text()
    for report, search in zip(reports, ("greedy, fp32", "beam 2, alpha 1, fp32"), strict=True):
        lines = [f"  - {each.title} {each.value:.2f}, `{each.signature}`" for each in report.scores]
        heading = f"- {report.test_set.name}, 2 sentences, {search}:"
        assert "\n".join([heading, *lines]) in section(card, "Scores")
    assert "mean of the checkpoints of steps 4, 2." in card
    best = section(card_of(find_checkpoint(averaged.parent)), "Scores")
    assert "- validation, " in best and "text: x" not in best
