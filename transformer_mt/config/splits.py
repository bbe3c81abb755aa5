"""How a configuration names a split: a name or slice, two files, or a list of these."""

import json
import re
from typing import Annotated

from pydantic import Discriminator, Field, Tag, field_validator
from pydantic_core import PydanticCustomError

from transformer_mt.config.section import Section

SLICE = r"\[(-?\d{1,18})?:(-?\d{1,18})?\]"
"""Pattern of a slice of a split, such as [:-1000]."""
Weight = Annotated[int, Field(ge=1, le=1000)]


class SplitTable(Section):
    """Base of the tables that say what a split is."""

    def __str__(self) -> str:
        """Writes the split as it is written in TOML."""
        keys = self.model_dump(exclude_defaults=True).items()
        pairs = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in keys]
        return f"{{ {', '.join(pairs)} }}"

    __repr__ = __str__


class SplitFiles(SplitTable):
    """A split that consists of two line-aligned text files, or of a slice of them."""

    src: Annotated[str, Field(min_length=1)]
    """The file of source text, in the folder `data.path` unless it is absolute; also .gz, .xz or
    .zst."""
    tgt: Annotated[str, Field(min_length=1)]
    """The file of its translation, likewise."""
    slice: str | None = None
    """The pairs to take, as in Python: "[:-1000]" is all but the last 1000."""
    skip_empty: bool = False
    """Leave out pairs with an empty side, before the slice is taken."""
    weight: Weight = 1
    """In data.train: how often an epoch repeats each pair that cleaning keeps."""

    @field_validator("slice")
    @classmethod
    def _is_slice(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(SLICE, value):
            raise PydanticCustomError("slice", "should be a slice, such as [:5000] or [-1000:]")
        return value


class NamedSplit(SplitTable):
    """A split by its name, with a weight."""

    name: Annotated[str, Field(min_length=1)]
    """What would be written without a weight, such as "train" or "memory.tmx"."""
    weight: Weight = 1
    """As in `SplitFiles`."""


UNION_TAGS = "<name>", "<named>", "<files>", "<list>"
"""The kinds of values of a split, which pydantic inserts into the location of a mistake."""
_KINDS: dict[type, str] = dict(zip((str, NamedSplit, SplitFiles, list), UNION_TAGS, strict=True))


def _kind(value: object) -> str | None:
    if isinstance(value, dict):
        return "<named>" if "name" in value else "<files>"
    return _KINDS.get(type(value))


# The value decides its type, so that a mistake is reported once, not for each type.
_BY_KIND = Discriminator(
    _kind,
    custom_error_type="split",
    custom_error_message="should be a split's name or a table such as"
    ' { src = "a.de", tgt = "a.en" } or { name = "train", weight = 2 }',
)
_Name = Annotated[str, Tag("<name>")]
_Named = Annotated[NamedSplit, Tag("<named>")]
_Files = Annotated[SplitFiles, Tag("<files>")]
Split = Annotated[_Name | _Named | _Files, _BY_KIND]
"""A split's name, a slice of it such as `train[:5000]`, or its two files."""
_List = Annotated[list[Split], Field(min_length=1), Tag("<list>")]
Splits = Annotated[_Name | _Named | _Files | _List, _BY_KIND]
"""One split or several, which are concatenated."""
