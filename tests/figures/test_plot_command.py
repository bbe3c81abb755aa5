"""The commands `plot ...`, what all figures have in common, and the figures of a recipe."""

import math
import re
import struct
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from conftest import assert_one_error, tiny_config, write_config
from drawn import overlapping
from matplotlib.figure import Figure
from test_training_figure import write_run

from transformer_mt.figures.canvas import FOREGROUND, GRID, UNDRAWABLE, render
from transformer_mt.figures.report import inline
from transformer_mt.figures.schedule_and_positions import (
    POSITIONS,
    positions_figure,
    schedule_figure,
)


def texts_in(svg: Path) -> set[str]:
    """Gives what is written in a picture; letters are drawn as paths, with the text beside them."""
    return set(re.findall("<!-- (.*?) -->", svg.read_text()))


@pytest.mark.parametrize(
    ("name", "ending"),
    [("training", ".png"), ("attention", ".SVG"), ("schedule", ".pdf"), ("positions", ".png")],
)
def test_every_command_writes_its_file(
    corpus_dir, untrained_run, tmp_path, monkeypatch, call, name, ending
):
    """The path on stdout, nothing on stderr, without pyplot, which would look for a display."""
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    config = write_config(tmp_path, corpus_dir)
    command = {
        "training": ["training", write_run(tmp_path / "run")],
        "attention": ["attention", untrained_run, "ab cd", "--heads", "--quiet"],
        "schedule": ["schedule", config],
        "positions": ["positions", config],
    }[name]
    path = tmp_path / f"{name}{ending}"
    assert call("plot", *command, "-o", path) == (0, f"{path}\n".encode(), "")
    start = {".png": b"\x89PNG\r\n", ".SVG": b"<?xml", ".pdf": b"%PDF-"}[ending]
    assert path.read_bytes().startswith(start) and path.stat().st_size > 4_000


def test_what_to_draw(untrained_run, tmp_path, call):
    """Kind, layer and heads; panels, x axis, names and title. Sabotage: ignore an option."""
    path, run = tmp_path / "x.svg", write_run(tmp_path / "run")
    attention = "plot", "attention", untrained_run, "ab cd", "-o", path
    assert_one_error(call(*attention, "--layer", 2), "layer 2: choose 1 to 1")
    call(*attention)
    assert {"Cross-attention, layer 1 of 1, mean of 4 heads", "ab cd"} <= texts_in(path)
    call(*attention, "--kind", "encoder", "--layer", 1, "--heads")
    assert {"Encoder self-attention, layer 1 of 1, each head", "head 4"} <= texts_in(path)
    training = "plot", "training", run, run, "-o", path
    call(*training)
    assert {"step", "run", "Speed", "Validation BLEU"} <= texts_in(path)
    options = "--x minutes --panel lr --panel loss --title both --label one --label two"
    call(*training, *options.split())
    shown = {"minutes of training", "Learning rate", "Training loss, label-smoothed", "both"}
    assert shown | {"one", "two"} <= texts_in(path) and "Speed" not in texts_in(path)
    assert_one_error(call(*training, "--label", "one"), "2 runs need as many --label; 1 given")


def test_an_output_is_checked_before_anything_else(tmp_path, call):
    for name, message in {
        "x.jpg": "name a file that ends in .png, .svg or .pdf",
        "x": "name a file that ends in .png, .svg or .pdf",
        "none/x.png": "there is no folder",
    }.items():
        for command in (["training", "none"], ["attention", "none", "a"], ["schedule", "none"]):
            assert_one_error(call("plot", *command, "-o", tmp_path / name), message)
    result = call("plot", "training", "none", "-o", tmp_path / "x.png")
    assert_one_error(result, "none: no such run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "package"),
    [("plot schedule", "Matplotlib"), ("report", "Matplotlib"), ("report", "Jinja2")],
)
def test_packages_are_optional(tmp_path, monkeypatch, call, command, package):
    monkeypatch.setitem(sys.modules, package.lower(), None)
    done = call(*command.split(), "none", "-o", tmp_path / "x.png")
    install = "pip install -c constraints.txt -e '.[plots]'"
    message = f"error: {command.split()[0]} needs {package}: {install}\n"
    assert (done.code, done.err) == (2, message)


def test_settings_of_the_user_change_nothing_and_are_kept(tmp_path):
    config = tiny_config(tmp_path)
    plain = render(schedule_figure(config, "a"), "png")
    own = {"text.usetex": True, "lines.linewidth": 9, "font.size": 30, "savefig.facecolor": "red"}
    with matplotlib.rc_context(own):
        before = dict(matplotlib.rcParams)
        assert render(schedule_figure(config, "a"), "png") == plain
        assert dict(matplotlib.rcParams) == before


def test_the_style_of_figures(tmp_path):
    """A light grid behind the curves, no frame, no background; a page has the same every time."""
    config = tiny_config(tmp_path)
    [axes] = schedule_figure(config, "a").axes
    spines = {name for name, spine in axes.spines.items() if spine.get_visible()}
    assert spines == {"left", "bottom"} and axes.get_facecolor() == (0, 0, 0, 0)
    line, label = axes.xaxis.get_gridlines()[0], axes.xaxis.get_ticklabels()[0]
    assert line.get_visible() and line.get_color() == GRID and axes.get_axisbelow() is True
    assert label.get_color() == axes.title.get_color() == FOREGROUND
    assert axes.xaxis.get_major_formatter()(10_000) == "10,000"
    pages = [inline(schedule_figure(config, "a"), "x") for _ in range(2)]
    assert pages[0] == pages[1]


