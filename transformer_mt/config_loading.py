"""Configuration from TOML: strict, with `--set` overrides, and with all mistakes named at once."""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from transformer_mt.config import Config
from transformer_mt.errors import ConfigError


def load_config(path: Path, overrides: Iterable[str] = ()) -> Config:
    """Reads a TOML file, applies `key=value` overrides and validates the result.

    Args:
        path: The TOML file.
        overrides: Items such as `optim.warmup_steps=8000`; later ones win.

    Raises:
        ConfigError: Naming the file, and the line or every key that is wrong.
    """
    try:
        with path.open("rb") as file:
            values = tomllib.load(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: cannot read the configuration: {reason}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    for override in overrides:
        _apply_override(values, override)
    return parse_config(values, str(path))


def parse_config(values: Mapping[str, Any], origin: str) -> Config:
    """Validates nested values.

    Args:
        values: Section name to key to value.
        origin: Where the values come from, for the error message.

    Raises:
        ConfigError: Naming every key that is wrong. Rules between keys are checked once the keys
            themselves are valid.
    """
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        mistakes = "; ".join(_describe_mistake(mistake) for mistake in error.errors())
        raise ConfigError(f"{origin}: {mistakes}") from None


def _apply_override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    key, text = key.strip(), text.strip()
    if not equals or not key:
        raise ConfigError(f"--set {override}: write key=value, such as optim.warmup_steps=8000")
    *sections, last = key.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {override}: {section} is a value, not a section")
    values[last] = _parse_value(text)


def _parse_value(text: str) -> object:
    """Parses a TOML value; text that is not one, such as a word or a path, is a string."""
    try:
        document = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    # "1\nother = 2" would be valid TOML with two keys.
    return document["value"] if len(document) == 1 else text


def _describe_mistake(mistake: ErrorDetails) -> str:
    key, value = _dotted_key(mistake["loc"]), mistake["input"]
    match mistake["type"]:
        case "extra_forbidden":
            return f"unknown key {key}{_hint(key)}"
        case "missing":
            return f"{key} is missing"
        case "value_error":
            return str(mistake["ctx"]["error"])
        case "model_type":
            return f"{key or 'configuration'} = {value!r} should be a section, not a value"
    expected = re.sub(r"^\w+ (?=should)| after validation", "", mistake["msg"])
    return f"{key} = {value!r} {expected}"


def _dotted_key(location: tuple[int | str, ...]) -> str:
    """Joins the parts of a key; the result is one line whatever the file contains."""
    key = ""
    for part in location:
        key += f"[{part}]" if isinstance(part, int) else f".{part}"
    key = key.removeprefix(".")
    return key if key.isprintable() else repr(key)


def _hint(unknown: str) -> str:
    """Suggests the same name in another section, or else the most similar key."""
    known = list(Config.model_fields)
    for section, field in Config.model_fields.items():
        keys = getattr(field.annotation, "model_fields", {})
        known += [f"{section}.{key}" for key in keys]
    name = unknown.rpartition(".")[2]
    near = [key for key in known if key.endswith(f".{name}")]
    near = near or difflib.get_close_matches(unknown, known, n=1, cutoff=0.6)
    return f" (did you mean {' or '.join(near)}?)" if near else ""
