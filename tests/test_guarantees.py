"""The guarantees of the program, a test or a few each; each names a sabotage that fails it.

Saving (2 and 6) and bad steps (7) have more in checkpoints/, reliability/ and training/.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import fork_server
import launch
import numpy as np
import pytest
import torch
from conftest import NASTY, command, equal, records, run_program, tiny_config, weights, write_config
from safetensors.torch import load_file

from transformer_mt.checkpoints.layout import TRAINING
from transformer_mt.checkpoints.run_directory import find_checkpoint, list_checkpoints, load_newest
from transformer_mt.errors import CheckpointError
from transformer_mt.system.manifest import MANIFEST
from transformer_mt.text.batching import plan_epoch
from transformer_mt.training import run
from transformer_mt.training.run import train


def stop_at_step(run_dir: Path, step: int, signum: int, words: list[object]) -> int:
    """Trains until the metrics tell of a step and then sends a signal; gives the exit code."""
    path = run_dir / "metrics.jsonl"
    process = fork_server.start(words, env={**os.environ, "RANK": "0"})
    while not path.exists() or f'"step": {step},' not in path.read_text():
        assert process.is_alive(), f"step {step} never came"
        time.sleep(0.002)
    os.kill(process.pid, signum)
    process.join(60)
    return process.exitcode


def test_guarantee_1_a_killed_run_ends_bit_equal(corpus_dir, tmp_path):
    """In mid-epoch. Sabotage: seed dropout once; drop the moments; begin the epoch again."""
    steps = {"train__max_steps": 40, "train__save_every": 7, "valid__every": 15}
    config = write_config(tmp_path, corpus_dir, model__d_model=64, model__d_ff=128, **steps)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run_program("train", config, "--run", whole).returncode == 0
    # The first save is complete once the second has begun; the last step waits for the signal.
    words = [sys.executable, launch.FAULTY, "wait", 0, 40, "train", config, "--run", killed]
    step, signum = random.randint(15, 30), signal.SIGKILL
    assert stop_at_step(killed, step, signum, words) == -signum
    reached = records(killed, "train")[-1]["step"]
    assert reached < 40 and run_program("train", config, "--run", killed).returncode == 0

    resumed = int(re.findall(r"resuming at step (\d+)", (killed / "train.log").read_text())[-1])
    told = f"killed at {reached}, resumed at {resumed}"
    assert 0 < resumed <= reached, told
    assert reached - resumed <= 14, "more was lost than a save that was not complete"
    assert equal(*(weights(list_checkpoints(each)[0]) for each in (whole, killed))), told
    assert launch.records(whole, "train") == launch.records(killed, "train")  # but for times


def test_guarantee_1_another_configuration_is_refused_by_name(corpus_dir, tmp_path):
    """Sabotage: compare only [model], or no key of the corpus; let max_steps count as a change."""
    train(tiny_config(corpus_dir, train__max_steps=6), tmp_path / "run")
    changes = {"data__min_letters": 0.1, "optim__warmup_steps": 7, "train__seed": 3}
    message = r"data.min_letters \(was 0.0, is 0.1\), optim.warmup_steps.*100.*7.*train.seed"
    with pytest.raises(CheckpointError, match=message):
        train(tiny_config(corpus_dir, train__max_steps=6, **changes), tmp_path / "run")
    longer = train(tiny_config(corpus_dir, train__max_steps=8), tmp_path / "run")
    assert longer.step == 8


def test_guarantee_2_a_checkpoint_stands_alone_and_holds_no_pickle(corpus_dir, tmp_path):
    """Only the newest two keep moments; a copy translates elsewhere. Sabotage: never prune."""
    run_dir = tmp_path / "run"
    train(tiny_config(corpus_dir, train__max_steps=20, train__keep_last=3), run_dir)
    kept, best = list_checkpoints(run_dir), find_checkpoint(run_dir).progress.best_step
    assert {p.name for p in kept} == {f"step-{s:08d}" for s in {20, 15, 10, best}}
    assert [(path / TRAINING).exists() for path in kept] == [True, True] + [False] * (len(kept) - 2)
    suffixes = {file.suffix for path in kept for file in path.iterdir()}
    assert suffixes == {".safetensors", ".json", ".model"}
    tensors = load_file(kept[0] / "model.safetensors")
    assert sum(name.endswith("embedding") for name in tensors) == 1
    copied = shutil.copytree(kept[-1], tmp_path / "elsewhere")
    shutil.rmtree(run_dir)
    find_checkpoint(copied).build_model()
    assert (copied / MANIFEST).exists()


def test_guarantee_3_as_many_lines_out_as_in(copy_run):
    """In order. Sabotage: `text.splitlines()`; skip empty lines; do not restore the order."""
    held_out = (find_checkpoint(copy_run).config.data.path, "test.de")
    plain = Path(*held_out).read_bytes().splitlines()
    lines = [line for pair in zip(plain, NASTY * 5, strict=False) for line in pair]
    ten_thousand_words = b" ".join(plain * 60)
    lines = [*lines[: 2 * len(NASTY)], ten_thousand_words, *plain]
    copied = copy_run.parent / "in.txt"
    copied.write_bytes(b"\n".join(lines))  # no final line break
    done = run_program("translate", copy_run, stdin=copied.read_bytes())
    assert done.returncode == 0, done.stderr.decode()
    got = done.stdout.split(b"\n")
    assert got.pop() == b"" and len(got) == len(lines)
    assert not any(set(b"\r\t") & set(line) for line in got)
    blank = [i for i, line in enumerate(lines) if not line.strip()]
    assert [got[i] for i in blank] == [b""] * len(blank)
    clean = [i for i, line in enumerate(lines) if line in plain]
    right = sum(got[i] == lines[i] for i in clean)
    assert right >= 0.9 * len(clean), f"{right} of {len(clean)} lines copied"
    words = Counter(ten_thousand_words.split())
    kept = words & Counter(got[lines.index(ten_thousand_words)].split())
    assert kept.total() > 0.8 * words.total() > 8_000, "an over-long line is split, not cut"
    output = copy_run.parent / "out.txt"
    done = run_program("translate", copy_run, "--input", copied, "--output", output)
    assert done.returncode == 0 and done.stdout == b""
    assert output.read_bytes().split(b"\n")[:-1] == got


def test_guarantee_3_no_text_vanishes(copy_run):
    """And it says so. Sabotage: split only what is longer than training lines; no statistics."""
    words = Path(find_checkpoint(copy_run).config.data.path, "test.de").read_text().split()
    sentences = [f"{word.capitalize()} {word}." for word in words if len(word) > 2]
    lines = [" ".join(sentences[:count]) for count in (1, 2, 3, 5, 8)]
    done = run_program("translate", copy_run, "--format", "jsonl", stdin="\n".join(lines).encode())
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["parts"] for row in rows] == [1, 2, 3, 5, 8]
    assert all(len(row["text"].split()) >= row["parts"] for row in rows)
    assert b"\n4 lines translated in parts\n" in done.stderr


def test_guarantee_4_one_bleu(copy_run, tmp_path):
    """To the last digit. Sabotage: decode references from ids; filter the validation set."""
    checkpoint = find_checkpoint(copy_run)
    folder = Path(checkpoint.config.data.path)
    [logged] = [record["bleu"] for record in records(copy_run, "valid")]
    done = run_program("evaluate", copy_run, "--split", "validation", "--json")
    result = json.loads(done.stdout)
    assert result["sentences"] == 60 and result["checkpoint"] == str(checkpoint.path)
    assert result["bleu"] == logged == checkpoint.progress.best_bleu
    source = (folder / "validation.de").read_bytes()
    (tmp_path / "hyp").write_bytes(run_program("translate", copy_run, stdin=source).stdout)
    tool = [sys.executable, "-m", "sacrebleu", str(folder / "validation.en")]
    tool += ["-i", str(tmp_path / "hyp"), "-m", "bleu", "chrf", "-b", "-w", "10", "-f", "text"]
    printed = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
    assert list(map(float, printed.split())) == [round(result[k], 10) for k in ("bleu", "chrf")]
    assert result["bleu_signature"].startswith("nrefs:1|case:mixed")
    assert "chrF2" in result["chrf_signature"] or "nc:6" in result["chrf_signature"]


def test_guarantee_5_hardware_does_not_change_the_recipe(corpus_dir, tmp_path):
    """Dropout off. Sabotage: divide by micro-batches, or by the tokens of each; cut by memory."""
    gradients, losses, counts = [], [], []
    for workers, limit in ((1, "auto"), (2, "auto"), (8, "auto"), (1, 64), (4, 64)):
        changes = {"optim__max_grad_norm": 0.0, "train__micro_batch_tokens": limit}
        config = tiny_config(corpus_dir, model__dropout=0.0, train__seed=3, **changes)
        trainer = run.build_trainer(config, tmp_path)
        trainer.fitter.workers = workers
        trainer.progress = replace(trainer.progress, epoch=2)
        step = trainer.start_epoch()[0]
        assert step.tolist() == plan_epoch(trainer.pairs.lengths, 500, seed=3, epoch=2)[0].tolist()
        trainer.take_step(step)
        # Adam's first moment is the gradient times a constant.
        moments = trainer.engine.optimizer.state.values()
        gradients.append(torch.cat([moment["exp_avg"].flatten() for moment in moments]))
        losses.append(trainer.engine.read_window().loss)
        counts.append(len(trainer.fitter.cut_step(trainer.progress, trainer.pairs, step)))
    assert counts[:3] == [1, 2, 8] and 8 < counts[3] <= counts[4] and counts[4] % 4 == 0
    for gradient, loss in zip(gradients[1:], losses[1:], strict=True):
        assert (gradient - gradients[0]).norm() < 1e-5 * gradients[0].norm()
        assert loss == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_guarantee_6_an_interrupted_run_saves_and_says_so(corpus_dir, tmp_path, signum, code):
    """The step is finished and saved. Sabotage: leave the signals to Python."""
    steps = {"train__max_steps": 100_000, "train__save_every": 50_000, "valid__every": 50_000}
    config, run_dir = write_config(tmp_path, corpus_dir, **steps), tmp_path / "run"
    words = command("train", config, "--run", run_dir)
    assert stop_at_step(run_dir, 3, signum, words) == code
    assert load_newest(run_dir).progress.step == records(run_dir, "train")[-1]["step"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_guarantee_7_a_bad_step_is_skipped_and_counted(corpus_dir, tmp_path, value):
    """Weights and moments stay; the step counts. Sabotage: do not set found_inf."""
    trainer = run.build_trainer(tiny_config(corpus_dir), tmp_path)
    engine = trainer.engine
    trainer.take_step(np.arange(8))
    before = [p.detach().clone() for p in engine.model.parameters()]
    overflowing = engine.model.encoder[0].feed_forward.inner.bias
    hook = overflowing.register_hook(lambda gradient: torch.full_like(gradient, value))
    trainer.take_step(np.arange(8, 16))
    assert all(map(torch.equal, before, engine.model.parameters()))
    assert int(engine.skipped_steps) == int(engine.nonfinite_in_row) == 1
    assert trainer.progress.step == 2
    hook.remove()
    trainer.take_step(np.arange(8, 16))
    assert not all(map(torch.equal, before, engine.model.parameters()))
    assert all(p.isfinite().all() for p in engine.model.parameters())
    assert int(engine.nonfinite_in_row) == 0


def test_guarantee_7_gradients_are_unscaled_before_they_are_clipped(corpus_dir, tmp_path):
    """A loss scale changes nothing. Sabotage: clip before `scaler.unscale_`."""
    norms, parameters = [], []
    for scale in (None, 4096.0):
        trainer = run.build_trainer(tiny_config(corpus_dir, optim__max_grad_norm=0.01), tmp_path)
        if scale:
            trainer.engine.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        trainer.take_step(np.arange(8))
        norms.append(float(trainer.engine.grad_norm))
        parameters.append([p.detach() for p in trainer.engine.model.parameters()])
    assert norms[0] == pytest.approx(norms[1], rel=1e-5) and norms[0] > 0.01
    torch.testing.assert_close(parameters[0], parameters[1], rtol=0, atol=1e-6)
