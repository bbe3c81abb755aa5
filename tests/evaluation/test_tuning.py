"""Beam size and length penalty are chosen on validation text, then the test set is scored."""

import json
import shutil
from pathlib import Path
from statistics import fmean, stdev

import pytest
import torch
from conftest import assert_one_error, replace_file, weights
from safetensors.torch import save

from transformer_mt.checkpoints.evaluations import read_evaluations
from transformer_mt.checkpoints.layout import MODEL


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
    return copies


def test_the_setting_with_the_best_mean_wins(runs, call):
    """Each is tried once, greedy search without penalties; scores are recorded as `evaluate` does.

    Sabotage: take the lowest; validate on the test set; score it with the first setting.
    """
    words = "tune", *runs, "--beam-size", "2,1,4,1", "--length-penalty", "0,10"
    rows = [json.loads(line) for line in call(*words, "--json").out.splitlines()]
    keys = [(row["beam_size"], row["length_penalty"]) for row in rows]
    assert keys[:-2:2] == keys[1:-2:2] == [(2, 0), (2, 10), (1, None), (4, 0), (4, 10)]
    means = [fmean(row["bleu"] for row in rows[i : i + 2]) for i in range(0, 10, 2)]
    best, tested = means.index(max(means)), [row["bleu"] for row in rows[-2:]]
    assert keys[-2:] == [keys[2 * best]] * 2 and best > 0
    assert [row["checkpoint"] for row in rows[-2:]] == [f"{run}/step-00000001" for run in runs]
    assert [len(read_evaluations(run)) for run in runs] == [6, 6]
    search = "--beam-size", keys[-1][0], "--length-penalty", keys[-1][1] or 0
    done = call("evaluate", *runs, *search, "--json")
    assert [json.loads(line)["bleu"] for line in done.out.splitlines()] == tested
    assert "split valid" in rows[-3]["test_set"] and "split test" in rows[-2]["test_set"]
    table, scores, _, quote = call(*words).out.decode().split("\n\n")
    title, *lines = table.split("\n")
    kind = "(mean ± standard deviation of 2 runs)"
    assert title.endswith(f"split valid, 60 sentences: BLEU {kind}")
    assert [float(line.strip("* ").split()[0]) for line in lines] == [round(x, 2) for x in means]
    assert [line[0] for line in lines] == ["*" if i == best else " " for i in range(5)]
    assert lines[0].endswith("  beam 2, alpha 0, fp32") and lines[2].endswith("  greedy, fp32")
    assert scores.count("\n") == 3 and f"{tested[0]:.2f}" in scores
    assert quote.startswith(f"BLEU {fmean(tested):.2f} ± {stdev(tested):.2f} {kind}, ")
    assert quote.endswith(f"split valid: {rows[-1]['bleu_signature']}\n")


def test_a_mistake_shows_first(runs, call):
    """Before anything is translated. Sabotage: read the test set after the validation text."""
    done = call("tune", *runs, "--split", "nope")
    assert_one_error(done, "nope.de")
    assert "sentences in" not in done.err
