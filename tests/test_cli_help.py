"""Help texts, the list of keys, and that options reach what the commands call."""

import re
from importlib.metadata import version
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import assert_one_error, write_config

from transformer_mt.checkpoints.checkpoint import Checkpoint
from transformer_mt.cli.evaluate import ScoredGroup
from transformer_mt.config.keys import DEFAULTS, Config, OptimConfig
from transformer_mt.system.console import shows_progress
from transformer_mt.translation import options as opts

COMMANDS = "init train prepare translate evaluate tune config average export".split()
COMMANDS += "diagnose report compare plot".split()


@pytest.mark.parametrize("command", [*COMMANDS, "plot training", "plot attention"])
def test_help_is_plain_and_fits_a_terminal(command, call):
    """Only the lines of examples may be longer; no type is shown as Python names it."""
    code, out, err = call(*command.split(), "-h")
    text = out.decode().replace(" < in.de > ", "")
    assert code == 0 and not err and not re.search(r"<|\{|\]\.\.\.", text)
    assert all(len(line) <= 80 for line in text.splitlines() if "transformer-mt" not in line)


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
        ("transformer-mt translate run -o a -o b --prec", b"--precision"),
        ("transformer-mt translate run --precision ", b"fp32\nbf16\nfp16"),
    ):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        assert call().out.strip() == expected


def test_keys_without_docstrings(call, monkeypatch):
    """As with PYTHONOPTIMIZE=2. Sabotage: print None."""
    monkeypatch.setattr(OptimConfig, "__doc__", None)
    assert b"None" not in call("config", "optim").out


def test_config_lists_keys(call):
    """All of them, a section, or one; with default, allowed values, and what a resume does."""

    def listed(*arguments: str) -> list[str]:
        return re.findall(r"^(\w+\.\w+) = ", call("config", *arguments).out.decode(), re.MULTILINE)

    assert listed() == list(DEFAULTS)
    assert b"optim.\n" not in call("config", "-h").out  # which would be typed with the full stop
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
    message = "data.train.slice is not a key of the configuration (did you mean data.train?)"
    assert_one_error(call("config", "data.train.slice"), message)


def test_the_main_process_prints_the_estimate(corpus_dir, tmp_path, monkeypatch, call):
    config = write_config(tmp_path, corpus_dir)
    monkeypatch.setattr("transformer_mt.training.dry_run.dry_run", lambda *_: "estimate")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, out in (("0", b"estimate\n"), ("1", b"")):
        monkeypatch.setenv("RANK", rank)
        assert call("train", config, "--dry-run").out == out
    assert ScoredGroup(hypotheses=Path("nope")).check_output(None, False) is None  # in process 1


@pytest.mark.parametrize(
    "words", ["compare x", "train x.toml", "translate x", "plot attention x y -o z"]
)
def test_quiet_hides_progress(call, words):
    for options, is_shown in ([], True), (["-q"], False), (["--quiet"], False):
        assert call(*words.split(), *options).code == 2 and shows_progress() == is_shown


ALL = (
    "run other --ensemble --input a --output b --device cpu --precision bf16 --max-length 9 --raw"
    " --split never --beam-size 4 --length-penalty 2 --scores --batch-tokens 7 --n-best 3"
    " --format jsonl --input-format csv --key 2 --output-key 3"
)
MODEL = opts.LoadOptions("cpu", "bf16", 9, True, "never")
SEARCH = opts.SearchOptions(4, 2.0, True, 3, 7)
FILES = opts.FileOptions([Path("a")], output=Path("b"))
OUTPUT = opts.OutputOptions(True, "jsonl")
DRAWN = "--sample --top-k 5 --temperature 0.5 --seed 0"
GIVEN = opts.TranslateOptions(MODEL, SEARCH, OUTPUT, opts.InputOptions("csv", "2", "3"))
EXPORTED = "--raw --format transformers --license mit --quantization int8"
EXPORT, TRANSLATE = "translation.export.export", "translation.job.translate"
TUNE = (
    "--device cpu --precision bf16 --max-length 9 --raw --batch-tokens 7 --valid v --split s"
    " --beam-size 1,4 --length-penalty 2"
)
LOADED = opts.LoadOptions("cpu", "bf16", 9, True)
TUNED = [opts.SearchOptions(1, 0.0, batch_tokens=7), opts.SearchOptions(4, 2.0, batch_tokens=7)]
BUILD = "checkpoints.checkpoint.Checkpoint.build_model"
SEARCH_WITH = "translation.translation_model.TranslationModel.translator"
STEP = "step-00000001"


def drawing(sampling: opts.Sampling) -> list[object]:
    """Gives what `translate run` passes on."""
    search = opts.SearchOptions(sampling=sampling)
    options = opts.TranslateOptions(opts.LoadOptions(), search, opts.OutputOptions())
    return [[Path("run")], opts.FileOptions([]), options]


OPTIONS = [
    ("train CONFIG", "training.run.train", [7, Path("checkpoints/tiny")]),
    ("train CONFIG --run x --dry-run", "training.dry_run.dry_run", [7, Path("x")]),
    ("prepare CONFIG", "text.prepared.prepare", [7, None]),
    ("average x", "checkpoints.averaging.average", [Path("x"), 5, None]),
    ("average x --last 2 -o y", "checkpoints.averaging.average", [Path("x"), 2, Path("y")]),
    ("export RUN -o y", EXPORT, [STEP, Path("y"), None, False, "ctranslate2", None]),
    (f"export RUN -o y {EXPORTED}", EXPORT, [STEP, Path("y"), "int8", True, "transformers", "mit"]),
    (f"translate {ALL}", TRANSLATE, [[Path("run"), Path("other")], FILES, GIVEN]),
    (f"tune a {TUNE}", "evaluation.tuning.tune_search", [[Path("a")], ("v", "s"), TUNED, LOADED]),
    ("plot attention RUN a -o x.png --raw", BUILD, [True]),
    ("evaluate RUN --batch-tokens 7", SEARCH_WITH, [opts.SearchOptions(batch_tokens=7)]),
    ("translate run --sample", TRANSLATE, drawing(opts.Sampling())),
    (f"translate run {DRAWN}", TRANSLATE, drawing(opts.Sampling(5, 0.5, 0))),
]


@pytest.mark.parametrize(("words", "function", "given"), OPTIONS, ids=[o[0][:40] for o in OPTIONS])
def test_options_arrive(corpus_dir, copy_run, tmp_path, monkeypatch, call, words, function, given):
    """The seed stands for the whole configuration."""
    monkeypatch.setattr(f"transformer_mt.{function}", called := Mock(side_effect=SystemExit))
    config = f"{write_config(tmp_path, corpus_dir)} --set train.seed=7"
    call(*words.replace("CONFIG", config).replace("RUN", str(copy_run)).split())
    first, *others = called.call_args.args
    shown = {Config: lambda x: x.train.seed, Checkpoint: lambda x: x.path.name}
    assert [shown.get(type(first), lambda x: x)(first), *others] == given
