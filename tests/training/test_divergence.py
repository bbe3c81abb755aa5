"""Training that diverges says so, in the line, in the bar and in metrics.jsonl."""

import json
import math

import pytest
from conftest import tiny_config

from transformer_mt.checkpoints.checkpoint import load_checkpoint
from transformer_mt.checkpoints.run_directory import list_checkpoints
from transformer_mt.system.console import show_messages
from transformer_mt.training.run import train


def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def records(run_dir) -> list[dict]:
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


@pytest.fixture(scope="module")
def diverged(corpus_dir, tmp_path_factory):
    """Gives a run whose first step makes its weights absurd, stopped and resumed once."""
    run_dir = tmp_path_factory.mktemp("runs") / "diverged"
    for max_steps in (7, 20):
        train(diverging_config(corpus_dir, train__max_steps=max_steps), run_dir)
    return run_dir


def diverging_config(corpus_dir, **changes):
    sizes = {"model__d_model": 16, "model__d_ff": 32, "data__valid": "validation[:5]"}
    return tiny_config(corpus_dir, optim__lr_scale=1e30, train__log_every=5, **sizes, **changes)


def test_metrics_are_json_even_if_training_diverges(diverged):
    """What is not finite is null. Sabotage: write NaN and Infinity."""
    valid = [record for record in records(diverged) if record["kind"] == "valid"]
    assert all(record["nll"] is None and record["perplexity"] is None for record in valid)
    assert [record["step"] for record in valid] == [7, 10, 20]


def test_a_window_without_a_finite_step_has_no_loss(diverged):
    """Neither 0.000 nor a sum divided by the tokens of steps that did not count.

    Sabotage: divide by all tokens; give 0 for a window of skipped steps.
    """
    losses = {record["step"]: record.get("loss") for record in records(diverged)}
    assert losses[5] > math.log(100)  # of the first step alone; there are 292 pieces
    assert losses[10] is None and losses[15] is None


def test_a_validation_that_is_not_finite_is_never_best(diverged):
    """It counts for patience, and one line warns. Sabotage: compare its BLEU all the same."""
    progress = load_checkpoint(list_checkpoints(diverged)[0]).progress
    assert (progress.best_bleu, progress.best_step, progress.valid_step) == (-1.0, 0, 20)
    assert progress.validations_since_best == 3
    log = (diverged / "train.log").read_text()
    assert "(best" not in log and "perplexity inf" not in log
    [warning] = [line for line in log.splitlines() if "step 20: validation" in line]
    assert "warning: step 20: validation BLEU 0.00, which cannot be the best: perplexity" in warning


def test_skipped_steps_are_in_the_line(corpus_dir, tmp_path, capsys, monkeypatch):
    """Only if there are any."""
    monkeypatch.setattr("transformer_mt.training.time_left.SECONDS_BETWEEN_LINES", 0.0)
    show_messages()
    train(diverging_config(corpus_dir, train__max_steps=10), tmp_path / "run")
    lines = capsys.readouterr().err.splitlines()
    [line] = [line for line in lines if line.startswith("step 10: loss")]
    assert line.startswith("step 10: loss not finite, ") and ", 9 skipped, " in line
    [first] = [line for line in lines if line.startswith("step 1: loss")]
    assert "skipped" not in first
