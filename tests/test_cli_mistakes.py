"""Every mistake ends in one line that names the culprit, exit code 2, and nothing written."""

import sys

import pytest
import torch
from conftest import tiny_config, tiny_values, write_copy_corpus, write_toml

from transformer_mt.cli import main
from transformer_mt.run import train


def call(monkeypatch, capsys, *arguments) -> tuple[int, str, str]:
    """Runs the program in this process; gives exit code, stdout and stderr."""
    monkeypatch.setattr(sys, "argv", ["transformer-mt", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0), *capsys.readouterr()


def assert_one_error(code: int, out: str, err: str, culprit: str) -> None:
    last = err.splitlines()[-1]
    assert code == 2 and out == ""
    assert last.startswith("error: ") and culprit in last
    assert err.count("error: ") == 1 and "Traceback" not in err


SETTINGS = [
    ("model.d_modl=3", "unknown key model.d_modl; did you mean model.d_model?"),
    ("modl.d_model=3", "unknown key modl; did you mean model?"),
    ("train.max_steps=many", "train.max_steps"),
    ("train.max_steps=1.5", "train.max_steps"),
    ("train.max_steps=-1", "train.max_steps"),
    ("optim.lr_scale=nan", "optim.lr_scale"),
    ("vocab.shared=1", "vocab.shared"),
    ("model.norm=between", "model.norm"),
    ("train.precision=fp8", "train.precision"),
    ("model.n_heads=5", "model.n_heads = 5"),
    ("vocab.shared=false", "model.tie_embeddings"),
    ("train.micro_batch_tokens=20", "train.micro_batch_tokens = 20"),
    ("data.tgt_lang=de", "data.tgt_lang"),
    ("optim.betas=[0.9, 1.5]", "optim.betas"),
    ("nonsense", "--set nonsense"),
    ("data.path=./nowhere", "data.path = ./nowhere"),
    ("data.train=nope", "nope.de"),
    ("data.train=train[", "train["),
    ("data.valid=nope", "nope.de"),
    ("data.src_lang=fr", "train.fr"),
    ("vocab.size=100000", "vocab.size = 100000"),
    ("vocab.size=20", "vocab.size = 20"),
    ("train.precision=fp16", "train.precision = fp16"),
]


@pytest.mark.parametrize(("setting", "culprit"), SETTINGS, ids=[s for s, _ in SETTINGS])
def test_a_wrong_setting(corpus_dir, tmp_path, monkeypatch, capsys, setting, culprit):
    """The key, split or file is named, and no checkpoint appears."""
    config = write_toml(tmp_path / "tiny.toml", tiny_values(corpus_dir))
    run = ["train", config, "--run", tmp_path / "run", "--set", setting]
    assert_one_error(*call(monkeypatch, capsys, *run), culprit)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_asked_for_and_absent(corpus_dir, tmp_path, monkeypatch, capsys):
    """No quiet run on the CPU."""
    config = write_toml(tmp_path / "tiny.toml", tiny_values(corpus_dir, train__device="cuda"))
    assert_one_error(*call(monkeypatch, capsys, "train", config), "cuda")


@pytest.mark.parametrize(
    ("text", "culprit"),
    [(b"[data\n", "line 1"), (b"a = '\xff'\n", "not UTF-8"), (None, "No such file"), (b"", "data")],
)
def test_a_file_that_is_no_configuration(tmp_path, monkeypatch, capsys, text, culprit):
    """The file is named, and the line where TOML has one."""
    path = tmp_path / "wrong.toml"
    if text is not None:
        path.write_bytes(text)
    result = call(monkeypatch, capsys, "train", path)
    assert_one_error(*result, culprit)
    assert str(path) in result[2]


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


@pytest.mark.parametrize("command", ["translate", "evaluate"])
@pytest.mark.parametrize("name", ["nowhere", "."])
def test_a_path_that_is_no_run(tmp_path, monkeypatch, capsys, command, name):
    """Missing, or a folder without checkpoints."""
    path = tmp_path / name
    assert_one_error(*call(monkeypatch, capsys, command, path), str(path))


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
    command, *options = arguments
    assert_one_error(*call(monkeypatch, capsys, command, copy_run, *options), culprit)


def test_usage(monkeypatch, capsys):
    """Help and version are data; an unknown option is a mistake."""
    code, out, _ = call(monkeypatch, capsys, "--help")
    assert code == 0 and "translate" in out
    code, out, _ = call(monkeypatch, capsys, "--version")
    assert code == 0 and out.startswith("transformer-mt ")
    assert call(monkeypatch, capsys, "train", "--nope")[0] == 2
    assert call(monkeypatch, capsys, "evaluate")[0] == 2
