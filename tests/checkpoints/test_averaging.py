"""The mean of checkpoints."""

import shutil
from collections.abc import Sequence

import pytest
import torch
from conftest import refuses, replace_file, weights
from small_checkpoint import describe, save_step, small_config

from transformer_mt.checkpoints.averaging import average
from transformer_mt.checkpoints.checkpoint import Progress, load_checkpoint
from transformer_mt.checkpoints.layout import CONFIG, MODEL, checkpoint_path
from transformer_mt.checkpoints.run_description import read_description, write_description
from transformer_mt.checkpoints.run_directory import list_checkpoints
from transformer_mt.errors import CheckpointError
from transformer_mt.system.files import canonical_json


@pytest.fixture
def run_dir(tmp_path):
    """Gives a run with checkpoints of different weights at the steps 5, 10, 15 and 20."""
    for step in (5, 10, 15, 20):
        scores = {"best_bleu": 3.0, "best_step": 5, "valid_step": step}
        scores["validations_since_best"] = 2
        save_step(tmp_path / "run", step, seconds=1.5, **scores)
    return tmp_path / "run"


def test_the_average_is_the_mean_of_the_newest(run_dir, tmp_path):
    """A complete checkpoint in the run, but no step of it, and without a score; of one, itself.

    Sabotage: add up in float32.
    """
    before, path = list_checkpoints(run_dir), average(run_dir, 3, None)
    assert path == run_dir / "averaged-3" and list_checkpoints(run_dir) == before
    parts = [weights(checkpoint) for checkpoint in before[:3]]
    averaged, copied = weights(path), weights(average(run_dir, 1, tmp_path / "out"))
    assert averaged.keys() == copied.keys() == parts[0].keys()
    for name in averaged:
        mean = torch.stack([part[name].double() for part in parts]).mean(0)
        assert torch.equal(averaged[name], mean.float())
        assert torch.equal(copied[name], parts[0][name]) and averaged[name].dtype == torch.float32
    assert load_checkpoint(path).build_model()
    progress = load_checkpoint(path).progress
    assert progress == Progress(step=20, seconds=1.5)


def test_what_cannot_be_averaged(run_dir, tmp_path):
    """Too few checkpoints, a directory that exists, a damaged one among them."""
    with pytest.raises(CheckpointError, match="none: --last 2 needs .* there are 0; choose"):
        average(tmp_path / "none", 2, None)
    refuses(CheckpointError, "but there are 4; ", average, run_dir, 9, None)
    refuses(CheckpointError, "already exists", average, run_dir, 2, tmp_path)
    refuses(CheckpointError, "a\udcff: not UTF-8", average, run_dir, 2, tmp_path / "a\udcff")
    path = list_checkpoints(run_dir)[1] / MODEL
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    refuses(CheckpointError, f"{MODEL}: damaged", average, run_dir, 2, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_best_is_not_one_of_the_newest(run_dir):
    """It may be much older. Sabotage: take what is there."""
    values = small_config().model_dump()
    values["train"]["keep_last"] = 3
    for path in list_checkpoints(run_dir):
        replace_file(path, CONFIG, canonical_json(values))
    with pytest.raises(CheckpointError, match=r"--last 4: step 5 is kept as the best, not as one"):
        average(run_dir, 4, None)
    assert average(run_dir, 3, None)


def test_the_best_is_old_though_keep_last_was_raised(run_dir):
    """Those between are gone. Sabotage: compare with train.keep_last alone."""
    values = small_config().model_dump()
    values["train"] |= {"keep_last": 4, "save_every": 5}
    for path in list_checkpoints(run_dir):
        replace_file(path, CONFIG, canonical_json(values))
    shutil.rmtree(checkpoint_path(run_dir, 10))
    with pytest.raises(CheckpointError, match=r"--last 3: step 5 is kept as the best, not as one"):
        average(run_dir, 3, None)
    assert average(run_dir, 2, None) and average(run_dir, 1, None)


def test_checkpoints_are_saved_more_often_later_on(run_dir):
    """The gap after the best tells whether it is one of the newest.

    Sabotage: compare it with the newest's save_every; with the best's.
    """
    values = small_config().model_dump()

    def set_save_every(newest_first: Sequence[int]) -> None:
        for path, save_every in zip(list_checkpoints(run_dir), newest_first, strict=True):
            values["train"] |= {"keep_last": 4, "save_every": save_every}
            replace_file(path, CONFIG, canonical_json(values))

    set_save_every([1, 1, 1, 5])
    refuses(CheckpointError, "is kept as the best", average, run_dir, 4, None)
    set_save_every([1, 5, 5, 5])
    assert average(run_dir, 4, None)


def test_an_average_is_complete_while_its_run_is_trained(run_dir):
    """Sabotage: describe it as the run is described."""
    write_description(run_dir, describe(small_config(), complete=False))
    described = read_description(average(run_dir, 2, None))
    assert described.complete and described.averaged_steps == [20, 15]


def test_the_command_warns_in_a_line(run_dir, call):
    """As all commands do. Sabotage: show messages in those with --quiet alone."""
    (run_dir / "run.json").write_text("{}")
    result = call("average", run_dir, "--last", 2)
    assert result.code == 0 and result.err.startswith(f"warning: {run_dir}/run.json: damaged ")
