"""Arguments and options that several commands share, and the layout of a command's help."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from transformer_mt.translation.options import Device, OutputFormat, Precision, Quantization

SCORED = "What to score"
FILES = "Input and output"
SEARCH = "Model and search"
REPORT = "What to report"


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
            if not (record := parameter.get_help_record(ctx)):
                continue
            if parameter.param_type_name == "argument":
                # The usage line tells which are required.
                group, record = (
                    "Arguments",
                    (str(parameter.metavar), getattr(parameter, "help", "")),
                )
            else:
                group = getattr(parameter, "rich_help_panel", None) or "Options"
            groups.setdefault(group, []).append(record)
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records)


# init

NewConfigArgument = Annotated[
    Path, typer.Argument(metavar="NAME", help="Name of the configuration: NAME.toml is written.")
]
SourceTextOption = Annotated[
    Path,
    typer.Option(
        "--src",
        metavar="FILE",
        help="Text to translate from, one sentence per line; also .gz, .xz, .zst.",
    ),
]
TargetTextOption = Annotated[
    Path, typer.Option("--tgt", metavar="FILE", help="Its translation, line by line.")
]
SourceLanguageOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Language of --src, such as de. Default: its ending."),
]
TargetLanguageOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Language of --tgt, likewise."),
]

# train, prepare

ConfigArgument = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="A TOML file, such as configs/wmt16-base.toml.")
]
RunDirOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Run directory. Default: checkpoints/NAME of NAME.toml."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key; may be repeated. `transformer-mt config` lists the keys.",
    ),
]
DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Report sizes, speed, memory and time; keep only downloads."),
]

# translate

RunsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN_OR_CHECKPOINT...",
        help="A run (its best checkpoint) or one checkpoint; several decode as an ensemble.",
    ),
]
InputOption = Annotated[
    list[Path] | None,
    typer.Option(
        "-i",
        "--input",
        metavar="FILE",
        rich_help_panel=FILES,
        help="Text, one sentence per line; also .gz, .xz, .zst; may be repeated with"
        " --output-dir. Default: stdin.",
    ),
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        rich_help_panel=FILES,
        help="File for the translation. Default: stdout, also as -.",
    ),
]
OutputDirOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        rich_help_panel=FILES,
        help="Folder for the translation of each --input: a.de.gz gives a.en.gz.",
    ),
]
NBestOption = Annotated[
    int,
    typer.Option(
        min=1,
        metavar="N",
        rich_help_panel=FILES,
        help="Translations per line, the best first; at most the beam size.",
    ),
]
ScoresOption = Annotated[
    bool,
    typer.Option(
        "--scores",
        rich_help_panel=FILES,
        help="Write score and tab before each translation.",
    ),
]
FormatOption = Annotated[
    OutputFormat,
    typer.Option(
        "--format",
        metavar="[text|jsonl]",
        rich_help_panel=FILES,
        help="jsonl: one object with line, rank, score and text each.",
    ),
]

# evaluate

OptionalRunsArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[RUN_OR_CHECKPOINT...]",
        help="As for translate. Not needed for --hypotheses with --ref or --test-set.",
    ),
]
SplitOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=SCORED,
        help="train, valid or test, as configured, or another split of the corpus. Default: test.",
    ),
]
TestSetOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=SCORED,
        help="sacreBLEU's name of a test set, such as wmt16, instead of a split.",
    ),
]
SourceOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", rich_help_panel=SCORED, help="Source text, instead of a split."),
]
ReferenceOption = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=SCORED,
        help="Reference translation; may be repeated for several references.",
    ),
]
HypothesesOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=SCORED,
        help="Score this translation instead of making one.",
    ),
]
BaselineOption = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN_OR_FILE",
        rich_help_panel=SCORED,
        help="Compare with this run or translation.",
    ),
]
SaveOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", rich_help_panel=REPORT, help="File to save the translation to."),
]
TerOption = Annotated[bool, typer.Option("--ter", rich_help_panel=REPORT, help="Compute TER too.")]
SamplesOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        rich_help_panel=REPORT,
        help="Sentences to show. Default: 0; with --baseline the 3 best and worst changes.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", rich_help_panel=REPORT, help="Print one JSON object.")
]

# translate, evaluate

BeamOption = Annotated[
    int,
    typer.Option(min=1, metavar="N", help="Beam size; 1 is greedy search.", rich_help_panel=SEARCH),
]
PenaltyOption = Annotated[
    float,
    typer.Option(
        min=0.0,
        metavar="ALPHA",
        help="Exponent of the length penalty of beam search, 0 to 10.",
        rich_help_panel=SEARCH,
    ),
]
PrecisionOption = Annotated[
    Precision,
    typer.Option(
        metavar="[fp32|bf16|fp16]",
        help="Type to which weights and arithmetic are rounded.",
        rich_help_panel=SEARCH,
    ),
]
BatchOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Limit on source pieces per batch, padding included, times the beam size; a CPU"
        " decodes a batch per thread, at most eight. Default: 4096 on a CPU, by memory on a GPU.",
        rich_help_panel=SEARCH,
    ),
]
LengthOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Pieces after which a line is split. Default: data.max_length.",
        rich_help_panel=SEARCH,
    ),
]
DeviceOption = Annotated[
    Device,
    typer.Option(metavar="[auto|cpu|cuda]", help="Where to translate.", rich_help_panel=SEARCH),
]
RawOption = Annotated[
    bool,
    typer.Option(
        "--raw",
        help="Use the trained weights, not their moving average if there is one.",
        rich_help_panel=SEARCH,
    ),
]

# average, export, config

AveragedRunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]
LastOption = Annotated[int, typer.Option(min=1, metavar="N", help="Number of newest checkpoints.")]
AverageOutputOption = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="DIR", help="Default: averaged-N in the run."),
]
RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN_OR_CHECKPOINT", help="A run (its best checkpoint) or one checkpoint."
    ),
]
ExportOutputOption = Annotated[
    Path, typer.Option("-o", "--output", metavar="DIR", help="Directory to create.")
]
QuantizationOption = Annotated[
    Quantization,
    typer.Option(
        metavar="[float32|float16|bfloat16|int16|int8]",
        help="Type in which the weights are stored.",
    ),
]
KeyArgument = Annotated[
    str | None,
    typer.Argument(metavar="[KEY]", help="A key or section, such as optim.lr_scale or optim."),
]

# All commands

QuietOption = Annotated[
    bool, typer.Option("-q", "--quiet", help="Only warnings and errors on stderr.")
]
