"""A dry run: what it reports, and that it keeps nothing."""

import errno
import re
import tomllib
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from conftest import tiny_config
from tqdm import tqdm

from transformer_mt.checkpoints.run_directory import load_newest
from transformer_mt.system.processes import ALONE, Processes
from transformer_mt.text.batching import cut_micro_batches, plan_epoch
from transformer_mt.text.prepared import prepare
from transformer_mt.training import dry_run as dry_run_module
from transformer_mt.training.dry_run import dry_run
from transformer_mt.training.fit import StepFitter
from transformer_mt.training.flops import flops_per_token
from transformer_mt.training.run import train
from transformer_mt.training.trainer import Trainer


def small_config(corpus_dir, **changes):
    return tiny_config(corpus_dir, data__valid="validation[:3]", **changes)


def test_a_dry_run_reports_and_writes_nothing(corpus_dir, tmp_path):
    """Not even a run directory; useful lines come first."""
    torch.set_num_threads(2)
    config = small_config(corpus_dir, train__max_steps=12, train__micro_batch_tokens=600)
    report = dry_run(config, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    lengths = prepare(config).pairs.lengths
    steps = plan_epoch(lengths, 500, config.train.seed, 0)
    micro_batches = [m for step in steps for m in cut_micro_batches(step, lengths, 600, 2)]
    positions = sum(len(m) * int(lengths[:, m].max(axis=1).sum()) for m in micro_batches)
    padding = 1 - lengths.sum() / positions
    for part in (
        "optim.warmup_steps = 100",
        "4,000 training pairs of 4,000 (dropped: none)",
        "{:,} source and {:,} target tokens, EOS included".format(*lengths.sum(axis=1)),
        f"{len(steps)} steps, {len(micro_batches)} micro-batches, {padding:.1%} of positions",
        "            micro-batches of at most 600 positions; 2 CPU threads\n",
        "for 12 steps, until train.max_steps = 12",
    ):
        assert part in report
    estimates, configuration = report.split("\n\n")
    names = [line.split()[0] for line in estimates.splitlines() if not line.startswith(" ")]
    assert names == ["model", "corpus", "epoch", "speed", "memory", "time"]
    title, *lines = configuration.splitlines()
    assert title == "configuration (keys that differ from the defaults):"
    values = tomllib.loads("\n".join(lines))  # a line can be copied
    assert values["data"]["path"] == str(corpus_dir) and values["train"]["max_steps"] == 12
    assert "dropout" not in values["model"] and "label_smoothing" not in values["optim"]


def test_tokens_are_those_of_the_corpus(corpus_dir, tmp_path):
    """Joined pairs have fewer end marks. Sabotage: count the pairs of the first epoch."""
    config = small_config(corpus_dir, train__join_pairs=True, train__max_steps=1)
    src, tgt = prepare(config).pairs.lengths.sum(axis=1)
    assert f" {src:,} source and {tgt:,} target tokens, " in dry_run(config, tmp_path / "run")


def line_of(report: str, name: str) -> str:
    """Gives the line of a report that begins with a name."""
    [line] = [line for line in report.splitlines() if line.startswith(f"{name} ")]
    return line


@pytest.fixture
def taken_steps(monkeypatch):
    """Gives the numbers of the steps that are taken; each trains 50 target tokens per second."""
    steps, clock, real = list[int](), SimpleNamespace(seconds=0.0), Trainer.take_step

    def take_step(self, step_pairs) -> None:
        real(self, step_pairs)
        steps.append(self.progress.step)
        clock.seconds += int(self.pairs.lengths[1][step_pairs].sum()) / 50

    monkeypatch.setattr(Trainer, "take_step", take_step)
    monkeypatch.setattr(dry_run_module, "time", SimpleNamespace(monotonic=lambda: clock.seconds))
    peaks = {(torch.device("cpu"), "fp32", ALONE): 1e7}
    monkeypatch.setattr(dry_run_module, "measure_peak_flops", lambda *given: peaks[given])
    return steps


def test_an_epoch_of_one_step_and_two_vocabularies(corpus_dir, tmp_path, monkeypatch):
    """Nothing is kept of a text that is not prepared; memory is checked, other processes end."""
    changes = {"vocab__shared": False, "vocab__kind": "word", "model__tie_embeddings": False}
    changes |= {"train__batch_tokens": 5000, "train__micro_batch_tokens": 64}
    changes |= {"data__prepared_dir": str(tmp_path / "prepared")}
    text = {"src": "validation.de", "tgt": "test.en"}
    config = small_config(corpus_dir, data__train=text, train__max_steps=0, **changes)
    monkeypatch.setattr(dry_run_module, "total_memory", lambda device: 123e9)
    monkeypatch.setattr(Processes, "finish", finished := Mock())
    checked = Mock(side_effect=lambda progress, *_: progress)
    monkeypatch.setattr(StepFitter, "check_memory", checked)
    report = dry_run(config, tmp_path / "run")
    assert not list(tmp_path.iterdir()) and checked.call_count == finished.call_count == 1
    assert line_of(report, "memory").endswith(" GB of 123.0 GB at the peak")
    assert line_of(report, "speed").endswith(" of peak (1 steps on cpu in fp32)")
    [micro_batches] = re.findall(r"^epoch       1 steps, (\d+) micro-batches, ", report, re.M)
    assert int(micro_batches) > 1
    vocab = prepare(config).vocab
    assert report.splitlines()[0].endswith(f", {vocab.describe()}") and not vocab.shared


def test_a_temporary_folder_on_a_network(corpus_dir, tmp_path, monkeypatch):
    """It keeps files that are mapped, and so the folder. Sabotage: fail if it stays."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("os.rmdir", Mock(side_effect=OSError(errno.ENOTEMPTY, "not empty")))
    values = {"data__prepared_dir": str(tmp_path / "prepared"), "train__max_steps": 0}
    text = {"src": "validation.de", "tgt": "validation.en"}
    assert dry_run(small_config(corpus_dir, data__train=text, **values), tmp_path / "run")


def test_the_time_left_of_a_resumed_run(corpus_dir, tmp_path, taken_steps):
    """Until the limit that is reached first; the run is not changed."""
    limits = {"train__max_epochs": 2, "train__max_steps": 1000}
    config = small_config(corpus_dir, **limits)
    train(small_config(corpus_dir, **{**limits, "train__max_steps": 5}), tmp_path / "run")
    taken_steps.clear()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    report = dry_run(config, tmp_path / "run")
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert taken_steps == [6, 7, 8, 9, 10] and " million parameters, 292 pieces" in report
    lengths = prepare(config).pairs.lengths
    steps = plan_epoch(lengths, 500, config.train.seed, 0)
    # Of three steps, after two to warm up.
    src, tgt = (sum(int(side[step].sum()) for step in steps[2:5]) for side in lengths)
    seconds, per_token = tgt / 50 / 3, flops_per_token(config.model, 292)
    share = (src * per_token[0] + tgt * per_token[1]) / (3 * seconds) / 1e7
    speed = f"speed       50 target tokens/s, {seconds:.3g} s per step, {share:.0%} of peak"
    assert line_of(report, "speed") == f"{speed} (3 steps on cpu in fp32)" and share > 0.1
    steps_left, time_left = 2 * len(steps) - 5, line_of(report, "time")
    assert f"for {steps_left} steps, until train.max_epochs = 2," in time_left
    assert tqdm.format_interval(steps_left * seconds) in time_left
    assert 0.1 < float(line_of(report, "memory").split()[1]) < 64
    minutes = load_newest(tmp_path / "run").progress.seconds / 61
    finished = small_config(corpus_dir, train__max_minutes=minutes, **limits)
    assert "for 0 steps, until train.max_minutes = " in dry_run(finished, tmp_path / "run")
