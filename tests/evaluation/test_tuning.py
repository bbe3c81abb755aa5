"""Beam size and length penalty are chosen on validation text, then the test set is scored."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import pytest
import torch
from checkpoints.small_checkpoint import change_config
from conftest import assert_one_error, replace_file, weights
from safetensors.torch import save

from transformer_mt.checkpoints.evaluations import read_evaluations
from transformer_mt.checkpoints.layout import CONFIG, MODEL
from transformer_mt.checkpoints.run_description import read_description, write_description
from transformer_mt.evaluation.tuning import _name_systems
from transformer_mt.system.files import canonical_json


@pytest.fixture
def runs(copy_run, tmp_path) -> list[Path]:
    """Gives two runs that copy with mistakes, each with its own."""
    copies = [shutil.copytree(copy_run, tmp_path / name) for name in ("one", "two")]
    for seed, copy in enumerate(copies, 1):
        shutil.rmtree(copy / "evaluations")
        noise = torch.Generator().manual_seed(seed)
        tensors = weights(step := copy / "step-00000001")
        for tensor in tensors.values():
            if tensor.dim() > 1:
                tensor += 0.1 * tensor.std() * torch.randn(tensor.shape, generator=noise)
        replace_file(step, MODEL, save(tensors))
        replace_file(step, CONFIG, canonical_json(change_config(copy, "train", seed=seed)))
    return copies


def test_the_setting_with_the_best_mean_wins(runs, call):
    """Only tests are recorded. Sabotage: take the lowest; validate on the test; test the first."""

    def evaluate(alpha: float, split: str) -> list[dict]:
        search = "--beam-size", 2, "--length-penalty", alpha, "--split", split, "--json"
        return [json.loads(line) for line in call("evaluate", *runs, *search).out.splitlines()]

    words = "--beam-size", "2,1,4,1", "--length-penalty", "0,10", "--max-length", 30
    done = call("tune", *runs, runs[0], *words).out.decode()  # one that is named twice counts once
    heading, table, title, scores, _, quote = done.split("\n\n")
    records = [read_evaluations(run) for run in runs]
    assert [each.test_set.split(" (")[0][-10:] for [each] in records] == ["split test"] * 2
    kind = " (mean ± standard deviation of 2 runs)"
    valid = heading.removesuffix(f", 60 sentences{kind}")
    assert "split valid (" in valid and "split test (" in title
    _, *lines = table.split("\n")
    searches = [line.split("  ")[0] for line in lines]
    expected = ["beam 2, alpha 0", "beam 2, alpha 10", "greedy", "beam 4, alpha 0"]
    split = "fp32, lines split after 30 pieces"
    assert searches == [f"{search}, {split}" for search in (*expected, "beam 4, alpha 10")]
    means = [float(line.split()[-3]) for line in lines]
    best = means.index(max(means))
    for i, alpha in ((0, 0), (1, 10)):
        values = [row["bleu"] for row in evaluate(alpha, "valid")]
        assert means[i] == round(fmean(values), 2)
    assert [str(each.search) for [each] in records] == [searches[best]] * 2 and best > 0
    tested = [each.scores[0] for [each] in records]
    assert all(f"{score.value:.2f}" in scores for score in tested)
    values = [score.value for score in tested]
    assert quote.startswith(f"BLEU {fmean(values):.2f} ± {stdev(values):.2f}{kind}, ")
    assert quote.endswith(f"{searches[best]}, chosen on {valid}: {tested[0].signature}\n")


def test_what_is_one_system(runs, caplog):
    """Runs that differ in seeds, not a run and its copy or average. Sabotage: compare settings."""
    assert _name_systems(runs) == ["", ""]
    copied = shutil.copytree(runs[0], runs[0].with_name("copy"))
    assert _name_systems([runs[0], copied]) == ["one: ", "copy: "]
    changes = {"averaged_steps": [1], "complete": False}
    write_description(copied, replace(read_description(copied), **changes))
    names = [f"averaged checkpoints={number}: " for number in ("", 1)]
    assert _name_systems([runs[1], copied]) == names
    assert caplog.messages == ["copy: unfinished (step 1 of 1)"]
    checkpoint = runs[0] / "step-00000001"  # which has no settings of its own
    assert _name_systems([checkpoint, copied]) == ["step-00000001: ", "copy: "]


def test_a_mistake_shows_first(runs, call):
    """Before any translation. Sabotage: read the test set last; compare the two by name."""
    same = "a search must not be chosen on the text it is scored on"
    for words, culprit in (
        (["--split", "nope"], "nope.de"),
        (["--valid", "test"], same),
        (["--split", "validation"], same),
        (["--valid", "test[:20]"], same),
        (["--valid", "test", "--split", "test[:20]"], same),
        (["--beam-size", "1,999"], "beam size 999: choose 1 to"),
        (["--beam-size", "1,0"], "beam size 0: choose 1 to"),
    ):
        done = call("tune", *runs, *words)
        assert_one_error(done, culprit)
        assert "sentences in" not in done.err
