"""Resuming: validations that an interruption cut off, and changes that end bit-equality."""

import json
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import tiny_config

from transformer_mt.checkpoints.checkpoint import STATE, load_checkpoint
from transformer_mt.checkpoints.run_directory import list_checkpoints, load_newest
from transformer_mt.errors import CheckpointError, Interrupted
from transformer_mt.system.files import read_manifest, sha256, write_manifest
from transformer_mt.training import trainer as trainer_module
from transformer_mt.training.engine import Engine
from transformer_mt.training.run import build_trainer, train
from transformer_mt.training.trainer import Trainer


def validated_steps(run_dir: Path) -> list[int]:
    records = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [record["step"] for record in records if record["kind"] == "valid"]


def stop_at_step_10(patch: pytest.MonkeyPatch) -> None:
    """Sends SIGTERM during step 10."""
    train_step = Engine.train_step

    def with_signal(engine, step, micro_batches):
        train_step(engine, step, micro_batches)
        if step == 10:
            os.kill(os.getpid(), signal.SIGTERM)

    patch.setattr(Engine, "train_step", with_signal)


@pytest.fixture
def interrupted(corpus_dir, tmp_path, monkeypatch) -> Path:
    """Gives a run that got SIGTERM during step 10, at whose end a validation was due."""
    with monkeypatch.context() as patch:
        stop_at_step_10(patch)
        with pytest.raises(Interrupted):
            train(tiny_config(corpus_dir), tmp_path / "run")
    assert load_newest(tmp_path / "run").progress.valid_step == 0
    return tmp_path / "run"


def test_a_missed_validation_is_made_up_and_saved_at_once(corpus_dir, interrupted, monkeypatch):
    """Other processes see the new best before the next save.

    Sabotage: save only if the step differs from that of the last save.
    """
    seen = []
    train_step = Engine.train_step

    def look(engine, step, micro_batches):
        if step == 11:
            seen.append(load_newest(interrupted).progress)
        train_step(engine, step, micro_batches)

    monkeypatch.setattr(Engine, "train_step", look)
    train(tiny_config(corpus_dir), interrupted)
    assert seen[0].step == seen[0].valid_step == seen[0].best_step == 10
    assert validated_steps(interrupted) == [10, 20]


def test_a_missed_validation_is_logged_once(corpus_dir, interrupted, monkeypatch):
    """Killed after it was made up and before it was saved, the run logs it again, not twice.

    Sabotage: keep all metrics up to the step of the checkpoint.
    """

    def killed(trainer, final=False):
        raise SystemExit("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_save", killed)
        with pytest.raises(SystemExit):
            train(tiny_config(corpus_dir), interrupted)
    assert validated_steps(interrupted) == [10]
    train(tiny_config(corpus_dir), interrupted)
    assert validated_steps(interrupted) == [10, 20]


def test_interrupted_at_its_last_step_a_run_is_validated_when_resumed(
    corpus_dir, interrupted, caplog
):
    """The limit is reached, but not everything is done; after that it is."""
    config = tiny_config(corpus_dir, train__max_steps=10)
    assert train(config, interrupted).valid_step == 10
    assert validated_steps(interrupted) == [10]
    train(config, interrupted)
    assert "nothing to do: train.max_steps = 10" in caplog.messages[-1]
    assert validated_steps(interrupted) == [10]


def test_what_ends_bit_equality_is_said_once(corpus_dir, tmp_path, caplog):
    """Another number of threads is named; an unchanged environment is not mentioned.

    Sabotage: do not save the environment.
    """
    torch.set_num_threads(1)
    train(tiny_config(corpus_dir, train__max_steps=2), tmp_path / "run")
    train(tiny_config(corpus_dir, train__max_steps=4), tmp_path / "run")
    assert "bit-equal" not in caplog.text
    torch.set_num_threads(2)
    train(tiny_config(corpus_dir, train__max_steps=6), tmp_path / "run")
    [message] = [text for text in caplog.messages if "bit-equal" in text]
    assert message.endswith("one: threads (was 1, is 2)")
    environment = load_newest(tmp_path / "run").state.environment
    assert environment["threads"] == "2" and environment["torch version"] == torch.__version__


