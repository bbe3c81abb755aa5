"""The training loop: when it stops, validates, saves and logs, with scores and a clock by hand."""

import json
import math
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import tiny_config

from transformer_mt.checkpoints.evaluations import Score
from transformer_mt.checkpoints.run_directory import find_checkpoint, list_checkpoints, load_newest
from transformer_mt.config.keys import Config
from transformer_mt.errors import Interrupted, TrainingError
from transformer_mt.text.batching import plan_epoch
from transformer_mt.text.prepared import prepare
from transformer_mt.training import engine as engine_module
from transformer_mt.training import trainer as trainer_module
from transformer_mt.training import validation as validation_module
from transformer_mt.training.engine import Engine
from transformer_mt.training.optimizer import clip_gradients, noam_rate
from transformer_mt.training.run import train

NEVER = 1000


def records(run_dir: Path, kind: str) -> list[dict]:
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def logged_steps(run_dir: Path, kind: str) -> list[int]:
    return [line["step"] for line in records(run_dir, kind)]


def saved_steps(run_dir: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in list_checkpoints(run_dir)][::-1]


def log_text(run_dir: Path) -> str:
    return (run_dir / "train.log").read_text()


@pytest.fixture
def scores(monkeypatch):
    """Gives a list of the BLEU scores that validations will have."""
    values: list[float] = []

    def evaluate(translator, pairs, advance) -> tuple[list[str], Score]:
        hypotheses = [f"hypothesis of {line}" for line in pairs.src]
        return hypotheses, Score("bleu", values.pop(0), "")

    monkeypatch.setattr(validation_module, "evaluate", evaluate)
    return values


