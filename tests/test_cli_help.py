"""Help texts, and the list of keys."""

import re

import pytest
from test_cli_errors import assert_one_error, call

from transformer_mt.config.keys import Config
from transformer_mt.config.reference import describe_keys

COMMANDS = (
    "init",
    "train",
    "prepare",
    "translate",
    "evaluate",
    "config",
    "average",
    "export",
    "report",
    "plot",
)
KEYS = [
    f"{section}.{key}"
    for section, field in Config.model_fields.items()
    for key in field.annotation.model_fields
]


@pytest.mark.parametrize("command", [*COMMANDS, "plot training", "plot attention"])
def test_help_is_plain_and_fits_a_terminal(command, monkeypatch, capsys):
    """Only the lines of examples may be longer; no type is shown as Python names it."""
    code, out, err = call(monkeypatch, capsys, *command.split(), "-h")
    assert code == 0 and not err
    assert not re.search(r"<|\{|\]\.\.\.", out.replace(" < in.de > ", ""))
    assert all(len(line) <= 80 for line in out.splitlines() if "transformer-mt" not in line)


def test_the_summary_of_a_command_is_not_cut(monkeypatch, capsys):
    """`transformer-mt -h` shows each summary whole."""
    _, out, _ = call(monkeypatch, capsys, "-h")
    summaries = out.split("Commands:")[1]
    assert [line.split()[0] for line in summaries.strip().splitlines()] == list(COMMANDS)
    assert "..." not in summaries


def test_choices_are_shown_and_enforced(monkeypatch, capsys):
    """A value that is no choice is refused, and the choices are named."""
    _, out, _ = call(monkeypatch, capsys, "evaluate", "-h")
    assert "--precision [fp32|bf16|fp16]" in out and "--device [auto|cpu|cuda]" in out
    result = call(monkeypatch, capsys, "evaluate", "run", "--precision", "fp8")
    assert_one_error(*result, "--precision")
    assert all(name in result[2] for name in ("fp8", "fp32", "bf16", "fp16"))


def test_options_of_evaluate_are_grouped(monkeypatch, capsys):
    """What to score, with what, and what to report. Sabotage: a single section."""
    _, out, _ = call(monkeypatch, capsys, "evaluate", "-h")
    headings = re.findall(r"^(\w.*):$", out, re.MULTILINE)
    assert headings == [
        "Arguments",
        "What to score",
        "Model and search",
        "What to report",
        "Options",
    ]


def test_short_options(monkeypatch, capsys):
    """-V, -q, -i and -o do what their long names do."""
    assert call(monkeypatch, capsys, "-V")[1].startswith("transformer-mt ")
    _, out, _ = call(monkeypatch, capsys, "translate", "-h")
    assert all(names in out for names in ("-i, --input", "-o, --output", "-q, --quiet"))


def test_every_key_has_a_meaning():
    """Sabotage: delete the docstring of a key."""
    assert not [key for key in KEYS if describe_keys(key).endswith("\n")]


def test_config_lists_keys(monkeypatch, capsys):
    """All of them, a section, or one; with default, allowed values, and what a resume does."""
    _, out, _ = call(monkeypatch, capsys, "config")
    assert re.findall(r"^(\w+\.\w+) = ", out, re.MULTILINE) == KEYS
    _, out, _ = call(monkeypatch, capsys, "config", "valid")
    assert re.findall(r"^(\w+\.\w+) = ", out, re.MULTILINE) == ["valid.every", "valid.patience"]
    _, out, _ = call(monkeypatch, capsys, "config", "model.norm")
    assert out.startswith(
        'model.norm = "post"  (one of "post", "pre", "sublayer"; fixed for a run)'
    )
    result = call(monkeypatch, capsys, "config", "optim.lrscale")
    assert_one_error(
        *result, "optim.lrscale is not a key of the configuration (did you mean optim.lr_scale?)"
    )
