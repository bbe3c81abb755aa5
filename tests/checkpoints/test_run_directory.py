"""The checkpoints of a run: which are listed, used and kept."""

import errno
import itertools
import json
import os
import pkgutil
import re
import shutil
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import refuses
from small_checkpoint import VOCAB, describe, save_model, save_step, small_config

from transformer_mt.checkpoints import run_description as stored
from transformer_mt.checkpoints import run_directory
from transformer_mt.checkpoints.averaging import average
from transformer_mt.checkpoints.checkpoint import load_checkpoint
from transformer_mt.checkpoints.layout import MODEL, TRAINING, checkpoint_digest, checkpoint_path
from transformer_mt.checkpoints.run_directory import find_checkpoint, list_checkpoints, load_newest
from transformer_mt.config.keys import VocabConfig
from transformer_mt.errors import CheckpointError
from transformer_mt.system import manifest
from transformer_mt.system.files import signed_json
from transformer_mt.system.manifest import MANIFEST, read_manifest
from transformer_mt.text.vocabulary import train_vocabulary


def saved_steps(run_dir) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in list_checkpoints(run_dir)]


@pytest.mark.parametrize(
    ("keep_last", "best", "kept"),
    [(2, 5, [6, 5]), (3, 1, [6, 5, 4, 1]), (1, 0, [6]), (1, 1, [6, 1])],
)
def test_the_newest_and_the_best_are_kept(tmp_path, keep_last, best, kept):
    """And two sets of moments, maybe the best's, to fall back to.

    Sabotage: prune the best; keep three; forget the manifest; count those that are deleted.
    """
    saved = [save_step(tmp_path, step) for step in range(1, 7)]
    digests = {path: checkpoint_digest(path) for path in saved}
    (tmp_path / ".step-00000007.partial").mkdir()
    for _ in range(2):  # pruning again changes nothing
        run_directory.prune(tmp_path, 6, keep_last, best)
        assert saved_steps(tmp_path) == kept
        assert {path.name[:4] for path in tmp_path.iterdir()} == {"step"}
        for age, path in enumerate(list_checkpoints(tmp_path)):
            checkpoint = load_checkpoint(path)
            assert checkpoint.digest == digests[path]
            has_moments = TRAINING in checkpoint.files
            assert has_moments == (path / TRAINING).exists() == (age < 2)


@pytest.mark.parametrize(
    "name", ["transformer_mt.system.manifest.sha256", "safetensors.torch.load_file"]
)
def test_moments_deleted_while_a_checkpoint_is_read(tmp_path, monkeypatch, name):
    """The reader finds that the manifest has changed. Sabotage: read the manifest once."""
    path, function = save_step(tmp_path, 1), pkgutil.resolve_name(name)
    for step in (2, 3):
        save_step(tmp_path, step)

    def prune_first(*arguments: object) -> object:
        monkeypatch.undo()
        run_directory.prune(tmp_path, 3, keep_last=3, best_step=1)
        return function(*arguments)

    monkeypatch.setattr(name, prune_first)
    assert TRAINING not in load_checkpoint(path).files


def test_the_best_is_used_or_else_the_newest(tmp_path, caplog):
    """With a warning. Sabotage: say nothing; take a BLEU of zero for none."""
    save_step(tmp_path, 1)
    save_step(tmp_path, 2, best_bleu=-1.0, best_step=1)
    assert find_checkpoint(tmp_path).progress.step == 2
    save_step(tmp_path, 3, best_bleu=0.0, best_step=1)
    assert find_checkpoint(tmp_path).progress.step == 1 and load_newest(tmp_path).progress.step == 3
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
    weights = load_checkpoint(newest).load_tensors(MODEL)
    save_model(newest, moved, VOCAB, weights, step=2, best_bleu=1.0, best_step=1)
    best = find_checkpoint(tmp_path)
    assert (best.step, best.config) == (1, moved)


OTHER_VOCAB = train_vocabulary([Counter({"stuvwxyz": 1})], VocabConfig(kind="char", size=16))


@pytest.mark.parametrize(
    ("what", "config", "vocab", "digests"),
    [
        ("data.src_lang", small_config(data__src_lang="fr"), VOCAB, {}),
        ("the vocabulary", small_config(), OTHER_VOCAB, {}),
        ("training text", small_config(), VOCAB, {"corpus_digest": "b"}),
        ("validation text", small_config(), VOCAB, {"valid_digest": "b"}),
        ("train.init_from", small_config(), VOCAB, {"init_digest": "b"}),
    ],
)
def test_checkpoints_of_two_runs_in_one_directory(tmp_path, caplog, what, config, vocab, digests):
    """Neither helps the other. Sabotage: compare no configurations, vocabularies, or texts."""
    best, newest = save_step(tmp_path, 1), checkpoint_path(tmp_path, 2)
    save_model(newest, config, vocab, step=2, best_bleu=1.0, best_step=1, **digests)
    reason = f"{best}: not of the same run as {newest}: they differ in {what}"
    assert find_checkpoint(tmp_path).step == 2
    assert caplog.messages == [f"{reason}; using the newest checkpoint instead of the best"]
    refuses(CheckpointError, f"^{re.escape(reason)}$", average, tmp_path, 2, None)


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
    (tmp_path / "other" / "generation_config.json").touch()
    other = "a model for transformers; load it there, or name the run that it was made from"
    reasons = {"none": "no such run or checkpoint", "empty": "contains no checkpoint"}
    reasons["other"] = other
    (tmp_path / "a.toml").touch()
    reasons["a.toml"] = "contains no checkpoint"
    for name, reason in reasons.items():
        refuses(CheckpointError, f"^{tmp_path / name}: {reason}$", find_checkpoint, tmp_path / name)


