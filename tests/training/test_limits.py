"""When training stops, the time left until then, and what it shows: a bar, or lines."""

import math
import re
import sys
from dataclasses import replace

import pytest
from conftest import records, tiny_config

from transformer_mt.checkpoints.checkpoint import Progress
from transformer_mt.config.loading import parse_config
from transformer_mt.system.console import show_messages
from transformer_mt.training.limits import StepDisplay, steps_left
from transformer_mt.training.run import train

PROGRESS = Progress(step=7, epoch=1, epoch_step=3, validations_since_best=2)

COLUMNS = 80


def config_of(train: dict[str, object], patience: int = 0):
    values = {"every": 5, "patience": patience}
    return parse_config({"data": {"path": "none"}, "train": train, "valid": values}, "tests")


@pytest.mark.parametrize(
    ("limits", "steps"),
    [
        ({"max_steps": 10}, [3]),
        ({"max_steps": 5}, [0]),
        ({"max_steps": 100, "max_epochs": 3, "max_minutes": 1.0}, [93, 2 * 11 - 3, 8]),
    ],
)
def test_steps_until_each_limit(limits, steps):
    """In steps, epochs of 11 steps, and minutes, at 4 seconds per step."""
    left = steps_left(config_of(limits, patience=3), PROGRESS, 30.0, 4.0, 11)
    assert list(left) == [f"train.{key}" for key in limits] and list(left.values()) == steps
    assert 0 in steps_left(config_of({"max_minutes": 1.0}), PROGRESS, 60.0, 0.0, 11).values()


@pytest.mark.parametrize(
    ("loss", "skipped", "shown"),
    [
        (2.5, 2, "loss 2.500, 1,234 tokens/s, 50% of peak, lr 1.0e-03, 2 skipped"),
        (1234.5, 0, "loss 1.2e+03, 1,234 tokens/s, 50% of peak, lr 1.0e-03"),
        (math.inf, 0, "loss not finite, 1,234 tokens/s, 50% of peak, lr 1.0e-03"),
    ],
)
def test_the_time_left_follows_from_the_time_so_far(capsys, monkeypatch, loss, skipped, shown):
    """Until the first limit, at the mean time per step since this process began.

    Nothing is shown of a program that shows no messages. Lines become rarer, but not the metrics
    beside a bar.
    """
    metrics = {"tokens_per_second": 1234.5, "mfu": 0.5, "lr": 1e-3, "skipped": skipped}
    StepDisplay(config_of({"max_steps": 20}), PROGRESS, 30.0).show(9, metrics | {"loss": loss})
    show_messages()
    display = StepDisplay(config_of({"max_steps": 20, "max_epochs": 3}), PROGRESS, 30.0)
    display.advance(replace(PROGRESS, step=9, epoch_step=5), 50.0, 11)
    for step in (9, 10):  # the next line is not yet due
        display.show(step, metrics | {"loss": loss})
    assert capsys.readouterr().err == f"step 9: {shown}, 01:50 left\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with StepDisplay(config_of({"max_steps": 20}), PROGRESS, 30.0) as bar:
        bar.show(9, metrics | {"loss": loss})


def screen_lines(output: str) -> list[str]:
    """Gives the lines that a terminal is left with, if none is wrapped."""
    lines = []
    for line in output.split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
        lines.append(shown.rstrip())
    return lines


def test_the_bar_at_a_terminal_of_80_columns(corpus_dir, tmp_path, monkeypatch, capsys):
    """It shows the time left, loss, speed and skipped steps, and ends where the epochs end.

    It leaves room for an echoed ^C, and is left on the screen once, at the end. The training
    diverges, because its text is the longest.
    """
    changes = {"optim__lr_scale": 1e30, "train__max_epochs": 1, "train__max_steps": 100_000}
    text = {"data__train": "train[:900]", "vocab__size": 288, "train__log_every": 7}
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    show_messages()
    train(tiny_config(corpus_dir, **changes, **text), tmp_path / "run")
    output = capsys.readouterr().err
    drawn = re.findall(r"[\r\n](\d+/\d+ [^\r\n]*)", output)
    assert len(drawn) > 3 and max(map(len, drawn)) <= COLUMNS - 4
    lines = screen_lines(output)
    left = [line for line in lines if re.match(r"\d+/\d+ ", line)]
    assert left == [lines[-3]] and lines[-2].startswith("done: ")
    assert all(line.count(" left, ") <= 1 for line in lines)
    *_, (done, total, text) = re.findall(r"\r(\d+)/(\d+) \S+ +([^\r\n]*)", output)
    assert done == total and int(total) < 1000
    speed = r"[\d,]+ tokens/s"
    assert re.fullmatch(rf"00:00 left, loss not finite, {speed}, \d+ skipped\s*", text)
    assert any(re.search(rf"\d left, loss \d\.\d+, {speed}\s*$", line) for line in drawn)


def test_loss_is_shown_from_the_first_step_on(corpus_dir, tmp_path, monkeypatch, capsys):
    """Long before log_every, and what is shown is not recorded and changes nothing recorded."""
    config = tiny_config(corpus_dir, train__log_every=6, train__max_steps=14)
    show_messages()
    train(config, tmp_path / "seldom")
    assert re.findall(r"^step (\d+): loss", capsys.readouterr().err, re.M) == ["1"]
    monkeypatch.setattr("transformer_mt.training.limits.SECONDS_BETWEEN_LINES", 0.0)
    train(config, tmp_path / "shown")
    lines = re.findall(
        r"^step (\d+): loss \d\.\d{3}, .* tokens/s, .*, \d\d:\d\d left$",
        capsys.readouterr().err,
        re.M,
    )
    assert lines == [str(step) for step in range(1, 15)]
    seldom, shown = (records(tmp_path / name) for name in ("seldom", "shown"))
    logged = [record["step"] for record in shown if record["kind"] == "train"]
    assert logged == [1, 2, 5, 6, 12, 14]
    for left, right in zip(seldom, shown, strict=True):
        assert all(left[key] == right[key] for key in left.keys() & {"loss", "step", "nll"})
