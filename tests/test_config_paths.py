"""Paths in a configuration: where they are looked for, what is remembered, what is expanded."""

import json
from pathlib import Path

import pytest
from conftest import assert_one_error, refuses, tiny_values, write_copy_corpus, write_toml

from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.config.changes import without_folder
from transformer_mt.config.loading import load_config
from transformer_mt.errors import CheckpointError, DataError
from transformer_mt.text.prepared import prepare
from transformer_mt.training.run import train
from transformer_mt.training.validation import Validation

KEYS = "data.path", "vocab.path", "train.init_from"


def values_of(config) -> list[str | None]:
    return [config.data.path, config.vocab.path, config.train.init_from]


@pytest.fixture
def places(tmp_path, monkeypatch) -> dict[str, Path]:
    """Gives a project with a corpus and a configuration, and an empty working directory."""
    write_copy_corpus(tmp_path / "project" / "text", {"train": 300, "validation": 5, "test": 5})
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    values = tiny_values(Path("text"), train__max_steps=1, data__prepared_dir="prepared")
    config = write_toml(tmp_path / "project" / "tiny.toml", values)
    return {"project": tmp_path / "project", "work": tmp_path / "work", "config": config}


def test_a_working_directory_with_a_dollar_sign(tmp_path, monkeypatch, call):
    """Its name is no variable. Sabotage: expand a path that is absolute already."""
    folder = tmp_path / "my $HOME dir"
    write_copy_corpus(folder, {"train": 300, "validation": 5, "test": 5})
    write_toml(folder / "tiny.toml", tiny_values(Path(".")))
    monkeypatch.chdir(folder)
    assert load_config(Path("tiny.toml"), ["train.seed=2"]).data.path == str(folder)
    assert call("init", "new", "--src", "train.de", "--tgt", "train.en").code == 0


def test_a_run_of_text_in_the_working_directory_is_its_configuration(tmp_path, monkeypatch, call):
    """Its config.toml is in another folder, whose name is no variable.

    Sabotage: write `.`, which is found beside it; expand a path that exists.
    """
    folder = tmp_path / "my $HOME dir"
    write_copy_corpus(folder, {"train": 300, "validation": 5, "test": 5})
    write_toml(folder / "tiny.toml", tiny_values(Path("."), train__max_steps=1))
    monkeypatch.chdir(folder)
    assert call("train", "tiny.toml", "-q").code == 0
    done = call("train", "checkpoints/tiny", "-q")
    assert (done.code, done.err) == (0, "")
    Path("tiny").mkdir()
    assert_one_error(call("train", "tiny"), "; name tiny.toml")


@pytest.mark.parametrize("both", [False, True])
def test_paths_are_looked_for_beside_the_toml_and_then_here(tmp_path, monkeypatch, both):
    """All three keys; the absolute path is remembered."""
    (tmp_path / "work").mkdir()
    (tmp_path / "configs").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for place in ("configs", "work") if both else ("work",):
        (tmp_path / place / "x").mkdir()
    values = {"data": {"path": "x"}, "vocab": {"path": "./x"}, "train": {"init_from": "x"}}
    path = write_toml(tmp_path / "configs" / "a.toml", values)
    place = tmp_path / ("configs" if both else "work") / "x"
    assert values_of(load_config(path)) == [str(place)] * 3
    relative = load_config(Path("../configs/a.toml"))
    assert values_of(relative) == [str(place)] * 3
    on_command_line = load_config(path, [f"{key}=x" for key in KEYS])
    assert values_of(on_command_line) == [str(tmp_path / "work" / "x")] * 3
    # A hub id, for example; also where a parent of the working directory has it.
    (tmp_path / "wmt" / "wmt16").mkdir(parents=True)
    assert load_config(path, ["data.path=wmt/wmt16"]).data.path == "wmt/wmt16"


def test_home_and_variables_are_expanded(tmp_path, monkeypatch):
    """In every path of a configuration, in the file and by --set; `cache_dir` stays relative."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PART", "part")
    monkeypatch.chdir(tmp_path)
    Path("part/cache").mkdir(parents=True)
    data = {"path": "~/text", "cache_dir": "$PART/cache", "prepared_dir": "${HOME}/prepared"}
    values = {"data": data, "vocab": {"path": "$HOME/vocab.model"}}
    config = load_config(write_toml(tmp_path / "a.toml", values), ["train.init_from=~/run"])
    assert values_of(config) == [f"{tmp_path}/{name}" for name in ("text", "vocab.model", "run")]
    assert config.data.cache_dir == "part/cache"
    assert config.data.prepared_dir == f"{tmp_path}/prepared"
    assert without_folder("/texts/wmt16") == "wmt16" and without_folder("wmt/wmt16") == "wmt/wmt16"
    # A name that the system cannot look up is kept, as any other.
    assert load_config(tmp_path / "a.toml", ['data.path="~\\u0000"']).data.path == "~\0"


def test_a_run_remembers_where_its_corpus_was_found(places, tmp_path, monkeypatch, call):
    """`evaluate` works from any folder; a corpus that was moved is one setting away."""
    run = ["train", places["config"], "--run", tmp_path / "run"]
    evaluate = ["evaluate", tmp_path / "run", "--json"]
    assert call(*run)[0] == 0
    monkeypatch.chdir(tmp_path)
    code, out, err = call(*evaluate)
    assert code == 0 and json.loads(out)["sentences"] == 5, err
    (places["project"] / "text").rename(tmp_path / "moved")
    evaluated = call(*evaluate)
    missing = f"data.path = {places['project']}/text: there is no such folder"
    assert_one_error(evaluated, missing)
    assert "train with --set data.path=NEW" in evaluated.err
    settings = ["--set", "train.max_steps=2", "--set", "data.path=moved"]
    monkeypatch.setattr(Validation, "is_better", lambda *_: False)  # the first stays the best
    code, _, err = call(*run, *settings)
    assert code == 0, err
    assert find_checkpoint(tmp_path / "run").path.name == "step-00000001"
    assert call(*evaluate)[0] == 0


def test_a_path_that_does_not_exist_is_named_with_where_it_was_looked_for(places, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    looked_in = f"in {places['work']}, nor beside the configuration file if it is set there"
    config = places["config"]
    for setting, message in (
        ("data.path=data/txt", f"data.path = data/txt, .* {looked_in}; on the hub: HF_"),
        ("data.path=./txt", f"data.path = ./txt: there is no such folder {looked_in}"),
        ("data.path=/txt", "data.path = /txt: there is no such folder; if the text"),
        ("vocab.path=x", f"vocab.path = x: no such file or folder {looked_in}$"),
    ):
        refuses(DataError, f"^{message}", prepare, load_config(config, [setting]))
    message = f"^train.init_from = x: no such run or checkpoint {looked_in}$"
    with pytest.raises(CheckpointError, match=message):
        train(load_config(config, ["train.init_from=x"]), places["work"] / "run")
