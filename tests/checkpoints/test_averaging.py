"""The mean of checkpoints."""

import json

import pytest
import safetensors.torch
import torch
from conftest import tiny_config

from transformer_mt.checkpoints.averaging import average
from transformer_mt.checkpoints.checkpoint import MODEL, load_checkpoint
from transformer_mt.checkpoints.run_directory import list_checkpoints
from transformer_mt.errors import CheckpointError
from transformer_mt.training.run import train


@pytest.fixture(scope="module")
def run_dir(corpus_dir, tmp_path_factory):
    """Gives a run with checkpoints at the steps 5, 10, 15 and 20."""
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    train(tiny_config(corpus_dir), run_dir)
    return run_dir


def weights(path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(path / MODEL)


def test_the_average_of_one_is_itself(run_dir, tmp_path):
    """Bit for bit."""
    newest = list_checkpoints(run_dir)[0]
    found, expected = weights(average(run_dir, 1, tmp_path / "out")), weights(newest)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_the_average_is_the_mean_of_the_newest(run_dir):
    """It is a complete checkpoint in the run, and no step of it."""
    before = list_checkpoints(run_dir)
    path = average(run_dir, 3, None)
    assert path == run_dir / "averaged-3" and list_checkpoints(run_dir) == before
    parts = [weights(checkpoint) for checkpoint in before[:3]]
    for name, tensor in weights(path).items():
        mean = torch.stack([part[name] for part in parts]).mean(0)
        torch.testing.assert_close(tensor, mean, rtol=0, atol=1e-6)
    checkpoint = load_checkpoint(path)
    assert checkpoint.progress.step == 20 and checkpoint.build_model()
    files = json.loads((path / "manifest.json").read_text())["files"]
    assert sorted(files) == ["config.json", MODEL, "state.json", "vocab.model"]


def test_an_average_claims_no_score(run_dir, tmp_path):
    """No validation measured it; where training stood is kept. Sabotage: copy the newest state."""
    newest = load_checkpoint(list_checkpoints(run_dir)[0]).progress
    assert newest.best_bleu >= 0 and newest.valid_step == 20
    progress = load_checkpoint(average(run_dir, 2, tmp_path / "out")).progress
    assert (progress.best_bleu, progress.best_step, progress.valid_step) == (-1.0, 0, 0)
    assert (progress.step, progress.seconds) == (newest.step, newest.seconds)
    assert progress.corpus_digest == newest.corpus_digest


def test_what_cannot_be_averaged(run_dir, tmp_path):
    """Too few checkpoints, a directory that exists, a damaged one among them."""
    with pytest.raises(CheckpointError, match="none: not a run with checkpoints"):
        average(tmp_path / "none", 2, None)
    with pytest.raises(CheckpointError, match="has 4 checkpoints, not 9"):
        average(run_dir, 9, None)
    with pytest.raises(CheckpointError, match="already exists"):
        average(run_dir, 2, tmp_path)
    path = list_checkpoints(run_dir)[1] / MODEL
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=f"{MODEL}: damaged"):
        average(run_dir, 2, tmp_path / "out")
    path.write_bytes(content)
    assert not (tmp_path / "out").exists()
