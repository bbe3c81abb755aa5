"""Configuration from TOML: strict, with `--set` overrides, and with all mistakes named at once."""

import codecs
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from transformer_mt.config.keys import Config
from transformer_mt.config.mistakes import describe_mistake, dotted_key
from transformer_mt.errors import ConfigError

_SEARCHED_KEYS = "data.path", "vocab.path", "train.init_from"
"""Paths that are looked for beside the TOML file, then in the working directory."""
_CREATED_KEYS = "data.cache_dir", "data.prepared_dir"
"""Folders that are created if missing, relative to the working directory."""


def load_config(path: Path, overrides: Collection[str] = ()) -> Config:
    """Reads a TOML file, applies `key=value` overrides and validates the result.

    Paths of text, vocabulary and initial weights are looked for beside the file, then in the
    working directory; those of overrides only in the working directory. In the configuration,
    existing paths are absolute. A path that does not exist may be a hub id, and stays relative.

    Args:
        path: The TOML file.
        overrides: Items such as `optim.warmup_steps=8000`; later ones win.

    Raises:
        ConfigError: Naming the file or `--set`, and the line or every key that is wrong.
    """
    try:
        values = tomllib.loads(_read_text(path))
    except RecursionError:
        raise ConfigError(f"{path}: not valid TOML: values are nested too deeply") from None
    except ValueError as error:  # an integer with thousands of digits is not a TOMLDecodeError
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    folders = list(dict.fromkeys([path.parent.absolute(), Path.cwd()]))
    _find_paths(values, folders)
    in_file = {key: value for key in _SEARCHED_KEYS if (value := _get(values, key))}
    for override in overrides:
        _apply_override(values, override)
    searched = {
        key: folders
        for key, value in in_file.items()
        if value == _get(values, key) and not os.path.isabs(value)
    }
    _find_paths(values, [Path.cwd()])
    _expand_created_folders(values)
    overridden = {override.partition("=")[0].strip() for override in overrides}
    try:
        return Config.model_validate(values, context=searched)
    except ValidationError as error:
        raise _to_config_error(error, str(path), overridden) from None


def _find_paths(values: dict[str, Any], folders: Iterable[Path]) -> None:
    """Replaces existing paths by absolute paths; paths that do not exist are only expanded."""
    for key in _SEARCHED_KEYS:
        if value := _get(values, key):
            section, name = key.split(".")
            expanded = expand_path(value)
            candidates = [os.path.join(folder, expanded) for folder in folders]
            existing = next(filter(os.path.exists, candidates), None)
            if existing and not os.path.isabs(expanded):
                expanded = os.path.realpath(existing)
            values[section][name] = expanded


def _expand_created_folders(values: dict[str, Any]) -> None:
    """Expands folders that the program creates.

    Raises:
        ConfigError: If one names an environment variable that is not set.
    """
    for key in _CREATED_KEYS:
        if value := _get(values, key):
            section, name = key.split(".")
            values[section][name] = expand_path(value)
            if unset := re.search(r"\$(\w+|\{\w+\})", values[section][name]):
                variable = unset[1].strip("{}")
                raise ConfigError(
                    f"{key} = {value}: the environment variable {variable} is not set"
                )


def expand_path(path: str) -> str:
    """Replaces `~` and environment variables such as `$HOME`."""
    try:
        return os.path.expandvars(os.path.expanduser(path))
    except ValueError:  # "~" and a name that the system cannot look up, such as one with a NUL
        return path


def without_folder(path: str) -> str:
    """Gives the last part of an absolute path; its folder means nothing to readers elsewhere."""
    return Path(path).name if os.path.isabs(path) else path


def _get(values: Mapping[str, Any], key: str) -> str | None:
    """Returns the text at a dotted key; None if there is no value or it is not text."""
    section, name = key.split(".")
    keys = values.get(section)
    value = keys.get(name) if isinstance(keys, dict) else None
    return value if isinstance(value, str) else None


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
        raise _to_config_error(error, origin) from None


def _to_config_error(
    error: ValidationError, origin: str, overridden: Collection[str] = ()
) -> ConfigError:
    """Describes all mistakes, separating those of `--set` from those of the file."""
    mistakes: dict[str, list[str]] = {origin: [], "--set": []}
    for mistake in error.errors():
        key = dotted_key(mistake["loc"])
        from_set = any(f"{key}.".startswith((f"{name}.", f"{name}[")) for name in overridden)
        mistakes["--set" if from_set else origin].append(describe_mistake(mistake))
    places = (f"{place}: {'; '.join(texts)}" for place, texts in mistakes.items() if texts)
    return ConfigError("; ".join(places))


def _read_text(path: Path) -> str:
    """Reads UTF-8 text, with or without a byte order mark.

    Raises:
        ConfigError: If it cannot be read; names the encoding if it is a different one.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the configuration: {error.strerror}") from None
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ConfigError(f"{path}: this is UTF-16 text; save it as UTF-8 text")
    if b"\0" in data:
        raise ConfigError(f"{path}: this is a binary file or UTF-16 text; save it as UTF-8 text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}, line {line}: not UTF-8, perhaps Latin-1 (Windows-1252); save it as UTF-8 text"
        ) from None


def _apply_override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    text = text.strip()
    *sections, last = (part.strip() for part in key.split("."))
    if not equals or not all((*sections, last)):
        raise ConfigError(f"--set {override}: write key=value, such as optim.warmup_steps=8000")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {override}: {section} is a value, not a section")
    values[last] = _parse_value(text)


def _parse_value(text: str) -> object:
    """Parses a TOML value; text that is not one, such as a word or a path, is a string."""
    try:
        document = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    # "1\nother = 2" would be valid TOML with two keys.
    return document["value"] if len(document) == 1 else text
