"""The curves of trainings."""

import json
import math
from pathlib import Path

import pytest
from conftest import tiny_config
from drawn import drawn_texts, overlapping

from transformer_mt.errors import CheckpointError
from transformer_mt.figures.fonts import UNDRAWABLE
from transformer_mt.figures.recipe import positions_figure, schedule_figure
from transformer_mt.figures.training import read_runs, training_figure

SOURCES = (
    [("train", "loss"), ("valid", "nll")],
    [("valid", "bleu"), ("valid", "ema_bleu")],
    [("train", "lr")],
    [("train", "tokens_per_second")],
)
"""What each panel draws, by kind and name in metrics.jsonl."""


def write_run(path: Path, steps: int = 40, bleu: bool = True, scale: float = 1.0) -> Path:
    """Writes the metrics of a run that was trained for some steps of ten."""
    path.mkdir(parents=True)
    lines = []
    for i in range(1, steps + 1):
        position = {"step": 10 * i, "epoch": 0, "seconds": 6.0 * i}
        loss = None if i == 7 else scale * 8 / i**0.3
        figures = {"loss": loss, "lr": 1e-4 * i, "tokens_per_second": 1000.5 + i, "mfu": 0.5}
        lines.append({"kind": "train", **position, **figures, "grad_norm": 1.0, "skipped": 0})
        if bleu and i % 5 == 0:
            lines.append({"kind": "valid", **position, "nll": 6 / i, "bleu": scale * i})
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def curves(figure, panel: int) -> list[tuple[list[float], list[float]]]:
    lines = figure.axes[panel].lines
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in lines]


@pytest.mark.parametrize("x", ["step", "minutes"])
def test_the_data_is_that_of_the_metrics(tmp_path, x):
    """Every value at its step or minute; one that was not finite is a gap.

    Sabotage: draw loss over `epoch`; leave null out, which joins its neighbours.
    """
    run = write_run(tmp_path / "run")
    figure = training_figure(read_runs([run]), x)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for number, sources in enumerate(SOURCES):
        expected = []
        for kind, key in sources:
            found = [r for r in records if r["kind"] == kind and key in r]
            at = [r["step"] if x == "step" else r["seconds"] / 60 for r in found]
            expected += (
                [(at, [math.nan if r[key] is None else r[key] for r in found])] if at else []
            )
        assert [(p, list(map(str, v))) for p, v in curves(figure, number)] == [
            (p, [str(float(value)) for value in v]) for p, v in expected
        ]


def test_names_and_ranges_of_the_axes(tmp_path):
    """Sabotage: swap two titles; let each panel end where its own data ends."""
    figure = training_figure(read_runs([write_run(tmp_path / "run")]), "minutes")
    assert [axes.get_title() for axes in figure.axes] == [
        "Loss",
        "Validation BLEU",
        "Learning rate",
        "Speed",
    ]
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "nats per target token",
        "BLEU",
        "rate",
        "target tokens per second",
    ]
    assert {axes.get_xlabel() for axes in figure.axes} == {"minutes of training"}
    assert {axes.get_xlim() for axes in figure.axes} == {(0.0, 1.02 * 4)}
    for axes, top in zip(figure.axes, (8, 40, 4e-3, 1040.5), strict=True):
        assert top < axes.get_ylim()[1] < 1.2 * top
    assert figure.axes[1].get_ylim()[0] == 0


def test_the_first_validation_is_below_the_top(tmp_path):
    """Sabotage: fix only the lower end of the axis."""
    figure = training_figure(read_runs([write_run(tmp_path / "run", steps=5)]))
    assert figure.axes[1].get_ylim() == pytest.approx((0, 1.1 * 5))


