"""Whatever is in our files, only our own errors come out."""

import json
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import replace_file, tiny_config, tiny_values
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transformer_mt.checkpoints.checkpoint import load_checkpoint
from transformer_mt.checkpoints.layout import CONFIG, MODEL, STATE
from transformer_mt.checkpoints.run_directory import list_checkpoints
from transformer_mt.config.keys import Config
from transformer_mt.config.loading import load_config, parse_config
from transformer_mt.errors import TransformerMTError
from transformer_mt.system.files import canonical_json
from transformer_mt.system.manifest import MANIFEST, write_manifest
from transformer_mt.training.run import train

pytestmark = pytest.mark.slow

many = settings(max_examples=300, suppress_health_check=list(HealthCheck))
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
names = st.text(max_size=9)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
parts = st.sampled_from(["", "files", "step", "model", "vocab"])
KEYS = [
    (section, key)
    for section, field in Config.model_fields.items()
    for key in getattr(field.annotation, "model_fields", ())
]


@pytest.fixture(scope="module")
def checkpoint(corpus_dir, tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("fuzz") / "run"
    train(tiny_config(corpus_dir, train__max_steps=1), run_dir)
    return list_checkpoints(run_dir)[0]


@many
@given(st.dictionaries(st.sampled_from(KEYS), values, max_size=4), st.sampled_from("dmovt?"))
def test_any_value_of_any_key(changes, letter):
    """A configuration is accepted or refused in our own words."""
    nested = tiny_values(Path("corpus"))
    for (section, key), value in changes.items():
        nested.setdefault(section, {})[key] = value
    if letter == "?":
        nested = {**nested, **{str(key): value for key, value in changes.items()}}
    try:
        assert isinstance(parse_config(nested, "fuzz"), Config)
    except TransformerMTError as error:
        assert str(error).startswith("fuzz: ")


@many
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_as_a_configuration_file(tmp_path, raw):
    path = tmp_path / "any.toml"
    path.write_bytes(raw)
    try:
        load_config(path)
    except TransformerMTError as error:
        assert str(path) in str(error)


@many
@given(st.text(max_size=40) | st.from_regex(r"[a-z.]{0,12}=[-\[\]{}0-9a-z\".,]{0,12}"))
def test_any_override(override):
    with suppress(TransformerMTError):
        load_config(Path(__file__).parents[2] / "configs" / "sample.toml", [override])


def refused_or_read(path: Path) -> None:
    """Loads a checkpoint to the last weight; our own errors are what may come out."""
    try:
        load_checkpoint(path).build_model()
    except TransformerMTError as error:
        assert str(path) in str(error)


@many
@given(st.sampled_from([MANIFEST, CONFIG, STATE]), values, parts)
def test_any_json(checkpoint, tmp_path, name, value, key):
    """Manifest, configuration and state with digests that agree, and any content."""
    copied = shutil.copytree(checkpoint, tmp_path / "copy", dirs_exist_ok=True)
    content = json.loads((copied / name).read_bytes())
    if key == "step":
        content.setdefault("progress", {})[key] = value
    elif key:
        content[key] = value
    else:
        content = value
    try:
        if name == MANIFEST and key == "files":
            write_manifest(copied, value)
        elif name == MANIFEST:
            (copied / name).write_bytes(canonical_json(content))
        else:
            replace_file(copied, name, json.dumps(content).encode())
    except ValueError:
        return  # NaN has no JSON
    refused_or_read(copied)


@many
@given(st.binary(max_size=64), st.integers(0, 2**64 - 1), st.booleans())
def test_any_header_of_the_weights(checkpoint, tmp_path, raw, size, keep):
    tail = (checkpoint / MODEL).read_bytes()[8:] if keep else raw
    copied = shutil.copytree(checkpoint, tmp_path / "copy", dirs_exist_ok=True)
    replace_file(copied, MODEL, size.to_bytes(8, "little") + tail)
    refused_or_read(copied)
