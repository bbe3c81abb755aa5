"""Configuration from TOML: strict, with `--set` overrides, and with all mistakes named at once."""

import codecs
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
"""Names of other toolkits, and what has their meaning here."""
_LONGEST_VALUE = 60
"""Characters of a value in a message."""


def load_config(path: Path, overrides: Iterable[str] = ()) -> Config:
    """Reads a TOML file, applies `key=value` overrides and validates the result.

    Args:
        path: The TOML file.
        overrides: Items such as `optim.warmup_steps=8000`; later ones win.

    Raises:
        ConfigError: Naming the file, and the line or every key that is wrong.
    """
    try:
        values = tomllib.loads(_read_text(path))
    except RecursionError:
        raise ConfigError(f"{path}: not valid TOML: values are nested too deeply") from None
    except ValueError as error:  # an integer with thousands of digits is not a TOMLDecodeError
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


def _read_text(path: Path) -> str:
    """Reads UTF-8 text, with or without a byte order mark.

    Raises:
        ConfigError: If it cannot be read; names the encoding if it is another one.
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


def _describe_mistake(mistake: ErrorDetails) -> str:
    key, value = _dotted_key(mistake["loc"]), mistake["input"]
    match mistake["type"]:
        case "extra_forbidden":
            kind = "section" if isinstance(value, dict) and "." not in key else "key"
            return f"unknown {kind} {key}{_hint(key)}"
        case "missing":
            return f"{key} is missing"
        case "value_error":
            return str(mistake["ctx"]["error"])
        case "model_type":
            return f"{key or 'configuration'} = {_shorten(value)} should be a section, not a value"
    expected = re.sub(r"^\w+ (?=should)| after validation", "", mistake["msg"])
    return f"{key} = {_shorten(value)} {expected}"


def _shorten(value: object) -> str:
    """Writes a value for a message, which stays readable whatever the value is."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4300 digits
        return "a very large integer"
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def _dotted_key(location: tuple[int | str, ...]) -> str:
    """Joins the parts of a key; the result is one line whatever the file contains."""
    key = ""
    for part in location:
        key += f"[{part}]" if isinstance(part, int) else f".{part}"
    key = key.removeprefix(".")
    return key if key.isprintable() else repr(key)


def _hint(unknown: str) -> str:
    """Suggests a familiar name's meaning, the same name in another section, or a similar key."""
    name = unknown.rpartition(".")[2]
    if name in FAMILIAR_NAMES:
        return f" (use {FAMILIAR_NAMES[name]})"
    sections = list(Config.model_fields)
    keys = [
        f"{section}.{key}"
        for section, field in Config.model_fields.items()
        for key in getattr(field.annotation, "model_fields", {})
    ]
    near = [name] if name in sections else [key for key in keys if key.endswith(f".{name}")]
    near = near or difflib.get_close_matches(unknown, sections + keys, n=1, cutoff=0.6)
    suggestions = (f"the section [{key}]" if key in sections else key for key in near)
    return f" (did you mean {' or '.join(suggestions)}?)" if near else ""
