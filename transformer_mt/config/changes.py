"""In which keys two configurations differ, and whether that matters."""

import os
from pathlib import Path

from pydantic.fields import FieldInfo

from transformer_mt.config.keys import Config
from transformer_mt.config.loading import expand_path
from transformer_mt.config.section import OnChange
from transformer_mt.config.splits import SplitTable


def on_change(field: FieldInfo) -> OnChange:
    """Returns what a key declares about a change on resume; without a declaration, it is fixed."""
    declared = (item for item in field.metadata if isinstance(item, OnChange))
    return next(declared, OnChange.REFUSED)


def changed_keys(old: Config, new: Config, *kinds: OnChange) -> list[str]:
    """Lists the keys that differ and declare one of these effects on resume.

    Where the files lie that a table names does not matter: the digest of the text decides.
    """
    return sorted(
        f"{section}.{name}"
        for section, keys in new
        for name, field in type(keys).model_fields.items()
        if on_change(field) in kinds
        and without_folders(getattr(keys, name))
        != without_folders(getattr(getattr(old, section), name))
    )


def without_folders(value: object) -> object:
    """Returns a value with only the last part of each absolute path in the tables of a split."""
    if isinstance(value, list):
        return [without_folders(item) for item in value]
    if isinstance(value, SplitTable):
        keys = value.model_dump().items()
        return {k: without_folder(expand_path(v)) if isinstance(v, str) else v for k, v in keys}
    return value


def without_folder(path: str) -> str:
    """Returns the last part of an absolute path; its folder means nothing to readers elsewhere."""
    return Path(path).name if os.path.isabs(path) else path
