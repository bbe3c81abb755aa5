"""Training curves: loss, BLEU, learning rate and speed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_mt.checkpoints.run_directory import METRICS
from transformer_mt.errors import CheckpointError
from transformer_mt.figures.canvas import (
    FILE_STYLE,
    Style,
    matplotlib_defaults,
    new_figure,
    style_axes,
)
from transformer_mt.figures.fonts import drawable_names
from transformer_mt.figures.metrics import RunMetrics, name_runs, read_metrics
from transformer_mt.figures.options import XAxis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = ("#1a1a1a", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_MARKS = 12
"""Markers per curve, which tell runs apart if colours cannot."""
_X_LABELS = {"step": "step", "minutes": "minutes of training"}


@dataclass(frozen=True)
class Panel:
    """One chart of training curves.

    Attributes:
        title: Its title.
        unit: Label of the vertical axis.
        curves: For each curve, the kind and the key of its figures in metrics.jsonl, and its name
            if there are several; the first is solid, the others are dashed.
        absent: The text shown if there is nothing to draw.
    """

    title: str
    unit: str
    curves: tuple[tuple[str, str, str], ...]
    absent: str


PANELS = (
    Panel(
        "Loss",
        "nats per target token",
        (("train", "loss", "training, label-smoothed"), ("valid", "nll", "validation, NLL")),
        "no finite loss",
    ),
    Panel(
        "Validation BLEU",
        "BLEU",
        (("valid", "bleu", "weights"), ("valid", "ema_bleu", "moving average")),
        "no validation yet",
    ),
    Panel("Learning rate", "rate", (("train", "lr", ""),), "no step logged yet"),
    Panel(
        "Speed",
        "target tokens per second",
        (("train", "tokens_per_second", ""),),
        "no step logged yet",
    ),
)


def read_runs(paths: Sequence[Path]) -> list[RunMetrics]:
    """Reads the metrics of runs, named so that they differ.

    Args:
        paths: Their directories.

    Raises:
        CheckpointError: If one does not exist or has no metrics yet.
    """
    runs = [read_metrics(path) for path in paths]
    for run, path in zip(runs, paths, strict=True):
        if not run.records:
            raise CheckpointError(f"{path}: its {METRICS} has no complete line yet")
    return name_runs(runs, paths)


def training_figure(runs: Sequence[RunMetrics], x: XAxis = "step") -> "Figure":
    """Draws the curves of runs in four panels, with a legend if there are several runs.

    Args:
        runs: At least one.
        x: The horizontal axis.
    """
    with matplotlib_defaults():
        columns = min(len(runs), 3 if max(map(len, (r.name for r in runs))) < 30 else 2)
        rows = math.ceil(len(runs) / columns) if len(runs) > 1 else 1
        figure = new_figure(10, 6.4 + 0.2 * rows)
        for panel, axes in zip(PANELS, figure.subplots(2, 2).flat, strict=True):
            _draw(axes, panel, runs, x, FILE_STYLE, _COLORS)
        if len(runs) == 1:
            [name], families = drawable_names([runs[0].name])
            figure.suptitle(name, parse_math=False, fontfamily=families)
        else:
            _add_legend(figure, runs, columns)
        return figure


def panel_figure(panel: Panel, run: RunMetrics, style: Style) -> "Figure":
    """Draws one panel of one run.

    Args:
        panel: The panel.
        run: The run.
        style: Colours of text and axes.
    """
    with matplotlib_defaults():
        figure = new_figure(4.6, 2.9, style)
        _draw(figure.subplots(), panel, [run], "step", style, (style.accent,))
        return figure


def _draw(
    axes: "Axes", panel: Panel, runs: Sequence[RunMetrics], x: XAxis, style: Style, colors: Any
) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    style_axes(axes, style)
    axes.set_title(panel.title, color=style.foreground)
    axes.set_xlabel(_X_LABELS[x], color=style.foreground)
    axes.set_ylabel(panel.unit, color=style.foreground)
    drawn = {
        name: dashes
        for (kind, key, name), dashes in zip(panel.curves, ("-", (0, (4, 2))), strict=False)
        if _draw_runs(axes, runs, (kind, key, x), dashes, colors)
    }
    if not drawn:
        axes.text(
            0.5, 0.5, panel.absent, color=style.foreground, ha="center", transform=axes.transAxes
        )
        axes.set(xticks=[], yticks=[])
        return
    # The same for all panels, so that each step is at the same position.
    axes.set_xlim(0, 1.02 * max(run.end(x) for run in runs) or 1.0)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=x == "step"))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    if panel.curves[0][1] == "lr":
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 3), useMathText=True)
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    if panel.curves[0][1] in ("lr", "tokens_per_second", "bleu"):
        axes.set_ylim(0, 1.1 * axes.dataLim.y1 or 1.0)
    if len(drawn) > 1:
        _add_key(axes, drawn, style)


def _draw_runs(
    axes: "Axes",
    runs: Sequence[RunMetrics],
    source: tuple[str, str, XAxis],
    dashes: Any,
    colors: Any,
) -> bool:
    """Draws one figure of all runs; tells whether there was anything to draw."""
    is_drawn = False
    for number, run in enumerate(runs):
        positions, values = run.series(*source)
        if not any(map(math.isfinite, values)):
            continue
        is_drawn = True
        stride = max(1, len(values) // _MARKS)
        axes.plot(
            positions,
            values,
            color=colors[number % len(colors)],
            linestyle=dashes,
            linewidth=1.3,
            marker=_MARKERS[number % len(_MARKERS)] if len(runs) > 1 or len(values) < 3 else None,
            markersize=4,
            # Markers at different positions for each run, so that equal curves do not hide them.
            markevery=(number * stride // len(runs), stride),
            label=run.name,
        )
    return is_drawn


def _add_key(axes: "Axes", names: dict[str, Any], style: Style) -> None:
    """Adds a key of the line styles."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=style.foreground, linestyle=dashes) for dashes in names.values()
    ]
    axes.legend(
        handles,
        list(names),
        fontsize="small",
        frameon=False,
        labelcolor=style.foreground,
        loc="best",
    )


def _add_legend(figure: "Figure", runs: Sequence[RunMetrics], columns: int) -> None:
    """Names the runs below the panels."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=_COLORS[i % len(_COLORS)], marker=_MARKERS[i % len(_MARKERS)])
        for i in range(len(runs))
    ]
    names, families = drawable_names([run.name for run in runs])
    legend = figure.legend(
        handles,
        [f"run {i}" for i in range(len(runs))],
        loc="outside lower center",
        ncols=columns,
        frameon=False,
    )
    # Not set as labels: those with a leading underscore are left out, and $ starts maths.
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set(parse_math=False, text=name, fontfamily=families)
