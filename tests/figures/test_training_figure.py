"""The curves of trainings."""

import itertools
import json
import math
import statistics
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from checkpoints.small_checkpoint import describe, small_config
from conftest import HOSTILE_JSON, records, refuses
from drawn import overlapping

from transformer_mt.checkpoints.metrics import PANELS, read_runs
from transformer_mt.checkpoints.run_description import write_description
from transformer_mt.errors import CheckpointError, ConfigError
from transformer_mt.figures.canvas import render
from transformer_mt.figures.training import read_means, training_figure


def write_run(path: Path, steps: int = 40, bleu: bool = True, scale: float = 1.0) -> Path:
    """Writes the metrics of a run that was trained for some steps of ten."""
    path.mkdir(parents=True)
    lines = []
    for i in range(1, steps + 1):
        position = {"step": 10 * i, "epoch": 0, "seconds": 6.0 * i}
        loss = None if i == 7 else scale * 8 / i**0.3
        metrics = {"loss": loss, "nll": 0.9 * scale * i, "lr": 1e-4 * i, "mfu": 0.5}
        metrics |= {"tokens_per_second": 1000.5 + i, "grad_norm": 3 / i, "skipped": 0}
        lines.append({"kind": "train", **position, **metrics})
        if bleu and i % 5 == 0:
            lines.append({"kind": "valid", **position, "nll": 6 / i, "bleu": scale * i})
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def texts(values) -> list[str]:
    return [str(float(value)) for value in values]  # NaN differs from itself


@pytest.mark.parametrize("x", ["step", "minutes"])
def test_the_data_is_that_of_the_metrics(tmp_path, x):
    """One that was not finite is a gap; panels end with the run; but for losses they begin at 0."""
    run = write_run(tmp_path / "run")
    figure = training_figure(read_runs([run]), x)
    for axes, panel in zip(figure.axes, PANELS.values(), strict=True):
        expected = []
        for kind, key, _ in panel.curves:
            found = [r for r in records(run, kind) if key in r]
            at = [r["step"] if x == "step" else r["seconds"] / 60 for r in found]
            values = [math.nan if r[key] is None else r[key] for r in found]
            expected += [(texts(at), texts(values))] if at else []
        drawn = [(texts(line.get_xdata()), texts(line.get_ydata())) for line in axes.lines]
        assert (axes.get_title(), axes.get_ylabel()) == (panel.title, panel.unit)
        assert drawn == expected
        labels = [t.get_text() for t in axes.get_legend().get_texts()] if len(drawn) > 1 else []
        assert labels == (["training", "validation"] if axes.get_title().startswith("Loss") else [])
        highest = max(float(value) for _, values in drawn for value in values if value != "nan")
        is_from_zero = axes.get_ylim() == pytest.approx((-0.022 * highest, 1.1 * highest))
        assert is_from_zero == (panel.unit != "nats per target token")
    name, end = ("step", 400) if x == "step" else ("minutes of training", 4)
    assert {axes.get_xlabel() for axes in figure.axes} == {name}
    assert {axes.get_xlim() for axes in figure.axes} == {(0.0, 1.02 * end)}
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            assert axis.get_major_formatter()(10_000) == "10,000"
    assert figure.get_suptitle() == "run" and not figure.legends


def test_runs_are_told_apart_without_colour(tmp_path):
    """Each run has its marks, in the legend too; training and validation have their dashes."""
    names = ["a", "b", "c$x_1$", "_d", *("long_$_{$name-" * 9 + str(i) for i in range(5))]
    paths = [write_run(tmp_path / name, scale=1 + i) for i, name in enumerate(names)]
    figure = training_figure(read_runs(paths))
    lines = figure.axes[1].lines
    looks = [(line.get_color(), line.get_marker()) for line in lines[:9]]
    assert len(set(looks)) == len({marker for _, marker in looks}) == 9
    assert lines[0].get_linestyle() != lines[9].get_linestyle()
    [legend] = figure.legends
    assert len({str(line.get_markevery()) for line in lines[:9]}) == 9
    assert figure.get_size_inches().tolist() == pytest.approx([13.0, 7.4])  # five rows of names
    drawn = [text.get_text() for text in legend.get_texts()]
    assert drawn == [name if len(name) < 49 else f"…{name[-47:]}" for name in names]
    handles = [(each.get_color(), each.get_marker()) for each in legend.legend_handles]
    assert handles == looks and not overlapping(figure)


def test_chosen_panels_are_in_one_row(tmp_path):
    same = [write_run(tmp_path / folder / "run") for folder in ("one", "two")]
    assert [run.name for run in read_runs(same)] == ["one/run", "two/run"]
    assert [run.name for run in read_runs(same[:1] * 2)] == ["run", "run"]
    paths = [write_run(tmp_path / name, steps) for name, steps in (("a", 20), ("b", 40))]
    figure = training_figure(read_runs(paths), panels=["nll"], title="both\n")
    assert [axes.get_title() for axes in figure.axes] == [PANELS["nll"].title]
    assert figure.axes[0].get_xlim() == (0.0, 1.02 * 400)
    assert len(figure.axes[0].lines) == 4 and figure.get_suptitle() == "both"
    assert not overlapping(figure)
    two = training_figure(read_runs(paths), panels=["speed", "loss"])
    assert [axes.get_title() for axes in two.axes] == [PANELS["speed"].title, PANELS["loss"].title]
    assert two.get_suptitle() == "" and two.get_size_inches().tolist() == pytest.approx([10.0, 3.3])


