"""The mean of checkpoints."""

import shutil

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
    assert load_checkpoint(path).progress == Progress(step=20, seconds=1.5)


def test_what_cannot_be_averaged(run_dir, tmp_path):
    """Too few checkpoints, an output that cannot be made, a damaged one among them.

    Sabotage: look at the checkpoints before the output.
    """
    with pytest.raises(CheckpointError, match="none: --last 2 needs .* there are 0; choose"):
        average(tmp_path / "none", 2, None)
    refuses(CheckpointError, "but there are 4; ", average, run_dir, 9, None)
    refuses(CheckpointError, "already exists", average, run_dir, 2, tmp_path)
    refuses(CheckpointError, "a\udcff: not UTF-8", average, run_dir, 2, tmp_path / "a\udcff")
    path = list_checkpoints(run_dir)[1] / MODEL
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    message = f"{MODEL}: not a directory; name another -o directory"
    refuses(CheckpointError, message, average, run_dir, 2, path / "out")
    refuses(CheckpointError, f"{MODEL}: damaged", average, run_dir, 2, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("keep_last", "save_every", "deleted", "most"),
    [
        (3, (5, 5, 5, 5), [], 3),
        (4, (5, 5, 5, 5), [10], 2),  # keep_last was raised; those between are gone
        # Saved more often later on: the gap after the best tells whether it is one of the newest.
        (4, (1, 1, 1, 5), [], 3),
        (4, (1, 5, 5, 5), [], 4),
    ],
)
def test_the_best_may_be_older_than_the_newest(run_dir, keep_last, save_every, deleted, most):
    """Then it is not averaged with them. `save_every` is that of each, the newest first.

    Sabotage: take what is there; compare with train.keep_last alone; compare the gap with the
    newest's save_every; with the best's.
    """
    values, paths = small_config().model_dump(), list_checkpoints(run_dir)
    for path, every in zip(paths, save_every, strict=True):
        values["train"] |= {"keep_last": keep_last, "save_every": every}
        replace_file(path, CONFIG, canonical_json(values))
    for step in deleted:
        shutil.rmtree(checkpoint_path(run_dir, step))
    assert average(run_dir, most, None) and average(run_dir, 1, None)
    if most < 4:
        message = f"--last {most + 1}: step 5 is kept as the best, not as one"
        refuses(CheckpointError, message, average, run_dir, most + 1, None)


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
