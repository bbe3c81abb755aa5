"""Configuration: types, overrides, mistakes, the recipes, and what a resumed run may change."""

import codecs
import shlex
import tomllib
from pathlib import Path
from typing import Annotated

import pytest
from conftest import refuses, tiny_config, tiny_values, write_toml
from pydantic.fields import FieldInfo

from transformer_mt.config.changes import changed_keys, on_change
from transformer_mt.config.keys import Config, DataConfig, flat_values
from transformer_mt.config.loading import format_config, load_config, parse_config
from transformer_mt.config.section import OnChange
from transformer_mt.config.splits import SplitFiles
from transformer_mt.errors import ConfigError
from transformer_mt.text.prepared import values_that_shape_corpus

RECIPES = sorted((Path(__file__).parents[1] / "configs").glob("*.toml"))


def recipe(name: str, *overrides: str):
    return load_config(next(p for p in RECIPES if p.stem == name), overrides)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_loads(path):
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
        ("data.path=../a/folder-1", "../a/folder-1"),
        ("data.train=train[:5000]", "train[:5000]"),
        ('data.valid={src="a", tgt="b"}', SplitFiles(src="a", tgt="b")),
        ('data.name="no"', "no"),
        ("data.name=de-en", "de-en"),
        (" data.name = x=y ", "x=y"),
        ("data.name=1\nother = 2", "1\nother = 2"),
    ],
)
def test_overrides_are_toml_or_plain_words(text, value):
    """Numbers, booleans and lists are parsed as TOML; anything else is a string. The last wins."""
    key = text.partition("=")[0].strip()
    assert flat_values(recipe("sample", f"{key}=[]", text))[key] == value


SPLIT = "should be a split's name or a table such as { src = "
NO_SYMBOL = "should have words without white space"
NO_LIMIT = 'should be 2 or more, or "auto"'
MISTAKES = {
    "model.d_modle=3": "unknown key model.d_modle (did you mean model.d_model?)",
    "model.d_model=63": "model.d_model = 63 should be a multiple of 2",
    "model.encoder_layers=2000": "model.encoder_layers = 2000 should be less than or equal to 1000",
    "model.norm='between'": "model.norm = 'between' should be 'post', 'pre' or 'sublayer'",
    "vocab.shared='yes'": "vocab.shared = 'yes' should be a valid boolean",
    "vocab.size=2.0": "vocab.size = 2.0 should be a valid integer",
    "modl.x=3": "unknown section modl (did you mean model?)",
    "nothing.like.it=3": "unknown section nothing",
    "d_model=3": "unknown key d_model (did you mean model.d_model?)",
    "train.warmup_steps=3": "unknown key train.warmup_steps (did you mean optim.warmup_steps?)",
    "train.path='y'": "unknown key train.path (did you mean data.path or vocab.path?)",
    "optim.lr_scal=3": "unknown key optim.lr_scal (did you mean optim.lr_scale?)",
    "optim.lr=3": "unknown key optim.lr (did you mean optim.lr_scale?)",
    "train.qqqq=1": "unknown key train.qqqq",
    "train.seed=-1": "train.seed = -1 should be greater than or equal to 0",
    f"train.max_steps={10**20}": f"train.max_steps = {10**20} should be less than 4294967296",
    f"train.max_minutes={10**26}": f"train.max_minutes = {10**26} should be less than 4294967296",
    "train.save_every=" + "9" * 5000: "train.save_every = '999",
    "train.keep_last=" + "[" * 5000: "train.keep_last = '[[[",
    "optim.betas=[1, 0.5]": "optim.betas[0] = 1 should be less than 1",
    "optim.lr_scale=inf": "optim.lr_scale = inf should be a finite number",
    "valid=3": "valid = 3 should be a valid dictionary",
    "data.path=": "data.path = '' should have at least 1 character",
    "vocab.path=": "vocab.path = '' should have at least 1 character",
    "train.init_from=": "train.init_from = '' should have at least 1 character",
    "data.tgt_lang='../x'": "data.tgt_lang = '../x' should match pattern",
    "data.train=": "data.train = '' should have at least 1 character",
    "data.src_lang=nan": """data.src_lang = nan should be a valid string, in quotes: "TEXT", or""",
    "data.train=3": f"data.train = 3 {SPLIT}",
    "data.train=[]": "data.train = [] should have at least",
    "data.train=['a', 3]": f"data.train[1] = 3 {SPLIT}",
    "data.train=['a', {src='a', tgt=3}]": "data.train[1].tgt = 3 should be a valid string",
    "data.train=[{name=''}]": "data.train[0].name = '' should have at least 1 character",
    "data.valid={src='a'}": "data.valid.tgt is missing",
    "data.train=['a', {file='a', src=0, tgt=1}]": "data.train[1].src = 0 should be greater than",
    "data.test={file='a', src='b', tgt=1.5}": "data.test.tgt = 1.5 should be a column's name or",
    "data.valid={src='', tgt='a'}": "data.valid.src = '' should have at least 1 character",
    "data.valid={src='a', tgt='b', from='x'}": "unknown key data.valid.from",
    "data.valid={src='a', tgt='b', slice='[:5]x'}": "data.valid.slice = '[:5]x' should be a slice",
    "data.test=['a']": f"data.test = ['a'] {SPLIT}",
    "data.valid={name='a', weight=2}": "data.valid has a weight; only data.train is repeated",
    "data.test={src='a', tgt='b', weight=2}": "data.test has a weight; only data.train is repeated",
    "model.n_heads=3": "model.d_model = 16 is not divisible by n_heads = 3",
    "vocab.shared=false": "model.tie_embeddings = true requires vocab.shared = true",
    "data.src_lang='en'": "data.src_lang and data.tgt_lang are the same language, en",
    **{
        f"train.micro_batch_tokens={limit}": f"train.micro_batch_tokens = {shown} {NO_LIMIT}"
        for limit, shown in (("1", "1"), ("true", "True"), ("2.0", "2.0"), ("all", "'all'"))
    },
    "train.micro_batch_tokens=60": "train.micro_batch_tokens = 60 cannot hold a pair of data.max_l",
    "vocab={kind='word', symbols=['<bt>']}": "vocab.symbols requires vocab.kind = bpe, unigram or",
    "vocab.symbols=['<x>', '<x>']": "should not have the same symbol twice",
    **{
        f"vocab.symbols=[{word}]": NO_SYMBOL
        for word in ('""', "'a b'", r'"a\u2003b"', r'"a\u0000b"', r'"a\u2581"', "'<s>'", "'<0x41>'")
    },
    "data.path": "--set data.path: write key=value",
    "=3": "--set =3: write key=value",
    "train..seed=3": "--set train..seed=3: write key=value",
    "data.path.x=3": "--set data.path.x=3: path is a value, not a section",
}


