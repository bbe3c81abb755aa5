"""Help texts, the list of keys, and that options reach what the commands call."""

import re
from importlib.metadata import version
from unittest.mock import Mock

import pytest
from conftest import assert_one_error, write_config

from transformer_mt.config.keys import DEFAULTS, Config
from transformer_mt.system.console import shows_progress

COMMANDS = "init train prepare translate evaluate config average export".split()
COMMANDS += "diagnose report compare plot".split()


@pytest.mark.parametrize("command", [*COMMANDS, "plot training", "plot attention"])
def test_help_is_plain_and_fits_a_terminal(command, call):
    """Only the lines of examples may be longer; no type is shown as Python names it."""
    code, out, err = call(*command.split(), "-h")
    text = out.decode().replace(" < in.de > ", "")
    assert code == 0 and not err
    assert not re.search(r"<|\{|\]\.\.\.", text)
    assert all(len(line) <= 80 for line in text.splitlines() if "transformer-mt" not in line)


def test_options_are_listed_by_group(call):
    """After the arguments; those of no group come last."""
    usage, *text = call("translate", "--help").out.decode().splitlines()
    assert usage == "Usage: transformer-mt translate [OPTIONS] RUN_OR_CHECKPOINT..."
    groups = [line for line in text if re.fullmatch(r"\w.*:", line)]
    assert groups == ["Arguments:", "Input and output:", "Model and search:", "Options:"]
    [line] = [line.split() for line in text if line.startswith("  RUN_OR_CHECKPOINT")]
    assert line[1:4] == ["A", "run", "(its"]


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_the_commands_are_listed(arguments, call):
    code, out, err = call(*arguments)
    examples, summaries = out.decode().split("Commands:")
    assert code == 0 and not err and "\n  transformer-mt translate checkpoints/" in examples
    assert [line.split()[0] for line in summaries.strip().splitlines()] == COMMANDS
    assert "..." not in summaries


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_the_version(option, call):
    assert call(option).out.decode().endswith(f" (torch {version('torch')})\n")


def test_a_shell_completes_options_and_their_values(call, monkeypatch):
    monkeypatch.setenv("_TRANSFORMER_MT_COMPLETE", "complete_bash")
    for words, expected in (
        ("transformer-mt translate run --prec", b"--precision"),
        ("transformer-mt translate run --precision ", b"fp32\nbf16\nfp16"),
    ):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        assert call().out.strip() == expected


def test_config_lists_keys(call):
    """All of them, a section, or one; with default, allowed values, and what a resume does."""

    def listed(*arguments: str) -> list[str]:
        return re.findall(r"^(\w+\.\w+) = ", call("config", *arguments).out.decode(), re.MULTILINE)

    assert listed() == list(DEFAULTS)
    assert call("config", "valid").out.decode().splitlines()[:6] == [
        "[valid]  Validation by greedy translation of `data.valid`.",
        "",
        "valid.every = 1000  (1 or more; may change on resume)",
        "    Steps between validations.",
        "",
        "valid.patience = 0  (0 or more; may change on resume)",
    ]
    norm = b'model.norm = "post"  (one of "post", "pre", "sublayer"; fixed for a run)'
    assert call("config", "model.norm").out.startswith(norm)
    message = "optim.lrscale is not a key of the configuration (did you mean optim.lr_scale?)"
    assert_one_error(call("config", "optim.lrscale"), message)


def test_the_main_process_prints_the_estimate(corpus_dir, tmp_path, monkeypatch, call):
    config = write_config(tmp_path, corpus_dir)
    monkeypatch.setattr("transformer_mt.training.dry_run.dry_run", lambda *_: "estimate")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, out in (("0", b"estimate\n"), ("1", b"")):
        monkeypatch.setenv("RANK", rank)
        assert call("train", config, "--dry-run").out == out


@pytest.mark.parametrize(
    "words", ["compare x", "train x.toml", "translate x", "plot attention x y -o z"]
)
def test_quiet_hides_progress(call, words):
    for options, is_shown in ([], True), (["-q"], False), (["--quiet"], False):
        assert call(*words.split(), *options).code == 2
        assert shows_progress() == is_shown


@pytest.mark.parametrize(
    ("words", "function", "given"),
    [
        ("train CONFIG", "training.run.train", "7 checkpoints/tiny"),
        ("train CONFIG --run x --dry-run", "training.dry_run.dry_run", "7 x"),
        ("prepare CONFIG", "text.prepared.prepare", "7 None"),
        ("average x", "checkpoints.averaging.average", "x 5 None"),
        ("average x --last 2 -o y", "checkpoints.averaging.average", "x 2 y"),
    ],
)
def test_options_reach_the_functions(
    corpus_dir, tmp_path, monkeypatch, call, words, function, given
):
    """The seed stands for the whole configuration."""
    monkeypatch.setattr(f"transformer_mt.{function}", called := Mock(side_effect=SystemExit))
    config = f"{write_config(tmp_path, corpus_dir)} --set train.seed=7"
    call(*words.replace("CONFIG", config).split())
    taken = (each.train.seed if isinstance(each, Config) else each for each in called.call_args[0])
    assert " ".join(map(str, taken)) == given
