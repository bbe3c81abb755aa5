"""Arguments and options that several commands share, and the layout of a command's help."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from transformer_mt.errors import ConfigError
from transformer_mt.system.process_settings import end_by_broken_pipe, require_address_space
from transformer_mt.translation.options import Device, Precision, SearchOptions


def argument(metavar: str, help: str) -> Any:
    """Declares an argument of a command."""
    return typer.Argument(metavar=metavar, help=help, rich_help_panel="Arguments")


def option(
    metavar: str, help: str, *names: str, group: str | None = None, min: float | None = None
) -> Any:
    """Declares an option with a value; without names, it has that of its parameter."""
    return typer.Option(*names, metavar=metavar, help=help, min=min, rich_help_panel=group)


def flag(help: str, *names: str, group: str | None = None) -> Any:
    """Declares an option without a value."""
    return typer.Option(*names, help=help, rich_help_panel=group)


FILES, SEARCH = "Input and output", "Model and search"
file_option = partial(option, group=FILES)
search_option = partial(option, group=SEARCH)


class GroupedCommand(TyperCommand):
    """A command whose help lists the options under the names of their groups.

    Typer draws groups (`rich_help_panel`) with Rich alone, which breaks the lines of examples.
    """

    def invoke(self, ctx: Any) -> Any:
        """Runs the command, unless it could not even import PyTorch."""
        require_address_space()
        with end_by_broken_pipe():  # here, since Typer makes it exit code 1
            return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Names the arguments as their help does."""
        arguments = [p for p in self.get_params(ctx) if p.param_type_name == "argument"]
        return ["[OPTIONS]", *(str(argument.metavar) for argument in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes one section per group, in the order of the first option of each."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            group = getattr(parameter, "rich_help_panel", None) or "Options"
            record = parameter.get_help_record(ctx)
            if parameter.param_type_name == "argument":
                # The usage line tells which are required.
                record = str(parameter.metavar), getattr(parameter, "help", "")
            if record:
                groups.setdefault(group, []).append(record)
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records)


ConfigArgument = Annotated[
    Path, argument("CONFIG", "A TOML file, such as configs/wmt16-base.toml.")
]
RunArgument = Annotated[
    Path, argument("RUN_OR_CHECKPOINT", "A run (its best checkpoint) or one checkpoint.")
]
SetOption = Annotated[
    list[str] | None,
    option(
        "KEY=VALUE",
        "Override a key; may be repeated. `transformer-mt config` lists the keys.",
        "--set",
    ),
]
BeamOption = Annotated[int, search_option("N", "Beam size; 1 is greedy search.", min=1)]
PenaltyOption = Annotated[
    float | None,
    search_option(
        "ALPHA",
        "Exponent of the length penalty of beam search, 0 to 10. Default:"
        f" {SearchOptions.length_penalty:g}.",
        min=0.0,
    ),
]
EnsembleOption = Annotated[
    bool, flag("Decode with the named runs as one ensemble.", "--ensemble", group=SEARCH)
]
PrecisionOption = Annotated[
    Precision,
    search_option("[fp32|bf16|fp16]", "Type to which weights and arithmetic are rounded."),
]
BatchOption = Annotated[
    int | None,
    search_option(
        "N",
        "Limit on source pieces per batch, padding included, times the beam size; a CPU"
        " decodes a batch per thread, at most eight. Default: 4096 on a CPU, by memory on a GPU.",
        min=1,
    ),
]
LengthOption = Annotated[
    int | None,
    search_option(
        "N", "Pieces after which text is split. Default: by the length of the training text.", min=1
    ),
]
DeviceOption = Annotated[Device, search_option("[auto|cpu|cuda]", "Where to translate.")]
RawOption = Annotated[
    bool,
    flag(
        "Use the trained weights, not their moving average if there is one.", "--raw", group=SEARCH
    ),
]
QuietOption = Annotated[bool, flag("Only warnings and errors on stderr.", "-q", "--quiet")]


def require_effect(length_penalty: float | None, beam_size: int, scores: bool = False) -> float:
    """Gives the length penalty or its default; refuses one that would change nothing."""
    if length_penalty is None:
        return SearchOptions.length_penalty
    if beam_size == 1 and not scores:
        raise ConfigError("--length-penalty has no effect on greedy search: add --beam-size 4")
    return length_penalty