@pytest.mark.parametrize("override", MISTAKES, ids=lambda text: text[:30])
def test_a_mistake_ends_in_one_short_line(tmp_path, corpus_dir, override):
    path = write_toml(tmp_path / "x.toml", tiny_values(corpus_dir))
    text = str(refuses(ConfigError, "", load_config, path, [override]))
    assert text.startswith(("--set", f"{path} with --set: ")) and MISTAKES[override] in text
    assert "\n" not in text and len(text) < 200 + len(str(path))


def test_all_mistakes_are_reported_in_one_line():
    """Also of rules between keys, once the keys themselves are valid."""
    values, path = {"d_model": 62, "n_heads": 4}, {"path": "x"}
    reversing = {"bidirectional_epochs": 1}
    for sections, mistakes in (
        ({"model": {**values, "d_modle": 3}, "valid": 3}, ["section data is", "d_modle", "valid"]),
        (
            {"data": {"zz\nz": 1}, "optim": {"betas": [1]}},
            ["key data.path is missing", r"'data.zz\nz'", "betas[0] = 1", "betas[1] is missing"],
        ),
        (
            {"data": path, "model": values, "vocab": {"shared": False}, "train": reversing},
            ["not divisible", "tie_embeddings = true requires", "bidirectional_epochs requires"],
        ),
    ):
        text = str(refuses(ConfigError, "", parse_config, sections, "here"))
        assert text.startswith("here: ") and text.count("; ") == len(mistakes) - 1
        assert all(mistake in text for mistake in mistakes)


def test_an_existing_vocabulary_has_its_own_kind():
    given = {"path": "x", "kind": "word", "symbols": ["<bt>"], "sampling": 0.1}
    values = {"data": {"path": "x", "max_length": 20}, "vocab": given}
    assert parse_config({**values, "train": {"micro_batch_tokens": 21}}, "here").vocab.symbols


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("[data]\npath = 'Übung'".encode("utf-16"), ": not valid TOML: 'utf-8' codec can't"),
        ("[data]\npath = 'Übung'".encode("latin-1"), ": not valid TOML: 'utf-8' codec can't"),
        (b"[data]\npath = x", ": not valid TOML: Invalid value (at line 2, column 8)"),
        (b"x = " + b"9" * 5000, ": not valid TOML: Exceeds the limit"),
        (b"data = 0x" + b"f" * 5000, ": data = a number of thousands of digits should be less"),
        (b"[data]\npath = 0x" + b"f" * 5000, ": data.path = a number of thousands of digits"),
        (b"x = " + b"[" * 5000, ": not valid TOML: maximum recursion depth exceeded"),
        (b"[data]\npath = 2026-01-01", ": data.path = datetime.date(2026, 1, 1) should be a"),
        (None, ": cannot read the configuration: No such file or directory"),
    ],
    ids=lambda value: str(value)[:25],
)
def test_a_file_that_is_no_configuration_ends_in_one_short_line(tmp_path, data, expected):
    path = tmp_path / "x.toml"
    if data is not None:
        path.write_bytes(data)
    text = str(refuses(ConfigError, "", load_config, path))
    assert text.startswith(f"{path}{expected}") and "\n" not in text
    assert len(text) < 200 + len(str(path))


