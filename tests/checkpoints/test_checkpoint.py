"""Checkpoints: which are kept, which is used, and that all of a run comes back."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from conftest import tiny_config

from transformer_mt.batching import Batch
from transformer_mt.checkpoint import (
    EMA,
    MODEL,
    STATE,
    TRAINING,
    TrainState,
    find_checkpoint,
    list_checkpoints,
    load_checkpoint,
    load_newest,
    prune,
    save_checkpoint,
    write_checkpoint,
)
from transformer_mt.config import Config
from transformer_mt.errors import CheckpointError
from transformer_mt.learner import Learner, Window
from transformer_mt.manifest import MANIFEST, read_manifest, sha256, write_manifest
from transformer_mt.prepared import Prepared, prepare
from transformer_mt.run_log import Talk


@pytest.fixture(scope="module")
def prepared(corpus_dir) -> Prepared:
    """Gives a vocabulary and pairs."""
    return prepare(tiny_config(corpus_dir), Talk(quiet=True))


def build_learner(config: Config, prepared: Prepared, precision: str = "fp32") -> Learner:
    sizes = prepared.vocab.src_size, prepared.vocab.tgt_size
    return Learner(config, *sizes, torch.device("cpu"), precision)


def batch_of(prepared: Prepared, first: int) -> Batch:
    return prepared.pairs.batch(torch.arange(first, first + 8).numpy())


@pytest.fixture
def save(corpus_dir, prepared, tmp_path):
    """Gives a function that saves a step of one learner as a run would."""
    config = tiny_config(corpus_dir)
    learner = build_learner(config, prepared)
    learner.train_step(1, [batch_of(prepared, 0)])

    def save_step(step: int, **values: object) -> Path:
        state = TrainState(step=step, **values)
        return save_checkpoint(tmp_path / "run", learner, config, prepared.vocab, state)

    return save_step


def names(run_dir: Path) -> list[str]:
    return [path.name.removeprefix("step-").lstrip("0") for path in list_checkpoints(run_dir)]


@pytest.mark.parametrize(
    ("keep_last", "best", "kept"),
    [
        (2, 1, ["6", "5", "1"]),
        (2, 2, ["6", "5", "2"]),
        (2, 5, ["6", "5"]),
        (1, 6, ["6"]),
        (3, 1, ["6", "5", "4", "1"]),
        (1, 0, ["6"]),
        (9, 3, ["6", "5", "4", "3", "2", "1"]),
    ],
)
def test_the_newest_and_the_best_are_kept(save, tmp_path, keep_last, best, kept):
    """The best stays however old; the moments stay in the newest two alone; all is verified.

    Sabotage: prune the best like any other; keep moments in three; forget the manifest.
    """
    for step in range(1, 7):
        save(step)
    (tmp_path / "run" / ".step-00000007.partial").mkdir()
    prune(tmp_path / "run", keep_last, best)
    assert names(tmp_path / "run") == kept
    assert {path.name[:4] for path in (tmp_path / "run").iterdir()} == {"step"}
    for age, path in enumerate(list_checkpoints(tmp_path / "run")):
        assert (TRAINING in load_checkpoint(path).files) == (path / TRAINING).exists() == (age < 2)
    prune(tmp_path / "run", keep_last, best)
    assert names(tmp_path / "run") == kept


def test_the_best_is_used_or_else_the_newest(save, tmp_path):
    """A damaged best is a warning, no validation yet is none; a BLEU of zero is a score."""
    run_dir, warnings = tmp_path / "run", []
    save(1)
    save(2, best_bleu=-1.0, best_step=1)
    assert find_checkpoint(run_dir, warnings.append).state.step == 2
    save(3, best_bleu=0.0, best_step=1)
    assert find_checkpoint(run_dir, warnings.append).state.step == 1
    assert load_newest(run_dir, warnings.append).state.step == 3
    assert find_checkpoint(run_dir / "step-00000002", warnings.append).state.step == 2
    save(4, best_bleu=2.5, best_step=4)
    assert find_checkpoint(run_dir, warnings.append).state.step == 4 and not warnings
    save(5, best_bleu=2.5, best_step=4)
    (run_dir / "step-00000004" / MODEL).write_bytes(b"")
    assert find_checkpoint(run_dir, warnings.append).state.step == 5
    [warning] = warnings
    assert MODEL in warning and warning.endswith("; using the newest instead of the best")


def test_only_checkpoints_are_listed(save, tmp_path):
    """Newest first; other names are left alone; nothing there gives an error that says so."""
    for step in (9, 10, 200):
        save(step)
    for name in ("step-1", "step-00000300.old", ".step-00000400.partial", "xstep-00000500"):
        (tmp_path / "run" / name).mkdir()
    assert names(tmp_path / "run") == ["200", "10", "9"]
    assert (
        list_checkpoints(tmp_path / "none") == [] and load_newest(tmp_path / "none", print) is None
    )
    (tmp_path / "empty").mkdir()
    for name, what in (("none", "no such run or checkpoint"), ("empty", "no checkpoint in it")):
        with pytest.raises(CheckpointError, match=f"{name}: {what}"):
            find_checkpoint(tmp_path / name, print)
    for path in list_checkpoints(tmp_path / "run"):
        (path / STATE).unlink()
    with pytest.raises(CheckpointError, match="none of its 3 checkpoints is undamaged"):
        load_newest(tmp_path / "run", lambda warning: None)


def test_all_of_a_learner_comes_back(corpus_dir, prepared, tmp_path):
    """Weights, moments, moving average, loss scale and counters: the next step is bit-equal.

    Sabotage: leave out any of them.
    """
    config = tiny_config(corpus_dir, train__ema_decay=0.9, train__precision="fp16")
    learner = build_learner(config, prepared, "fp16")
    for step in (1, 2, 3):
        learner.train_step(step, [batch_of(prepared, 8 * step)])
    learner.scaler.update(1024.0)
    learner.skipped.fill_(5)
    learner.bad_in_row.fill_(2)
    window = Window(loss=3.5, tokens=7, operations=11.0, seconds=0.5)
    counters = {"skipped": 5, "bad_in_row": 2, "best_bleu": 1.5, "bad_validations": 3}
    scaler = learner.scaler.state_dict()
    state = TrainState(step=3, scaler=scaler, window=window, precision="fp16", **counters)
    path = save_checkpoint(tmp_path, learner, config, prepared.vocab, state)
    assert path == tmp_path / "step-00000003"
    found = load_checkpoint(path)
    assert found.state == state and found.config == config
    assert found.vocab.equals(prepared.vocab) and EMA in found.files
    other = build_learner(config, prepared, "fp16")
    found.restore(other)
    assert other.scaler.get_scale() == 1024.0
    assert (int(other.skipped), int(other.bad_in_row)) == (5, 2)
    assert other.window == window and float(other.loss) == 3.5
    for each in (learner, other):
        each.train_step(4, [batch_of(prepared, 40)])
    for both in zip(learner.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(*both)
    with learner.ema.in_place(), other.ema.in_place():
        for both in zip(learner.model.parameters(), other.model.parameters(), strict=True):
            assert torch.equal(*both)
    average, raw = found.build_model(), found.build_model(raw=True)
    assert not average.training and not torch.equal(average.matrix, raw.matrix)


def test_what_cannot_be_restored(corpus_dir, save, prepared, tmp_path):
    """No moments, weights of another shape, another configuration: each is named."""
    for step in (1, 2, 3):
        save(step)
    prune(tmp_path / "run", 3, 0)
    config = tiny_config(corpus_dir)
    oldest = load_checkpoint(tmp_path / "run" / "step-00000001")
    with pytest.raises(CheckpointError, match=f"holds no {TRAINING}, so training cannot resume"):
        oldest.restore(build_learner(config, prepared))
    newest = load_checkpoint(tmp_path / "run" / "step-00000003")
    wider = tiny_config(corpus_dir, model__d_ff=96, train__seed=4)
    with pytest.raises(CheckpointError, match=rf"{MODEL}: .*size mismatch"):
        newest.restore(build_learner(wider, prepared))
    (newest.path / TRAINING).write_bytes((oldest.path / MODEL).read_bytes())
    with pytest.raises(CheckpointError, match=rf"{TRAINING}: .*exp_avg"):
        newest.restore(build_learner(config, prepared))
    newest.require_config(tiny_config(corpus_dir, train__max_steps=7))
    changed = r"run: made .*: model.d_ff \(was 128, is 96\), train.seed \(was 1, is 4\); name"
    with pytest.raises(CheckpointError, match=changed):
        newest.require_config(wider)


def test_a_step_may_be_saved_again(save, tmp_path):
    """What lay under its name, damaged or not, is replaced whole and swept up by the next prune."""
    first = save(1, seconds=1.0)
    (first / MODEL).write_bytes(b"damaged")
    (first / "extra").write_text("of someone else")
    again = save(1, seconds=2.0)
    assert again == first and load_checkpoint(first).state.seconds == 2.0
    assert not (first / "extra").exists()
    assert save(1, seconds=3.0) == first and load_checkpoint(first).state.seconds == 3.0
    prune(tmp_path / "run", 1, 1)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [first.name]


def test_a_full_disk_is_an_oserror(corpus_dir, prepared, tmp_path, monkeypatch):
    """The one before stays, nothing half-written does, and the message is one line."""
    import safetensors

    def full(tensors: object, path: Path) -> None:
        path.write_bytes(b"some")
        raise safetensors.SafetensorError("No space\n left on device")

    config, tensors = tiny_config(corpus_dir), {MODEL: {"a": torch.ones(3)}}
    final = tmp_path / "deep" / "run" / "step-00000001"
    write_checkpoint(final, tensors, config, prepared.vocab, TrainState())
    assert load_checkpoint(final).files == frozenset(
        path.name for path in final.iterdir() if path.name != MANIFEST
    )
    before = sorted(path.stat().st_mtime_ns for path in final.iterdir())
    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_checkpoint(final, tensors, config, prepared.vocab, TrainState())
    assert caught.value.filename and list(final.parent.iterdir()) == [final]
    assert sorted(path.stat().st_mtime_ns for path in final.iterdir()) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": -1}, "not the state of a run"),
        ({"epoch": -1}, "not the state of a run"),
        ({"index": -1}, "not the state of a run"),
        ({"step": "3"}, "step.*valid integer"),
        ({"unknown": 3}, "not the state of a run"),
    ],
)
def test_a_state_that_is_none(save, changes, message):
    """Of another version or written by hand, with a manifest that agrees."""
    path = save(3)
    values = json.loads((path / STATE).read_text())
    (path / STATE).write_text(json.dumps({**values, **changes}))
    files = read_manifest(path)
    files[STATE] = sha256(path / STATE)
    write_manifest(path, files)
    with pytest.raises(CheckpointError, match=f"{STATE}: .*{message}"):
        load_checkpoint(path)


def test_a_fresh_state_is_all_zeros(save):
    """Which is valid; no BLEU is below any; a copy differs in what was asked for alone."""
    state = load_checkpoint(save(0)).state
    values = {key: value for key, value in asdict(state).items() if value and key != "window"}
    assert values == {"best_bleu": -1.0, "precision": "fp32"} and not any(asdict(Window()).values())
    assert state == TrainState() and state.with_(step=4) == replace(state, step=4) != state


def test_a_checkpoint_is_on_disk_before_and_after_it_is_renamed(save, tmp_path, monkeypatch):
    """Every file and the directory before, the run's directory after, or a power cut loses it.

    Sabotage: leave out the last sync.
    """
    synced: list[tuple[str, bool]] = []
    real, final = os.fsync, tmp_path / "run" / "step-00000001"

    def fsync(descriptor: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), final.exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    save(1)
    before = {Path(path).name for path, there in synced if not there}
    assert before >= {path.name for path in final.iterdir()} | {f".{final.name}.partial"}
    assert [path for path, there in synced if there] == [str(final.parent)]
