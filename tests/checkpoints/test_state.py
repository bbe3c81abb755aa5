"""`state.json`: older formats are read, newer ones refused by name."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from transformer_mt.checkpoints.checkpoint import FORMAT, Progress, RunState, parse_state
from transformer_mt.errors import CheckpointError
from transformer_mt.system.files import canonical_json

PATH = Path("run/step-00000005/state.json")


def test_a_state_survives_json():
    """Every value comes back."""
    progress = Progress(5, 1, 2, 3.5, 20.25, 4, 1, 5, "bf16", "abc", "def")
    state = RunState(progress, {"skipped_steps": 3}, {"threads": "2"})
    assert parse_state(json.loads(canonical_json(asdict(state))), PATH) == state


def test_a_new_run_is_at_zero():
    """Nothing is trained or validated yet, and zeros are valid. Sabotage: require a step."""
    assert {key: value for key, value in asdict(Progress()).items() if value} == {
        "best_bleu": -1.0,
        "precision": "fp32",
    }
    assert parse_state(json.loads(canonical_json(asdict(RunState()))), PATH) == RunState()


def test_missing_keys_get_their_defaults():
    """So a new key does not invalidate checkpoints. Sabotage: a field without a default."""
    assert parse_state({"format": FORMAT, "progress": {"step": 7}}, PATH) == RunState(
        Progress(step=7)
    )


def test_a_newer_format_is_refused_by_name():
    """The message names the file, the format and what to do."""
    message = f"state.json: format {FORMAT + 1} is unknown; use a newer transformer-mt"
    with pytest.raises(CheckpointError, match=message):
        parse_state({"format": FORMAT + 1, "something": "new"}, PATH)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ([], "format None"),
        ({"format": FORMAT, "step": 3}, "step: .* newer"),
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