def test_a_byte_order_mark_is_ignored(tmp_path):
    path = tmp_path / "x.toml"
    path.write_bytes(codecs.BOM_UTF8 + "[data]\r\npath = 'Übung'\r\n".encode())
    assert load_config(path).data.path == "Übung"


def test_what_shapes_the_prepared_corpus():
    """Another key here would prepare it in vain; docs/reference.md lists what else may change."""
    sections = [field.annotation.model_fields for field in Config.model_fields.values()]
    keys = [item for section in sections for item in section.items()]
    shapes = [key for key, field in keys if on_change(field) is OnChange.SHAPES_CORPUS]
    expected = (
        "train src_lang tgt_lang normalize max_length max_length_ratio drop_duplicates"
        " drop_identical drop_control min_letters kind size shared max_words symbols"
    )
    assert shapes == expected.split()


def test_only_files_may_lie_elsewhere(tmp_path):
    """A symbol is no path, whatever it looks like. Sabotage: leave the folder out of any text."""
    files = SplitFiles(src="~/a.de", tgt="/b/a.en")
    old, new = (
        tiny_config(tmp_path, vocab__symbols=[f"/{name}/x"], data__valid=valid)
        for name, valid in (("a", files), ("b", SplitFiles(src="/c/a.de", tgt="/c/a.en")))
    )
    assert changed_keys(old, new, *OnChange) == ["vocab.symbols"]


@pytest.mark.parametrize("kind", OnChange)
def test_the_declaration_of_a_new_key_is_obeyed(tmp_path, kind):
    """No other list needs to know it; one without a declaration is fixed."""
    assert on_change(FieldInfo()) is OnChange.REFUSED

    class Extended(DataConfig):
        new: Annotated[int, kind] = 0

    old = tiny_config(tmp_path)
    values = old.data.model_dump()
    old, new = (old.model_copy(update={"data": Extended(**values, new=value)}) for value in (1, 2))
    for asked in OnChange:
        assert changed_keys(old, new, asked) == ["data.new"] * (asked is kind)
    assert ("new" in values_that_shape_corpus(new.data)) == (kind is OnChange.SHAPES_CORPUS)
    assert flat_values(new)["data.new"] == 2


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("train.max_minutes=6", "max_minutes = 6.0  # --set"),
        ("train.seed=1", "seed = 1  # --set"),  # the default
        ("optim.betas=[0.8, 0.9]", "betas = [0.8, 0.9]  # --set"),
        ("optim.eps=0.00000001", "eps = 1e-08  # --set"),
        ('data.test={tgt="b", src="a\'s"}', 'test = { src = "a\'s", tgt = "b" }  # --set'),
        ("data.cache_dir=$PWD", 'cache_dir = "."  # --set'),
    ],
)
def test_what_the_command_line_has_set(corpus_dir, tmp_path, monkeypatch, override, line):
    """However it was written; in an earlier command to another value, it was not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    path = write_toml(tmp_path / "x.toml", tiny_values(corpus_dir, train__max_steps=30))
    others = "--set train.max_steps=3 --set=model.n_heads=3 --set nothing"
    command = shlex.join(["train", "x.toml", "--set", override])
    lines = format_config(load_config(path, [override]), f"{others}\n{command}\n").splitlines()
    assert {line, "max_steps = 30", "n_heads = 4"} <= set(lines)
    assert format_config(load_config(path), "an edited ' command")


def test_a_written_configuration_is_the_same(tmp_path, monkeypatch):
    """Every key, but no home. Sabotage: leave out keys that have their default."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for folder in ("home/te xt", "work/te\u0301xt"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    files = SplitFiles(src='a"b\\.de', tgt="ü.en", slice="[:-9]")
    for path in ("~/te xt", "te\u0301xt", "wmt/wmt16", "/"):
        columns = "{ file = 'a.csv', src = 1, tgt = 'b' }"
        train = f"[{files}, {{ name = 'x', weight = 2 }}, 'y[:5]', {columns}]"
        data = f"path = '{path}'\ntrain = {train}"
        Path("a.toml").write_text(f"[data]\n{data}\n[vocab]\nsymbols = ['<bt>', 'é']\n")
        before = load_config("a.toml", ["optim.eps=1e-12"])
        Path("b.toml").write_text(text := format_config(before, "train --set optim.eps=1e-12"))
        assert parse_config(before.model_dump(mode="json"), "state.json") == before
        assert load_config("b.toml") == before and f'\npath = "{path}"\n' in text
        assert "\neps = 1e-12  # --set\n" in text and str(tmp_path) not in text
        stated = {f"{section}.{k}" for section, keys in tomllib.loads(text).items() for k in keys}
        assert stated == {key for key, value in flat_values(before).items() if value is not None}
