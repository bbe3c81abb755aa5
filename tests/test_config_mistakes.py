"""Mistakes in a configuration that users of other toolkits and editors make: one line each."""

import codecs

import pytest
from conftest import run_program, tiny_config, tiny_values, write_toml

from transformer_mt.config.keys import INTEGER_LIMIT, Config
from transformer_mt.config.loading import FAMILIAR_NAMES, load_config, parse_config
from transformer_mt.errors import ConfigError, DeviceError
from transformer_mt.model.transformer import Transformer
from transformer_mt.training.run import count_layer_parameters, train

TEXT = '[data]\npath = "Übung"\n'


def message(values: dict[str, object]) -> str:
    """Gives the message of a configuration that cannot be used."""
    with pytest.raises(ConfigError) as error:
        parse_config(values, "here")
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("section", "name", "hint"),
    [
        ("optim", "lr", "unknown key optim.lr (use optim.lr_scale, a factor on the Noam learning"),
        ("train", "learning_rate", "use optim.lr_scale, a factor on the Noam learning rate"),
        ("model", "layers", "use model.encoder_layers and model.decoder_layers"),
        ("model", "num_layers", "use model.encoder_layers and model.decoder_layers"),
        ("model", "num_heads", "use model.n_heads"),
        ("model", "hidden_size", "use model.d_model"),
        ("model", "embed_dim", "use model.d_model"),
        ("train", "batch_size", "use train.batch_tokens, which counts tokens, not sentences"),
        ("train", "epochs", "use train.max_epochs"),
        ("train", "steps", "use train.max_steps"),
        ("train", "patience", "did you mean valid.patience?"),
        ("optim", "warmup", "use optim.warmup_steps"),
        ("train", "beam_size", "use the option --beam-size of translate and evaluate"),
        ("data", "vocab", "unknown key data.vocab (did you mean the section [vocab]?)"),
        ("train", "path", "use data.path"),
    ],
)
def test_a_name_of_another_toolkit_is_translated(section, name, hint):
    """The key that has its meaning here is named. Sabotage: use similarity of spelling alone."""
    values = {"data": {"path": "x"}}
    values.setdefault(section, {})[name] = {} if name == "vocab" else 3
    assert hint in message(values)


def test_a_key_without_its_section_is_found_in_one():
    """At the top of the file; `path` is that of the text, not that of a vocabulary."""
    text = message({"path": "x", "d_model": 3})
    assert "unknown key path (use data.path)" in text
    assert "unknown key d_model (did you mean model.d_model?)" in text


@pytest.mark.parametrize(
    ("name", "section"), [("training", "train"), ("optimizer", "optim"), ("modl", "model")]
)
def test_a_section_of_another_name_is_recognised(name, section):
    """It is called a section in the message."""
    text = message({"data": {"path": "x"}, name: {"max_steps": 3}})
    assert text.startswith(f"here: unknown section {name} (") and f"[{section}]" in text


def test_familiar_names_refer_to_what_exists():
    """Every hint names a key, a section or an option; no name in the table is a section."""
    config = parse_config({"data": {"path": "x"}}, "here")
    keys = {f"{section}.{key}" for section, values in config for key in type(values).model_fields}
    for name, hint in FAMILIAR_NAMES.items():
        words = hint.replace(",", " ").split()
        named = [word for word in words if "." in word]
        sections = [word.strip("[]") for word in words if word.startswith("[")]
        assert set(named) <= keys and set(sections) <= set(Config.model_fields)
        assert named or sections or "--" in hint
        assert name not in Config.model_fields


@pytest.mark.parametrize(
    "key", ["model.d_model", "vocab.size", "train.batch_tokens", "train.max_minutes", "model.d_ff"]
)
@pytest.mark.parametrize("digits", [26, 6000])
def test_an_absurd_integer_ends_in_one_short_line(key, digits):
    """Also one with more digits than Python writes."""
    section, name = key.split(".")
    values = {"data": {"path": "x"}, section: {name: 10**digits}}
    text = message(values)
    assert text.startswith(f"here: {key} = ") and len(text) < 150
    assert text.endswith(f" should be less than {INTEGER_LIMIT}")


