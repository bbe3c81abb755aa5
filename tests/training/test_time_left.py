"""When training stops, the time left until then, and what it shows: a bar, or lines."""

import fcntl
import json
import os
import re
import struct
import subprocess
import termios

import pytest
from conftest import command, tiny_config, tiny_values, write_toml

from transformer_mt.checkpoints.checkpoint import Progress
from transformer_mt.config.loading import parse_config
from transformer_mt.system.console import show_messages
from transformer_mt.training.run import train
from transformer_mt.training.time_left import TimeEstimate, limits_left, reached_limit

PROGRESS = Progress(step=7, epoch=1, epoch_step=3, validations_since_best=2)

COLUMNS = 80


def config_of(train: dict[str, object], patience: int = 0):
    values = {"every": 5, "patience": patience}
    return parse_config({"data": {"path": "none"}, "train": train, "valid": values}, "tests")


def test_what_is_left_of_the_limits_that_are_set():
    """Zero is no limit, but for the number of steps, which is always limited."""
    assert limits_left(config_of({"max_steps": 10}), PROGRESS, 30.0) == {"train.max_steps": 3}
    config = config_of({"max_steps": 8, "max_epochs": 3, "max_minutes": 2.5}, patience=5)
    assert list(limits_left(config, PROGRESS, 30.0).items()) == [
        ("train.max_steps", 1),
        ("train.max_epochs", 2),
        ("train.max_minutes", 120.0),
        ("valid.patience", 3),
    ]


@pytest.mark.parametrize(
    ("train", "patience", "limit"),
    [
        ({"max_steps": 7, "max_epochs": 1}, 2, "train.max_steps = 7"),
        ({"max_epochs": 1, "max_minutes": 0.5}, 2, "train.max_epochs = 1"),
        ({"max_minutes": 0.5}, 2, "train.max_minutes = 0.5"),
        ({}, 2, "valid.patience = 2"),
        ({"max_epochs": 2, "max_minutes": 0.51}, 3, None),
    ],
)
def test_the_first_reached_limit_is_named(train, patience, limit):
    """Sabotage: compare with < 0."""
    assert reached_limit(config_of(train, patience), PROGRESS, 30.0) == limit


def time_left(train: dict[str, object], progress: Progress = PROGRESS, validation: float = 0.0):
    """Estimates with 4 seconds per step, 30 seconds after the start."""
    estimate = TimeEstimate(config_of(train, patience=3), step_seconds=4.0)
    estimate.steps_per_epoch = 11
    estimate.add_validation(validation)
    return estimate.left(progress, 30.0)


@pytest.mark.parametrize(
    ("limits", "steps", "seconds"),
    [
        ({"max_steps": 10}, 3, 12.0),
        ({"max_steps": 5}, 0, 0.0),
        ({"max_steps": 100, "max_epochs": 3}, 2 * 11 - 3, 76.0),
        ({"max_steps": 100, "max_epochs": 3, "max_minutes": 1.0}, 7, 30.0),
    ],
)
def test_the_limit_that_is_reached_first_counts(limits, steps, seconds):
    """Whether it is in steps, epochs or minutes. Sabotage: know only max_steps."""
    left = time_left(limits)
    assert (left.steps, left.seconds) == (steps, seconds)
    assert left.limit.startswith(f"train.{list(limits)[-1]} = ")


def test_validations_to_come_count():
    """Those at multiples of valid.every and the one at the end, each 20 seconds.

    Sabotage: count no validation; forget the last; count the one that is done.
    """
    for steps, validations in ((1, 1), (3, 1), (4, 2), (8, 2), (9, 3)):
        left = time_left({"max_steps": 7 + steps}, validation=20.0)
        assert left.seconds == 4 * steps + 20 * validations
    due, done = (Progress(step=10, valid_step=step) for step in (5, 10))
    for progress, validations in ((due, 2), (done, 1)):
        left = time_left({"max_steps": 15}, progress, validation=20.0)
        assert left.seconds == 4 * 5 + 20 * validations
    for limits in ({"max_steps": 7}, {"max_steps": 100, "max_minutes": 0.5}):
        for valid_step, seconds in ((5, 20.0), (7, 0.0)):
            progress = Progress(step=7, valid_step=valid_step)
            assert time_left(limits, progress, validation=20.0).seconds == seconds


def test_minutes_include_all_validations_but_the_last():
    """The clock of train.max_minutes runs during validations too, and fewer steps fit."""
    left = time_left({"max_steps": 1000, "max_minutes": 2.5}, validation=20.0)
    assert (left.steps, left.seconds) == (int(120 / (4 + 20 / 5)), 120.0 + 20.0)


