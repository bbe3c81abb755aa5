"""Of the files that a model names, only those of a text that its user has trained on are read."""

import json
import os
import re
from pathlib import Path

import pytest
from conftest import assert_one_error, refuses, replace_file, tiny_config

from transformer_mt.checkpoints.layout import CONFIG
from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.config.keys import DataConfig
from transformer_mt.config.splits import NamedSplit, SplitColumns, SplitFiles
from transformer_mt.errors import DataError
from transformer_mt.system.files import canonical_json
from transformer_mt.text.trained_here import readable_corpus, remember_text
from transformer_mt.training.run import train


@pytest.fixture
def record(tmp_path, monkeypatch) -> Path:
    """Gives the path of the record of a user who has never trained."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "transformer-mt" / "texts"


def test_a_text_is_known_once_it_was_trained_on(record, tmp_path):
    """To its user alone, who finds it on one line. Sabotage: compare the folders alone."""
    folder = tmp_path / "ü\n\u2028"
    folder.mkdir()
    data = DataConfig(path=str(folder), test=SplitFiles(src="a", tgt="b"))
    for each in (data, data, DataConfig(path="other")):
        remember_text(each)
    line, _ = record.read_text().splitlines()
    assert json.loads(line)[0] == data.path and line.isascii()
    assert os.stat(record.parent).st_mode & 0o777 == 0o700
    record.write_bytes(b"\xff\n" + record.read_bytes())  # damaged; the other lines hold
    assert readable_corpus(data, data.test) is data
    for key in ("path", "train", "valid", "test", "cache_dir", "prepared_dir"):
        changed = data.model_copy(update={key: str(tmp_path)})
        message = "not read, since a model names it"
        refuses(DataError, message, readable_corpus, changed, changed.test)


def test_a_record_that_cannot_be_read_knows_no_text(tmp_path, monkeypatch):
    """As in another user's home. A name that is too long cannot be read by root either."""
    monkeypatch.setenv("XDG_STATE_HOME", "x" * 300)
    data = DataConfig(path=str(tmp_path))
    remember_text(data)
    refuses(DataError, "not read, since a model names it", readable_corpus, data, "test")


def test_a_user_without_a_home(tmp_path, monkeypatch, caplog):
    """As in a container: no folder `~` is made, nor read. Sabotage: expand `~` alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", str)
    data = DataConfig(path=str(tmp_path))
    remember_text(data)
    assert "set HOME or XDG_STATE_HOME; `evaluate` will ask" in caplog.text
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "~" / ".local" / "state"))
    remember_text(data)
    monkeypatch.delenv("XDG_STATE_HOME")
    refuses(DataError, "not read, since a model names it", readable_corpus, data, "test")


def test_files_of_a_strangers_model_are_not_read(record, tmp_path):
    """Neither in a folder nor beside a name of the hub, which may be read, in default folders."""
    secret, default = str(tmp_path / "secret"), DataConfig(path="wmt/wmt16")
    for split in (
        *("/etc/passwd", "~/secret.tmx", "$HOME/secret.tmx", "$HOME", "../../secret"),
        NamedSplit(name="/etc/x.jsonl"),
        SplitFiles(src="/etc/passwd", tgt="/etc/passwd"),
        SplitColumns(file="/etc/passwd.tsv", src=1, tgt=2),
        [SplitFiles(src="a", tgt="~/b"), "train"],
    ):
        refuses(DataError, "not read", readable_corpus, default, split)
    for own_folder in (tmp_path, Path(os.path.relpath(tmp_path))):
        own, option = DataConfig(path=str(own_folder)), f"--split {own_folder.absolute()}/test"
        message = f"data.path = {own.path}, .*; name the text by {option}"
        message += r" \(or --valid of tune\), or"
        refuses(DataError, f"{message} repeat", readable_corpus, own, "test", has_option=True)
    message = "; repeat the command that trained the model, which"  # `train` has no such option
    refuses(DataError, message, readable_corpus, own, "test")
    hub = DataConfig(path="wmt/wmt16", cache_dir=secret, prepared_dir=secret)
    assert readable_corpus(hub, "test") == default and not record.exists()


def test_a_strangers_model_is_evaluated_on_what_is_named(copy_run, corpus_dir, tmp_path, call):
    """An edited configuration is a stranger's. Sabotage: read what the configuration names."""
    model, secret = tmp_path / "model", tmp_path / "secret"
    call("average", copy_run, "--last", 1, "-o", model)
    secret.write_text("secret\n")
    config = find_checkpoint(model).config.model_dump(mode="json")
    config["data"]["test"] = {"src": str(secret), "tgt": str(secret)}
    replace_file(model, CONFIG, canonical_json(config))
    called = call("evaluate", model)
    assert_one_error(called, str(secret))
    assert "; name the text by --src and --ref, or repeat" in called.err
    config["data"] |= {"test": "test", "cache_dir": str(secret)}
    replace_file(model, CONFIG, canonical_json(config))
    called = call("evaluate", model)
    assert_one_error(called, f"name the text by --split {corpus_dir}/test")
    assert not (model / "evaluations").exists()
    option = re.search(r"--split \S+", called.err)[0].split()
    for words in (option, ("--src", secret, "--ref", secret)):
        assert call("evaluate", model, *words).code == 0
    titles = [json.loads(path.read_text())["test_set"] for path in model.glob("evaluations/*")]
    assert len(titles) == 2 and not any(str(tmp_path) in title for title in titles)
    assert any(title.startswith(f"{corpus_dir.name}, split test (") for title in titles)


def test_training_makes_its_text_known(corpus_dir, record, tmp_path, call, caplog):
    """At the end of a run, too. Sabotage: record it before the first step alone."""
    config = tiny_config(corpus_dir, train__max_steps=1, valid__every=9)
    train(config, tmp_path / "run")
    assert call("evaluate", tmp_path / "run", "--split", "valid").code == 0
    record.unlink()
    assert_one_error(call("evaluate", tmp_path / "run"), "not read")
    train(config, tmp_path / "run")
    assert call("evaluate", tmp_path / "run").code == 0
    record.unlink()
    record.mkdir()
    caplog.clear()
    train(config, tmp_path / "run")
    [warning] = [text for text in caplog.messages if str(record) in text]
    assert warning.endswith("; `evaluate` will ask for the test text")