@pytest.mark.parametrize("file_format", ["png", "svg", "pdf"])
def test_a_character_without_a_font_is_a_box(tmp_path, file_format):
    """Without a warning, which would be an error; control characters, which SVG forbids, too.

    Sabotage: draw control characters as they are.
    """
    hieroglyph, blank = chr(0x14400), " "  # of Anatolia, in no usual font
    pictures = (schedule_figure(tiny_config(tmp_path), f"a{c}a") for c in (hieroglyph, blank))
    assert len({render(picture, file_format) for picture in pictures}) == 2
    title = schedule_figure(tiny_config(tmp_path), "a\n b\x1b\u200b").axes[0].get_title()
    assert title.startswith(f"a b{UNDRAWABLE}{UNDRAWABLE}\n")


def test_a_large_picture_has_fewer_dots_per_inch():
    """PNG has a largest side in most programs."""
    for size, drawn in (((200, 1), (16_016, 96)), ((2, 1), (330, 180))):  # with a margin
        figure = Figure(size)
        figure.add_axes((0, 0, 1, 1), xticks=[], yticks=[])
        assert struct.unpack(">II", render(figure, "png")[16:24]) == pytest.approx(drawn, abs=4)


@pytest.mark.parametrize(
    ("warmup", "steps", "shown"),
    [
        (400, 3000, "warm-up 400 steps, lr_scale 2: highest rate 0.025 at step 400"),
        (4000, 2500, "warm-up 4,000 steps, lr_scale 2: highest rate 0.00494 at step 2,500"),
        (100, 0, "warm-up 100 steps, lr_scale 2: highest rate 0.05 at step 100"),
    ],
)
def test_the_rate_is_the_papers(tmp_path, warmup, steps, shown):
    """At every step drawn, its peak included, which the title names."""
    recipe = {"optim__warmup_steps": warmup, "optim__lr_scale": 2.0, "train__max_steps": steps}
    figure = schedule_figure(tiny_config(tmp_path, **recipe), "tiny_$x$" * 20)
    [axes] = figure.axes
    curve, peak = axes.lines
    last = steps or 4 * warmup
    name, settings = axes.get_title().split("\n")
    assert name == "…" + ("tiny_$x$" * 20)[-47:] and settings == f"width 16, {shown}"
    assert axes.get_xlabel() == "step" and axes.get_xlim() == (0, last)
    drawn = curve.get_xdata()
    assert drawn[0] == 1 and drawn[-1] == last and min(warmup, last) in drawn
    for step, rate in zip(drawn, curve.get_ydata(), strict=True):
        expected = 2 * 16**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert math.isclose(rate, expected)
    assert peak.get_ydata() == [max(curve.get_ydata())] and peak.get_xdata() == [min(warmup, last)]
    assert not overlapping(figure)


def test_a_limit_that_may_end_training_before_the_last_step_is_named(tmp_path):
    """Its number of steps depends on the text and the machine."""
    limits = {"train__max_epochs": 3, "train__max_minutes": 1.5}
    [axes] = schedule_figure(tiny_config(tmp_path, **limits), "a").axes
    label = "step (earlier end: train.max_epochs = 3 or train.max_minutes = 1.5)"
    assert axes.get_xlabel() == label and axes.get_xlim() == (0, 20)


@pytest.mark.parametrize(("width", "drawn"), [(2, [0, 1]), (64, [8, 9, 16, 17])])
def test_the_positions_are_the_papers(tmp_path, width, drawn):
    """Sines and cosines of section 3.5, as maps and as curves."""
    config = tiny_config(tmp_path, model__d_model=width, model__n_heads=1)
    figure = positions_figure(config, "a_$b$" * 20)
    position, dimension = np.arange(POSITIONS)[:, None], np.arange(width)
    angles = position / 10000 ** ((dimension - dimension % 2) / width)
    encodings = np.where(dimension % 2, np.cos(angles), np.sin(angles))
    sines, cosines, _, curves = figure.axes
    for axes, first, title in ((sines, 0, "even dimensions: s"), (cosines, 1, "odd dimensions: c")):
        [image] = axes.images
        np.testing.assert_allclose(image.get_array(), encodings[:, first::2].T, atol=1e-4)
        assert tuple(image.get_extent()) == (-0.5, POSITIONS - 0.5, -0.5, width - 0.5)
        assert axes.get_title().startswith(title) and image.origin == "lower"
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("position", "dimension")
    assert figure.get_suptitle().endswith(f"\npositional encodings of width {width}")
    labels = [text.get_text() for text in curves.get_legend().get_texts()]
    assert labels == [f"dimension {dimension}" for dimension in drawn]
    for dimension, line in zip(drawn, curves.lines, strict=True):
        np.testing.assert_allclose(line.get_ydata(), encodings[:, dimension], atol=1e-4)
    assert not overlapping(figure)
