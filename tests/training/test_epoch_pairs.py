"""Training on segmentations drawn for each epoch: resumed exactly, and every pair once an epoch."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import equal, tiny_config, weights

from transformer_mt.checkpoints.checkpoint import load_checkpoint
from transformer_mt.checkpoints.run_directory import list_checkpoints
from transformer_mt.config.keys import Config
from transformer_mt.text.epoch_pairs import EpochPairs, LineSampler
from transformer_mt.training.run import build_trainer, train
from transformer_mt.training.trainer import Trainer

SHORT = {"data__train": "train[:150]"}
"""An epoch of a few steps."""


def sampled_config(corpus_dir: Path, **changes: object) -> Config:
    return tiny_config(corpus_dir, **{"vocab__sampling": 0.2, **SHORT, **changes})


@pytest.fixture
def epochs(monkeypatch) -> list[list[np.ndarray]]:
    """Records the pairs of every step, by epoch."""
    steps: list[list[np.ndarray]] = []
    train_step = Trainer.take_step

    def recording(trainer, step_pairs):
        if trainer.progress.epoch == len(steps):
            steps.append([])
        steps[-1].append(step_pairs)
        train_step(trainer, step_pairs)

    monkeypatch.setattr(Trainer, "take_step", recording)
    return steps


def test_every_pair_comes_once_an_epoch_in_other_segmentations(
    corpus_dir, tmp_path, epochs, monkeypatch
):
    """Only training pairs are drawn, and each step is as large as its own segmentations say."""
    drawn, sample = [], LineSampler.sample

    def counting(sampler, lines, rng):
        drawn.append(len(lines))
        return sample(sampler, lines, rng)

    monkeypatch.setattr(LineSampler, "sample", counting)
    config = sampled_config(corpus_dir, train__max_epochs=3, valid__every=20)
    trainer = build_trainer(config, tmp_path / "other")
    lengths = []
    for epoch in range(3):
        pairs = trainer._epoch_pairs.of_epoch(epoch)
        lengths.append(pairs.lengths[0])
        assert pairs.lengths[0].sum() > trainer.corpus.pairs.lengths[0].sum()
    assert len({tuple(each) for each in lengths}) == 3
    drawn.clear()
    train(config, tmp_path / "run")
    assert set(drawn) == {150} and len(drawn) <= 2 * 4
    assert len(epochs) == 3
    for steps, of_epoch in zip(epochs, lengths, strict=True):
        assert sorted(np.concatenate(steps)) == list(range(150))
        full = [of_epoch[step].sum() for step in steps]
        assert max(full) < 500 + of_epoch.max()


@pytest.mark.parametrize(
    ("recipe", "other"), [({}, {"vocab__sampling": 0.0}), ({"train__bidirectional_epochs": 2}, {})]
)
def test_a_resumed_run_is_bit_equal(corpus_dir, tmp_path, recipe, other):
    """Stopped in the middle of epochs and at their ends; a second run of one seed is equal too."""
    train(sampled_config(corpus_dir, **recipe), tmp_path / "whole")
    for steps in (3, 9, 20):
        train(sampled_config(corpus_dir, train__max_steps=steps, **recipe), tmp_path / "parts")
    train(sampled_config(corpus_dir, **other), tmp_path / "other")
    whole, parts, others = (
        list_checkpoints(tmp_path / name)[0] for name in ("whole", "parts", "other")
    )
    assert load_checkpoint(whole).progress.epoch > 2
    assert equal(weights(whole), weights(parts))
    assert not equal(weights(whole), weights(others))


def test_the_next_epoch_is_made_in_advance_and_the_threads_end(corpus_dir, tmp_path, monkeypatch):
    """After an error too."""
    started, start = [], EpochPairs.start

    def recording(epoch_pairs, epoch):
        started.append(epoch)
        start(epoch_pairs, epoch)

    monkeypatch.setattr(EpochPairs, "start", recording)
    torch.set_num_threads(1)  # no worker threads
    before = threading.active_count()
    train(sampled_config(corpus_dir, train__max_steps=2), tmp_path / "run")
    assert started == [0, 1] and threading.active_count() == before

    def fail(trainer, step_pairs):
        raise MemoryError

    monkeypatch.setattr(Trainer, "take_step", fail)
    trainer = build_trainer(sampled_config(corpus_dir), tmp_path / "other")
    with pytest.raises(MemoryError):
        trainer.run(None)
    assert threading.active_count() == before
