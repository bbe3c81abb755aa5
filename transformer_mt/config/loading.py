"""Configuration from TOML: strict, with `--set` overrides, and with all mistakes named at once."""

import codecs
import difflib
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from transformer_mt.config.keys import UNION_TAGS, Config, SplitFiles
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


FAMILIAR_NAMES = {
    "lr": "optim.lr_scale, a factor on the Noam learning rate",
    "learning_rate": "optim.lr_scale, a factor on the Noam learning rate",
    "warmup": "optim.warmup_steps",
    "warmup_updates": "optim.warmup_steps",
    "clip_norm": "optim.max_grad_norm",
    "grad_clip": "optim.max_grad_norm",
    "layers": "model.encoder_layers and model.decoder_layers",
    "n_layers": "model.encoder_layers and model.decoder_layers",
    "num_layers": "model.encoder_layers and model.decoder_layers",
    "heads": "model.n_heads",
    "num_heads": "model.n_heads",
    "nhead": "model.n_heads",
    "hidden_size": "model.d_model",
    "embed_dim": "model.d_model",
    "embedding_dim": "model.d_model",
    "ffn_dim": "model.d_ff",
    "ff_size": "model.d_ff",
    "dim_feedforward": "model.d_ff",
    "vocab_size": "vocab.size",
    "max_len": "data.max_length",
    "batch_size": "train.batch_tokens, which counts tokens, not sentences",
    "accumulation_steps": "train.micro_batch_tokens, which sets how a step is divided",
    "epochs": "train.max_epochs",
    "num_epochs": "train.max_epochs",
    "steps": "train.max_steps",
    "num_steps": "train.max_steps",
    "max_updates": "train.max_steps",
    "early_stopping": "valid.patience",
    "fp16": 'train.precision = "fp16"',
    "bf16": 'train.precision = "bf16"',
    "beam_size": "the option --beam-size of translate and evaluate",
    "length_penalty": "the option --length-penalty of translate and evaluate",
    "path": "data.path",
    "dataset": "the section [data]",
    "corpus": "the section [data]",
    "training": "the section [train]",
    "optimizer": "the section [optim]",
    "validation": "the section [valid]",
    "vocabulary": "the section [vocab]",
}
"""Names used by other toolkits, and their equivalents here."""
_SPLITS = "train", "valid", "test"
"""Keys of [data] that may hold a table."""
_LONGEST_VALUE = 60
"""Maximum number of characters of a value in a message."""


def describe_mistake(mistake: ErrorDetails) -> str:
    """Describes what pydantic has found: the key, its value, and what is expected or meant."""
    key, value = dotted_key(mistake["loc"]), mistake["input"]
    match mistake["type"]:
        case "extra_forbidden":
            kind = "section" if isinstance(value, dict) and "." not in key else "key"
            return f"unknown {kind} {key}{_hint(key)}"
        case "missing" if key == "data":
            return "data.path is missing: name the corpus in a section [data]"
        case "missing":
            return f"{key} is missing"
        case "value_error":
            return str(mistake["ctx"]["error"])
        case "model_type":
            return f"{key or 'configuration'} = {_shorten(value)} should be a section, not a value"
    expected = re.sub(r"^\w+ (?=should)| after validation", "", mistake["msg"])
    return f"{key} = {_shorten(value)} {expected}"


def _shorten(value: object) -> str:
    """Formats a value for a message, which stays readable whatever the value is."""
    try:
        text = repr(value)
    except ValueError:  # Python does not format integers of more than 4300 digits
        return "a very large integer"
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def dotted_key(location: tuple[int | str, ...]) -> str:
    """Joins the parts of a key; the result is one line whatever the file contains."""
    key = ""
    for part in location:
        if part in UNION_TAGS:  # pydantic's name for a type of a union, not a key
            continue
        key += f"[{part}]" if isinstance(part, int) else f".{part}"
    key = key.removeprefix(".")
    return key if key.isprintable() else repr(key)


def _hint(unknown: str) -> str:
    """Suggests a familiar name's equivalent, the same name in another section, or a similar key."""
    name = unknown.rpartition(".")[2]
    if name in FAMILIAR_NAMES:
        return f" (use {FAMILIAR_NAMES[name]})"
    sections = list(Config.model_fields)
    keys = [
        f"{section}.{key}"
        for section, field in Config.model_fields.items()
        for key in getattr(field.annotation, "model_fields", {})
    ]
    keys += [f"data.{split}.{key}" for split in _SPLITS for key in SplitFiles.model_fields]
    near = [name] if name in sections else [key for key in keys if key.endswith(f".{name}")]
    known = keys if "." in unknown else sections + keys
    near = near or difflib.get_close_matches(unknown, known, n=1, cutoff=0.6)
    suggestions = (f"the section [{key}]" if key in sections else key for key in near)
    return f" (did you mean {' or '.join(suggestions)}?)" if near else ""
