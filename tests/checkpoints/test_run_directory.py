"""The checkpoints of a run: which are listed, used and kept."""

import errno
import os
import re
import shutil
from collections import Counter
from unittest.mock import Mock

import pytest
from small_checkpoint import VOCAB, build_model, save_step, small_config

from transformer_mt.checkpoints import checkpoint as checkpoint_module
from transformer_mt.checkpoints.averaging import average
from transformer_mt.checkpoints.checkpoint import (
    Progress,
    RunState,
    load_checkpoint,
    save_checkpoint,
)
from transformer_mt.checkpoints.layout import MODEL, TRAINING, checkpoint_digest, checkpoint_path
from transformer_mt.checkpoints.run_directory import (
    find_checkpoint,
    list_checkpoints,
    load_newest,
    prune,
)
from transformer_mt.config.keys import VocabConfig
from transformer_mt.errors import CheckpointError
from transformer_mt.system import files
from transformer_mt.system.files import MANIFEST
from transformer_mt.text.vocabulary import train_vocabulary


def saved_steps(run_dir) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in list_checkpoints(run_dir)]


@pytest.mark.parametrize(
    ("keep_last", "best", "kept"), [(2, 5, [6, 5]), (3, 1, [6, 5, 4, 1]), (1, 0, [6])]
)
def test_the_newest_and_the_best_are_kept(tmp_path, keep_last, best, kept):
    """However old the best is; only the newest two keep their moments; digests stay.

    Sabotage: prune the best like any other; keep moments in three; forget the manifest.
    """
    saved = [save_step(tmp_path, step) for step in range(1, 7)]
    digests = {path: checkpoint_digest(path) for path in saved}
    (tmp_path / ".step-00000007.partial").mkdir()
    for _ in range(2):  # pruning again changes nothing
        prune(tmp_path, 6, keep_last, best)
        assert saved_steps(tmp_path) == kept
        assert {path.name[:4] for path in tmp_path.iterdir()} == {"step"}
        for age, path in enumerate(list_checkpoints(tmp_path)):
            checkpoint = load_checkpoint(path)
            assert checkpoint.digest == digests[path]
            has_moments = TRAINING in checkpoint.files
            assert has_moments == (path / TRAINING).exists() == (age < 2)


def test_a_best_checkpoint_to_fall_back_to_keeps_its_moments(tmp_path):
    """With one newest checkpoint kept. Sabotage: count the checkpoints that are deleted."""
    for step in range(1, 5):
        save_step(tmp_path, step)
        prune(tmp_path, step, keep_last=1, best_step=1)
    assert saved_steps(tmp_path) == [4, 1]
    (tmp_path / "step-00000004" / MODEL).write_bytes(b"")
    assert TRAINING in load_newest(tmp_path).files


@pytest.mark.parametrize(
    ("module", "name"), [(files, "sha256"), (checkpoint_module, "_verify_tensors")]
)
def test_moments_deleted_while_a_checkpoint_is_read(tmp_path, monkeypatch, module, name):
    """The reader finds that the manifest has changed. Sabotage: read the manifest once."""
    path, function = save_step(tmp_path, 1), getattr(module, name)
    for step in (2, 3):
        save_step(tmp_path, step)

    def prune_first(*arguments: object) -> object:
        monkeypatch.undo()
        prune(tmp_path, 3, keep_last=3, best_step=1)
        return function(*arguments)

    monkeypatch.setattr(module, name, prune_first)
    assert TRAINING not in load_checkpoint(path).files


def test_the_best_is_used_or_else_the_newest(tmp_path, caplog):
    """One that is damaged or deleted gives a warning; a BLEU of zero is a score.

    Sabotage: say nothing; take a BLEU of zero for none.
    """
    save_step(tmp_path, 1)
    save_step(tmp_path, 2, best_bleu=-1.0, best_step=1)
    assert find_checkpoint(tmp_path).progress.step == 2
    save_step(tmp_path, 3, best_bleu=0.0, best_step=1)
    assert find_checkpoint(tmp_path).progress.step == 1
    assert load_newest(tmp_path).progress.step == 3
    assert find_checkpoint(tmp_path / "step-00000002").progress.step == 2
    save_step(tmp_path, 4, best_bleu=2.5, best_step=4)
    assert find_checkpoint(tmp_path).progress.step == 4 and not caplog.messages
    save_step(tmp_path, 5, best_bleu=2.5, best_step=4)
    (tmp_path / "step-00000004" / MODEL).write_bytes(b"")
    assert find_checkpoint(tmp_path).progress.step == 5
    shutil.rmtree(tmp_path / "step-00000004")
    assert find_checkpoint(tmp_path).progress.step == 5
    for message, name in zip(caplog.messages, (MODEL, MANIFEST), strict=True):
        assert message.startswith(f"{tmp_path}/step-00000004/{name}: ")
        assert message.endswith("; using the newest checkpoint instead of the best")
    for step in (3, 5):  # however many are damaged
        (tmp_path / f"step-0000000{step}" / MODEL).write_bytes(b"")
    assert load_newest(tmp_path).progress.step == 2


