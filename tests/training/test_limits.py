"""When training stops, the time left until then, and what it shows: a bar, or lines."""

import math
import re
from dataclasses import replace

from conftest import records, tiny_config

from transformer_mt.checkpoints.checkpoint import Progress
from transformer_mt.config.loading import parse_config
from transformer_mt.system.console import show_messages
from transformer_mt.training.limits import StepDisplay, _format_loss, steps_left
from transformer_mt.training.run import train

PROGRESS = Progress(step=7, epoch=1, epoch_step=3, validations_since_best=2)


def config_of(train: dict[str, object], patience: int = 0):
    values = {"every": 5, "patience": patience}
    return parse_config({"data": {"path": "none"}, "train": train, "valid": values}, "tests")


def test_steps_until_each_limit():
    """In steps, epochs of 11 steps, and minutes, at 4 seconds per step."""
    three = {"max_steps": 100, "max_epochs": 3, "max_minutes": 1.0}
    for limits, steps in ({"max_steps": 10}, [3]), ({"max_steps": 5}, [0]), (three, [93, 19, 8]):
        left = steps_left(config_of(limits, patience=3), PROGRESS, 30.0, 4.0, 11)
        assert list(left) == [f"train.{key}" for key in limits] and list(left.values()) == steps
    assert 0 in steps_left(config_of({"max_minutes": 1.0}), PROGRESS, 60.0, 0.0, 11).values()
    assert 10**15 in steps_left(config_of({"max_minutes": 1e308}), PROGRESS, 0.0, 4.0, 11).values()


def test_loss_is_shown_from_the_first_step_on(
    corpus_dir, tmp_path, monkeypatch, capsys, untranslated
):
    """Long before log_every, and what is shown is not recorded and changes nothing recorded."""
    config = tiny_config(corpus_dir, train__log_every=6, train__max_steps=14)
    show_messages()
    monkeypatch.setattr("transformer_mt.training.limits.SECONDS_BETWEEN_LINES", math.inf)
    train(config, tmp_path / "seldom")
    assert re.findall(r"^step (\d+): loss", capsys.readouterr().err, re.M) == ["1"]
    monkeypatch.setattr("transformer_mt.training.limits.SECONDS_BETWEEN_LINES", 0.0)
    train(config, tmp_path / "shown")
    pattern = r"^step (\d+): loss \d\.\d{3}, .* tokens/s, .* lr \S+, \d\d:\d\d left$"
    lines = re.findall(pattern, capsys.readouterr().err, re.M)
    assert lines == [str(step) for step in range(1, 15)]
    seldom, shown = (records(tmp_path / name) for name in ("seldom", "shown"))
    logged = [record["step"] for record in shown if record["kind"] == "train"]
    assert logged == [1, 2, 5, 6, 12, 14]
    for left, right in zip(seldom, shown, strict=True):
        assert all(left[key] == right[key] for key in left.keys() & {"loss", "step", "nll"})


def test_a_loss_of_any_size():
    """Sabotage: show all with three decimals."""
    shown = ["loss 999.999", "loss 1.0e+04", "loss not finite"]
    assert list(map(_format_loss, (999.9991, 9999.0, math.nan))) == shown


def test_the_bar_on_a_terminal(monkeypatch, capsys):
    """Or else a line: steps, those until the first limit, time left. Sabotage: begin at step 0."""
    monkeypatch.setattr("transformer_mt.training.limits.shows_bars", lambda: True)
    config = config_of({"max_steps": 100, "max_epochs": 2})
    with StepDisplay(config, PROGRESS, 100.0) as display:
        display.advance(replace(PROGRESS, step=8), 104.0, 11)
        display.show(8, {"loss": 2.0, "tokens_per_second": 1234.0, "skipped": 1})
    first, *_, last = capsys.readouterr().err.strip().split("\r")
    assert first.startswith("7/100 ") and last.startswith("8/16 ")
    assert last.endswith(" 00:32 left, loss 2.000, 1,234 tokens/s, 1 skipped")
    monkeypatch.setattr("transformer_mt.training.limits.shows_bars", lambda: False)
    monkeypatch.setattr("transformer_mt.training.limits.shows_progress", lambda: True)
    metrics = {"loss": 2.0, "tokens_per_second": 1.0, "mfu": 0.5, "lr": 1e-3, "skipped": 1}
    with StepDisplay(config, PROGRESS, 100.0) as display:
        display.advance(replace(PROGRESS, step=8), 104.0, 11)
        display.show(8, metrics)
    assert capsys.readouterr().err.endswith(", lr 1.0e-03, 1 skipped, 00:32 left\n")
