"""Runs that are stopped: what is saved, and what is made up when they are resumed."""

import os
import re
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Event
from unittest.mock import Mock

import pytest
import torch
from conftest import around_steps, assert_one_error, equal, records, refuses, weights, write_toml
from sacrebleu.metrics import BLEU, CHRF
from test_trainer import (
    build_config,
    build_values,
    clock,
    log_text,
    logged_steps,
    saved_steps,
    scores,
)

from transformer_mt.checkpoints.evaluations import SearchSetting, read_evaluations
from transformer_mt.checkpoints.run_directory import load_newest
from transformer_mt.errors import CheckpointError, Interrupted
from transformer_mt.system.processes import Processes
from transformer_mt.text.batching import plan_epoch
from transformer_mt.text.prepared import prepare
from transformer_mt.training import saving
from transformer_mt.training.engine import Engine
from transformer_mt.training.run import build_trainer, train
from transformer_mt.training.trainer import Trainer
from transformer_mt.training.validation import Validator

__all__ = ["clock", "scores"]  # fixtures


def signal_in_step(monkeypatch, number: int, signum: int, count: int = 1) -> None:
    """Sends this process signals during one step."""

    def send(engine: Engine, step: int) -> None:
        if step == number:
            for _ in range(count):
                os.kill(os.getpid(), signum)

    around_steps(monkeypatch, after=send)


INTERRUPTED = {"valid__every": 4, "optim__warmup_steps": 3}


@pytest.fixture
def interrupted(corpus_dir, tmp_path, monkeypatch):
    """Gives a run that got SIGTERM in step 4, at whose end a validation was due."""
    handler, saved = signal.getsignal(signal.SIGTERM), []
    with monkeypatch.context() as patch:
        patch.setattr(Processes, "finish", lambda _: saved.append(saved_steps(tmp_path / "run")))
        signal_in_step(patch, 4, signal.SIGTERM)
        with pytest.raises(Interrupted):
            train(build_config(corpus_dir, **INTERRUPTED, train__max_steps=6), tmp_path / "run")
    assert signal.getsignal(signal.SIGTERM) == handler and saved == [[4]]
    return tmp_path / "run"


def test_a_missed_validation_is_made_up_at_once(corpus_dir, interrupted, scores, monkeypatch):
    """Sabotage: validate before saving; save only if the step differs; keep all metrics."""
    assert saved_steps(interrupted) == [4] and logged_steps(interrupted, "valid") == []
    assert load_newest(interrupted).progress.valid_step == 0
    assert "interrupted and saved at step 4" in log_text(interrupted)
    scores += [1.0, 6.0, 5.0]
    config = build_config(corpus_dir, **INTERRUPTED, train__max_steps=6)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_save", Mock(side_effect=SystemExit("killed")))
        with pytest.raises(SystemExit):
            train(config, interrupted)
    assert logged_steps(interrupted, "valid") == [4]
    seen = []
    around_steps(monkeypatch, before=lambda *_: seen.append(load_newest(interrupted).progress))
    train(config, interrupted)
    assert seen[0].step == seen[0].valid_step == seen[0].best_step == 4
    validations = [(line["step"], line["bleu"]) for line in records(interrupted, "valid")]
    assert validations == [(4, 6.0), (6, 5.0)]


@pytest.mark.parametrize(("key", "limit"), [("valid.patience", 1), ("train.max_steps", 4)])
def test_a_missed_validation_may_end_training(corpus_dir, interrupted, scores, key, limit):
    """Or be all that is left. Sabotage: look at the limits before it alone."""
    scores += [-1.0]
    config = build_config(corpus_dir, **INTERRUPTED, **{key.replace(".", "__"): limit})
    assert train(config, interrupted).step == 4 and scores == []
    assert f"done: {key} = {limit}, at step 4" in log_text(interrupted)


