"""The figures of a training for TensorBoard."""

import json
from pathlib import Path

import pytest
from conftest import tiny_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from transformer_mt.checkpoints.checkpoint import Progress
from transformer_mt.config.keys import changed_keys
from transformer_mt.errors import ConfigError, Interrupted
from transformer_mt.training.run import train
from transformer_mt.training.run_log import _Board
from transformer_mt.training.trainer import Trainer

SIZES = {"model__d_model": 16, "model__d_ff": 32, "data__train": "train[:600]"}


def assert_same_figures(run_dir: Path) -> None:
    """Checks that TensorBoard shows what metrics.jsonl has, each step once."""
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    for kind in ("train", "valid"):
        shown = EventAccumulator(str(run_dir / "tensorboard" / kind))
        shown.Reload()
        own = [record for record in records if record["kind"] == kind]
        names = own[0].keys() - {"kind", "step", "epoch", "seconds"}
        assert set(shown.Tags()["scalars"]) == names
        for name in names:
            points = [(event.step, event.value) for event in shown.Scalars(name)]
            expected = [(r["step"], r[name]) for r in own if r[name] is not None]
            assert [step for step, _ in points] == [step for step, _ in expected]
            assert [value for _, value in points] == pytest.approx([v for _, v in expected])


def test_it_has_the_figures_of_metrics_also_after_a_kill(corpus_dir, tmp_path, monkeypatch):
    """Steps that were taken again appear once. Sabotage: no purge_step."""
    config = tiny_config(
        corpus_dir,
        train__tensorboard=True,
        train__max_steps=11,
        train__save_every=5,
        valid__every=7,
        **SIZES,
    )
    real = Trainer._log_training

    def kill_at_9(self) -> None:
        real(self)
        if self.progress.step == 9:
            raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "_log_training", kill_at_9)
    with pytest.raises((KeyboardInterrupt, Interrupted)):
        train(config, tmp_path / "run")
    monkeypatch.setattr(Trainer, "_log_training", real)
    train(config, tmp_path / "run")
    assert_same_figures(tmp_path / "run")


def test_a_validation_that_was_made_up_appears_once(tmp_path):
    """It was due at the step of a checkpoint. Sabotage: purge it like the steps."""
    for bleu in (1.0, 2.0):
        board = _Board(tmp_path, Progress(step=7, valid_step=0))
        board.add("valid", 7, {"bleu": bleu, "nll": None})
        board.close()
    shown = EventAccumulator(str(tmp_path / "tensorboard" / "valid"))
    shown.Reload()
    assert [(event.step, event.value) for event in shown.Scalars("bleu")] == [(7, 2.0)]


def test_it_may_be_switched_on_and_off(corpus_dir):
    """On resume. Sabotage: OnChange.REFUSED."""
    on = tiny_config(corpus_dir, train__tensorboard=True)
    assert not changed_keys(tiny_config(corpus_dir), on)


def test_without_the_package_nothing_is_begun(corpus_dir, tmp_path, monkeypatch):
    """One line says what to install, before text is read. Sabotage: import it when it is used."""
    config = tiny_config(corpus_dir, train__tensorboard=True, data__path="none")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'transformer-mt\[tensorboard\]'"):
        train(config, tmp_path / "run")
    assert not list(tmp_path.iterdir())
