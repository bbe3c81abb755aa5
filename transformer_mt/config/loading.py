"""Configuration from TOML: strict, with `--set` overrides, with all mistakes named; and as TOML."""

import difflib
import json
import os
import re
import shlex
import tomllib
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from transformer_mt.config.keys import DEFAULTS, Config
from transformer_mt.config.splits import UNION_TAGS, SplitColumns, SplitTable
from transformer_mt.errors import ConfigError

_SEARCHED_KEYS = "data.path", "vocab.path", "train.init_from"
"""Paths that are looked for beside the TOML file, then in the working directory."""
_CREATED_KEYS = "data.cache_dir", "data.prepared_dir"
"""Folders that are created if missing, relative to the working directory."""
PATH_KEYS = (*_SEARCHED_KEYS, *_CREATED_KEYS)
"""All keys that are paths; they may differ between the machines of one training."""


def load_config(path: str | Path, overrides: Collection[str] = ()) -> Config:
    """Reads a TOML file, applies `key=value` overrides, of which later ones win, and validates.

        config = load_config("configs/sample.toml", ["optim.lr_scale=0.5", "train.seed=2"])
        config.optim.lr_scale

    Paths of text, vocabulary and initial weights are looked for beside the file, then in the
    working directory; those of overrides only in the working directory. In the configuration,
    existing paths are absolute. A path that does not exist may be a hub id, and stays relative.

    Raises:
        ConfigError: Naming the file or `--set`, and the line or every key that is wrong.
    """
    path = Path(path)
    values = _read_toml(path)
    _expand_paths(values, [path.parent.absolute(), Path.cwd()])
    for override in overrides:
        _apply_override(values, override)
    return parse_config(values, f"{path} with --set" if overrides else str(path))


def parse_config(values: Mapping[str, Any], origin: str) -> Config:
    """Validates values by section and key, which come from `origin`.

    Raises:
        ConfigError: Naming every key that is wrong. Rules between keys are checked once the keys
            themselves are valid.
    """
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        mistakes = "; ".join(map(_describe, error.errors()))
        raise ConfigError(f"{origin}: {mistakes}") from None


def format_config(config: Config, commands: str) -> str:
    """Writes a configuration as TOML, with every key, since defaults may change.

    Comments tell defaults from keys that `--set` in one of the commands has set; others are from a
    file.
    """
    lines, set_keys = [], _keys_set_by(commands, config)
    for section, keys in config:
        lines.append(f"\n[{section}]")
        for name, value in keys:
            key = f"{section}.{name}"
            shown = format_value(_without_home(value, key) if key in PATH_KEYS and value else value)
            origin = "  # default" if value == DEFAULTS[key] else ""
            origin = "  # --set" if key in set_keys else origin
            lines.append(f"# {name} = {shown}" if value is None else f"{name} = {shown}{origin}")
    return "\n".join(lines) + "\n"


def _keys_set_by(commands: str, config: Config) -> set[str]:
    """Finds the keys whose values in a configuration `--set` in one of the commands has set."""
    try:
        words, keys = shlex.split(commands), set[str]()
    except ValueError:  # somebody has edited them
        return set()
    for override in (word.removeprefix("--set=") for word in words):
        key, values = override.partition("=")[0].strip(), config.model_dump()
        with suppress(ConfigError):  # another word, or a value that a later one has replaced
            _apply_override(values, override)
            if parse_config(values, "") == config:
                keys.add(".".join(key.split(".")[:2]))  # of data.valid.slice, data.valid
    return keys


def format_value(value: object) -> str:
    """Formats the value of a key as TOML; None is `(not set)`."""
    if value is None:
        return "(not set)"
    if isinstance(value, SplitTable):
        return str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(format_value, value))}]"
    return json.dumps(value, ensure_ascii=False)


def did_you_mean(unknown: str) -> str:
    """Suggests the keys of the same name, else the most similar key or section, if there is one."""
    splits = "data.train", "data.valid", "data.test"
    keys = [*DEFAULTS, *(f"{split}.{key}" for split in splits for key in SplitColumns.model_fields)]
    name = unknown.rpartition(".")[2]
    near = [key for key in keys if key.endswith(f".{name}")]
    near = [unknown.rpartition(".")[0]] if unknown in keys else near  # such as data.train.slice
    known = keys if "." in unknown else [*Config.model_fields, *keys]
    near = near or difflib.get_close_matches(unknown, known, n=1)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def expand_path(path: str) -> str:
    """Replaces `~` and environment variables such as `$HOME`, unless an absolute path exists."""
    try:
        path = os.path.expanduser(path)
        is_literal = os.path.isabs(path) and os.path.exists(path)
        return path if is_literal else os.path.expandvars(path)
    except ValueError:  # "~" and a name that the system cannot look up, such as one with a NUL
        return path