def test_a_leftover_that_cannot_be_deleted_stays(tmp_path, monkeypatch):
    """Sabotage: let its error end all pruning."""
    for step in range(1, 4):
        save_step(tmp_path, step)
    (tmp_path / ".step-00000000.partial" / "busy").mkdir(parents=True)
    real, busy = os.rmdir, Mock(side_effect=OSError(errno.EBUSY, "busy"))
    monkeypatch.setattr(os, "rmdir", lambda p, **kw: (busy if p == "busy" else real)(p, **kw))
    run_directory.prune(tmp_path, 3, 1, 3)
    assert saved_steps(tmp_path) == [3]


def test_damaged_checkpoints_do_not_disturb_pruning(tmp_path, caplog):
    """Nor later ones. Sabotage: count all checkpoints; let the error of the manifest out."""
    for step in range(1, 7):
        save_step(tmp_path, step)
    (tmp_path / "step-00000002" / "manifest.json").write_bytes(b"")
    run_directory.prune(tmp_path, 4, 3, 0)
    assert saved_steps(tmp_path) == [6, 5, 4, 3, 2]
    [warning] = caplog.messages
    assert "step-00000002" in warning and "damaged" in warning


def refused(caplog) -> str:
    """Gives the only warning since the last call."""
    [message] = caplog.messages
    caplog.clear()
    return message


def test_a_renamed_checkpoint_is_refused_by_name(tmp_path, caplog):
    """In every use; a copy of another name is what it was. Sabotage: believe the name."""
    kept, renamed = save_step(tmp_path, 20), tmp_path / "step-00000100"
    save_step(tmp_path, 10).rename(renamed)
    reason = f"{renamed}: is step-00000010 renamed; give it that name again, or delete it"
    assert find_checkpoint(tmp_path).path == kept
    assert refused(caplog) == f"{reason}; trying the checkpoint before it"
    for read in (find_checkpoint, lambda _: average(tmp_path, 2, None)):
        refuses(CheckpointError, f"^{re.escape(reason)}$", read, renamed)
    save_step(tmp_path, 30, best_bleu=1.0, best_step=100)
    run_directory.prune(tmp_path, 30, 2, 100)
    assert saved_steps(tmp_path) == [100, 30, 20]
    assert find_checkpoint(tmp_path).step == 30  # neither the newest nor the best
    shutil.copytree(kept, tmp_path / "copy")
    assert find_checkpoint(tmp_path / "copy").step == 20
    save_step(tmp_path, 100)
    assert load_newest(tmp_path).step == 100
    shutil.move(renamed, tmp_path / "step-000000100")  # with one digit more
    assert find_checkpoint(tmp_path).step == 30


def test_a_link_to_a_checkpoint_of_another_run(tmp_path, caplog):
    """Sabotage: follow all; delete moments of what is linked; move a link away before saving."""
    other, run_dir = tmp_path / "other", tmp_path / "run"
    paths = [save_step(other, step) for step in (1, 2, 7)]
    before = {path: path.read_bytes() for folder in paths for path in folder.iterdir()}
    run_dir.mkdir()
    for path in paths:
        (run_dir / path.name).symlink_to(path)
    (run_dir / "step-00000009").symlink_to("nowhere")
    for step in (4, 5, 6):
        save_step(run_dir, step)
    assert find_checkpoint(run_dir).step == 6 and len(caplog.messages) == 2
    assert "step-00000007: is a symbolic link; put a copy " in caplog.messages[1]
    with pytest.raises(CheckpointError, match="step-00000001: is a symbolic link"):
        find_checkpoint(run_dir / "step-00000001")
    run_directory.prune(run_dir, 6, keep_last=1, best_step=1)
    assert saved_steps(run_dir) == [9, 7, 6, 2, 1]
    for step in (7, 9):
        for _ in range(2):
            assert not save_step(run_dir, step).is_symlink()
    assert {path: path.read_bytes() for folder in paths for path in folder.iterdir()} == before
    assert not list(run_dir.glob(".*")) and find_checkpoint(run_dir).step == 9
    (tmp_path / "link").symlink_to(run_dir)
    (tmp_path / "best").symlink_to(run_dir / "step-00000006")
    assert find_checkpoint(tmp_path / "link").step == 9
    assert find_checkpoint(tmp_path / "best").step == 6


