"""Every mistake ends in one line that names the culprit, exit code 2, and nothing written."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import Called, assert_one_error, command, refuses, write_config

from transformer_mt.cli.program import app
from transformer_mt.errors import ConfigError
from transformer_mt.system.device import OUT_OF_MEMORY_ADVICE
from transformer_mt.system.signals import handle_signals

GPU_IS_FULL = f"error: out of memory: {OUT_OF_MEMORY_ADVICE} (CUDA error: out of memory)\n"
NO_MEMORY = "error: out of memory: free memory, or read less text or smaller batches at once\n"
NO_THREAD = "cannot start a thread: raise the process limit (ulimit -u), or end other programs"
TEXT = str(Path(__file__).parents[1] / "data" / "sample" / "test.de")
SETTINGS = [
    ("data.train=nope", "nope.de"),
    ("data.valid=nope", "nope.de"),
    ("data.src_lang=fr", "validation.fr"),
    ("vocab.size=100000", "vocab.size = 100000 is too large for this text: set it to"),
    ("train.precision=fp16", "train.precision = fp16"),
]


@pytest.mark.parametrize(("setting", "culprit"), SETTINGS, ids=[s for s, _ in SETTINGS])
def test_a_wrong_setting(corpus_dir, tmp_path, call, setting, culprit):
    """The key, split or file is named, and no checkpoint appears."""
    config = write_config(tmp_path, corpus_dir)
    run = ["train", config, "--run", tmp_path / "run", "--set", setting]
    assert_one_error(call(*run), culprit)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["evaluate", "RUN", "--src", "nope.de"], "--ref"),
        (["evaluate", "RUN", "--src", "nope.de", "--ref", "nope.en"], "nope.de"),
        (["evaluate", "RUN", "--split", "nope"], "nope.de"),
        (["trian"], "'train'"),
        (["translate", "RUN", "-onope/a", "--output=nope/b"], "--output takes one value, but was"),
        (["train", "x.toml", "--run", "a", "--run", "b"], "--run takes one value"),
        (["train", "nope/x.toml", "--run", ""], "--run is empty: name a file or folder"),
        (["translate", "RUN", "-i", TEXT, "-i", "", "--output-dir", "nope/a"], "--input is empty"),
        (["translate", "RUN", "", "--output-dir", "nope/a"], "an argument is empty: name a file"),
        (["plot"], "Missing command. (see transformer-mt plot --help)"),
        (["train", "--nope"], "--nope"),
        (["translate", "run", "--bem-size", "4"], "--beam-size"),
        (["translate", "x", "--precision", "fp8"], "'fp8' is not one of 'fp32', 'bf16', 'fp16'. ("),
        (["translate", "run", "--beam-size", "2", "--n-best", "3"], "--n-best 3"),
        (["translate", "run", "--n-best", "2"], "--n-best 2 needs --beam-size 2"),
        (["translate", "/"], "/: "),
        (["evaluate"], "name a run"),
        (["evaluate", "nowhere"], "nowhere"),
        (["evaluate", "run", "--hypotheses", "nope.en"], "nope.en: no such file"),
        (["evaluate", "run", "--hypotheses", "-"], "-: no such file; stdin is /dev/stdin"),
        (["evaluate", "run", "--hypotheses", TEXT, "--save", TEXT], "de: is also an input"),
        (["evaluate", "run", "--baseline", TEXT, "--save", TEXT], "de: is also an input"),
        (["evaluate", "run", "--src", TEXT, "--ref", "x", "--save", TEXT], "de: is also an input"),
        (["evaluate", "run", "--src", "x", "--ref", TEXT, "--save", TEXT], "de: is also an input"),
        (["evaluate", "run", "--length-penalty", "x"], "--length-penalty"),
        (["evaluate", "run", "--length-penalty", "11"], "length penalty 11: choose 0 to 10"),
        (["tune", "run", "--length-penalty", "1,nan"], "length penalty nan: choose 0 to 10"),
        (["tune", "run", "--beam-size", "1", "--length-penalty", "11"], "length penalty 11: choo"),
        (["translate", TEXT, "RUN"], "de: no such run or checkpoint; name the run first"),
        (["init", "", "--src", TEXT, "--tgt", TEXT, "--tgt-lang", "en"], ".toml: has no name"),
        (["tune", "run", "--beam-size", "1,x"], "--beam-size and --length-penalty: write numbers"),
        (["tune", "RUN", "--beam-size", "0"], "beam size 0: choose 1 to "),
        (["evaluate", "run", "other", "--save", "out"], "--save works with one run or --ensemble"),
        (["evaluate", "run", "other", "--hypotheses", "h"], "--hypotheses works with one run"),
        (["evaluate", "RUN", "--json", "--samples", "2"], "leave out --samples or --json"),
        (["evaluate", "nowhere", "--overwrite"], "--overwrite needs --save"),
        *(
            (["translate", "RUN", *words.split()], message)
            for words, message in (
                ("--top-k 5", "--top-k has an effect only on sampling: add --sample"),
                ("--temperature 0.5", "--temperature has an effect only"),
                ("--seed 1", "--seed has an effect only"),
                ("--sample --beam-size 4", "--sample draws one translation per line"),
                ("--sample --n-best 2", "--sample draws one translation per line"),
                ("--sample --temperature 0", "temperature 0: choose more than 0 and at most 100"),
                ("--sample --temperature 100.5", "temperature 100.5: choose more than 0 and at"),
                ("--sample --seed 4294967296", "seed 4294967296: choose 0 to 4294967295"),
            )
        ),
    ],
)
def test_wrong_usage(copy_run, call, arguments, culprit):
    """The file, run, option, split or command is named, with a near match where there is one."""
    replaced = (copy_run if argument == "RUN" else argument for argument in arguments)
    assert_one_error(call(*replaced), culprit)


@pytest.mark.parametrize(
    "words",
    ["init new --src LINK --tgt a.en", "compare LINK", "plot training LINK -o x.png", "tune LINK"],
)
def test_a_link_to_itself(tmp_path, monkeypatch, call, words):
    """Sabotage: `Path.resolve`, which raises RuntimeError for it until Python 3.12."""
    monkeypatch.chdir(tmp_path)
    Path("a.de").symlink_to("a.de")
    assert_one_error(call(*words.replace("LINK", "a.de").split()), "a.de: ")


def test_a_wrong_environment_variable(copy_run, call, monkeypatch):
    """Before anything is translated."""
    for seed in ("abc", "-5", ""):
        monkeypatch.setenv("SACREBLEU_SEED", seed)
        assert_one_error(call("evaluate", copy_run), f"SACREBLEU_SEED = {seed}: set a number")


@pytest.mark.parametrize(
    ("words", "smallest", "names"),
    [
        ("translate x", 1, "beam-size n-best batch-tokens max-length top-k"),
        ("translate x", 0, "length-penalty seed"),
        ("evaluate x", 0, "samples"),
        ("average x", 1, "last"),
        ("plot attention x y -o z.png", 1, "layer"),
    ],
)
def test_numbers_that_are_too_small(call, words, smallest, names):
    for name in names.split():
        called = call(*words.split(), f"--{name}", smallest - 1)
        message = f"'--{name}': Input should be greater than or equal to {smallest} ("
        assert_one_error(called, message)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize(
    "name",
    """diagnose evaluation.diagnosis.diagnose, evaluate evaluation.evaluate.evaluate_systems,
    average checkpoints.averaging.average, translate translation.job.find_models""".split(","),
)
def test_a_signal_ends_a_command(monkeypatch, call, name, number, code):
    """By the code that shells expect. Sabotage: leave SIGTERM alone; let Typer make the code."""
    stop = Mock(side_effect=lambda *_, **__: signal.raise_signal(number))
    command, function = name.split()
    monkeypatch.setattr(f"transformer_mt.{function}", stop)
    with handle_signals(lambda *_: None):
        assert call(command, "x") == (code, b"", "")


def test_what_works_in_one_process(monkeypatch):
    """The files, which are missing here, are not looked for."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    commands = "init x --src a.de --tgt a.en", "prepare x", "export x -o y"
    for words in (*commands, "diagnose x", "report x -o y", "compare x", "average x"):
        message = f"^{words.split()[0]} works in one process: start it without torchrun$"
        refuses(ConfigError, message, app, words.split(), "transformer-mt", standalone_mode=False)