def test_the_first_step_warms_up():
    """It is all that is known until the second; validations are no part of a step."""
    estimate = TimeEstimate(config_of({}))
    estimate.add_validation(50.0)  # one that an interrupted run made up
    estimate.start(100.0)
    estimate.count_step(160.0)
    assert estimate.step_seconds == 60.0
    estimate.count_step(162.0)
    assert estimate.step_seconds == 2.0
    estimate.add_validation(7.0)
    estimate.count_step(173.0)
    assert (estimate.step_seconds, estimate.validation_seconds) == (3.0, 7.0)


def run_at_terminal(*arguments: object) -> str:
    """Runs the program with stderr at a terminal of 80 columns, and gives what it wrote there."""
    reader, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    process = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=terminal)
    os.close(terminal)
    parts = []
    while True:
        try:
            parts.append(os.read(reader, 65536))
        except OSError:  # Linux: the last writer has closed the terminal
            break
        if not parts[-1]:
            break
    os.close(reader)
    assert process.wait() == 0
    return b"".join(parts).decode()


def screen_lines(output: str) -> list[str]:
    """Gives the lines that a terminal is left with, if none is wrapped."""
    lines = []
    for line in output.split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
        lines.append(shown.rstrip())
    return lines


@pytest.fixture(scope="module")
def terminal_output(corpus_dir, tmp_path_factory) -> str:
    """Gives what a diverging training shows at a terminal; its text is the longest."""
    folder = tmp_path_factory.mktemp("terminal")
    changes = {"optim__lr_scale": 1e30, "train__log_every": 7, "train__max_epochs": 1}
    values = tiny_values(
        corpus_dir, data__train="train[:900]", vocab__size=288, train__max_steps=100_000, **changes
    )
    config = write_toml(folder / "tiny.toml", values)
    return run_at_terminal("train", config, "--run", folder / "run")


def test_no_line_is_wrapped_or_doubled_at_80_columns(terminal_output):
    """The bar leaves room for an echoed ^C, and is left on the screen once, at the end.

    Sabotage: give the bar all columns; write messages past the bar.
    """
    drawn = re.findall(r"[\r\n](\d+/\d+ [^\r\n]*)", terminal_output)
    assert len(drawn) > 3 and max(map(len, drawn)) <= COLUMNS - 4
    lines = screen_lines(terminal_output)
    left = [line for line in lines if re.match(r"\d+/\d+ ", line)]
    assert len(left) == 1 and left[0] in lines[-2:]
    assert all(line.count(" left, ") <= 1 for line in lines)


def test_the_bar_shows_time_left_loss_speed_and_skipped_steps(terminal_output):
    """And it ends where the epochs end, not at max_steps."""
    *_, last = re.findall(r"\r(\d+)/(\d+) \S+ +([^\r\n]*)", terminal_output)
    done, total, text = last
    assert done == total and int(total) < 1000
    speed = r"[\d,]+ tokens/s"
    assert re.fullmatch(rf"00:00 left, loss not finite, {speed}, \d+ skipped\s*", text)
    drawn = re.findall(r"\r\d+/\d+ [^\r\n]+", terminal_output)
    assert any(re.search(rf"\d left, loss \d\.\d+, {speed}\s*$", line) for line in drawn)


def test_loss_is_shown_from_the_first_step_on(corpus_dir, tmp_path, monkeypatch, capsys):
    """Long before log_every, and what is shown is not recorded and changes nothing recorded.

    Sabotage: show nothing before the first log line; start the sums anew when they are shown.
    """
    config = tiny_config(corpus_dir, train__log_every=6, train__max_steps=14)
    train(config, tmp_path / "silent")
    show_messages()
    train(config, tmp_path / "seldom")
    assert re.findall(r"^step (\d+): loss", capsys.readouterr().err, re.M) == ["1"]
    monkeypatch.setattr("transformer_mt.training.time_left.SECONDS_BETWEEN_LINES", 0.0)
    train(config, tmp_path / "shown")
    lines = re.findall(
        r"^step (\d+): loss \d\.\d{3}, .* tokens/s, .*, \d\d:\d\d left$",
        capsys.readouterr().err,
        re.M,
    )
    assert lines == [str(step) for step in range(1, 15)]
    silent, shown = (
        list(map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines()))
        for name in ("silent", "shown")
    )
    assert [record["step"] for record in shown if record["kind"] == "train"] == [6, 12, 14]
    for left, right in zip(silent, shown, strict=True):
        assert all(left[key] == right[key] for key in left.keys() & {"loss", "step", "nll"})
