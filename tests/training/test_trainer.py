"""The training loop: when it stops, validates, saves and logs, with scores and a clock by hand."""

import json
import math
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import tiny_config

from transformer_mt import trainer as module
from transformer_mt.batching import plan_epoch
from transformer_mt.checkpoint import find_checkpoint, list_checkpoints, load_newest
from transformer_mt.errors import Interrupted, TrainingError
from transformer_mt.evaluator import Evaluation
from transformer_mt.learner import Learner
from transformer_mt.optim import noam_rate
from transformer_mt.prepared import prepare
from transformer_mt.run import train
from transformer_mt.run_log import Talk
from transformer_mt.scoring import Score

NEVER = 1000


def records(run_dir: Path, kind: str) -> list[dict]:
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def steps(run_dir: Path, kind: str) -> list[int]:
    return [line["step"] for line in records(run_dir, kind)]


def saved(run_dir: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in list_checkpoints(run_dir)][::-1]


@pytest.fixture
def scores(monkeypatch):
    """Gives a list of the BLEUs that validations will have."""
    values: list[float] = []

    def evaluate(translator, pairs) -> Evaluation:
        hypotheses = [f"hypothesis of {line}" for line in pairs.src]
        return Evaluation(hypotheses, Score("bleu", values.pop(0), "", ""))

    monkeypatch.setattr(module, "evaluate", evaluate)
    return values


