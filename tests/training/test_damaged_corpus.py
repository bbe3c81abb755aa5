"""A prepared corpus that is damaged between two starts of a run, or under its trainer."""

import os
import shutil
from pathlib import Path

import pytest
from conftest import around_steps, assert_one_error, refuses, write_config

from transformer_mt.checkpoints.run_directory import load_newest
from transformer_mt.config.loading import load_config
from transformer_mt.errors import DataError
from transformer_mt.text.batching import plan_epoch
from transformer_mt.text.prepared import prepare
from transformer_mt.training.run import build_trainer, train

SAME_MODEL = "model.safetensors", "training.safetensors"


def write_short_config(corpus_dir: Path, folder: Path) -> Path:
    """Writes the configuration of a run of eight steps, with prepared text of its own."""
    changes = {"data__prepared_dir": str(folder / "prepared"), "data__train": "train[:60]"}
    changes |= {"vocab__size": 288, "data__valid": "validation[:5]", "train__batch_tokens": 100}
    changes |= {"train__max_steps": 8, "train__save_every": 2, "valid__every": 1000}
    return write_config(folder, corpus_dir, **changes)


@pytest.fixture
def config(corpus_dir, tmp_path) -> Path:
    return write_short_config(corpus_dir, tmp_path)


@pytest.fixture(scope="module")
def whole(corpus_dir, tmp_path_factory) -> tuple[int, list[bytes]]:
    """Gives the end of an uninterrupted run, whose text is touched and then deleted meanwhile."""
    folder = tmp_path_factory.mktemp("whole")
    config = load_config(write_short_config(corpus_dir, folder))
    text = prepare(config).path
    acts = {3: (text / "tgt.ids").touch, 7: lambda: shutil.rmtree(text)}
    with pytest.MonkeyPatch.context() as patch:
        around_steps(patch, before=lambda _, step: acts.get(step, int)())
        train(config, folder / "run")
    return saved(folder / "run")


def overwrite_half(path: Path) -> None:
    """Overwrites half of a file, and restores its time of modification."""
    times, raw = path.stat(), path.read_bytes()
    with path.open("r+b") as file:
        file.write(raw[len(raw) // 4 * 2 :])  # whole ids
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def cut(path: Path) -> None:
    """Makes a file a few bytes long; reading what was mapped then ends a process by SIGBUS."""
    os.truncate(path, 10)


def saved(run_dir: Path) -> tuple[int, list[bytes]]:
    """Gives the newest step of a run, its weights and moments."""
    newest = load_newest(run_dir)
    return newest.progress.step, [(newest.path / name).read_bytes() for name in SAME_MODEL]


@pytest.mark.parametrize("damage", [overwrite_half, cut])
def test_a_corpus_damaged_under_its_trainer(config, whole, tmp_path, monkeypatch, call, damage):
    """When the next epoch begins. Sabotage: verify the text at the first epoch alone."""
    corpus, train = prepare(load_config(config)), load_config(config).train
    last = len(plan_epoch(corpus.pairs.lengths, train.batch_tokens, train.seed, 0))
    again = ("train", config, "--quiet", "--run", tmp_path / "run")
    with monkeypatch.context() as patch:
        path = corpus.path / "tgt.ids"
        around_steps(patch, before=lambda _, step: step == last and damage(path))
        called = call(*again)
    assert_one_error(called, f"{corpus.path}: damaged ({corpus.path}/tgt.ids: damaged")
    assert last < 8 and saved(tmp_path / "run")[0] == last // 2 * 2  # train.save_every is 2
    shutil.rmtree(corpus.path)
    assert call(*again).code == 0 and saved(tmp_path / "run") == whole


def test_a_corpus_damaged_before_its_first_epoch(config, tmp_path):
    """Before memory is checked with its longest pairs."""
    trainer = build_trainer(load_config(config), tmp_path / "run")
    cut(trainer.corpus.path / "src.ids")
    refuses(DataError, "src.ids: damaged", trainer.start_epoch)