@pytest.fixture
def clock(monkeypatch):
    """Gives a clock that each step moves by thirty seconds, and nothing else."""
    now = SimpleNamespace(seconds=1000.0)
    real = Engine.train_step

    def train_step(self, step, micro_batches) -> None:
        real(self, step, micro_batches)
        now.seconds += 30.0
        self._seconds += 30.0

    monkeypatch.setattr(Engine, "train_step", train_step)
    for module in (trainer_module, engine_module):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def build_config(corpus_dir: Path, **changes: object) -> Config:
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

    An equal score is not better; a better one starts the count again.
    Sabotage: never count up; lose the count or the best score on resume; compare with >=.
    """
    scores += [1.0, 0.5, 0.5, 2.0, 2.0, 1.9, 1.0]
    changes = {"valid__every": 2, "valid__patience": 3}
    for stop in stops:
        config = build_config(corpus_dir, train__max_steps=stop, **changes)
        assert train(config, tmp_path / "run").step == stop
    progress = train(build_config(corpus_dir, **changes), tmp_path / "run")
    assert (progress.step, progress.best_step, progress.best_bleu) == (14, 8, 2.0)
    assert progress.validations_since_best == 3 and progress.valid_step == 14
    assert scores == [] and logged_steps(tmp_path / "run", "valid") == [2, 4, 6, 8, 10, 12, 14]
    assert "done: valid.patience = 3, at step 14" in log_text(tmp_path / "run")
    assert "(best 2.00)" in log_text(tmp_path / "run")
    assert find_checkpoint(tmp_path / "run").progress.step == 8
    assert train(build_config(corpus_dir, **changes), tmp_path / "run").step == 14
    message = "nothing to do: valid.patience = 3, and the run is at step 14"
    assert message in log_text(tmp_path / "run")


def test_without_patience_training_goes_on(corpus_dir, tmp_path, scores):
    """Zero is no limit, and a first BLEU of zero is the best so far."""
    scores += [0.0, 0.0, 0.0, 0.0]
    progress = train(build_config(corpus_dir, train__max_steps=4, valid__every=1), tmp_path / "run")
    assert (progress.step, progress.best_step, progress.best_bleu) == (4, 1, 0.0)
    assert progress.validations_since_best == 3


def test_when_a_run_logs_validates_and_saves(corpus_dir, tmp_path, scores):
    """At multiples and at the end; a validation that is the best so far saves at once.

    Sabotage: save or log every step; do not save the best.
    """
    scores += [3.0, 1.0, 4.0, 2.0]
    changes = {"train__log_every": 4, "train__save_every": 5, "valid__every": 3}
    train(build_config(corpus_dir, train__max_steps=11, **changes), tmp_path / "run")
    assert logged_steps(tmp_path / "run", "train") == [4, 8, 11]
    assert logged_steps(tmp_path / "run", "valid") == [3, 6, 9, 11]
    assert saved_steps(tmp_path / "run") == [3, 5, 9, 10, 11]
    assert "(best)" in log_text(tmp_path / "run")


def test_a_run_without_steps(corpus_dir, tmp_path, scores):
    """With max_steps = 0 the initial weights are validated and saved; the run can be resumed.

    Resumed, it equals a run that was never stopped. Sabotage: require moments to resume.
    """
    scores += [1.0, 2.0, 2.0]
    progress = train(build_config(corpus_dir, train__max_steps=0), tmp_path / "run")
    assert progress.step == 0 and saved_steps(tmp_path / "run") == [0]
    assert logged_steps(tmp_path / "run", "valid") == [0]
    assert not records(tmp_path / "run", "train")
    for name in ("run", "uninterrupted"):
        assert train(build_config(corpus_dir, train__max_steps=2), tmp_path / name).step == 2
    assert saved_steps(tmp_path / "run") == [0, 2] and scores == []
    assert logged_steps(tmp_path / "run", "valid") == [0, 2]
    resumed, uninterrupted = (
        load_newest(tmp_path / name).build_model() for name in ("run", "uninterrupted")
    )
    assert all(map(torch.equal, resumed.parameters(), uninterrupted.parameters()))


def test_epochs_are_a_limit(corpus_dir, tmp_path, scores):
    """Training ends with the last step of the last epoch, wherever it was resumed.

    Sabotage: count the epoch at its beginning; forget the position within it.
    """
    scores += [1.0] * 4
    changes = {"data__train": "train[:40]", "vocab__size": 288}
    config = build_config(corpus_dir, train__max_epochs=3, **changes)
    lengths = prepare(config).pairs.lengths
    sizes = [len(plan_epoch(*lengths, 60, config.train.seed, epoch)) for epoch in range(3)]
    for stop in (sizes[0] - 1, sizes[0], sizes[0] + 2):
        part = build_config(corpus_dir, train__max_epochs=3, train__max_steps=stop, **changes)
        progress = train(part, tmp_path / "run")
        expected = (0, stop) if stop < sizes[0] else (1, stop - sizes[0])
        assert (progress.epoch, progress.epoch_step) == expected and progress.step == stop
    progress = train(config, tmp_path / "run")
    assert (progress.step, progress.epoch, progress.epoch_step) == (sum(sizes), 3, 0)
    assert "done: train.max_epochs = 3" in log_text(tmp_path / "run")


def test_minutes_are_a_limit(corpus_dir, tmp_path, scores, clock):
    """They count training time over all resumptions; periodic saves by time work too.

    Sabotage: reset the clock on resume; count the time between two runs.
    """
    scores += [1.0] * 3
    config = build_config(corpus_dir, train__max_minutes=2.0, train__save_every_minutes=1.0)
    progress = train(config, tmp_path / "run")
    assert progress.step == 4 and saved_steps(tmp_path / "run") == [2, 4]
    assert load_newest(tmp_path / "run").progress.seconds == 120.0
    clock.seconds += 5000
    longer = build_config(corpus_dir, train__max_minutes=3.5, train__save_every_minutes=1.0)
    assert train(longer, tmp_path / "run").step == 7
    assert saved_steps(tmp_path / "run") == [2, 4, 6, 7]
    assert "done: train.max_minutes = 2, at step 4" in log_text(tmp_path / "run")
    assert [line["seconds"] for line in records(tmp_path / "run", "train")] == [120.0, 210.0]


def test_figures_of_a_log_line(corpus_dir, tmp_path, scores, clock, monkeypatch):
    """Loss per token, learning rate, tokens per second and MFU, since the line before.

    Sabotage: divide by the steps; do not reset the sums.
    """
    scores += [1.0]
    monkeypatch.setattr(trainer_module, "measure_peak_flops", lambda device, precision: 1e6)
    step_sums: list[tuple[int, float, float]] = []
    real = Engine.train_step

    def train_step(self, step, micro_batches) -> None:
        before = self.read_window()
        real(self, step, micro_batches)
        after = self.read_window()
        sums = after.tokens - before.tokens, after.loss - before.loss, after.flops - before.flops
        step_sums.append(sums)

    monkeypatch.setattr(Engine, "train_step", train_step)
    train(build_config(corpus_dir, train__max_steps=5, train__log_every=2), tmp_path / "run")
    lines = records(tmp_path / "run", "train")
    assert [line["step"] for line in lines] == [2, 4, 5]
    for line, steps in zip(lines, (step_sums[:2], step_sums[2:4], step_sums[4:]), strict=True):
        tokens, loss, flops = map(sum, zip(*steps, strict=True))
        seconds = 30 * len(steps)
        assert line["loss"] == pytest.approx(loss / tokens, abs=1e-5)
        assert line["tokens_per_second"] == pytest.approx(tokens / seconds, abs=0.06)
        assert line["mfu"] == pytest.approx(flops / seconds / 1e6, abs=1e-3)
        assert line["lr"] == noam_rate(line["step"], 64, 100) and line["skipped"] == 0
        assert line["grad_norm"] > 0 and line["epoch"] == 0 and line["seconds"] == 30 * line["step"]


def test_figures_of_a_validation(corpus_dir, tmp_path, scores):
    """BLEU and perplexity in metrics.jsonl and train.log, and the same samples every time."""
    scores += [1.0]
    train(build_config(corpus_dir, train__max_steps=5), tmp_path / "run")
    [valid] = records(tmp_path / "run", "valid")
    assert valid["perplexity"] == pytest.approx(math.exp(valid["nll"]), rel=1e-4)
    assert valid["bleu"] == 1.0 and valid["step"] == 5 and "ema_bleu" not in valid
    log = log_text(tmp_path / "run")
    assert f"step 5: validation BLEU 1.00, perplexity {valid['perplexity']:.2f} (best)" in log
    sources = (corpus_dir / "validation.de").read_text().splitlines()
    for i in (0, 29, 59):
        assert f"  source     {sources[i]}\n" in log and f"  reference  {sources[i]}\n" in log
        assert f"  hypothesis hypothesis of {sources[i]}\n" in log
    assert log.count("  hypothesis ") == 3


def test_figures_are_rounded(corpus_dir, tmp_path, scores):
    """To the digits that are significant, so that the file can be read."""
    scores += [12.3456789]
    train(build_config(corpus_dir, train__max_steps=3, train__log_every=1), tmp_path / "run")
    digits = {"loss": 6, "grad_norm": 6, "nll": 6, "mfu": 4, "perplexity": 4, "bleu": 4}
    digits |= {"seconds": 3, "tokens_per_second": 1}
    largest = dict.fromkeys(digits, 0)
    for kind in ("train", "valid"):
        for line in records(tmp_path / "run", kind):
            for key in digits.keys() & line.keys():
                _, _, decimals = f"{line[key]:.9f}".rstrip("0").partition(".")
                largest[key] = max(largest[key], len(decimals))
    assert all(0 < largest[key] <= digits[key] for key in digits)


def make_gradients_infinite(monkeypatch, calls: set[int]) -> None:
    """Makes the gradients of some steps of this process infinite."""
    count = 0

    def clip(parameters, max_norm):
        nonlocal count
        count += 1
        parameters = list(parameters)
        if count in calls:
            for parameter in parameters:
                parameter.grad.fill_(math.inf)
        return clip_gradients(parameters, max_norm)

    monkeypatch.setattr(engine_module, "clip_gradients", clip)


def test_nonfinite_steps_in_a_row_are_a_limit(corpus_dir, tmp_path, scores, monkeypatch):
    """Three of them in a row stop the run; two, and two again, are logged as skipped.

    Sabotage: never read the counter; stop one too late.
    """
    scores += [1.0]
    config = build_config(
        corpus_dir, train__max_steps=7, train__max_bad_steps=3, train__log_every=1
    )
    with monkeypatch.context() as patch:
        make_gradients_infinite(patch, {2, 3, 5, 6})
        train(config, tmp_path / "run")
    lines = records(tmp_path / "run", "train")
    assert [line["skipped"] for line in lines] == [0, 1, 2, 2, 3, 4, 4]
    assert [line["grad_norm"] is None for line in lines] == [i in (2, 3, 5, 6) for i in range(1, 8)]
    assert load_newest(tmp_path / "run").state.counters["skipped_steps"] == 4
    make_gradients_infinite(monkeypatch, {2, 3, 4})
    message = r"^step 4 \(step 4 of epoch 0\): 3 steps in a row had non-finite gradients"
    with pytest.raises(TrainingError, match=message):
        train(config, tmp_path / "other")


def signal_in_step(monkeypatch, number: int, signum: int, count: int) -> None:
    """Sends this process signals during one step."""
    real = Engine.train_step

    def train_step(self, step, micro_batches) -> None:
        real(self, step, micro_batches)
        if step == number:
            for _ in range(count):
                os.kill(os.getpid(), signum)

    monkeypatch.setattr(Engine, "train_step", train_step)


def test_a_signal_saves_before_it_validates(corpus_dir, tmp_path, scores, monkeypatch):
    """So it ends soon; the validation is made up when the run is resumed.

    Sabotage: validate before the interrupted run saves; forget the validation.
    """
    scores += [5.0, 6.0, 7.0]
    config = build_config(corpus_dir, valid__every=2, train__max_steps=6)
    handler = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        signal_in_step(patch, 4, signal.SIGTERM, 1)
        with pytest.raises(Interrupted):
            train(config, tmp_path / "run")
    assert signal.getsignal(signal.SIGTERM) == handler
    assert logged_steps(tmp_path / "run", "valid") == [2]
    assert saved_steps(tmp_path / "run") == [2, 4]
    assert "interrupted and saved at step 4" in log_text(tmp_path / "run")
    assert train(config, tmp_path / "run").best_bleu == 7.0
    assert logged_steps(tmp_path / "run", "valid") == [2, 4, 6]


def test_a_deleted_best_is_forgotten_at_the_next_save(
    corpus_dir, tmp_path, scores, monkeypatch, caplog
):
    """One warning on the first resume; then the next validation is the best, whatever its BLEU.

    Sabotage: keep the best of the checkpoint.
    """
    scores += [9.0, 1.0, 0.5, 0.4]
    run_dir = tmp_path / "run"
    train(build_config(corpus_dir, valid__every=4, train__max_steps=6), run_dir)
    shutil.rmtree(run_dir / "step-00000004")
    config = build_config(corpus_dir, valid__every=4, train__max_steps=9)
    with monkeypatch.context() as patch:
        signal_in_step(patch, 7, signal.SIGTERM, 1)
        with pytest.raises(Interrupted):
            train(config, run_dir)
    progress = load_newest(run_dir).progress
    assert (progress.step, progress.best_bleu, progress.best_step) == (7, -1.0, 0)
    progress = train(config, run_dir)
    assert (progress.step, progress.best_bleu, progress.best_step) == (9, 0.5, 8)
    assert find_checkpoint(run_dir).progress.step == 8
    assert [text for text in caplog.messages if "missing" in text] == [
        f"{run_dir}: its best checkpoint (step 4, BLEU 9.00) is missing; the next validation will"
        " be the best"
    ]


def test_a_second_signal_ends_training_at_once(corpus_dir, tmp_path, monkeypatch):
    """The step is not finished and nothing is saved."""
    signal_in_step(monkeypatch, 2, signal.SIGINT, 2)
    with pytest.raises(Interrupted):
        train(build_config(corpus_dir), tmp_path / "run")
    assert saved_steps(tmp_path / "run") == []


def test_memory_is_checked_with_the_largest_batch(corpus_dir, tmp_path, scores, monkeypatch):
    """Once, before the first step, and it changes no weight."""
    scores += [1.0, 1.0]
    checks: list[tuple[int, int]] = []
    real = Engine.check_memory

    def check_memory(self, largest, count) -> None:
        before = [parameter.detach().clone() for parameter in self.model.parameters()]
        checks.append((largest.src.numel() + largest.tgt_in.numel(), self.read_window().tokens))
        real(self, largest, count)
        assert all(map(torch.equal, before, self.model.parameters()))

    monkeypatch.setattr(Engine, "check_memory", check_memory)
    changes = {"data__train": "train[:40]", "vocab__size": 288, "train__max_epochs": 2}
    train(build_config(corpus_dir, train__micro_batch_tokens=100, **changes), tmp_path / "run")
    [(positions, tokens_before)] = checks
    assert 100 < positions <= 200 and tokens_before == 0
