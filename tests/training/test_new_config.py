"""`init`: a configuration for two files of text that trains at once."""

import gzip
import json
import lzma
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import assert_one_error, copy_lines

from transformer_mt.config.keys import Config
from transformer_mt.config.loading import load_config
from transformer_mt.text.corpus import load_split
from transformer_mt.training import new_config
from transformer_mt.training.new_config import measure_text

PAIRS = [(f"{line} ä", f"{line} b") for line in copy_lines(300, 1)]


def write_text(folder: Path, name: str = "text", pairs: list[tuple[str, str]] = PAIRS) -> None:
    """Writes NAME.de and NAME.en."""
    folder.mkdir(parents=True, exist_ok=True)
    for language, side in zip(("de", "en"), zip(*pairs, strict=True), strict=True):
        (folder / f"{name}.{language}").write_text("".join(f"{line}\n" for line in side))


@pytest.fixture
def work(tmp_path, monkeypatch) -> Path:
    """Gives a working directory with text.de and text.en."""
    write_text(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read_words() -> str:
    """Reads new.toml with all comments on one line."""
    return " ".join(Path("new.toml").read_text().replace("# ", "").split())


def pairs_of(config: Config, split: object) -> list[tuple[str, str]]:
    pairs = load_split(config.data, split)
    return list(zip(pairs.src, pairs.tgt, strict=True))


def test_splits_cover_the_text_and_do_not_overlap(work, call):
    """In the order of the files; comments and messages count them and what may be wrong.

    Sabotage: `[:-held_out]` for training; count the problems of one file for both.
    """
    write_text(work, pairs=[*PAIRS[:-2], ("", "x"), ("y", " ")])
    code, _, err = call("init", "new", "--src", "text.de", "--tgt", "text.en", "--quiet")
    config = load_config(Path("new.toml"))
    splits = [pairs_of(config, getattr(config.data, key)) for key in ("train", "valid", "test")]
    assert [len(pairs) for pairs in splits] == [270, 15, 15]
    assert sum(splits, [])[:-2] == PAIRS[:-2]
    words = read_words()
    warnings = (
        "text.de: some lines may be wrong: 1 empty",
        "text.en: some lines may be wrong: 1 empty",
        "2 pairs have an empty side; training drops them",
        "298 pairs are too little for a translator, unless all sentences are of one kind",
    )
    assert err.splitlines() == [f"warning: {warning}" for warning in warnings] and code == 0
    assert all(f" {warning}." in words for warning in warnings)
    assert "the first 270 pairs, validation the next 15, the test the last 15." in words
    assert "Text: 300 pairs, " in words


@pytest.mark.parametrize("gpu", [None, "Some GPU"])
def test_a_machine_for_much_text(work, monkeypatch, gpu):
    """On a CPU it says what a GPU would train. Sabotage: name the row that was chosen."""
    text = replace(measure_text(PAIRS), pairs=3_000_000)
    monkeypatch.setattr(new_config, "measure_text", lambda pairs: text)
    machine = (gpu or "3 CPU threads", gpu is not None)
    monkeypatch.setattr(new_config, "this_machine", lambda: machine)
    new_config.write_config(Path("new"), Path("text.de"), Path("text.en"))
    model, words = load_config(Path("new.toml")).model, read_words()
    assert f"Machine: {gpu or '3 CPU threads'}" in words and "too little" not in words
    assert (model.d_model, model.encoder_layers) == ((512, 6) if gpu else (128, 4))
    layers = f"{model.encoder_layers} + {model.encoder_layers} layers of width {model.d_model}"
    assert f"{layers} for 2,998,000 training pairs" in words
    assert ("On a GPU, init would choose 6 + 6 of width 512" in words) == (gpu is None)
    assert all(len(line) < 100 for line in Path("new.toml").read_text().splitlines())


def test_it_trains_and_scores_at_once(tmp_path, monkeypatch, call):
    """By the commands that it prints; with spaces, umlauts and quotes in all names.

    Sabotage: print the name unquoted, or write `data.path` relative to another folder.
    """
    write_text(tmp_path / "mein Täxt", "ein 'wört'")
    monkeypatch.chdir(tmp_path)
    files = [f"mein Täxt/ein 'wört'.{language}" for language in ("de", "en")]
    code, out, err = call("init", "mein Übersetzer", "--src", files[0], "--tgt", files[1])
    assert code == 0 and "wrote mein Übersetzer.toml for 300 pairs on " in err
    dry_run, train = (shlex.split(line, comments=True) for line in out.decode().splitlines())
    assert dry_run == [*train, "--dry-run"] and train[0] == "transformer-mt"
    in_file = re.search(r"transformer-mt (evaluate .*)", Path("mein Übersetzer.toml").read_text())
    settings = ["train.max_steps=2", "model.d_model=16", "train.device=cpu"]
    train += [argument for setting in settings for argument in ("--set", setting)]
    code, _, err = call(*train[1:])
    assert code == 0, err
    evaluate = shlex.split(in_file[1], comments=True)
    code, out, err = call(*evaluate, "--json")
    assert code == 0, err
    assert json.loads(out)["sentences"] == 15


@pytest.mark.parametrize(
    ("name", "folder", "path"),
    [("new.v2", "", "."), ("new.toml", "../data", "../data"), ("configs/new", "", "..")],
)
def test_paths_are_relative_to_the_configuration(tmp_path, monkeypatch, name, folder, path):
    """It is found from any working directory; two folders may be named, one absolutely.

    Sabotage: write paths as they were typed; take the folder of the source for both.
    """
    (tmp_path / "work" / "configs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    write_text(Path(folder))
    write_text(tmp_path / "b")
    new_config.write_config(Path("two"), Path(folder, "text.de"), tmp_path / "b" / "text.en")
    config = load_config(Path("two.toml"))
    assert str(tmp_path / "b") in config.data.valid.tgt
    assert pairs_of(config, config.data.valid) == PAIRS[-30:-15]
    new_config.write_config(Path(name), Path(folder, "text.de"), Path(folder, "text.en"))
    file = Path(name if name.endswith(".toml") else f"{name}.toml").absolute()
    assert f'\npath = "{path}"\n' in file.read_text()
    assert 'src = "text.de"' in file.read_text()
    monkeypatch.chdir("/")
    config = load_config(file)
    assert pairs_of(config, config.data.test) == PAIRS[-15:]


def test_languages(work, call):
    """By the ending before that of the compression; options win, and any name will do.

    Sabotage: exchange the options.
    """
    Path("x.de.gz").write_bytes(gzip.compress(Path("text.de").read_bytes()))
    Path("x.en.xz").write_bytes(lzma.compress(Path("text.en").read_bytes()))
    new_config.write_config(Path("a"), Path("x.en.xz"), Path("x.de.gz"))
    config = load_config(Path("a.toml"))
    assert (config.data.src_lang, config.data.tgt_lang) == ("en", "de")
    assert pairs_of(config, config.data.test) == [pair[::-1] for pair in PAIRS[-15:]]
    Path("text.de").rename("src.txt")
    languages = "--src-lang", "gsw", "--tgt-lang", "pt-BR"
    assert call("init", "b", "--src", "src.txt", "--tgt", "text.en", *languages).code == 0
    config = load_config(Path("b.toml")).data
    assert (config.src_lang, config.tgt_lang) == ("gsw", "pt-BR")


LINES = b"a\n" * 300


@pytest.mark.parametrize(
    ("files", "name", "src", "tgt", "culprit"),
    [
        ({}, "new", "text.de", "none.en", "none.en: no such file"),
        ({"a.en": b"1\n2\n"}, "new", "text.de", "a.en", "a.en has 2: they must be line-aligned"),
        ({"a.de": LINES[:38], "a.en": LINES[:38]}, "new", "a.de", "a.en", "19 pairs are too few"),
        ({"a.en": b"\n" * 290 + b"a\n" * 10}, "new", "text.de", "a.en", "10 pairs are too few"),
        ({"a.en": b"a\nGr\xfc\xdfe\n" * 150}, "new", "text.de", "a.en", "a.en, line 2: not UTF-8"),
        ({"a.en.gz": gzip.compress(LINES)[:-10]}, "new", "text.de", "a.en.gz", "cannot be read"),
        ({"new.toml": b"mine"}, "new", "text.de", "text.en", "new.toml: exists already"),
        ({}, "none/new", "text.de", "text.en", "none/new.toml: there is no folder none"),
        ({}, "", "text.de", "text.en", "needs a name"),
        ({}, "a\nb", "text.de", "text.en", "'a\\nb.toml' cannot be written in a configuration"),
        ({}, "new", "text.txt", "text.en", "text.txt: its name does not end in a language"),
        ({}, "new", "text.de", "text.de", "are both de; give --src-lang and --tgt-lang"),
        ({"$HOME.en": LINES}, "new", "text.de", "$HOME.en", "'$HOME.en' cannot be written in a"),
        ({"~/x.en": LINES}, "new", "text.de", "~/x.en", "'~/x.en' cannot be written in a"),
    ],
)
def test_mistakes(work, monkeypatch, call, files, name, src, tgt, culprit):
    """One line each, and nothing written. Sabotage: write before the text is read."""
    monkeypatch.setenv("HOME", str(work))
    for file, content in files.items():
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).write_bytes(content)
    before = sorted(os.listdir())
    result = call("init", name, "--src", src, "--tgt", tgt)
    assert_one_error(result, culprit)
    assert sorted(os.listdir()) == before
    assert not Path("new.toml").exists() or Path("new.toml").read_text() == "mine"
