"""The list of all configuration keys, from their declarations in `keys.py`."""

import json
import textwrap
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic.fields import FieldInfo

from transformer_mt.config.changes import on_change
from transformer_mt.config.keys import Config
from transformer_mt.config.loading import did_you_mean, format_value
from transformer_mt.errors import ConfigError

_BOUNDS = {"ge": "{} or more", "gt": "above {}", "le": "{} or less", "lt": "below {}"}


class KeyReference(NamedTuple):
    """The documentation of a key; `allowed`, the choices or bounds, may be empty."""

    key: str
    default: str
    allowed: str
    on_resume: str
    meaning: str


def describe_keys(key: str | None = None) -> str:
    """Describes a key such as `optim.lr_scale`, the keys of a section, or all keys.

    Raises:
        ConfigError: If there is no such key or section, naming the most similar one.
    """
    texts = {}
    for section, meaning, keys in list_sections():
        texts[section] = f"[{section}]  {meaning}"
        texts |= {reference.key: _describe(reference) for reference in keys}
    if key is None:
        return "\n\n".join(texts.values())
    wanted = [text for name, text in texts.items() if f"{name}.".startswith(f"{key}.")]
    if not wanted:
        raise ConfigError(
            f"{key} is not a key of the configuration{did_you_mean(key)}; `transformer-mt config`"
            " lists all"
        )
    return "\n\n".join(wanted)


def list_sections() -> Iterator[tuple[str, str, list[KeyReference]]]:
    """Yields name, meaning and keys of each section, in the order of `keys.py`."""
    for section, section_field in Config.model_fields.items():
        model: Any = section_field.annotation
        keys = [
            KeyReference(
                key=f"{section}.{name}",
                default="(required)" if field.is_required() else format_value(field.default),
                allowed="; ".join(_allowed(field)),
                on_resume=on_change(field).value,
                meaning=field.description or "",
            )
            for name, field in model.model_fields.items()
        ]
        yield section, model.__doc__ or "", keys


def _describe(reference: KeyReference) -> str:
    notes = "; ".join(filter(None, (reference.allowed, reference.on_resume)))
    meaning = textwrap.indent(textwrap.fill(reference.meaning, 75), " " * 4)
    return f"{reference.key} = {reference.default}  ({notes})\n{meaning}"


def _allowed(field: FieldInfo) -> Iterator[str]:
    """Yields the choices or the bounds of a value."""
    if get_origin(field.annotation) is Literal:
        yield "one of " + ", ".join(json.dumps(choice) for choice in get_args(field.annotation))
    for item in field.metadata:
        for bound, text in _BOUNDS.items():
            if hasattr(item, bound):
                yield text.format(getattr(item, bound))
