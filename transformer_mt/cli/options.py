"""Arguments and options that several commands share, and the layout of a command's help."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from transformer_mt.translation.options import Device, Precision

file_option = partial(typer.Option, rich_help_panel="Input and output")
scored_option = partial(typer.Option, rich_help_panel="What to score")
search_option = partial(typer.Option, rich_help_panel="Model and search")
report_option = partial(typer.Option, rich_help_panel="What to report")


class GroupedCommand(TyperCommand):
    """A command whose help lists the options under the names of their groups.

    Typer draws groups (`rich_help_panel`) with Rich alone, which breaks the lines of examples.
    """

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
                group = "Arguments"
                record = str(parameter.metavar), getattr(parameter, "help", "")
            if record:
                groups.setdefault(group, []).append(record)
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records)


ConfigArgument = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="A TOML file, such as configs/wmt16-base.toml.")
]
RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN_OR_CHECKPOINT", help="A run (its best checkpoint) or one checkpoint."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key; may be repeated. `transformer-mt config` lists the keys.",
    ),
]
BeamOption = Annotated[
    int, search_option(min=1, metavar="N", help="Beam size; 1 is greedy search.")
]
PenaltyOption = Annotated[
    float,
    search_option(
        min=0.0, metavar="ALPHA", help="Exponent of the length penalty of beam search, 0 to 10."
    ),
]
PrecisionOption = Annotated[
    Precision,
    search_option(
        metavar="[fp32|bf16|fp16]", help="Type to which weights and arithmetic are rounded."
    ),
]
BatchOption = Annotated[
    int | None,
    search_option(
        min=1,
        metavar="N",
        help="Limit on source pieces per batch, padding included, times the beam size; a CPU"
        " decodes a batch per thread, at most eight. Default: 4096 on a CPU, by memory on a GPU.",
    ),
]
LengthOption = Annotated[
    int | None,
    search_option(
        min=1, metavar="N", help="Pieces after which a line is split. Default: data.max_length."
    ),
]
DeviceOption = Annotated[
    Device, search_option(metavar="[auto|cpu|cuda]", help="Where to translate.")
]
RawOption = Annotated[
    bool,
    search_option(
        "--raw", help="Use the trained weights, not their moving average if there is one."
    ),
]
QuietOption = Annotated[
    bool, typer.Option("-q", "--quiet", help="Only warnings and errors on stderr.")
]