def test_an_absurd_integer_in_a_file_is_the_files_mistake(tmp_path):
    """The parser of TOML refuses to read it."""
    path = tmp_path / "x.toml"
    path.write_text(f"[train]\nmax_steps = {'9' * 5000}\n")
    with pytest.raises(ConfigError, match=r"x.toml: not valid TOML: Exceeds the limit"):
        load_config(path)
    path.write_text(f"x = {'[' * 5000}\n")
    with pytest.raises(ConfigError, match=r"x.toml: not valid TOML: values are nested too deeply"):
        load_config(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("d_model", 10**6), ("d_ff", 4 * 10**9), ("encoder_layers", 10**9), ("decoder_layers", 10**9)],
)
def test_a_model_larger_than_the_memory_is_refused_at_once(corpus_dir, tmp_path, key, value):
    """Its sizes and both amounts of memory are named; nothing is prepared or allocated."""
    config = tiny_config(corpus_dir, **{f"model__{key}": value})
    pattern = rf"model.{key} = {value}.* needs at least [\d,]+ GB .* device has \d+ GB"
    with pytest.raises(DeviceError, match=pattern):
        train(config, tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("attention_bias", [True, False])
def test_parameters_are_counted_without_a_model(corpus_dir, attention_bias):
    """As many as the layers of the model have."""
    sizes = {"encoder_layers": 2, "decoder_layers": 3, "attention_bias": attention_bias}
    config = tiny_config(corpus_dir, **{f"model__{key}": size for key, size in sizes.items()})
    model = Transformer(config.model, 10, 10, 0)
    layers = [*model.encoder.parameters(), *model.decoder.parameters()]
    assert count_layer_parameters(config.model) == sum(p.numel() for p in layers)


def test_a_byte_order_mark_is_ignored(tmp_path):
    """Windows editors write one."""
    path = tmp_path / "x.toml"
    path.write_bytes(codecs.BOM_UTF8 + TEXT.replace("\n", "\r\n").encode())
    assert load_config(path).data.path == "Übung"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (TEXT.encode("utf-16"), "x.toml: this is UTF-16 text; save it as UTF-8 text"),
        (TEXT.encode("utf-16-le"), "x.toml: this is a binary file or UTF-16 text"),
        (TEXT.encode("latin-1"), "x.toml, line 2: not UTF-8, perhaps Latin-1 (Windows-1252);"),
    ],
)
def test_another_encoding_is_named(tmp_path, data, expected):
    """With what to do."""
    path = tmp_path / "x.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert expected in str(error.value) and "save it as UTF-8" in str(error.value)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("optim.lr=3", "unknown key optim.lr (use optim.lr_scale"),
        ("nothing.like.it=3", "unknown section nothing"),
        ("optim.warmup_steps=", "optim.warmup_steps = '' should be a valid integer"),
        ("data.path=", "data.path = '' should have at least 1 character"),
        ("data.path", "--set data.path: write key=value"),
        ("=3", "--set =3: write key=value"),
        (".=3", "--set .=3: write key=value"),
        ("train..seed=3", "--set train..seed=3: write key=value"),
        ("data.path.x=3", "--set data.path.x=3: path is a value, not a section"),
        ("train.max_steps=1.5", "train.max_steps = 1.5 should be a valid integer"),
        ("train.max_steps=" + "9" * 5000, "train.max_steps = '999"),
        ("train.max_steps=" + "[" * 5000, "train.max_steps = '[[["),
        ("model=3", "model = 3 should be a section, not a value"),
    ],
    ids=lambda text: text[:25],
)
def test_a_mistake_in_set_ends_in_one_short_line(tmp_path, corpus_dir, override, expected):
    """The key is named."""
    path = write_toml(tmp_path / "x.toml", tiny_values(corpus_dir))
    with pytest.raises(ConfigError) as error:
        load_config(path, [override])
    assert expected in str(error.value) and "\n" not in str(error.value)
    assert len(str(error.value)) < 200 + len(str(path))


def test_the_program_reports_an_absurd_size(tmp_path, corpus_dir):
    """Exit code 2 and one line."""
    path = write_toml(tmp_path / "x.toml", tiny_values(corpus_dir))
    for setting, expected in (
        (f"model.d_model={10**26}", f"model.d_model = {10**26} should be less than"),
        ("model.d_ff=4000000000", "choose smaller sizes"),
    ):
        done = run_program("train", path, "--run", tmp_path / "run", "--set", setting)
        error = done.stderr.decode()
        assert done.returncode == 2 and error.startswith("error: ") and error.count("\n") == 1
        assert expected in error


def test_a_mistake_in_an_override_is_said_to_be_there(tmp_path):
    """The file is not blamed for it. Sabotage: one place for all mistakes."""
    path = tmp_path / "a.toml"
    path.write_text("[data]\npath = 'x'\n[train]\nmax_stepz = 3\n", encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        load_config(path, ["train.max_step=5", "train.seed=x"])
    in_file, in_override = str(error.value).split("; --set: ")
    assert in_file.startswith(f"{path}: unknown key train.max_stepz")
    assert "unknown key train.max_step " in in_override and "train.seed = 'x'" in in_override
    assert "max_stepz" not in in_override