@pytest.fixture
def clock(monkeypatch):
    """Gives a clock that only steps move, by thirty seconds each."""
    now = SimpleNamespace(seconds=1000.0)
    real = Learner.train_step

    def train_step(self, step, micro_batches) -> None:
        real(self, step, micro_batches)
        now.seconds += 30.0
        self.window.seconds = 30.0 * (self.window.seconds // 30.0 + 1)

    monkeypatch.setattr(Learner, "train_step", train_step)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def config_of(corpus_dir: Path, **changes: object):
    """Gives a run that logs, saves and validates only when a test says so."""
    defaults = {
        "train__max_steps": 100,
        "train__batch_tokens": 60,
        "train__log_every": NEVER,
        "train__save_every": NEVER,
        "train__keep_last": 100,
        "valid__every": NEVER,
    }
    return tiny_config(corpus_dir, **{**defaults, **changes})


@pytest.mark.parametrize("stops", [[], [6], [2, 4, 8]])
def test_patience(corpus_dir, tmp_path, scores, stops):
    """Training stops after exactly three validations without a better BLEU, resumed or not.

    An equal score is no better one, and a better one begins the count anew.
    Sabotage: never count up; lose the count or the best score on resume; compare with >=.
    """
    scores += [1.0, 0.5, 0.5, 2.0, 2.0, 1.9, 1.0]
    changes = {"valid__every": 2, "valid__patience": 3}
    for stop in stops:
        state = train(config_of(corpus_dir, train__max_steps=stop, **changes), tmp_path / "run")
        assert state.step == stop
    state = train(config_of(corpus_dir, **changes), tmp_path / "run")
    assert (state.step, state.best_step, state.best_bleu, state.bad_validations) == (14, 8, 2.0, 3)
    assert scores == [] and steps(tmp_path / "run", "valid") == [2, 4, 6, 8, 10, 12, 14]
    assert state.valid_step == 14
    log = (tmp_path / "run" / "train.log").read_text()
    assert "done: valid.patience = 3, at step 14" in log and "(best 2.00)" in log
    assert find_checkpoint(tmp_path / "run", print).state.step == 8
    again = train(config_of(corpus_dir, **changes), tmp_path / "run")
    assert again.step == 14
    log = (tmp_path / "run" / "train.log").read_text()
    assert "nothing to do: valid.patience = 3, and the run is at step 14" in log


def test_without_patience_it_goes_on(corpus_dir, tmp_path, scores):
    """Zero is no limit, and a first BLEU of zero is the best so far."""
    scores += [0.0, 0.0, 0.0, 0.0]
    state = train(config_of(corpus_dir, train__max_steps=4, valid__every=1), tmp_path / "run")
    assert (state.step, state.best_step, state.best_bleu, state.bad_validations) == (4, 1, 0.0, 3)


def test_what_is_logged_validated_and_saved_when(corpus_dir, tmp_path, scores):
    """At multiples and at the end; a validation that is the best so far saves at once.

    Sabotage: save or log every step; do not save the best.
    """
    scores += [3.0, 1.0, 4.0, 2.0]
    changes = {"train__log_every": 4, "train__save_every": 5, "valid__every": 3}
    train(config_of(corpus_dir, train__max_steps=11, **changes), tmp_path / "run")
    assert steps(tmp_path / "run", "train") == [4, 8, 11]
    assert steps(tmp_path / "run", "valid") == [3, 6, 9, 11]
    assert saved(tmp_path / "run") == [3, 5, 9, 10, 11]
    assert "(best)" in (tmp_path / "run" / "train.log").read_text()


def test_no_step_at_all(corpus_dir, tmp_path, scores):
    """With max_steps = 0 the start is validated and saved."""
    scores += [1.0]
    state = train(config_of(corpus_dir, train__max_steps=0), tmp_path / "run")
    assert state.step == 0 and saved(tmp_path / "run") == [0]
    assert steps(tmp_path / "run", "valid") == [0] and not records(tmp_path / "run", "train")


def test_epochs_are_a_limit(corpus_dir, tmp_path, scores):
    """Training ends with the last step of the last epoch, wherever it was resumed.

    Sabotage: count the epoch at its beginning; forget the position within it.
    """
    scores += [1.0] * 4
    changes = {"data__train": "train[:40]", "vocab__size": 288}
    config = config_of(corpus_dir, train__max_epochs=3, **changes)
    pairs = prepare(config, Talk(quiet=True)).pairs
    sizes = [len(plan_epoch(*pairs.lengths, 60, config.train.seed, epoch)) for epoch in range(3)]
    for stop in (sizes[0] - 1, sizes[0], sizes[0] + 2):
        part = config_of(corpus_dir, train__max_epochs=3, train__max_steps=stop, **changes)
        state = train(part, tmp_path / "run")
        expected = (0, stop) if stop < sizes[0] else (1, stop - sizes[0])
        assert (state.epoch, state.index) == expected and state.step == stop
    state = train(config, tmp_path / "run")
    assert (state.step, state.epoch, state.index) == (sum(sizes), 3, 0)
    assert "done: train.max_epochs = 3" in (tmp_path / "run" / "train.log").read_text()


def test_minutes_are_a_limit(corpus_dir, tmp_path, scores, clock):
    """Over all resumptions, by the time of training; saved every so many minutes too.

    Sabotage: begin the clock anew on resume; count the time between two runs.
    """
    scores += [1.0] * 3
    config = config_of(corpus_dir, train__max_minutes=2.0, train__save_every_minutes=1.0)
    state = train(config, tmp_path / "run")
    assert state.step == 4 and saved(tmp_path / "run") == [2, 4]
    assert load_newest(tmp_path / "run", print).state.seconds == 120.0
    clock.seconds += 5000
    longer = config_of(corpus_dir, train__max_minutes=3.5, train__save_every_minutes=1.0)
    assert train(longer, tmp_path / "run").step == 7
    assert saved(tmp_path / "run") == [2, 4, 6, 7]
    log = (tmp_path / "run" / "train.log").read_text()
    assert "done: train.max_minutes = 2, at step 4" in log
    assert [line["seconds"] for line in records(tmp_path / "run", "train")] == [120.0, 210.0]


def test_figures_of_a_log_line(corpus_dir, tmp_path, scores, clock, monkeypatch):
    """Loss per token, rate, tokens and share of the peak per second, since the line before.

    Sabotage: divide by the steps; do not begin the sums anew.
    """
    scores += [1.0]
    monkeypatch.setattr(module, "measure_peak", lambda device, precision: 1e6)
    counted: list[tuple[int, float, float]] = []
    real = Learner.train_step

    def train_step(self, step, micro_batches) -> None:
        before = float(self.loss), self.window.operations
        real(self, step, micro_batches)
        tokens = sum(batch.tgt_tokens for batch in micro_batches)
        counted.append((tokens, float(self.loss) - before[0], self.window.operations - before[1]))

    monkeypatch.setattr(Learner, "train_step", train_step)
    config = config_of(corpus_dir, train__max_steps=5, train__log_every=2)
    train(config, tmp_path / "run")
    lines = records(tmp_path / "run", "train")
    assert [line["step"] for line in lines] == [2, 4, 5]
    for line, part in zip(lines, (counted[:2], counted[2:4], counted[4:]), strict=True):
        tokens, loss, operations = map(sum, zip(*part, strict=True))
        assert line["loss"] == pytest.approx(loss / tokens, abs=1e-5)
        assert line["tokens_per_second"] == pytest.approx(tokens / (30 * len(part)), abs=0.06)
        assert line["peak_share"] == pytest.approx(operations / (30 * len(part)) / 1e6, abs=1e-3)
        assert line["rate"] == noam_rate(line["step"], 64, 100) and line["skipped"] == 0
        assert line["grad_norm"] > 0 and line["epoch"] == 0 and line["seconds"] == 30 * line["step"]
    [valid] = records(tmp_path / "run", "valid")
    assert valid["perplexity"] == pytest.approx(math.exp(valid["nll"]), rel=1e-4)
    assert valid["bleu"] == 1.0 and valid["step"] == 5 and "ema_bleu" not in valid
    log = (tmp_path / "run" / "train.log").read_text()
    assert f"step 5: validation BLEU 1.00, perplexity {valid['perplexity']:.2f} (best)" in log
    said = [line.split()[-1] for line in log.splitlines() if "  hypothesis " in line]
    validation = (corpus_dir / "validation.de").read_text().splitlines()
    assert said == [validation[i].split()[-1] for i in (0, 29, 59)]
    for side in ("source", "reference"):
        assert f"  {side:10} {validation[29]}" in log


def poison(monkeypatch, bad: set[int]) -> None:
    """Makes the gradients of some steps infinite."""
    real = Learner._clip

    def clip(self, max_norm):
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls in bad:
            for parameter in self.model.parameters():
                parameter.grad.fill_(math.inf)
        return real(self, max_norm)

    monkeypatch.setattr(Learner, "_clip", clip)


def test_bad_steps_in_a_row_are_a_limit(corpus_dir, tmp_path, scores, monkeypatch):
    """Three of them in a row stop the run; two, and two again, are logged as skipped.

    Sabotage: never read the counter; stop one too late.
    """
    scores += [1.0]
    changes = {"train__max_bad_steps": 3, "train__log_every": 1}
    with monkeypatch.context() as patch:
        poison(patch, {2, 3, 5, 6})
        state = train(config_of(corpus_dir, train__max_steps=7, **changes), tmp_path / "run")
    assert state.skipped == 4
    lines = records(tmp_path / "run", "train")
    assert [line["skipped"] for line in lines] == [0, 1, 2, 2, 3, 4, 4]
    assert [line["grad_norm"] is None for line in lines] == [i in (2, 3, 5, 6) for i in range(1, 8)]
    assert load_newest(tmp_path / "run", print).state.skipped == 4
    poison(monkeypatch, {2, 3, 4})
    message = r"^step 4 \(number 4 of epoch 0\): 3 steps in a row had non-finite gradients"
    with pytest.raises(TrainingError, match=message):
        train(config_of(corpus_dir, train__max_steps=7, **changes), tmp_path / "other")


def test_a_validation_that_was_due_is_made_up_for(corpus_dir, tmp_path, scores, monkeypatch):
    """Interrupted at a step whose validation was due: saved at once, validated when resumed.

    Sabotage: validate before the interrupted run saves; forget the validation.
    """
    scores += [5.0, 6.0, 7.0]
    real, handlers = Learner.train_step, signal.getsignal(signal.SIGTERM)

    def train_step(self, step, micro_batches) -> None:
        real(self, step, micro_batches)
        if step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    changes = {"valid__every": 2, "train__max_steps": 6}
    with monkeypatch.context() as patch:
        patch.setattr(Learner, "train_step", train_step)
        with pytest.raises(Interrupted):
            train(config_of(corpus_dir, **changes), tmp_path / "run")
    assert signal.getsignal(signal.SIGTERM) == handlers
    assert steps(tmp_path / "run", "valid") == [2] and saved(tmp_path / "run") == [2, 4]
    assert "interrupted and saved at step 4" in (tmp_path / "run" / "train.log").read_text()
    state = train(config_of(corpus_dir, **changes), tmp_path / "run")
    assert steps(tmp_path / "run", "valid") == [2, 4, 6] and state.best_bleu == 7.0


def test_a_second_signal_ends_it_at_once(corpus_dir, tmp_path, monkeypatch):
    """The step is not finished and nothing is saved."""
    real = Learner.train_step

    def train_step(self, step, micro_batches) -> None:
        real(self, step, micro_batches)
        if step == 2:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Learner, "train_step", train_step)
    with pytest.raises(Interrupted):
        train(config_of(corpus_dir), tmp_path / "run")
    assert saved(tmp_path / "run") == []


def test_memory_is_tried_with_the_largest_batch(corpus_dir, tmp_path, scores, monkeypatch):
    """Once, before the first step, and it changes no weight."""
    scores += [1.0, 1.0]
    tried: list[tuple[int, int]] = []
    real = Learner.try_memory

    def try_memory(self, largest) -> None:
        before = [parameter.detach().clone() for parameter in self.model.parameters()]
        tried.append((largest.src.numel() + largest.tgt_in.numel(), int(self.window.tokens)))
        real(self, largest)
        assert all(map(torch.equal, before, self.model.parameters()))

    monkeypatch.setattr(Learner, "try_memory", try_memory)
    changes = {"data__train": "train[:40]", "vocab__size": 288, "train__max_epochs": 2}
    train(config_of(corpus_dir, train__micro_batch_tokens=100, **changes), tmp_path / "run")
    assert len(tried) == 1 and 100 < tried[0][0] <= 200 and tried[0][1] == 0
