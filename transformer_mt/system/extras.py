"""Packages that only some commands need: the extras of `pyproject.toml`."""

import importlib.util

from transformer_mt.errors import ConfigError


def require_package(name: str, extra: str, needed_by: str) -> None:
    """Raises ConfigError if a package of an extra is not installed."""
    if importlib.util.find_spec(name.lower()) is None:
        raise ConfigError(
            f"{needed_by} needs {name}: pip install -c constraints.txt -e '.[{extra}]'"
        )
