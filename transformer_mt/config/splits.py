"""How a configuration names a split: a name or slice, files, or a list of these."""

import json
import re
from typing import Annotated

from pydantic import AfterValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from transformer_mt.config.section import Section

SLICE = r"\[(-?\d{1,18})?:(-?\d{1,18})?\]"
"""Pattern of a slice of a split, such as [:-1000]."""


def _check_slice(value: str) -> str:
    if not re.fullmatch(SLICE, value):
        raise PydanticCustomError("slice", "should be a slice, such as [:5000] or [-1000:]")
    return value


UNION_TAGS = "<int>", "<str>", "<NamedSplit>", "<SplitColumns>", "<SplitFiles>", "<list>"
"""The kinds of values of a split or column, which pydantic puts into the location of a mistake."""


def _kind(value: object) -> str:
    if isinstance(value, dict):
        is_named, has_columns = "name" in value, "file" in value
        return "<NamedSplit>" if is_named else "<SplitColumns>" if has_columns else "<SplitFiles>"
    return f"<{type(value).__name__}>"


Slice = Annotated[str, AfterValidator(_check_slice)]
# The value decides its type, so that a mistake is reported once, not for each type.
_BY_TYPE = Discriminator(
    _kind, custom_error_type="column", custom_error_message="should be a column's name or number"
)
_Name = Annotated[str, Field(min_length=1), Tag("<str>")]
Column = Annotated[Annotated[int, Field(ge=1), Tag("<int>")] | _Name, _BY_TYPE]
"""A column's name in the first row of a table, or its number in a table without such a row."""
Columns = dict[str, Column]
"""Columns, each by the key or option that chooses it."""
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
    slice: Slice | None = None
    """The pairs to take, as in Python: "[:-1000]" is all but the last 1000."""
    skip_empty: bool = False
    """Leave out pairs with an empty side, before the slice is taken."""
    weight: Weight = 1
    """In data.train: how often an epoch repeats each pair that cleaning keeps."""


class SplitColumns(SplitTable):
    """A split that consists of two columns of a file; other keys are as in `SplitFiles`."""

    file: Annotated[str, Field(min_length=1)]
    """A Parquet, JSON, CSV or TSV file, or a pattern of several, looked for as there."""
    src: Column
    """The column of source text; in JSON and Parquet "a.b" is also b in objects of a."""
    tgt: Column
    """The column of its translation, likewise."""
    slice: Slice | None = None
    skip_empty: bool = False
    weight: Weight = 1


class NamedSplit(SplitTable):
    """A split by its name; other keys are as in `SplitFiles`."""

    name: Annotated[str, Field(min_length=1)]
    """What would be written without other keys, such as "train" or "memory.tmx"."""
    slice: Slice | None = None
    weight: Weight = 1


_BY_KIND = Discriminator(
    _kind,
    custom_error_type="split",
    custom_error_message="should be a split's name or a table such as"
    ' { src = "a.de", tgt = "a.en" } or { name = "train", weight = 2 }',
)
_Named = Annotated[NamedSplit, Tag("<NamedSplit>")]
_Columns = Annotated[SplitColumns, Tag("<SplitColumns>")]
_Files = Annotated[SplitFiles, Tag("<SplitFiles>")]
Split = Annotated[_Name | _Named | _Columns | _Files, _BY_KIND]
"""A split's name, a slice of it such as `train[:5000]`, its two files, or columns of one."""
_List = Annotated[list[Split], Field(min_length=1), Tag("<list>")]
Splits = Annotated[_Name | _Named | _Columns | _Files | _List, _BY_KIND]
"""One split or several, which are concatenated."""
