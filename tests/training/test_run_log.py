"""What a training shows: the bar at a terminal, lines elsewhere."""

import fcntl
import json
import os
import re
import struct
import subprocess
import termios

import pytest
from conftest import command, tiny_config, tiny_values, write_toml

from transformer_mt.system.console import show_messages
from transformer_mt.training.run import train

COLUMNS = 80


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
    """Gives the lines that a terminal is left with."""
    lines, column = [""], 0
    for character in output:
        if character == "\n":
            lines, column = [*lines, ""], 0
        elif character == "\r":
            column = 0
        else:
            if column == COLUMNS:
                lines, column = [*lines, ""], 0
            line = lines[-1]
            lines[-1] = line[:column] + character + line[column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]


@pytest.fixture(scope="module")
def terminal_output(corpus_dir, tmp_path_factory) -> str:
    """Gives what a diverging training shows at a terminal; its figures are the longest."""
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


def train_quietly_or_not(config, run_dir, monkeypatch, seconds_between_lines: float) -> list[dict]:
    monkeypatch.setattr(
        "transformer_mt.training.run_log.SECONDS_BETWEEN_LINES", seconds_between_lines
    )
    train(config, run_dir)
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_loss_is_shown_from_the_first_step_on(corpus_dir, tmp_path, monkeypatch, capsys):
    """Long before log_every, and what is shown is not recorded and changes nothing recorded.

    Sabotage: show nothing before the first log line; start the sums anew when they are shown.
    """
    config = tiny_config(corpus_dir, train__log_every=6, train__max_steps=14)
    silent = train_quietly_or_not(config, tmp_path / "silent", monkeypatch, 0.0)
    show_messages()
    shown = train_quietly_or_not(config, tmp_path / "shown", monkeypatch, 0.0)
    lines = re.findall(
        r"^step (\d+): loss \d\.\d{3}, .* tokens/s, .*, \d\d:\d\d left$",
        capsys.readouterr().err,
        re.M,
    )
    assert lines == [str(step) for step in range(1, 15)]
    assert [record["step"] for record in shown if record["kind"] == "train"] == [6, 12, 14]
    for left, right in zip(silent, shown, strict=True):
        assert all(left[key] == right[key] for key in left.keys() & {"loss", "step", "nll"})
    train_quietly_or_not(config, tmp_path / "seldom", monkeypatch, 1000.0)
    assert re.findall(r"^step (\d+): loss", capsys.readouterr().err, re.M) == ["1"]


def test_the_time_left_of_a_line_knows_the_minutes(corpus_dir, tmp_path, monkeypatch, capsys):
    """Not only max_steps. Sabotage: divide the steps that are left by the speed."""
    show_messages()
    config = tiny_config(corpus_dir, train__max_minutes=0.02, train__max_steps=100_000)
    train_quietly_or_not(config, tmp_path / "run", monkeypatch, 0.0)
    left = re.findall(r"^step .* (\d\d):(\d\d) left$", capsys.readouterr().err, re.M)
    assert left and all(minutes == "00" and int(seconds) < 3 for minutes, seconds in left)
