"""The metrics of a training, in metrics.jsonl and for TensorBoard."""

import errno
import itertools
import logging
import math
import os
import re
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import HOSTILE_JSON, file_size_limit, records, refuses, tiny_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from transformer_mt.checkpoints.checkpoint import Progress
from transformer_mt.checkpoints.run_directory import lock_run
from transformer_mt.errors import CheckpointError, ConfigError, Interrupted
from transformer_mt.system.console import logger
from transformer_mt.training.dry_run import dry_run
from transformer_mt.training.run import train
from transformer_mt.training.run_log import RunLog
from transformer_mt.training.trainer import Trainer

GUIDE = Path(__file__).parents[2] / "docs" / "training.md"


def assert_same_metrics(run_dir: Path) -> None:
    """Checks that TensorBoard shows what metrics.jsonl has, each step once."""
    for kind in ("train", "valid"):
        shown = EventAccumulator(str(run_dir / "tensorboard" / kind))
        shown.Reload()
        own = records(run_dir, kind)
        names = own[0].keys() - {"kind", "step", "epoch", "seconds"}
        assert set(shown.Tags()["scalars"]) == names
        for name in names:
            points = [(event.step, event.value) for event in shown.Scalars(name)]
            expected = [(r["step"], r[name]) for r in own if r[name] is not None]
            assert [step for step, _ in points] == [step for step, _ in expected]
            assert [value for _, value in points] == pytest.approx([v for _, v in expected])


def assert_documented(run_dir: Path) -> None:
    """Checks that docs/training.md has a row for each field, and no other."""
    rows = re.findall(r"^\| (`.*?) \| (both|`\w+`) \|", GUIDE.read_text("utf-8"), re.MULTILINE)
    for record in records(run_dir):
        kinds = "both", f"`{record['kind']}`"
        fields = re.findall(r"\w+", " ".join(names for names, kind in rows if kind in kinds))
        assert sorted(record.keys() - {"kind"}) == sorted(fields)


@pytest.mark.usefixtures("untranslated")
def test_tensorboard_has_all_metrics_also_after_a_kill(corpus_dir, tmp_path, monkeypatch):
    """Steps that were taken again appear once."""
    changes = {"train__tensorboard": True, "train__max_steps": 11, "train__ema_decay": 0.9}
    changes |= {"train__save_every": 5, "valid__every": 7, "data__train": "train[:600]"}
    config, real = tiny_config(corpus_dir, **changes), Trainer._log_training

    def kill_at_9(self, *arguments) -> None:
        real(self, *arguments)
        if self.progress.step == 9:
            raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "_log_training", kill_at_9)
    with pytest.raises((KeyboardInterrupt, Interrupted)):
        train(config, tmp_path / "run")
    monkeypatch.setattr(Trainer, "_log_training", real)
    train(config, tmp_path / "run")
    assert_same_metrics(tmp_path / "run")
    assert_documented(tmp_path / "run")


@pytest.mark.parametrize("step", [0, 7])
def test_a_validation_that_is_repeated_appears_once(tmp_path, monkeypatch, step):
    """At a checkpoint's step, or before the first. Sabotage: keep what has this step."""
    seconds = itertools.count(1_800_000_000.0)  # TensorBoard orders its files by the second
    monkeypatch.setattr(time, "time", lambda: next(seconds))
    for bleu in (1.0, 2.0):
        with RunLog(tmp_path, Progress(step=step, valid_step=0), tensorboard=True) as log:
            log.record("valid", Progress(step=step), 0.0, {"bleu": bleu, "nll": math.nan})
    shown = EventAccumulator(str(tmp_path / "tensorboard" / "valid"))
    shown.Reload()
    assert [(event.step, event.value) for event in shown.Scalars("bleu")] == [(step, 2.0)]
    assert [line["bleu"] for line in records(tmp_path)] == [2.0]


def test_damaged_metrics_do_not_keep_a_run_from_resuming(tmp_path):
    """Such lines are removed."""
    good, path = '{"kind": "train", "step": 1, "seconds": 1}', tmp_path / "metrics.jsonl"
    path.write_bytes(b"\xff\n" + "".join(f"{line}\n" for line in (*HOSTILE_JSON, good)).encode())
    with RunLog(tmp_path, Progress(step=2)):
        assert path.read_text() == f"{good}\n"