def test_no_permission_to_write(corpus_dir, tmp_path, monkeypatch, call):
    """In the folder of somebody else: found out before anything is learned."""
    config = write_config(tmp_path, corpus_dir)
    monkeypatch.setattr("os.access", lambda path, mode: not mode & os.W_OK)
    result = call("train", config, "--run", tmp_path / "a" / "run")
    assert_one_error(result, f"{tmp_path}: not writable")
    assert not (tmp_path / "a").exists() and "learning" not in result.err


def test_a_current_folder_that_was_deleted(tmp_path, monkeypatch, call):
    """Found out before libraries fail. Sabotage: do not look."""
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert_one_error(call("compare", tmp_path / "run"), "the current folder was deleted")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk(copy_run):
    """Standard output that takes nothing ends in one line too."""
    for arguments in (["translate", copy_run], ["--help"]):
        with open("/dev/full", "wb") as full:
            streams = {"stdout": full, "stderr": subprocess.PIPE}
            done = subprocess.run(command(*arguments), input=b"a b\n", timeout=60, **streams)
        called = Called(done.returncode, b"", done.stderr.decode())
        assert_one_error(called, "No space left")


def test_a_reader_that_has_ended():
    """SIGPIPE ends the process also if its output was buffered until the end."""
    reading, writing = os.pipe()
    os.close(reading)
    streams = {"stdout": writing, "stderr": subprocess.PIPE}
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(command("config", "optim.muon"), env=buffered, timeout=60, **streams)
    os.close(writing)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left", "x"), "error: x: No space left\n"),
        (OSError(28, "No space left"), "error: output: No space left\n"),
        (OSError("odd"), "error: output: odd\n"),
        (RuntimeError("CUDA error: out of memory\nFor programmers"), GPU_IS_FULL),
        (RuntimeError("can't start new thread"), f"error: {NO_THREAD}\n"),
        (RuntimeError("Resource temporarily unavailable"), f"error: {NO_THREAD}\n"),
        (MemoryError(), NO_MEMORY),
        (ImportError("libx.so: failed"), "error: cannot load a library: libx.so: failed\n"),
    ],
)
def test_an_error_of_the_system(monkeypatch, call, error, message):
    """Its file is named, or that of the output; without memory, PyTorch is not even asked."""
    monkeypatch.setattr("transformer_mt.cli.program.app", Mock(side_effect=error))
    monkeypatch.setattr("os.dup2", Mock())  # Python's own flush of stdout at the end
    if isinstance(error, MemoryError):
        monkeypatch.setitem(sys.modules, "transformer_mt.system.device", None)
    assert call() == (2, b"", message)
