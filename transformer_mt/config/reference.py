"""The list of all configuration keys, from their declarations in `keys.py`."""

import difflib
import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from transformer_mt.config.keys import Config, OnChange, SplitFiles
from transformer_mt.errors import ConfigError

_ON_RESUME = {
    OnChange.REFUSED: "fixed for a run",
    OnChange.SHAPES_CORPUS: "fixed for a run",
    OnChange.ENDS_BIT_EQUALITY: "may change on resume, which ends bit-equality",
    OnChange.ALLOWED: "may change on resume",
}
_BOUNDS = {"ge": "{} or more", "gt": "above {}", "le": "{} or less", "lt": "below {}"}


def describe_keys(key: str | None = None) -> str:
    """Describes keys in the order of `keys.py`, section by section.

    Args:
        key: A key such as `optim.lr_scale`, or a section; None means all.

    Raises:
        ConfigError: If there is no such key or section, naming the most similar one.
    """
    entries = list(_entries())
    wanted = [entry for entry in entries if key is None or f"{entry[0]}.".startswith(f"{key}.")]
    if not wanted:
        names = [name for name, _ in entries] + [*Config.model_fields]
        near = difflib.get_close_matches(str(key), names, n=1)
        hint = f"did you mean {near[0]}?" if near else "`transformer-mt config` lists all"
        raise ConfigError(f"{key} is not a key of the configuration; {hint}")
    return "\n\n".join(text for _, text in wanted)


@dataclass(frozen=True)
class KeyReference:
    """The documentation of a key.

    Attributes:
        key: Section and name.
        default: As TOML.
        allowed: Choices or bounds, if there are any.
        on_resume: What a resumed run does with a different value.
        meaning: A sentence or two.
    """

    key: str
    default: str
    allowed: str
    on_resume: str
    meaning: str

    def __str__(self) -> str:
        """Describes the key as `transformer-mt config` prints it."""
        notes = "; ".join(filter(None, (self.allowed, self.on_resume)))
        meaning = textwrap.fill(self.meaning, 79, initial_indent="    ", subsequent_indent="    ")
        return f"{self.key} = {self.default}  ({notes})\n{meaning}"


def list_sections() -> Iterator[tuple[str, str, list[KeyReference]]]:
    """Yields name, meaning and keys of each section, in the order of `keys.py`."""
    for section, section_field in Config.model_fields.items():
        model: Any = section_field.annotation
        yield (
            section,
            str(model.__doc__),
            [
                KeyReference(
                    key=f"{section}.{name}",
                    default=_default(field),
                    allowed="; ".join(_allowed(field)),
                    on_resume="; ".join(_on_resume(field)),
                    meaning=field.description or "",
                )
                for name, field in model.model_fields.items()
            ],
        )


def _entries() -> Iterator[tuple[str, str]]:
    """Yields the name and the description of each section and each key."""
    for section, meaning, keys in list_sections():
        yield section, f"[{section}]  {meaning}"
        for reference in keys:
            yield reference.key, str(reference)


def default_of(key: str) -> object:
    """Returns the default of a dotted key; also None if it has no default."""
    section, name = key.split(".")
    model: Any = Config.model_fields[section].annotation
    return model.model_fields[name].get_default()


def format_value(value: object) -> str:
    """Formats the value of a key as TOML; None is `(not set)`."""
    if value is None:
        return "(not set)"
    if isinstance(value, SplitFiles):
        return str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(format_value, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _default(field: FieldInfo) -> str:
    return "(required)" if field.is_required() else format_value(field.default)


def _allowed(field: FieldInfo) -> Iterator[str]:
    """Yields the choices or the bounds of a value."""
    if get_origin(field.annotation) is Literal:
        yield "one of " + ", ".join(json.dumps(choice) for choice in get_args(field.annotation))
    for item in field.metadata:
        for bound, text in _BOUNDS.items():
            if hasattr(item, bound):
                yield text.format(getattr(item, bound))


def _on_resume(field: FieldInfo) -> Iterator[str]:
    for item in field.metadata:
        if isinstance(item, OnChange):
            yield _ON_RESUME[item]
