"""The mean of checkpoints."""

import json

import pytest
import safetensors.torch
import torch
from small_checkpoint import save_step

from transformer_mt.checkpoints import averaging
from transformer_mt.checkpoints.averaging import average
from transformer_mt.checkpoints.checkpoint import MODEL, load_checkpoint
from transformer_mt.checkpoints.run_directory import list_checkpoints
from transformer_mt.errors import CheckpointError
from transformer_mt.system import files


@pytest.fixture
def run_dir(tmp_path):
    """Gives a run with checkpoints of different weights at the steps 5, 10, 15 and 20."""
    for step in (5, 10, 15, 20):
        save_step(tmp_path / "run", step, seconds=1.5, best_bleu=3.0, best_step=5, valid_step=step)
    return tmp_path / "run"


def weights(path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(path / MODEL)


def test_the_average_is_the_mean_of_the_newest(run_dir, tmp_path):
    """It is a complete checkpoint in the run, and no step of it; that of one is itself.

    It has no score, since no validation measured it. Sabotage: copy the newest state.
    """
    before = list_checkpoints(run_dir)
    path = average(run_dir, 3, None)
    assert path == run_dir / "averaged-3" and list_checkpoints(run_dir) == before
    parts = [weights(checkpoint) for checkpoint in before[:3]]
    averaged, copied = weights(path), weights(average(run_dir, 1, tmp_path / "out"))
    assert averaged.keys() == copied.keys() == parts[0].keys()
    for name in averaged:
        mean = torch.stack([part[name].double() for part in parts]).mean(0)
        torch.testing.assert_close(averaged[name], mean.float(), rtol=0, atol=1e-7)
        assert torch.equal(copied[name], parts[0][name])
        assert averaged[name].dtype == torch.float32
    assert load_checkpoint(path).build_model()
    progress = load_checkpoint(path).progress
    assert (progress.best_bleu, progress.best_step, progress.valid_step) == (-1.0, 0, 0)
    assert (progress.step, progress.seconds) == (20, 1.5)
    files = json.loads((path / "manifest.json").read_text())["files"]
    assert sorted(files) == ["config.json", MODEL, "state.json", "vocab.model"]


def test_a_killed_average_can_be_repeated(run_dir, monkeypatch):
    """The directory appears once run.json and the card are in it. Sabotage: write them into it."""

    def killed(*arguments: object, **options: object) -> None:
        raise SystemExit("killed")

    with monkeypatch.context() as patch:
        patch.setattr(averaging, "write_average_card", killed)
        patch.setattr(files.shutil, "rmtree", killed)  # SIGKILL leaves no time to clean up
        with pytest.raises(SystemExit):
            average(run_dir, 2, None)
    assert (average(run_dir, 2, None) / "README.md").exists()


def test_what_cannot_be_averaged(run_dir, tmp_path):
    """Too few checkpoints, a directory that exists, a damaged one among them."""
    with pytest.raises(CheckpointError, match="none: --last 2 needs .* there are 0; name a"):
        average(tmp_path / "none", 2, None)
    with pytest.raises(CheckpointError, match="and there are 4; "):
        average(run_dir, 9, None)
    with pytest.raises(CheckpointError, match="already exists"):
        average(run_dir, 2, tmp_path)
    path = list_checkpoints(run_dir)[1] / MODEL
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=f"{MODEL}: damaged"):
        average(run_dir, 2, tmp_path / "out")
    assert not (tmp_path / "out").exists()
