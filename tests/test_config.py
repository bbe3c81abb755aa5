"""Configuration: strict types, overrides, the recipes, and what a resumed run may change."""

from pathlib import Path

import pytest
from conftest import tiny_config
from pydantic import ValidationError

from transformer_mt.config import MAY_CHANGE, changed_keys, flat_values, load_config, parse_config
from transformer_mt.errors import ConfigError

RECIPES = sorted((Path(__file__).parents[1] / "configs").glob("*.toml"))


def recipe(name: str, *overrides: str):
    return load_config(next(p for p in RECIPES if p.stem == name), overrides)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_loads(path):
    """No recipe has a key or value the program refuses."""
    load_config(path)


@pytest.mark.parametrize(
    ("name", "d_model", "d_ff", "heads", "dropout", "steps", "kept"),
    [
        ("wmt16-base", 512, 2048, 8, 0.1, 100_000, 5),
        ("wmt16-big", 1024, 4096, 16, 0.3, 300_000, 20),
    ],
)
def test_the_papers_recipes(name, d_model, d_ff, heads, dropout, steps, kept):
    """The numbers are those of sections 5 and 6 and of table 3."""
    config = recipe(name)
    model, optim, train = config.model, config.optim, config.train
    assert (model.d_model, model.d_ff, model.n_heads) == (d_model, d_ff, heads)
    assert (model.encoder_layers, model.decoder_layers, model.norm) == (6, 6, "post")
    assert model.dropout == dropout and model.tie_embeddings
    assert (optim.warmup_steps, optim.lr_scale, optim.label_smoothing) == (4000, 1.0, 0.1)
    assert optim.betas == (0.9, 0.98) and optim.eps == 1e-9 and optim.max_grad_norm == 0
    assert (train.batch_tokens, train.max_steps, train.keep_last) == (25_000, steps, kept)
    assert (config.vocab.kind, config.vocab.size, config.vocab.shared) == ("bpe", 37_000, True)
    assert (config.data.path, config.data.name) == ("wmt/wmt16", "de-en")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("train.max_steps=7", 7),
        ("optim.eps=1e-4", 1e-4),
        ("optim.lr_scale=2", 2.0),
        ("model.tie_embeddings=false", False),
        ("optim.betas=[0.8, 0.9]", (0.8, 0.9)),
        ("data.path=../some/folder-1", "../some/folder-1"),
        ("data.train=train[:5000]", "train[:5000]"),
        ('data.name="no"', "no"),
        ("data.name=de-en", "de-en"),
        (" data.name = x=y ", "x=y"),
    ],
)
def test_overrides_are_toml_or_plain_words(text, value):
    """Numbers, booleans and lists are read as TOML; what is none is a string."""
    assert flat_values(recipe("sample", text))[text.partition("=")[0].strip()] == value


def test_the_last_override_wins():
    """As with any command-line option."""
    assert recipe("sample", "train.seed=2", "train.seed=3").train.seed == 3


def test_configuration_is_frozen():
    """Nothing changes it after it was checked."""
    with pytest.raises(ValidationError):
        recipe("sample").train.seed = 3


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_nothing_is_coerced(value):
    """A word or a number is no boolean."""
    values = {"data": {"path": "x"}, "vocab": {"shared": value}}
    with pytest.raises(ConfigError, match=r"^here: vocab.shared"):
        parse_config(values, "here")


def test_the_message_is_one_line():
    """Even where several keys are wrong."""
    values = {"data": {"path": 3, "nope": 1}, "train": {"seed": "x"}}
    with pytest.raises(ConfigError) as error:
        parse_config(values, "here")
    assert "\n" not in str(error.value)


def test_changed_keys(tmp_path):
    """Only how long to train and how often to log and save may change."""
    old = tiny_config(tmp_path)
    longer = tiny_config(tmp_path, train__max_steps=99, train__save_every=3, valid__patience=2)
    assert changed_keys(old, longer) == []
    other = tiny_config(tmp_path, train__max_steps=99, train__seed=9, optim__warmup_steps=5)
    assert changed_keys(old, other) == ["optim.warmup_steps", "train.seed"]
    for key in MAY_CHANGE:
        flat_values(old)[key]  # each names a key that exists
