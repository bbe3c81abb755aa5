"""Every mistake ends in one line that names the culprit, exit code 2, and nothing written."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import command, run_program, tiny_config, tiny_values, write_copy_corpus, write_toml

from transformer_mt.cli.program import main
from transformer_mt.training.run import train


def call(monkeypatch, capsys, *arguments) -> tuple[int, str, str]:
    """Runs the program in this process; gives exit code, stdout and stderr."""
    monkeypatch.setattr(sys, "argv", ["transformer-mt", *map(str, arguments)])
    try:
        main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    return code, *capsys.readouterr()


def assert_one_error(code: int, out: str, err: str, culprit: str) -> None:
    last = err.splitlines()[-1]
    assert code == 2 and out == ""
    assert last.startswith("error: ") and culprit in last
    assert err.count("error: ") == 1 and "Traceback" not in err


SETTINGS = [
    ("modl.d_model=3", "unknown section modl (did you mean model?)"),
    ("train.max_steps=many", "train.max_steps"),
    ("optim.lr_scale=nan", "optim.lr_scale"),
    ("data.path=./nowhere", "data.path = ./nowhere"),
    ("data.train=nope", "nope.de"),
    ("data.train=train[", "train["),
    ("data.valid=nope", "nope.de"),
    ("data.src_lang=fr", "validation.fr"),
    ("vocab.size=100000", "vocab.size = 100000 is too large for this text: set it to"),
    ("vocab.size=20", "vocab.size = 20 is too small for this text"),
    ("train.precision=fp16", "train.precision = fp16"),
    ("train.init_from=nowhere", "nowhere: no such run or checkpoint"),
    ("vocab.path=nope.model", "nope.model"),
]


@pytest.mark.parametrize(("setting", "culprit"), SETTINGS, ids=[s for s, _ in SETTINGS])
def test_a_wrong_setting(corpus_dir, tmp_path, monkeypatch, capsys, setting, culprit):
    """The key, split or file is named, and no checkpoint appears."""
    config = write_toml(tmp_path / "tiny.toml", tiny_values(corpus_dir))
    run = ["train", config, "--run", tmp_path / "run", "--set", setting]
    assert_one_error(*call(monkeypatch, capsys, *run), culprit)
    assert not (tmp_path / "run").exists()


def test_sides_of_different_length(tmp_path, monkeypatch, capsys):
    """Both counts are given."""
    write_copy_corpus(tmp_path / "corpus", {"train": 50, "validation": 5})
    with (tmp_path / "corpus" / "train.en").open("a") as file:
        file.write("one more\n")
    config = write_toml(tmp_path / "tiny.toml", tiny_values(tmp_path / "corpus"))
    assert_one_error(*call(monkeypatch, capsys, "train", config), "51")


def test_an_empty_training_set(tmp_path, monkeypatch, capsys):
    """The counts by reason are given."""
    write_copy_corpus(tmp_path / "corpus", {"train": 50, "validation": 5})
    values = tiny_values(tmp_path / "corpus", data__max_length=1, data__train="train[:9]")
    (tmp_path / "corpus" / "train.de").write_text("too long to train on\n" * 50)
    config = write_toml(tmp_path / "tiny.toml", values)
    result = call(monkeypatch, capsys, "train", config, "--set", "vocab.size=290")
    assert_one_error(*result, "no training pair is left of 9 (9 over 1 pieces)")


def test_a_run_of_another_configuration(corpus_dir, tmp_path, monkeypatch, capsys):
    """The keys that differ are named, and the run is left alone."""
    train(tiny_config(corpus_dir, train__max_steps=2), tmp_path / "run")
    capsys.readouterr()
    config = write_toml(tmp_path / "tiny.toml", tiny_values(corpus_dir, model__d_ff=64))
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    result = call(monkeypatch, capsys, "train", config, "--run", tmp_path / "run")
    assert_one_error(*result, "model.d_ff (was 128, is 64)")
    assert before == sorted(path.name for path in (tmp_path / "run").iterdir())


@pytest.mark.parametrize("verb", ["translate", "evaluate"])
@pytest.mark.parametrize("name", ["nowhere", "."])
def test_a_path_that_is_no_run(tmp_path, monkeypatch, capsys, verb, name):
    """Missing, or a folder without checkpoints."""
    path = tmp_path / name
    assert_one_error(*call(monkeypatch, capsys, verb, path), str(path))


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["translate", "--input", "nope.de"], "nope.de"),
        (["translate", "--device", "tpu"], "tpu"),
        (["evaluate", "--src", "nope.de"], "--ref"),
        (["evaluate", "--src", "nope.de", "--ref", "nope.en"], "nope.de"),
        (["evaluate", "--split", "nope"], "nope.de"),
    ],
)
def test_wrong_arguments(copy_run, monkeypatch, capsys, arguments, culprit):
    """The file, option or split is named."""
    verb, *options = arguments
    assert_one_error(*call(monkeypatch, capsys, verb, copy_run, *options), culprit)


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["trian"], "'train'"),
        (["train", "--nope"], "--nope"),
        (["translate", "run", "--bem-size", "4"], "--beam-size"),
        (["translate", "run", "--beam-size", "0"], "--beam-size"),
        (["translate", "run", "--beam-size", "2", "--n-best", "3"], "--n-best 3"),
        (["evaluate"], "name a run"),
        (["evaluate", "run", "--hypotheses", "nope.en"], "nope.en: no such file"),
        (["evaluate", "run", "--length-penalty", "x"], "--length-penalty"),
        (["average", "run", "--last", "0"], "--last"),
        (["average", "nowhere", "--last", "2"], "nowhere"),
    ],
)
def test_wrong_usage(monkeypatch, capsys, arguments, culprit):
    """The option or command is named, with a near match where there is one."""
    assert_one_error(*call(monkeypatch, capsys, *arguments), culprit)


def test_a_beam_wider_than_the_vocabulary(copy_run, monkeypatch, capsys):
    """The widest that can be searched is named."""
    result = call(monkeypatch, capsys, "translate", copy_run, "--beam-size", "200")
    assert_one_error(*result, "beam size 200: choose 1 to 146")


def test_no_permission_to_write(corpus_dir, tmp_path, monkeypatch, capsys):
    """Found out before anything is learned: a file in the way, or a folder of somebody else."""
    config = write_toml(tmp_path / "tiny.toml", tiny_values(corpus_dir))
    result = call(monkeypatch, capsys, "train", config, "--run", config / "run")
    assert_one_error(*result, f"{config}: not a directory")
    monkeypatch.setattr("os.access", lambda path, mode: not mode & os.W_OK)
    result = call(monkeypatch, capsys, "train", config, "--run", tmp_path / "a" / "run")
    assert_one_error(*result, f"{tmp_path}: not writable")
    assert not (tmp_path / "a").exists() and "learning" not in result[2]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk(copy_run):
    """Standard output that takes nothing ends in one line too."""
    for arguments in (["translate", copy_run], ["--help"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                command(*arguments), input=b"a b\n", stdout=full, stderr=subprocess.PIPE, timeout=60
            )
        last = done.stderr.decode().splitlines()[-1]
        assert done.returncode == 2 and last.startswith("error: ") and "No space left" in last
        assert b"Traceback" not in done.stderr


def test_out_of_memory(corpus_dir, tmp_path):
    """Found out before the first step: the batch's shape and the key to lower are named.

    Sabotage: try no batch before the first step.
    """
    values = tiny_values(corpus_dir, model__d_ff=100_000, train__batch_tokens=20_000)
    values["train"]["micro_batch_tokens"] = 30_000
    config, run = write_toml(tmp_path / "tiny.toml", values), tmp_path / "run"
    limit = 6 * 1024**3
    done = subprocess.run(
        command("train", config, "--run", run),
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        timeout=120,
    )
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and last.startswith("error: out of memory on cpu with ")
    assert "sentences of" in last and "train.micro_batch_tokens = 30000" in last
    assert "Traceback" not in done.stderr and not (run / "metrics.jsonl").read_text()


def test_usage(monkeypatch, capsys):
    """Help and version are data."""
    for arguments in ((), ("--help",)):
        code, out, err = call(monkeypatch, capsys, *arguments)
        assert code == 0 and not err
        assert (
            "\n  transformer-mt translate checkpoints/wmt16-base --input in.de --output out.en\n"
            in out
        )
    code, out, _ = call(monkeypatch, capsys, "--version")
    assert code == 0 and out.startswith("transformer-mt ") and f"torch {torch.__version__}" in out


def test_help_is_quick_and_needs_no_torch():
    """Nor do the mistakes of `init`. Sabotage: import torch at the top of cli/program.py."""
    loaded = "{'torch', 'datasets', 'numpy'} & set(sys.modules)"
    modules = "transformer_mt.cli.program, transformer_mt.training.new_config"
    code = f"import sys, {modules}; assert not {loaded}"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_piped_output_is_plain(corpus_dir, tmp_path):
    """No bar, no colour and no carriage return where stderr is no terminal."""
    values = tiny_values(corpus_dir, train__max_steps=2, valid__every=2)
    config = write_toml(tmp_path / "tiny.toml", values)
    done = run_program("train", config, "--run", tmp_path / "run")
    assert done.returncode == 0 and done.stdout == b""
    assert b"\x1b" not in done.stderr and b"\r" not in done.stderr
    assert b"step 1: loss" in done.stderr and b"validation BLEU" in done.stderr