def test_a_log_line_over_two_processes(corpus_dir, tmp_path, scores, clock, monkeypatch):
    """Sabotage: forget the first's sums; divide all by the second's time; count tokens twice."""
    scores += [1.0] * 2
    config = build_config(corpus_dir, train__max_steps=6)
    train(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        signal_in_step(patch, 4, signal.SIGTERM)
        with pytest.raises(Interrupted):
            train(config, tmp_path / "run")
    train(config, tmp_path / "run")
    lengths = prepare(config).pairs.lengths
    steps = plan_epoch(lengths, config.train.batch_tokens, config.train.seed, 0)
    whole, lines = (records(tmp_path / name, "train")[-2:] for name in ("whole", "run"))
    for step, expected, line in zip((5, 6), whole, lines, strict=True):
        values = step, expected["loss"], expected["nll"]
        assert (line["step"], line["loss"], line["nll"]) == values
        tokens = int(lengths[1][steps[step - 1]].sum())
        assert line["tokens_per_second"] == pytest.approx(tokens / 30, abs=0.06)


def test_a_signal_interrupts_a_validation(corpus_dir, tmp_path, monkeypatch):
    """Which is made up by the next start. Sabotage: translate to the end."""

    def translate(self, runtime, advance):
        os.kill(os.getpid(), signal.SIGTERM)
        advance(1)
        return [""] * len(self._pairs), 1.0

    monkeypatch.setattr(Validator, "_translate", translate)
    with pytest.raises(Interrupted):
        train(build_config(corpus_dir, valid__every=2), tmp_path / "run")
    assert saved_steps(tmp_path / "run") == [2] and not records(tmp_path / "run", "valid")
    assert load_newest(tmp_path / "run").progress.valid_step == 0


def test_a_run_without_steps(corpus_dir, tmp_path, scores, caplog):
    """Its initial weights are saved and validated. Sabotage: require moments to resume."""
    scores += [1.0, 2.0, 2.0]
    progress = train(build_config(corpus_dir, train__max_steps=0), tmp_path / "run")
    assert progress.step == 0 and saved_steps(tmp_path / "run") == [0]
    assert logged_steps(tmp_path / "run", "valid") == [0] and not records(tmp_path / "run", "train")
    for name in ("run", "whole"):
        assert train(build_config(corpus_dir, train__max_steps=2), tmp_path / name).step == 2
    assert saved_steps(tmp_path / "run") == [0, 2] and scores == []
    assert logged_steps(tmp_path / "run", "valid") == [0, 2]
    assert "has no checkpoint" not in caplog.text
    resumed, whole = (load_newest(tmp_path / name).build_model() for name in ("run", "whole"))
    assert all(map(torch.equal, resumed.parameters(), whole.parameters()))


def test_a_second_signal_ends_training_at_once(corpus_dir, tmp_path, monkeypatch):
    """The step is not finished, and what is being saved is not waited for."""
    may_end, has_ended = Event(), Event()

    def save(*arguments: object) -> None:
        may_end.wait(60)
        has_ended.set()

    monkeypatch.setattr(saving, "save_checkpoint", save)
    signal_in_step(monkeypatch, 2, signal.SIGINT, 2)
    with pytest.raises(Interrupted):
        train(build_config(corpus_dir, train__save_every=1), tmp_path / "run")
    assert not has_ended.is_set() and saved_steps(tmp_path / "run") == []
    may_end.set()
    assert has_ended.wait(60)


def test_training_goes_on_while_a_checkpoint_is_written(corpus_dir, tmp_path, scores, monkeypatch):
    """Sabotage: write tensors in use; wait in `start`; do not wait to record, or at the end."""
    scores += [1.0, 1.0]
    real, is_later = saving.save_checkpoint, Event()

    def save(path, tensors, state, *arguments) -> None:
        assert state.progress.step != 2 or is_later.wait(30)
        time.sleep(0.1)
        real(path, tensors, state, *arguments)

    def act(engine: Engine, step: int) -> None:
        if step == 3:
            is_later.set()
        if step == 7:
            raise MemoryError

    monkeypatch.setattr(saving, "save_checkpoint", save)
    around_steps(monkeypatch, after=act)
    valid, text = ({"src": f"{split}.de", "tgt": "test.en"} for split in ("validation", "test"))
    changes = {"data__train": text, "data__valid": valid, "data__tgt_lang": "zh"}
    build = partial(build_config, corpus_dir, vocab__size=288, **changes)
    for steps in (4, 2):
        train(build(train__max_steps=steps, train__save_every=2), tmp_path / str(steps))
    paths = [tmp_path / steps / "step-00000002" for steps in ("4", "2")]
    assert equal(*map(weights, paths)) and saved_steps(tmp_path / "4") == [2, 4]
    [record] = read_evaluations(tmp_path / "4")
    assert (record.checkpoint, record.test_set) == ("step-00000004", "validation")
    assert record.digest == load_newest(tmp_path / "4").digest and record.search == SearchSetting()
    sources, references = ((corpus_dir / name).read_text().splitlines() for name in valid.values())
    assert (record.sources, record.references) == (sources, [references])
    assert record.hypotheses == [f"hypothesis of {line}" for line in sources]
    expected = [m.corpus_score(record.hypotheses, [references]).score for m in (BLEU(), CHRF())]
    assert [score.value for score in record.scores] == expected
    assert [score.tokenizer for score in record.scores] == ["zh", ""]
    with pytest.raises(MemoryError):
        train(build(train__save_every=6), tmp_path / "4")
    assert saved_steps(tmp_path / "4")[-1] == 6


def no_space(*arguments: object) -> None:
    raise OSError(28, "No space left on device", "full")


def test_a_failed_save_waits_for_the_next(corpus_dir, tmp_path, scores, clock, monkeypatch, caplog):
    """Once per interval. Sabotage: note only saves that succeed; exit with the signal's code."""
    scores += [1.0]
    monkeypatch.setattr(saving, "save_checkpoint", no_space)
    config = build_config(corpus_dir, train__save_every_minutes=1.0, train__max_steps=5)
    with pytest.raises(CheckpointError, match=r"^full: cannot save step 5: No space left on dev"):
        train(config, tmp_path / "run")
    warnings = [text for text in caplog.messages if text.endswith("; training continues")]
    end = "No space left on device; training continues"
    assert warnings == [f"full: cannot save step {step}: {end}" for step in (2, 4, 5)]
    signal_in_step(monkeypatch, 2, signal.SIGTERM)
    scores += [1.0]
    for limit, step in ((9, 2), (0, 0)):
        with pytest.raises(CheckpointError, match=f"cannot save step {step}: No space left"):
            train(build_config(corpus_dir, train__max_steps=limit), tmp_path / str(limit))


def test_a_prune_that_fails_is_not_a_failed_save(corpus_dir, tmp_path, scores, monkeypatch, caplog):
    """It warns, also at the end, here in a thread: Python allows no signal handlers there."""
    scores += [1.0]
    monkeypatch.setattr(saving, "prune", no_space)
    config = build_config(corpus_dir, train__max_steps=2)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(train, config, tmp_path / "run").result().step == 2
    assert load_newest(tmp_path / "run").progress.step == 2
    assert "full: cannot delete: No space left on device" in caplog.messages


@pytest.mark.parametrize("fate", ["deleted", "moved", "replaced"])
def test_a_run_that_is_no_longer_there(corpus_dir, tmp_path, scores, monkeypatch, call, fate):
    """One line at the next save; it is not made again, and another run of its name left alone."""
    values = build_values(corpus_dir, train__save_every=4)
    run_dir, moved, steps = tmp_path / "run", tmp_path / "moved", list[int]()

    def replace_run(engine: Engine, step: int) -> None:
        steps.append(step)
        if step == 3:
            run_dir.rename(moved)
            if fate == "replaced":
                run_dir.mkdir()
                (run_dir / ".lock").write_text("1")
            elif fate == "deleted":
                shutil.rmtree(moved)

    around_steps(monkeypatch, after=replace_run)
    called = call("train", write_toml(tmp_path / "tiny.toml", values), "--run", run_dir, "-q")
    message = f"{run_dir}: the directory or its .lock was deleted, moved or replaced"
    assert_one_error(called, message)
    assert [path.name for path in run_dir.glob("*")] == [".lock"] * (fate == "replaced")
    assert run_dir.exists() == (fate == "replaced") and steps == [1, 2, 3, 4]


def test_a_step_beyond_the_end_of_its_epoch(corpus_dir, tmp_path, scores):
    """In an edited state.json: training would never end."""
    scores += [1.0]
    limits = {"train__max_steps": 2, "train__save_every": 2}
    progress = train(build_config(corpus_dir, **limits), tmp_path / "run")
    trainer = build_trainer(build_config(corpus_dir), tmp_path / "run")
    path, count = tmp_path / "run/step-00000002/state.json", len(trainer.start_epoch())
    for epoch_step in (count, 1_000_000):
        trainer.progress = replace(progress, epoch_step=epoch_step)
        message = f"{path}: damaged (epoch_step = {epoch_step}, but the epoch has {count} steps)"
        refuses(CheckpointError, f"^{re.escape(message)}$", trainer.start_epoch)
