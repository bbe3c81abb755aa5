"""The base of all configuration sections, and what a key declares about itself."""

from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, PrivateAttr, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError


class OnChange(Enum):
    """What happens when a run is resumed with a different value of a key."""

    REFUSED = "refused"
    """Training stops with an error: it would no longer be the same run."""
    SHAPES_CORPUS = "shapes corpus"
    """Refused too; the value is also part of the fingerprint of the prepared corpus."""
    ENDS_BIT_EQUALITY = "ends bit-equality"
    """Training continues, but the result differs in rounding or dropout masks."""
    ALLOWED = "allowed"
    """Training continues, and every step is the same as without the change."""


STRICT = ConfigDict(
    frozen=True, strict=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
)


INTEGER_LIMIT = 2**32
"""All integers of a configuration are smaller."""


class Section(BaseModel):
    """Base of all sections: immutable, strictly typed, no unknown keys, no NaN.

    Each field is itself a section or declares an `OnChange` in its `Annotated` type.
    """

    model_config = STRICT

    _searched: dict[str, list[Path]] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any, /) -> None:
        """Keeps the folders in which paths were looked for, by dotted key, for messages."""
        self._searched = context or {}

    def searched_folders(self, key: str, path: str) -> str:
        """Says where a path was looked for: " in FOLDER or FOLDER"; empty if it is absolute.

        Args:
            key: The dotted key that holds the path.
            path: Its value.
        """
        if Path(path).is_absolute():
            return ""
        return " in " + " or ".join(map(str, self._searched.get(key, [Path.cwd()])))

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_large_integers(cls, value: object) -> object:
        """Refuses integers with which sizes and counts could exceed 64 bits."""
        if isinstance(value, int) and value >= INTEGER_LIMIT:
            raise PydanticCustomError("large_integer", f"should be less than {INTEGER_LIMIT}")
        return value

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Refuses a subclass with a field that lacks its declaration.

        Raises:
            TypeError: Naming the field.
        """
        super().__pydantic_init_subclass__(**kwargs)
        for name, field in cls.model_fields.items():
            if not is_section(field) and len(declarations(field)) != 1:
                raise TypeError(
                    f"{cls.__name__}.{name}: declare what a change on resume does, with exactly"
                    " one OnChange: Annotated[type, OnChange.REFUSED]"
                )


def is_section(field: FieldInfo) -> bool:
    """Tells whether a field is a section of keys rather than a key."""
    return isinstance(field.annotation, type) and issubclass(field.annotation, Section)


def declarations(field: FieldInfo) -> list[OnChange]:
    """Returns what a field declares about a change on resume."""
    return [item for item in field.metadata if isinstance(item, OnChange)]