def _without_home(path: str, key: str) -> str:
    """Writes a path as it holds for others: below the working directory, or else below `~`."""
    home = os.path.realpath(os.path.expanduser("~"))
    for folder, prefix in ((os.getcwd(), ""), (home, "~/")):
        # `.` is another folder for a key that is looked for beside the configuration.
        is_here = path == folder and key in _SEARCHED_KEYS
        if Path(path).is_relative_to(folder) and not is_here:
            return prefix + os.path.relpath(path, folder)
    return path


def searched_folders(path: str) -> str:
    """Says where a path that does not exist was looked for; empty if it is absolute."""
    searched = f" in {Path.cwd()}, nor beside the configuration file if it is set there"
    return "" if os.path.isabs(path) else searched


def _read_toml(path: Path) -> dict[str, Any]:
    """Reads UTF-8 text, with or without a byte order mark, as TOML."""
    try:
        data = path.read_bytes()
    except OSError as error:
        beside = (Path(f"{name}.toml") for name in (path, path.parent))
        hint = "".join(f"; name {named}" for named in beside if named.exists())
        message = f"{path}: cannot read the configuration: {error.strerror}{hint}"
        raise ConfigError(message) from None
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # also bytes that are not UTF-8
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _expand_paths(values: dict[str, Any], folders: Iterable[Path]) -> None:
    """Expands paths, and replaces those that are looked for and exist by absolute paths."""
    for key in PATH_KEYS:
        section, name = key.split(".")
        table = values.get(section)
        if not isinstance(table, dict) or not isinstance(table.get(name), str):
            continue
        path = table[name] = expand_path(table[name])
        if key in _SEARCHED_KEYS and path and not os.path.isabs(path):
            candidates = (os.path.join(folder, path) for folder in folders)
            existing = filter(os.path.exists, candidates)
            table[name] = next(map(os.path.realpath, existing), path)


def _apply_override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    *sections, last = (part.strip() for part in key.split("."))
    if not equals or not all((*sections, last)):
        raise ConfigError(f"--set {override}: write key=value, such as optim.warmup_steps=8000")
    table = values
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {override}: {section} is a value, not a section")
    table[last] = _parse_value(text.strip())
    _expand_paths(values, [Path.cwd()])


def _parse_value(text: str) -> object:
    """Parses a TOML value; text that is not one, such as a word or a path, is a string."""
    try:
        document = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    # "1\nother = 2" would be valid TOML with two keys.
    return document["value"] if len(document) == 1 else text


def _describe(mistake: ErrorDetails) -> str:
    """Describes what pydantic has found: the key, its value, and what is expected or meant."""
    key, value = _dotted_key(mistake["loc"]), mistake["input"]
    kind = "section" if isinstance(value, dict) and "." not in key else "key"
    match mistake["type"]:
        case "extra_forbidden":
            return f"unknown {kind} {key}{did_you_mean(key)}"
        case "missing":
            return f"{kind} {key} is missing"
        case "value_error":
            return str(mistake["ctx"]["error"])
    expected = re.sub(r"^\w+ (?=should)", "", mistake["msg"])
    if mistake["type"] == "string_type":  # such as a number, or nan, Min Nan Chinese
        expected += """, in quotes: "TEXT", or --set KEY='"TEXT"'"""
    return f"{key or 'configuration'} = {shorten(value)} {expected}"


def shorten(value: object) -> str:
    """Writes the beginning of a value for a message."""
    try:
        shown = repr(value)
    except ValueError:
        shown = "a number of thousands of digits"
    return shown if len(shown) <= 60 else f"{shown[:60]}..."


def _dotted_key(location: tuple[int | str, ...]) -> str:
    """Joins the parts of a key; the result is one line whatever the file contains."""
    parts = (part for part in location if part not in UNION_TAGS)
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    key = key.removeprefix(".")
    return key if key.isprintable() else repr(key)
