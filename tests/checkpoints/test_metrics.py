"""What metrics.jsonl tells of a run."""

import json

import pytest

from transformer_mt.checkpoints.metrics import read_runs
from transformer_mt.errors import CheckpointError

LINES = [
    {"kind": "train", "step": 10, "seconds": 30, "loss": 2.0},
    {"kind": "train", "step": 20, "seconds": 60, "loss": None},
    {"kind": "valid", "step": 20, "seconds": 60, "bleu": 1.0, "perplexity": 9.0},
    {"kind": "valid", "step": 30, "seconds": 90, "bleu": 3.0, "ema_bleu": 2.0, "perplexity": 4.0},
    {"kind": "valid", "step": 40, "seconds": 120, "bleu": 5.0, "ema_bleu": 2.0, "perplexity": 4.0},
    {"kind": "valid", "step": 50, "seconds": 150, "bleu": 9.0, "perplexity": None},
]


def test_what_metrics_tell(tmp_path):
    """The first of the best validations, finite values, and where the run ended."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in LINES))
    [run] = read_runs([tmp_path])
    assert (run.name, run.end("step"), run.end("minutes")) == (tmp_path.name, 50, 2.5)
    assert run.best_validation()["step"] == 30
    assert run.finite_points("train", "loss") == [(10, 2.0)]
    assert run.finite("valid", "perplexity") == [9.0, 4.0, 4.0]
    assert run.series("valid", "ema_bleu", "minutes") == ([1.5, 2.0], [2.0, 2.0])
    damaged = json.dumps({**LINES[0], "step": -31})
    path.write_text(f"{json.dumps(LINES[0])}\n{damaged}\n")
    with pytest.raises(CheckpointError, match=f"^{path}, line 2: damaged "):
        read_runs([tmp_path])
