"""Training that diverges says so, in the line, in the log and in metrics.jsonl."""

import json
import math

from conftest import tiny_config

from transformer_mt.checkpoints.run_directory import load_newest
from transformer_mt.system.console import show_messages
from transformer_mt.training.run import train


def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def test_a_run_that_diverges(corpus_dir, tmp_path, capsys, monkeypatch):
    """Its first step makes the weights absurd; it is stopped and resumed once.

    Sabotage: write NaN and Infinity; divide by all tokens, or give 0 for a window of skipped steps;
    compare the BLEU of a validation that is not finite all the same.
    """
    monkeypatch.setattr("transformer_mt.training.time_left.SECONDS_BETWEEN_LINES", 0.0)
    show_messages()
    sizes = {"model__d_model": 16, "model__d_ff": 32, "data__valid": "validation[:5]"}
    for max_steps in (7, 20):
        changes = {"optim__lr_scale": 1e30, "train__log_every": 5, "train__max_steps": max_steps}
        train(tiny_config(corpus_dir, **changes, **sizes), tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line, parse_constant=refuse) for line in lines]
    valid = [record for record in records if record["kind"] == "valid"]
    assert [record["step"] for record in valid] == [7, 10, 20]
    assert all(record["nll"] is None and record["perplexity"] is None for record in valid)
    losses = {record["step"]: record["loss"] for record in records if record["kind"] == "train"}
    assert losses[5] > math.log(100)  # of the first step alone; there are 292 pieces
    assert losses[10] is None and losses[15] is None
    progress = load_newest(tmp_path / "run").progress
    assert (progress.best_bleu, progress.best_step, progress.valid_step) == (-1.0, 0, 20)
    assert progress.validations_since_best == 3
    log = (tmp_path / "run" / "train.log").read_text()
    assert "(best" not in log and "perplexity inf" not in log
    warning = "warning: step 20: validation BLEU 0.00, which cannot be the best: perplexity is not"
    assert log.count(warning) == 1
    shown = capsys.readouterr().err.splitlines()
    [first] = [line for line in shown if line.startswith("step 1: loss")]
    [later] = [line for line in shown if line.startswith("step 10: loss")]
    assert later.startswith("step 10: loss not finite, ") and ", 9 skipped, " in later
    assert "skipped" not in first
