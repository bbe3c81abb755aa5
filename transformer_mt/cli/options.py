"""Arguments and options that several commands share, and groups of options."""

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, get_args

import typer
from pydantic import BaseModel, ConfigDict

from transformer_mt.system.console import logger, show_messages
from transformer_mt.translation.options import (
    CPU_BATCH_TOKENS,
    CTRANSLATE2_BATCH_TOKENS,
    Device,
    LoadOptions,
    Precision,
    SearchOptions,
)


def argument(metavar: str, help: str, default: object = ...) -> Any:
    """Declares an argument of a command; it is required unless it has a default."""
    return typer.Argument(default, metavar=metavar, help=help, rich_help_panel="Arguments")


def option(
    metavar: object,
    help: str | None = None,
    *names: str,
    default: object = None,
    min: float | None = None,
    group: str | None = None,
) -> Any:
    """Declares an option with a value; without names, it has that of its parameter.

    A Literal as metavar is shown as its values. In a group, the text below it is its help if there
    is no other.
    """
    values = "|".join(get_args(metavar))
    shown = f"[{values}]" if values else str(metavar)
    return typer.Option(default, *names, metavar=shown, help=help, min=min, rich_help_panel=group)


def flag(help: str | None = None, *names: str, group: str | None = None, **others: Any) -> Any:
    """Declares an option without a value."""
    return typer.Option(False, *names, help=help, rich_help_panel=group, **others)


file_option, file_flag = (partial(f, group="Input and output") for f in (option, flag))
search_option, search_flag = (partial(f, group="Model and search") for f in (option, flag))

CONFIG = argument("CONFIG_OR_RUN", "A TOML file, such as configs/wmt16-base.toml, or a run.")
RUN = argument("RUN", "A run directory.")
RUNS = argument("RUN...", "Run directories.")
MODEL = argument("RUN_OR_CHECKPOINT", "A run (its best checkpoint) or one checkpoint.")
SET = option("KEY=VALUE", "Override a key of `transformer-mt config`; may be repeated.", "--set")
RAW = search_flag("Use the trained weights, not their moving average.", "--raw")
QUIET = flag("Only warnings and errors on stderr.", "-q", "--quiet", callback=show_messages)
"""Takes effect when it is parsed; commands need not look at its value."""


class OptionGroup(BaseModel):
    """Base of groups of options, each with its help below it."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    def given(self) -> list[str]:
        """Names the options that have another value than their default."""
        fields = type(self).model_fields
        changed = (name for name, value in self if value != fields[name].default.default)
        return [f"--{name.replace('_', '-')}" for name in changed]


class SearchGroup(OptionGroup):
    """How `translate` and `evaluate` search."""

    ensemble: bool = search_flag(None, "--ensemble")
    """Decode with the named runs as one ensemble."""
    beam_size: int = search_option("N", default=SearchOptions.beam_size, min=1)
    """Beam size; 1 is greedy search."""
    length_penalty: float = search_option("ALPHA", default=SearchOptions.length_penalty, min=0.0)
    """Exponent of the length penalty of beam search, 0 to 10."""

    def warn_of_length_penalty(self, with_scores: bool = False, samples: bool = False) -> None:
        """Warns of a length penalty that changes nothing, which a loop over settings may give."""
        is_default = self.length_penalty == SearchOptions.length_penalty
        if self.beam_size == 1 and not with_scores and not is_default:
            search = "sampling" if samples else "greedy search: add --beam-size 4"
            logger.warning("--length-penalty has no effect on %s", search)


class ModelGroup(OptionGroup):
    """How `translate` and `evaluate` load models."""

    precision: Precision | None = search_option(Precision)
    """Precision of weights and arithmetic. Default: fp32; an exported model has its own."""
    batch_tokens: int | None = search_option(
        "N",
        "Largest batch: source pieces, padding included, times the beam size. A CPU decodes a batch"
        f" per thread, with PyTorch at most eight. Default: {CPU_BATCH_TOKENS} on a CPU, by memory"
        f" on a GPU; with CTranslate2 {CTRANSLATE2_BATCH_TOKENS['cpu']} and"
        f" {CTRANSLATE2_BATCH_TOKENS['cuda']}.",
        min=1,
    )
    max_length: int | None = search_option("N", min=1)
    """Pieces after which text is split. Default: from the training text."""
    device: Device = search_option(Device, default=LoadOptions.device)
    """Where to translate."""
    raw: bool = RAW


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command, for a parameter whose type is a group, an option for each of its fields."""
    groups: dict[str, Any] = {}
    options: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        group = parameter.annotation
        if not (isinstance(group, type) and issubclass(group, OptionGroup)):
            options.append(parameter)
            continue
        groups[parameter.name] = group
        for each in inspect.signature(group).parameters.values():
            text = group.model_fields[each.name].description or ""
            each.default.help = each.default.help or " ".join(text.split())
            options.append(each)

    @wraps(command)
    def call(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field: values.pop(field) for field in group.model_fields})
        command(**values)

    call.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]  # Typer reads it
    return call
