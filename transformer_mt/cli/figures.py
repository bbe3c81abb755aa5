"""The commands that show runs: plot, diagnose, report, compare."""

from enum import StrEnum
from pathlib import Path
from typing import Literal

import typer

from transformer_mt.checkpoints.metrics import PANELS, read_runs
from transformer_mt.cli.options import MODEL, QUIET, RAW, RUN, RUNS, argument, flag, option
from transformer_mt.errors import ConfigError, OutputError
from transformer_mt.system.console import escape_controls
from transformer_mt.system.extras import require_package
from transformer_mt.system.outputs import Output, check_output, open_output
from transformer_mt.translation.options import LoadOptions

plot = typer.Typer(
    help="Draw training curves or attention.", subcommand_metavar="COMMAND", rich_markup_mode=None
)

PanelName = StrEnum("PanelName", list(PANELS))  # type: ignore[misc]  # mypy reads no table
PICTURES = ".png", ".svg", ".pdf"
FIGURE = option("FILE", "The picture; ends in .png, .svg or .pdf.", "-o", "--output", default=...)
Axis = Literal["step", "minutes"]
Kind = Literal["cross", "encoder", "decoder"]
TableFormat = Literal["text", "markdown", "latex", "csv", "json"]


@plot.command()
def training(
    runs: list[Path] = RUNS,
    output: Path = FIGURE,
    x: Axis = option(Axis, "Unit of the horizontal axis.", default="step"),
    panel: list[PanelName] | None = option(
        f"[{'|'.join(PanelName)}]", "What to draw; may be repeated. Default: all."
    ),
    mean: bool = flag("Draw the mean ± SD of runs that differ in train.seed alone.", "--mean"),
    label: list[str] | None = option("NAME", "Name in the legend; once for each curve, in order."),
    title: str | None = option("TEXT", "Title of the figure."),
) -> None:
    """Draw the training curves of one or more runs.

    They are loss, BLEU, learning rate, gradient norm and speed.

    \b
    transformer-mt plot training checkpoints/wmt16-base -o curves.png
    transformer-mt plot training runs/a runs/b --x minutes -o both.pdf
    transformer-mt plot training runs/a runs/b --panel nll --label pre --label post -o nll.png
    transformer-mt plot training runs/pre-* runs/post-* --mean -o means.png
    """
    checked = _check_output(output, "plot", *PICTURES)
    from transformer_mt.figures.canvas import render
    from transformer_mt.figures.training import read_means, training_figure

    metrics = read_means(runs) if mean else read_runs(runs)
    if label and len(label) != len(metrics):
        raise ConfigError(f"{len(metrics)} curves need as many --label; {len(label)} given")
    figure = training_figure(metrics, x, panel or (), title, label or ())
    _write(render(figure, output.suffix[1:].lower()), checked)


@plot.command()
def attention(
    path: Path = MODEL,
    sentence: str = argument("SENTENCE", "A source sentence, in quotes."),
    output: Path = FIGURE,
    kind: Kind = option(
        Kind,
        "Attention of the decoder to the source, or self-attention of either.",
        default="cross",
    ),
    layer: int | None = option("N", "Layer, from 1. Default: the last.", min=1),
    tgt: str | None = option("TEXT", "The translation, in quotes. Default: by greedy search."),
    heads: bool = flag("Draw each head by itself, not their mean.", "--heads"),
    raw: bool = RAW,
    quiet: bool = QUIET,
) -> None:
    """Draw the attention weights of a sentence and its translation.

    \b
    transformer-mt plot attention checkpoints/wmt16-base "Ein Satz." -o attention.png
    transformer-mt plot attention RUN "Ein Satz." --kind encoder --layer 1 --heads -o heads.pdf
    transformer-mt plot attention RUN "Ein Satz." --tgt "A sentence." -o given.png
    """
    checked = _check_output(output, "plot", *PICTURES)
    from transformer_mt.figures.attention import attention_figure, sentence_attention
    from transformer_mt.figures.canvas import render
    from transformer_mt.translation.translation_model import build_translation_model, find_models

    model = build_translation_model(find_models([path]), LoadOptions("cpu", raw=raw))
    weights = sentence_attention(model, sentence, tgt)
    figure = attention_figure(weights, kind, layer, heads)
    _write(render(figure, output.suffix[1:].lower()), checked)


def _check_output(output: Path, command: str, *endings: str) -> Output:
    """Checks that a figure can be drawn and written, before any work is done for it."""
    require_package("Matplotlib", "plots", command)
    if output.suffix.lower() not in endings:
        raise OutputError(f"{output}: name a file that ends in {', '.join(endings)}")
    return check_output(output)


def _write(content: bytes, output: Output) -> None:
    with open_output(output) as file:
        file.write(content)
    print(output.name)


def diagnose(run: Path = RUN, quiet: bool = QUIET) -> None:
    """List likely causes of a run's low BLEU.

    A line for each finding: the measured value, and what to do. Nothing is printed if nothing is
    wrong.

    \b
    transformer-mt diagnose checkpoints/wmt16-base
    """
    from transformer_mt.evaluation.diagnosis import diagnose as diagnose_run

    for finding in diagnose_run(run):
        print(escape_controls(finding))


def report(
    run: Path = RUN,
    output: Path = option("FILE", "The page, such as report.html.", "-o", "--output", default=...),
    quiet: bool = QUIET,
) -> None:
    """Write the report of a run: an HTML page that needs no network.

    It shows what the run directory holds: text, configuration, curves, scores, translations,
    speed. Run `evaluate` before it for scores on the test set.

    \b
    transformer-mt report checkpoints/wmt16-base -o report.html
    """
    require_package("Jinja2", "plots", "report")
    checked = _check_output(output, "report", ".html", ".htm")
    from transformer_mt.figures.report import build_report

    _write(build_report(run).encode(), checked)


def compare(
    runs: list[Path] = RUNS,
    format_: TableFormat = option(TableFormat, "Format.", "--format", default="text"),
    columns: list[str] = option("NAME", "Column to show ('*BLEU'); may be repeated.", default=[]),
    metric: list[str] = option("NAME", "Metric to show ('chrF*'); may be repeated.", default=[]),
    test_set: list[str] = option("NAME", "Test set to show ('wmt*'); may be repeated.", default=[]),
    baseline: Path | None = option("RUN", "Print t-tests over seeds against its setting instead."),
    quiet: bool = QUIET,
) -> None:
    """Print a table of runs: settings, speed and scores.

    One row per run and setting of search, with the keys in which the configurations differ and
    every test score that `evaluate` has recorded. Runs that differ in train.seed alone are followed
    by their mean and standard deviation.

    \b
    transformer-mt compare checkpoints/pre-* checkpoints/post-*
    transformer-mt compare checkpoints/*/ --format csv > runs.csv
    transformer-mt compare runs/* --format latex --columns model.norm --columns '*BLEU'
    transformer-mt compare runs/* --baseline runs/pre-1
    """
    from transformer_mt.evaluation.run_comparison import compare_seeds, format_rows, read_rows

    groups = read_rows([baseline, *runs] if baseline else runs, test_set, metric)
    print(format_rows(compare_seeds(groups) if baseline else groups, format_, columns))