def write_described_run(path: Path, steps: int, scale: float, **keys) -> Path:
    write_description(write_run(path, steps, scale=scale), describe(small_config(**keys)))
    return path


@pytest.mark.parametrize(("x", "unit"), [("step", 10), ("minutes", 0.1)])
def test_a_mean_is_over_seeds(tmp_path, x, unit):
    """At the steps that all have. Sabotage: divide by n, pool settings, take the first's steps."""
    paths = [
        write_described_run(tmp_path / f"{i}", 50 - 10 * i, i**2, train__seed=i) for i in (1, 2, 3)
    ]
    assert [each.name for each in read_means(paths)] == ["all runs: mean ± SD of 3"]
    paths.append(write_described_run(tmp_path / "post", 10, 1.0, model__norm="post"))
    runs = read_means(paths)
    assert [run.name for run in runs] == ["model.norm=pre: mean ± SD of 3", "post"]
    figure = training_figure(runs, x)
    axes, at = figure.axes[list(PANELS).index("nll")], np.arange(1, 21)
    means, deviations = 0.9 * 14 / 3 * at, 0.9 * statistics.stdev([1, 4, 9]) * at
    np.testing.assert_allclose(axes.lines[0].get_xydata(), np.stack((at * unit, means), 1))
    np.testing.assert_allclose(axes.lines[2].get_xdata(), at[4::5] * unit)  # of validation
    band, _ = axes.collections
    low, high = (np.stack((at * unit, means + s * deviations), 1).round(6) for s in (-1, 1))
    edges = set(map(tuple, band.get_paths()[0].vertices.round(6)))
    assert {*map(tuple, low), *map(tuple, high)} <= edges
    assert np.isnan(figure.axes[0].lines[0].get_ydata()).tolist() == [i == 7 for i in at]
    assert not overlapping(figure)


def test_runs_without_a_seed_of_their_own_have_no_mean(tmp_path):
    """They are copies, or have no run.json. Sabotage: average them."""
    runs = [
        write_described_run(tmp_path / name, 10, 1.0, train__seed=seed)
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    for _ in range(2):
        refuses(ConfigError, "^a, .*: a mean needs another train.seed", read_means, runs)
        (runs[1] / "run.json").unlink(missing_ok=True)
    assert [each.name for each in read_means(runs[1:2] * 2)] == ["b"]


def test_what_is_missing_is_said(tmp_path):
    run = write_run(tmp_path / "run", steps=3, bleu=False)
    path = run / "metrics.jsonl"
    lines = [json.dumps({**record, "loss": None, "nll": None}) for record in records(run)]
    path.write_text("\n".join([*lines, '{"kind": "tra']))
    figure = training_figure(read_runs([run]))
    shown = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert shown == [*3 * [["no finite value yet"]], [], [], []] and not overlapping(figure)
    for step, end in ((0, 1.0), (1, 1.02)):
        path.write_text(lines[0].replace('"step": 10', f'"step": {step}') + "\n")
        axes = training_figure(read_runs([run])).axes[3]
        assert axes.get_xlim() == (0, end) and all(tick % 1 == 0 for tick in axes.get_xticks())
    several = training_figure(read_runs([run, run])).axes[3]
    marks = [line.get_markevery() for line in (*axes.lines, *several.lines)]
    assert marks == [[0]] * 3  # or a single value would not be seen


LINES = {"": "has no complete line yet", "not JSON\n": "line 1: damaged"}
LINES |= {
    f'{{"kind": "{kind}", "seconds": 1, "step": {step}, "loss": {loss}}}\n': "line 1: damaged"
    for kind, step, loss in [("train", 1, '"x"'), ("other", 1, 1)]
    + [("train", bad, 1) for bad in HOSTILE_JSON]
}


def test_damaged_metrics_are_named(tmp_path):
    (tmp_path / "good").mkdir()
    (tmp_path / "good/metrics.jsonl").write_text('{"kind": "train", "step": 1, "seconds": 1}\n')
    paths = [tmp_path / "good", tmp_path]
    refuses(CheckpointError, "is no run directory: it has no metrics.jsonl", read_runs, paths)
    for content, message in LINES.items():
        (tmp_path / "metrics.jsonl").write_text(content)
        refuses(CheckpointError, message, read_runs, paths)


def test_a_legend_that_takes_long_to_place(tmp_path, monkeypatch):
    """Matplotlib warns of it, which is not for the user. Sabotage: leave out `loc`."""
    seconds = itertools.count(step=2)
    monkeypatch.setattr("matplotlib.legend.time", SimpleNamespace(perf_counter=seconds.__next__))
    figure = training_figure(read_runs([write_run(tmp_path / "run")]), panels=["nll"])
    assert render(figure, "png") and next(seconds)
