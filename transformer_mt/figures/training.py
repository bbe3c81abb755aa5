"""Training curves, from metrics.jsonl: loss, BLEU, learning rate and speed, of runs or means."""

import math
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from transformer_mt.checkpoints.metrics import LOSS_UNIT, PANELS, Panel, RunMetrics, read_runs
from transformer_mt.errors import ConfigError
from transformer_mt.evaluation.run_comparison import describe_settings, read_rows
from transformer_mt.figures.canvas import ACCENT, FOREGROUND, drawable, figure_style

_COLORS = (ACCENT, "#d55e00", FOREGROUND, "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
"""Nine, so that with seven colours the first 63 runs look different."""
_THOUSANDS = "{x:,.10g}"
"""Format of the numbers at an axis."""
_MAX_NAME = 48
_MARKS = 12
"""Markers per curve, which tell several runs apart if colours cannot."""
_DASHES: Any = "-", (0, (4, 2))
"""Line styles of the two curves of a panel."""
_PANEL_SIZE = 5.0, 3.1
"""Inches of a figure of one panel."""
_DEVIATION = "_std_dev"
"""Suffix of a metric: its standard deviation over several runs."""


def read_means(paths: Sequence[Path]) -> list[RunMetrics]:
    """Reads the metrics of runs, and averages those of runs that differ in train.seed alone.

    A mean is named by the settings that its runs share and others do not.

    Raises:
        CheckpointError: If a run does not exist or has no metrics yet.
        ConfigError: If runs of a mean do not differ in their seeds.
    """
    runs = {run.name: run for run in read_runs(paths)}
    groups: dict[str, dict[str, object]] = {}  # seeds by run, by settings
    for row in chain(*read_rows(paths)):
        if row["run"] in runs:
            groups.setdefault(describe_settings(row), {})[row["run"]] = row.get("train.seed")
    means = []
    for settings, seeds in groups.items():
        if 1 < len(seeds) != len(set(seeds.values()) - {None}):
            raise ConfigError(f"{', '.join(seeds)}: a mean needs another train.seed for each run")
        name = f"{settings or 'all runs'}: mean ± SD of {len(seeds)}"
        same = [runs[each] for each in seeds]
        means.append(_average(name, same) if len(same) > 1 else same[0])
    return means


def _average(name: str, runs: Sequence[RunMetrics]) -> RunMetrics:
    """Averages the records at the steps that all runs have, with sample standard deviations.

    Neither is finite where a run's value is not.
    """
    by_step = [{(record["kind"], record["step"]): record for record in run.records} for run in runs]
    records = []
    for place, first in by_step[0].items():
        if all(place in run for run in by_step):
            mean = dict(first)
            for key in first.keys() - {"kind"}:
                values = [run[place].get(key, math.nan) for run in by_step]
                mean[key], mean[key + _DEVIATION] = np.mean(values), np.std(values, ddof=1)
            records.append(mean)
    return RunMetrics(name, records)


def training_figure(
    runs: Sequence[RunMetrics],
    x: str = "step",
    panels: Sequence[str] = (),
    title: str | None = None,
    labels: Sequence[str] = (),
) -> Figure:
    """Draws the curves of runs over `step` or `minutes`, with a legend if there are several.

    Draws all panels in two rows, or the named ones in one row. Around a mean is a band of its
    standard deviation. If `title` is None, a figure of one run has its name. Without labels, runs
    have their names.
    """
    names = [_drawable_name(name) for name in labels or (run.name for run in runs)]
    columns = 3 if max(map(len, names)) < 30 else 2
    width, height, rows = 13.0, 6.4, 2
    if panels:
        width, height, rows = len(panels) * _PANEL_SIZE[0], _PANEL_SIZE[1], 1
    drawn = panels or tuple(PANELS)
    with figure_style():
        size = width, height + 0.2 * math.ceil(len(runs) / columns)
        figure = Figure(size, layout="constrained")
        grid = figure.subplots(rows, len(drawn) // rows, squeeze=False)
        for name, axes in zip(drawn, grid.flat, strict=True):
            _draw_panel(axes, PANELS[name], runs, x)
        if title or (title is None and len(runs) == 1):
            figure.suptitle(drawable(title) if title else names[0])
        if len(runs) == 1:
            return figure
        handles = [Line2D([], [], label=name, **_look(i, 0)) for i, name in enumerate(names)]
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize="medium")
        return figure


def _draw_panel(axes: Axes, panel: Panel, runs: Sequence[RunMetrics], x: str) -> None:
    axes.set(title=panel.title, ylabel=panel.unit)
    axes.set_xlabel("step" if x == "step" else "minutes of training")
    drawn: dict[str, Line2D] = {}
    for curve, (kind, key, label) in enumerate(panel.curves):
        for number, run in enumerate(runs):
            positions, values = run.series(kind, key, x)
            if count := sum(map(math.isfinite, values)):
                marks: Any = _alone(values)
                if len(runs) > 1 and count > 1:
                    # At different positions for each run, so that equal curves do not hide them.
                    marks = number / len(runs) / _MARKS, 1 / _MARKS
                [line] = axes.plot(positions, values, markevery=marks, **_look(number, curve))
                if deviations := run.series(kind, key + _DEVIATION, x)[1]:
                    low, high = np.subtract(values, deviations), np.add(values, deviations)
                    axes.fill_between(positions, low, high, color=line.get_color(), alpha=0.2, lw=0)
                dashes = _DASHES[curve]
                drawn[label] = Line2D([], [], color=FOREGROUND, linestyle=dashes, label=label)
    if not drawn:
        axes.text(0.5, 0.5, "no finite value yet", ha="center", transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])
        return
    # The same for all panels, so that each step is at the same position.
    axes.set_xlim(0, 1.02 * max(run.end(x) for run in runs) or 1.0)
    axes.locator_params(axis="x", nbins=6, integer=x == "step")
    axes.xaxis.set_major_formatter(_THOUSANDS)
    axes.yaxis.set_major_formatter(_THOUSANDS)
    if panel.unit != LOSS_UNIT:
        top = 1.1 * axes.dataLim.y1 or 1.0
        axes.set_ylim(-0.02 * top, top)  # a BLEU of 0 must be seen
    if len(drawn) > 1:
        # With the default, which is the same, Matplotlib warns if it takes more than a second.
        axes.legend(handles=[*drawn.values()], loc="best")


def _alone(values: Sequence[float]) -> list[int]:
    """Lists the points that no line joins to another, which only a marker shows."""
    finite = [False, *map(math.isfinite, values), False]
    return [i for i in range(len(values)) if finite[i : i + 3] == [False, True, False]]


def _look(number: int, curve: int) -> dict[str, Any]:
    """Returns the colour, the marker and the line style of a run's curve."""
    return {
        "color": _COLORS[number % len(_COLORS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": _DASHES[curve],
    }


def _drawable_name(name: str) -> str:
    """Makes the name of a run or file drawable; only the end of a long name is kept."""
    name = drawable(name)
    return name if len(name) <= _MAX_NAME else f"…{name[1 - _MAX_NAME :]}"