@pytest.mark.parametrize(
    ("what", "own", "described"),
    [
        ("train.seed", {}, {"config": small_config(train__seed=2)}),
        ("training text", {"corpus_digest": "a"}, {"corpus_digest": "a"}),
        ("validation text", {"valid_digest": "a"}, {"validation": stored.ValidationText(2, "a")}),
    ],
)
def test_the_newest_checkpoint_is_of_the_described_run(tmp_path, caplog, what, own, described):
    """If run.json is sound. Sabotage: do not ask it; compare configurations, or texts, alone."""
    run_dir = tmp_path / "run"
    before, copied = save_step(run_dir, 1, **own), save_step(run_dir, 2)
    stored.write_description(run_dir, describe(**{"config": small_config(), **described}))
    reason = f"{copied}: of another run: run.json has other {what}"
    for read in (find_checkpoint, lambda path: average(path.parent, 1, None)):
        refuses(CheckpointError, f"^{re.escape(reason)}$", read, copied)
    if own:
        assert find_checkpoint(run_dir).path == before
        assert refused(caplog) == f"{reason}; trying the checkpoint before it"
    shutil.copytree(copied, tmp_path / "copy")
    assert find_checkpoint(tmp_path / "copy").step == 2
    for damaged in ("{}", "[]", (run_dir / "run.json").read_text().replace("true", "false")):
        (run_dir / "run.json").write_text(damaged)
        assert find_checkpoint(run_dir).path == copied
        assert refused(caplog).startswith(f"{run_dir}/run.json: damaged")


def test_a_description_by_a_newer_version(tmp_path):
    """Its own keys are ignored, no key of the configuration. Sabotage: ignore all unknown keys."""
    stored.write_description(tmp_path, describe(small_config()))
    values = json.loads((tmp_path / "run.json").read_bytes())
    for section in (values, values["config"]["model"]):
        section["new"] = 1
        (tmp_path / "run.json").write_bytes(signed_json(values))
        if section is values:
            assert stored.read_description(tmp_path) == describe(small_config())
    with pytest.raises(CheckpointError, match=r"unknown key config\.model\.new; use a newer"):
        stored.read_description(tmp_path)


def train_on(monkeypatch, run_dir, steps: range, verified: int = 0, **progress: int) -> None:
    """Saves and prunes checkpoints, keeping one, once so many files of a reader are verified."""
    real, calls = manifest.sha256, itertools.count()

    def save_before(path: Path) -> str:
        if next(calls) == verified:
            monkeypatch.undo()
            for step in steps:
                save_step(run_dir, step, **progress)
                run_directory.prune(run_dir, step, 1, progress.get("best_step", 0))
        return real(path)

    monkeypatch.setattr(manifest, "sha256", save_before)


def test_readers_beside_a_trainer_that_deletes_what_they_read(tmp_path, monkeypatch, caplog):
    """They read again and do not speak of damage. Sabotage: list the checkpoints once."""
    save_step(tmp_path, 1)
    train_on(monkeypatch, tmp_path, range(2, 5))
    assert load_newest(tmp_path).step == 4
    best = {"best_bleu": 1.0, "best_step": 5}
    save_step(tmp_path, 5, **best)
    newest, later = save_step(tmp_path, 6, **best), {"best_bleu": 2.0, "best_step": 7}
    train_on(monkeypatch, tmp_path, range(7, 9), len(read_manifest(newest)), **later)
    assert find_checkpoint(tmp_path).step == 7
    train_on(monkeypatch, tmp_path, range(9, 11), best_bleu=2.0, best_step=9)
    assert load_checkpoint(average(tmp_path, 2, None)).step == 10 and not caplog.messages


def test_a_checkpoint_deleted_while_its_manifest_is_read(tmp_path, monkeypatch, caplog):
    """The run is read again. Sabotage: let the error of the second reading pass."""
    save_step(tmp_path, 1, best_bleu=1.0, best_step=1)
    real = Path.read_bytes

    def delete_after(path: Path) -> bytes:
        content = real(path)
        monkeypatch.undo()
        save_step(tmp_path, 2, best_bleu=2.0, best_step=2)
        shutil.rmtree(path.parent)
        return content

    monkeypatch.setattr(Path, "read_bytes", delete_after)
    assert find_checkpoint(tmp_path).step == 2 and not caplog.messages


def test_a_run_that_is_never_still_is_given_up(tmp_path, monkeypatch):
    """After a few attempts. Sabotage: try for ever."""
    count = itertools.count()
    monkeypatch.setattr(run_directory, "list_checkpoints", lambda _: [tmp_path / f"{next(count)}"])
    refuses(CheckpointError, "no checkpoint can be used", load_newest, tmp_path)
    assert next(count) < 20
