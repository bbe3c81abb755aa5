"""Writes reference.md: every key of a configuration, and every option of every command.

make reference
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from transformer_mt.cli.program import app
from transformer_mt.config.reference import list_sections

REFERENCE = Path(__file__).with_name("reference.md")


def render() -> str:
    """Gives the whole page."""
    return "\n".join([*_keys(), *_commands()]) + "\n"


def _keys() -> Iterator[str]:
    """Yields the lines about the configuration."""
    yield from (
        "# Reference",
        "",
        "Made by `make reference` from `transformer_mt/config/keys.py` and the command line; do not"
        " edit.",
        "`transformer-mt config [KEY]` and `transformer-mt COMMAND -h` print the same.",
        "",
        "## Keys",
        "",
        "In a TOML file or by `--set KEY=VALUE`. The last column says whether a resumed run accepts"
        " another value.",
    )
    for section, meaning, keys in list_sections():
        yield from ("", f"### [{section}]", "", meaning, "")
        yield from _table_head("key", "default", "meaning", "on resume")
        for key in keys:
            allowed = f" ({key.allowed})" if key.allowed else ""
            yield _row(f"`{key.key}`", f"`{key.default}`", f"{key.meaning}{allowed}", key.on_resume)


def _commands() -> Iterator[str]:
    """Yields the lines about the commands."""
    yield from ("", "## Commands", "", "`transformer-mt COMMAND -h` shows examples.")
    for name, command in list_commands("transformer-mt", typer.main.get_command(app)):
        with typer.Context(command, info_name=name) as context:
            usage = " ".join(command.collect_usage_pieces(context))
            summary = command.get_short_help_str(limit=1_000)
            yield from ("", f"### {name}", "", f"`{name} {usage}`", "")
            yield from ((summary, "") if " " in name else ())
            if rows := list(_parameters(command, context)):
                yield from (*_table_head("argument or option", "meaning"), *rows)


def _parameters(command: Any, context: typer.Context) -> Iterator[str]:
    """Yields a row for each argument and option but --help."""
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record and parameter.name != "help":
            is_argument = parameter.param_type_name == "argument"
            yield _row(f"`{parameter.metavar if is_argument else record[0]}`", record[1])


def list_commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yields a command and those under it, each with the words that call it."""
    yield name, command
    for word, below in getattr(command, "commands", {}).items():
        yield from list_commands(f"{name} {word}", below)


def _table_head(*titles: str) -> Iterator[str]:
    yield _row(*titles)
    yield "|---" * len(titles) + "|"


def _row(*cells: str) -> str:
    texts = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(texts)} |"


if __name__ == "__main__":
    REFERENCE.write_text(render(), encoding="utf-8")
