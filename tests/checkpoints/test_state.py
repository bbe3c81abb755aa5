"""`state.json`: older formats are read, newer ones refused by name."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from transformer_mt.checkpoints.checkpoint import FORMAT, Progress, RunState, parse_state
from transformer_mt.errors import CheckpointError

PATH = Path("run/step-00000005/state.json")


def test_a_state_survives_json():
    """Every value comes back."""
    progress = Progress(5, 1, 2, 3.5, 20.25, 4, 1, 5, "bf16", "abc", "def")
    state = RunState(progress, {"skipped_steps": 3}, {"threads": "2"})
    assert parse_state(json.loads(state.to_json()), PATH) == state


def test_a_new_run_is_at_zero():
    """Nothing is trained or validated yet, and zeros are valid. Sabotage: require a step."""
    assert {key: value for key, value in asdict(Progress()).items() if value} == {
        "best_bleu": -1.0,
        "precision": "fp32",
    }
    assert parse_state(json.loads(RunState().to_json()), PATH) == RunState()


def test_missing_keys_get_their_defaults():
    """So a new key does not invalidate checkpoints. Sabotage: a field without a default."""
    assert parse_state({"format": FORMAT, "progress": {"step": 7}}, PATH) == RunState(
        Progress(step=7)
    )


def test_a_newer_format_is_refused_by_name():
    """The message names the file, both formats and what to do."""
    message = rf"state.json: format {FORMAT + 1} is newer than this program's format {FORMAT}"
    with pytest.raises(CheckpointError, match=message):
        parse_state({"format": FORMAT + 1, "something": "new"}, PATH)


def test_format_1_is_read():
    """It was flat, without environment, and had other names."""
    values = {
        "step": 7,
        "epoch": 1,
        "index": 3,
        "seconds": 2.5,
        "skipped": 4,
        "best_bleu": 12.5,
        "best_step": 5,
        "bad_validations": 2,
        "valid_step": 6,
        "precision": "bf16",
        "corpus": "abc",
        "scaler": None,
        "bad_in_row": 1,
        "window": {"loss": 1.5, "tokens": 10, "operations": 2.0, "seconds": 0.5},
    }
    state = parse_state(values, PATH)
    assert state.progress == Progress(7, 1, 3, 2.5, 12.5, 5, 2, 6, "bf16", "abc")
    assert state.counters == {
        "skipped_steps": 4,
        "nonfinite_in_row": 1,
        "loss_scaler": {},
        "window": {"loss": 1.5, "tokens": 10, "flops": 2.0, "seconds": 0.5},
    }


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ([], "not a training state"),
        ({"step": 3}, "not a training state"),
        ({"format": FORMAT, "progress": {"step": -1}}, r"progress\.step"),
        ({"format": FORMAT, "progress": {"step": "1"}}, r"progress\.step"),
        ({"format": FORMAT, "progress": {"stride": 1}}, r"progress\.stride"),
        ({"format": FORMAT, "counter": {}}, "counter"),
        ({"format": "2"}, "format"),
    ],
)
def test_a_malformed_state_is_named(values, key):
    """File and key."""
    with pytest.raises(CheckpointError, match=rf"state\.json: .*{key}"):
        parse_state(values, PATH)


def test_progress_is_compared_by_value():
    """What decides whether a checkpoint is up to date."""
    assert replace(Progress(), step=1) == Progress(step=1) != Progress(step=1, valid_step=1)