def test_runs_are_told_apart_without_colour(tmp_path):
    """Each run has its marks, in the legend too; training and validation have their dashes.

    Sabotage: one marker for all; one dash for both.
    """
    names = ["a", "b", "c$x_1$", "_d"]
    paths = [write_run(tmp_path / name, scale=1 + i) for i, name in enumerate(names)]
    figure = training_figure(read_runs(paths))
    lines = figure.axes[0].lines
    assert len({line.get_marker() for line in lines[:4]}) == 4
    assert [line.get_marker() for line in lines[:4]] == [line.get_marker() for line in lines[4:]]
    assert lines[0].get_linestyle() != lines[4].get_linestyle()
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == names
    assert [h.get_marker() for h in legend.legend_handles] == [x.get_marker() for x in lines[:4]]


@pytest.mark.parametrize("count", [1, 2, 9])
def test_no_text_overlaps(tmp_path, count):
    """Many runs, and names that look like mathematics. Sabotage: a legend inside of the figure."""
    paths = [write_run(tmp_path / ("long_$_{$name-" * 9 + str(i))) for i in range(count)]
    assert not overlapping(training_figure(read_runs(paths)))


@pytest.mark.filterwarnings("error")
def test_names_in_any_script(tmp_path, caplog):
    """A character that no font has is replaced. Sabotage: draw the name as it is."""
    name = "lauf-\N{GOTHIC LETTER AHSA}"
    paths = [write_run(tmp_path / name), write_run(tmp_path / "two")]
    config = tiny_config(tmp_path)
    figures = [training_figure(read_runs(paths[:1])), training_figure(read_runs(paths))]
    for figure in [*figures, schedule_figure(config, name), positions_figure(config, name)]:
        texts = [text.get_text() for text in drawn_texts(figure)]
        assert any(text.startswith(f"lauf-{UNDRAWABLE}") for text in texts)
    assert "U+10330" in caplog.text


def test_runs_of_one_name_are_told_apart(tmp_path):
    """By the folder above. Sabotage: name runs by their last folder."""
    paths = [write_run(tmp_path / folder / "run") for folder in ("one", "two")]
    assert [run.name for run in read_runs(paths)] == ["one/run", "two/run"]
    assert [run.name for run in read_runs([paths[0], paths[0]])] == ["run", "run"]


def test_what_is_missing_is_said(tmp_path):
    """No validation, no finite loss. Sabotage: draw an empty panel."""
    run = write_run(tmp_path / "run", steps=3, bleu=False)
    path = run / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**r, "loss": None}) + "\n" for r in records))
    figure = training_figure(read_runs([run]))
    texts = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert texts == [["no finite loss"], ["no validation yet"], [], []]
    assert not overlapping(figure)


def test_a_run_in_training_can_be_drawn(tmp_path):
    """A half-written last line is left out. Sabotage: parse the last line."""
    run = write_run(tmp_path / "run", steps=2)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "tra')
    assert len(read_runs([run])[0].records) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no metrics.jsonl; name a run directory"),
        ("", "has no complete line yet"),
        ("not JSON\n", "line 1: damaged"),
        ('{"kind": "train", "step": 1, "seconds": 1, "loss": "x"}\n', "line 1: damaged"),
        ('{"kind": "train", "step": 1, "seconds": 1, "loss": [1]}\n', "line 1: damaged"),
        ('{"kind": "other", "step": 1, "seconds": 1}\n', "line 1: damaged"),
        ('{"kind": "train", "step": null, "seconds": 1}\n', "line 1: damaged"),
        ('{"kind": "train", "step": 1, "seconds": "6"}\n', "line 1: damaged"),
        ('{"kind": "train", "step": 1}\n', "line 1: damaged"),
    ],
)
def test_damaged_metrics_are_named(tmp_path, content, message):
    """With the file and line. Sabotage: skip what cannot be parsed."""
    if content is not None:
        (tmp_path / "metrics.jsonl").write_text(content)
    with pytest.raises(CheckpointError, match=message):
        read_runs([tmp_path])
    with pytest.raises(CheckpointError, match="no such run"):
        read_runs([tmp_path / "other"])
