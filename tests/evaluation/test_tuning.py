"""Beam size and length penalty are chosen on validation text, then the test set is scored."""

import json
import re
import shutil
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev

import pytest
import torch
from conftest import assert_one_error, replace_file, weights
from safetensors.torch import save

from transformer_mt.checkpoints.evaluations import read_evaluations
from transformer_mt.checkpoints.layout import MODEL

SETTINGS = "--beam-size", "2,1,4,1", "--length-penalty", "0,10"


@pytest.fixture
def runs(copy_run, tmp_path) -> list[Path]:
    """Gives two runs that copy with mistakes, each with its own."""
    copies = [shutil.copytree(copy_run, tmp_path / name) for name in ("one", "two")]
    for seed, copy in enumerate(copies, 1):
        shutil.rmtree(copy / "evaluations")
        noise = torch.Generator().manual_seed(seed)
        tensors = weights(step := copy / "step-00000001")
        for name, tensor in tensors.items():
            if tensor.dim() > 1:
                drawn = torch.randn(tensor.shape, generator=noise)
                tensors[name] = tensor + 0.1 * tensor.std() * drawn
        replace_file(step, MODEL, save(tensors))
    return copies


def test_the_best_mean_wins(runs, call):
    """Each setting once, greedy search without penalties; of the mean, not of the first run.

    All is as `evaluate` gives it, and recorded. Sabotage: take the lowest; look at one run;
    validate on the test set; score the test set with the first setting.
    """
    rows = [json.loads(line) for line in call("tune", *runs, *SETTINGS, "--json").out.splitlines()]
    by_setting = [
        (key, [row["bleu"] for row in group])
        for key, group in groupby(
            rows[:-2], key=lambda row: (row["beam_size"], row["length_penalty"])
        )
    ]
    assert [key for key, _ in by_setting] == [(2, 0), (2, 10), (1, None), (4, 0), (4, 10)]
    assert all(len(values) == 2 for _, values in by_setting)
    best, values = max(by_setting, key=lambda item: fmean(item[1]))
    assert len({fmean(each) for _, each in by_setting}) > 2
    tested = rows[-2:]
    assert [(row["beam_size"], row["length_penalty"]) for row in tested] == [best] * 2
    assert [row["checkpoint"] for row in tested] == [f"{run}/step-00000001" for run in runs]
    assert {row["test_set"].split(", ")[-1] for row in rows[:-2]} == {"split valid"}
    options = "--beam-size", best[0], *(("--length-penalty", best[1]) if best[0] > 1 else ())
    for split, expected in (("valid", values), ("test", [row["bleu"] for row in tested])):
        out = call("evaluate", *runs, "--split", split, *options, "--json").out
        assert [json.loads(line)["bleu"] for line in out.splitlines()] == expected
    for run in runs:
        assert len(read_evaluations(run)) == len(by_setting) + 1


def test_what_is_printed(runs, call):
    """A mark at the winner, the test scores as `evaluate` prints them, and a line to quote."""
    rows = [json.loads(line) for line in call("tune", *runs, *SETTINGS, "--json").out.splitlines()]
    table, scores, signatures, quote = call("tune", *runs, *SETTINGS).out.decode().split("\n\n")
    title, *lines = table.split("\n")
    assert title.endswith("split valid, 60 sentences: BLEU (mean ± standard deviation of 2 runs)")
    means = [fmean(row["bleu"] for row in rows[i : i + 2]) for i in range(0, 10, 2)]
    assert [float(line.strip("* ").split()[0]) for line in lines] == [round(x, 2) for x in means]
    assert [line[0] for line in lines] == ["*" if x == max(means) else " " for x in means]
    assert lines[0].endswith("  beam 2, alpha 0, fp32") and lines[2].endswith("  greedy, fp32")
    tested = [row["bleu"] for row in rows[-2:]]
    setting = lines[means.index(max(means))].split("  ")[-1]
    assert [float(line.split()[0]) for line in scores.split("\n")[2:]] == [
        round(x, 2) for x in tested
    ]
    assert signatures.startswith(f"BLEU|{rows[-1]['bleu_signature']}\n")
    text = f"BLEU {fmean(tested):.2f} ± {stdev(tested):.2f} (mean ± standard deviation of 2 runs), "
    assert quote.startswith(text) and f"split test, {setting}, chosen on " in quote
    assert quote.endswith(f"split valid: {rows[-1]['bleu_signature']}\n")
    single = call("tune", runs[0], "--beam-size", 1).out.decode()
    assert "±" not in single and re.search(r"\n\* +\d+\.\d\d  greedy, fp32\n", single)


def test_a_mistake_shows_first(runs, call):
    """Before anything is translated. Sabotage: read the test set after the validation text."""
    done = call("tune", *runs, "--split", "nope")
    assert_one_error(done, "nope.de")
    assert "sentences in" not in done.err