def test_the_best_has_the_configuration_of_the_newest(tmp_path):
    """The text may have moved since."""
    save_step(tmp_path, 1)
    newest, moved = save_step(tmp_path, 2), small_config(data__path="moved")
    state = RunState(Progress(step=2, best_bleu=1.0, best_step=1))
    tensors = {MODEL: load_checkpoint(newest).load_tensors(MODEL)}
    save_checkpoint(newest, tensors, state, moved, VOCAB)
    best = find_checkpoint(tmp_path)
    assert (best.step, best.config) == (1, moved)


def test_checkpoints_of_two_runs_in_one_directory(tmp_path, caplog):
    """The best of another run is not used, and nothing is averaged over both.

    Sabotage: compare neither configurations nor vocabularies.
    """
    other = train_vocabulary([Counter({"stuvwxyz": 1})], VocabConfig(kind="char", size=16))
    for config, vocab, what in (
        (small_config(data__src_lang="fr"), VOCAB, "data.src_lang"),
        (small_config(), other, "the vocabulary"),
    ):
        best = save_step(tmp_path, 1)
        state = RunState(Progress(step=2, best_bleu=1.0, best_step=1))
        tensors = {MODEL: build_model(config, vocab).state_dict()}
        newest = checkpoint_path(tmp_path, 2)
        save_checkpoint(newest, tensors, state, config, vocab)
        reason = f"{best}: not of the same run as {newest}: they differ in {what}"
        assert find_checkpoint(tmp_path).step == 2
        message = f"{reason}; using the newest checkpoint instead of the best"
        assert caplog.messages[-1] == message
        with pytest.raises(CheckpointError, match=f"^{re.escape(reason)}$"):
            average(tmp_path, 2, None)


def test_only_checkpoints_are_listed(tmp_path):
    """Newest first, by number; other names are left alone."""
    run_dir = tmp_path / "run"
    save_step(run_dir, 9)
    for name in ("step-00000010", "step-99999999", "step-100000000"):
        shutil.copytree(run_dir / "step-00000009", run_dir / name)
    for name in ("step-1", "step-00000300.old", ".step-00000400.partial", "xstep-00000500"):
        (run_dir / name).mkdir()
    assert saved_steps(run_dir) == [100_000_000, 99_999_999, 10, 9]
    assert list_checkpoints(tmp_path / "none") == [] and load_newest(tmp_path / "none") is None
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.bin").touch()
    reasons = {
        "none": "no such run or checkpoint",
        "empty": "contains no checkpoint",
        "other": "not written by `export`, or by an earlier version's: export it again",
    }
    for name, reason in reasons.items():
        with pytest.raises(CheckpointError, match=f"^{tmp_path / name}: {reason}$"):
            find_checkpoint(tmp_path / name)


def test_a_leftover_that_cannot_be_deleted_stays(tmp_path, monkeypatch):
    """Sabotage: let its error end all pruning."""
    for step in range(1, 4):
        save_step(tmp_path, step)
    (tmp_path / ".step-00000000.partial" / "busy").mkdir(parents=True)
    real, busy = os.rmdir, Mock(side_effect=OSError(errno.EBUSY, "busy"))
    monkeypatch.setattr(os, "rmdir", lambda p, **kw: (busy if p == "busy" else real)(p, **kw))
    prune(tmp_path, 3, 1, 3)
    assert saved_steps(tmp_path) == [3]


def test_damaged_checkpoints_do_not_disturb_pruning(tmp_path, caplog):
    """Later ones, before which the run was resumed, do not count; a damaged manifest is a warning.

    Sabotage: count all checkpoints; let the error of the manifest out.
    """
    for step in range(1, 7):
        save_step(tmp_path, step)
    (tmp_path / "step-00000002" / "manifest.json").write_bytes(b"")
    prune(tmp_path, 4, 3, 0)
    assert saved_steps(tmp_path) == [6, 5, 4, 3, 2]
    [warning] = caplog.messages
    assert "step-00000002" in warning and "damaged" in warning