def test_a_checkpoint_without_moments_cannot_resume(corpus_dir, tmp_path):
    """It is named."""
    config = tiny_config(corpus_dir, train__keep_last=4)
    train(config, tmp_path / "run")
    oldest = load_checkpoint(list_checkpoints(tmp_path / "run")[-1])
    for path in list_checkpoints(tmp_path / "run")[:-1]:
        path.rename(tmp_path / path.name)
    with pytest.raises(CheckpointError, match=f"{oldest.path.name}: has no training.safetensors"):
        train(config, tmp_path / "run")


def test_a_smaller_micro_batch_is_allowed_and_ends_bit_equality(corpus_dir, tmp_path, caplog):
    """As the advice for too little memory says. Sabotage: do not compare these keys."""
    train(tiny_config(corpus_dir, train__max_steps=2), tmp_path / "run")
    smaller = tiny_config(corpus_dir, train__max_steps=4, train__micro_batch_tokens=300)
    assert train(smaller, tmp_path / "run").step == 4
    [message] = [text for text in caplog.messages if "bit-equal" in text]
    assert message.endswith("one: train.micro_batch_tokens (was 600, is 300)")


def test_moved_text_is_the_same_and_changed_text_is_refused(corpus_dir, tmp_path):
    """Digests decide, not paths, for validation text too. Sabotage: compare only training ids."""
    moved = tmp_path / "moved"
    shutil.copytree(corpus_dir, moved)
    train(tiny_config(corpus_dir, train__max_steps=2), tmp_path / "run")
    config = tiny_config(corpus_dir, data__path=str(moved), train__max_steps=4)
    assert train(config, tmp_path / "run").step == 4
    for split, name in (("validation", "validation"), ("train", "training")):
        text = (moved / f"{split}.en").read_text()
        (moved / f"{split}.en").write_text("x" + text)
        with pytest.raises(CheckpointError, match=f"run: the {name} text has changed"):
            train(config, tmp_path / "run")
        (moved / f"{split}.en").write_text(text)


def test_training_in_a_thread(corpus_dir, tmp_path):
    """Python allows signal handlers in the main thread alone; training needs none."""
    config = tiny_config(corpus_dir, train__max_steps=2)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(train, config, tmp_path / "run").result().step == 2


def test_a_failed_save_waits_for_the_next(corpus_dir, tmp_path, monkeypatch, caplog):
    """A full disk is written to once per interval, not at every step.

    Sabotage: note the time of a save only when it succeeds.
    """
    monkeypatch.setattr(trainer_module, "save_checkpoint", no_space)
    config = tiny_config(corpus_dir, train__save_every=1000, train__save_every_minutes=10.0)
    trainer = build_trainer(config, tmp_path)
    trainer.progress = replace(trainer.progress, step=1)
    trainer._started = time.monotonic()
    trainer._saved_at = time.monotonic() - 600
    for _ in range(3):
        trainer._synchronize()
        if trainer._save_is_due:
            trainer._save()
    assert len(caplog.messages) == 1


def test_a_prune_that_fails_is_not_a_failed_save(corpus_dir, tmp_path, monkeypatch, caplog):
    """It is a warning, also at the end of training."""
    monkeypatch.setattr(trainer_module, "prune", no_space)
    train(tiny_config(corpus_dir, train__max_steps=2), tmp_path / "run")
    assert load_newest(tmp_path / "run").progress.step == 2
    assert "cannot delete: No space left on device" in caplog.text


def no_space(*arguments: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_missing_digest_of_the_validation_text_is_added(corpus_dir, tmp_path):
    """An older checkpoint has none; the run that resumes it records it."""
    progress = train(tiny_config(corpus_dir, train__max_steps=2), tmp_path / "run")
    [path] = list_checkpoints(tmp_path / "run")
    state = json.loads((path / STATE).read_text())
    del state["progress"]["valid_digest"]
    (path / STATE).write_text(json.dumps(state))
    write_manifest(path, {**read_manifest(path), STATE: sha256(path / STATE)})
    resumed = train(tiny_config(corpus_dir, train__max_steps=3), tmp_path / "run")
    assert resumed.valid_digest == progress.valid_digest != ""


def test_a_failed_save_after_a_signal_is_an_error(corpus_dir, tmp_path, monkeypatch):
    """The work since the last checkpoint is lost, so the exit code must not be that of a signal."""
    stop_at_step_10(monkeypatch)
    monkeypatch.setattr(trainer_module, "save_checkpoint", no_space)
    with pytest.raises(CheckpointError, match="cannot save step 10: No space left"):
        train(tiny_config(corpus_dir), tmp_path / "run")