def test_the_log_is_a_file_of_lines(tmp_path):
    """A run from elsewhere may hold links. Sabotage: follow them; do not escape what is noted."""
    with RunLog(tmp_path, Progress()) as log:
        log.note("a\nb\x1b\udcff")
        (tmp_path / "metrics.jsonl").unlink()
        (tmp_path / "metrics.jsonl").symlink_to("other")
        log.record("train", Progress(), 1.0, {})
    assert " a\\x0ab\\x1b\\udcff\n" in (tmp_path / "train.log").read_text()
    refuses(OSError, "symbolic links", RunLog, tmp_path, Progress())
    assert not (tmp_path / "other").exists()


def test_a_log_that_was_moved_goes_on_in_a_new_file(tmp_path, caplog):
    """Unless the run was moved. Sabotage: write to the file that was opened; begin one anywhere."""
    run_dir, away, steps = tmp_path / "run", tmp_path / "away", iter(range(1, 9))
    run_dir.mkdir()
    with lock_run(run_dir) as is_own, RunLog(run_dir, Progress(), is_own=is_own) as log:

        def record() -> None:
            log.record("train", Progress(step=next(steps)), 1.0, {"loss": 2.0})

        record()
        (run_dir / "metrics.jsonl").rename(tmp_path / "moved")
        (run_dir / "train.log").unlink()
        record(), record()
        assert [line["step"] for line in records(run_dir)] == [2, 3]
        (run_dir / "metrics.jsonl").unlink()
        record()
        run_dir.rename(away)
        run_dir.mkdir()
        record()
        assert not list(run_dir.iterdir())
    assert [line["step"] for line in records(away)] == [4, 5]
    moved = "was moved, deleted or replaced; lines go on here"
    names = "train.log", "metrics.jsonl", "metrics.jsonl"
    assert caplog.messages == [f"{run_dir / name}: {moved}" for name in names]
    assert (away / "train.log").read_text().count(moved) == 3


def test_lines_wait_while_the_disk_is_full(tmp_path):
    """However many. Sabotage: with the usual buffer of a file."""
    with RunLog(tmp_path, Progress()) as log:
        with file_size_limit(1000):
            for step in range(1, 500):
                log.record("train", Progress(step=step), 1.0, {"loss": 2.0})
        log.record("train", Progress(step=500), 1.0, {"loss": 2.0})
    assert [record["step"] for record in records(tmp_path)] == list(range(1, 501))


def test_a_full_disk_is_a_warning_and_at_the_end_an_error(tmp_path, caplog):
    """Which hides no other error; one warning for however many lines."""
    message = f"{tmp_path}/train.log: File too large"
    for error, match in ((None, f"^{message}$"), (CheckpointError("first"), "^first$")):
        with file_size_limit(0), pytest.raises(CheckpointError, match=match):
            with RunLog(tmp_path, Progress()) as log:
                log.note("a line")
                log.note("another")
                if error:
                    raise error
        assert caplog.messages == [f"{message}; training continues"]
        caplog.clear()
    assert logger.level == logging.NOTSET


def test_tensorboard_that_cannot_write_does_not_end_training(tmp_path, caplog, monkeypatch):
    fail = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    monkeypatch.setattr(SummaryWriter, "flush", fail)
    with RunLog(tmp_path, Progress(), tensorboard=True) as log:
        for step in (1, 2):
            log.record("train", Progress(step=step), 1.0, {"loss": 2.0})
    assert caplog.messages == ["TensorBoard's metrics end here: No space left on device"]
    monkeypatch.setattr(SummaryWriter, "close", fail)
    with RunLog(tmp_path, Progress(step=2), tensorboard=True):
        pass  # its end is no error either
    assert [record["loss"] for record in records(tmp_path)] == [2.0, 2.0]


def test_without_the_package_nothing_is_begun(corpus_dir, tmp_path, monkeypatch):
    """One line says what to install, before text is read."""
    config = tiny_config(corpus_dir, train__tensorboard=True, data__path="none")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install -c constraints.txt -e '.\[tensorboard\]'"):
        train(config, tmp_path / "run")
    refuses(ConfigError, "train.tensorboard needs TensorBoard", dry_run, config, tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_what_json_cannot_express_is_null(tmp_path):
    """Other values are as they are. Sabotage: round them."""
    with RunLog(tmp_path, Progress()) as log:
        log.record("train", Progress(step=3, epoch=1), 1.23456, {"loss": 12.3456789, "lr": 1e-9})
        log.record("valid", Progress(), 0.0, {"nll": math.inf, "bleu": math.nan, "chrf": -math.inf})
    first, second = records(tmp_path)
    assert list(first.values()) == ["train", 3, 1, 1.235, 12.3456789, 1e-9]
    assert list(second.values()) == ["valid", 0, 0, 0.0, None, None, None]
