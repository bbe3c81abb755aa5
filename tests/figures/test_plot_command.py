"""The commands `plot ...`, what all figures have in common, and the figures of a recipe."""

import math
import struct
import sys
from unittest.mock import Mock

import matplotlib
import numpy as np
import pytest
from conftest import assert_one_error, tiny_config, write_config
from drawn import overlapping
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from test_training_figure import write_run

from transformer_mt.figures import canvas
from transformer_mt.figures.canvas import FOREGROUND, GRID, UNDRAWABLE, drawable, render
from transformer_mt.figures.recipe import POSITIONS, positions_figure, schedule_figure
from transformer_mt.figures.report import inline
from transformer_mt.translation import pytorch_runtime
from transformer_mt.translation.options import LoadOptions

ENCODER = ["--kind", "encoder", "--layer", 1, "--heads"]


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


def test_the_layer_and_the_weights_are_those_named(untrained_run, tmp_path, monkeypatch, call):
    taken, real = [], pytorch_runtime.load_checkpoints

    def load(checkpoints, options):
        taken.append(options)
        return real(checkpoints, options)

    monkeypatch.setattr(pytorch_runtime, "load_checkpoints", load)
    arguments = "attention", untrained_run, "ab cd", "-o", tmp_path / "x.png"
    result = call("plot", *arguments, "--layer", 2, "--raw")
    assert_one_error(result, "layer 2: choose 1 to 1")
    assert taken == [LoadOptions("cpu", raw=True)]
    draw = Mock(return_value=Figure())
    monkeypatch.setattr("transformer_mt.figures.attention.attention_figure", draw)
    for options, chosen in (([], ("cross", None, False)), (ENCODER, ("encoder", 1, True))):
        assert call("plot", *arguments, *options).code == 0
        assert draw.call_args.args[1:] == chosen
    assert draw.call_args.args[0].source == "ab cd" and taken[1:] == [LoadOptions("cpu")] * 2


def test_what_curves_to_draw(tmp_path, monkeypatch, call):
    run, draw = write_run(tmp_path / "run"), Mock(return_value=Figure())
    monkeypatch.setattr("transformer_mt.figures.training.training_figure", draw)
    options = "--x minutes --panel lr --panel loss --title t --label one"
    for words, chosen in (
        ("", ("run", "step", (), None)),
        (options, ("one", "minutes", ["lr", "loss"], "t")),
    ):
        assert call("plot", "training", run, "-o", tmp_path / "x.png", *words.split()).code == 0
        [[metrics], *others] = draw.call_args.args
        assert (metrics.name, *others) == chosen


def test_an_output_is_checked_before_anything_else(tmp_path, call):
    for name, message in {
        "x.jpg": "name a file that ends in .png, .svg or .pdf",
        "x": "name a file that ends in .png, .svg or .pdf",
        "none/x.png": "there is no folder",
    }.items():
        for command in (["training", "none"], ["attention", "none", "a"], ["schedule", "none"]):
            result = call("plot", *command, "-o", tmp_path / name)
            assert_one_error(result, message)
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
    mine = {"text.usetex": True, "lines.linewidth": 9, "font.size": 30, "savefig.facecolor": "red"}
    with matplotlib.rc_context(mine):
        before = dict(matplotlib.rcParams)
        assert render(schedule_figure(config, "a"), "png") == plain
        assert dict(matplotlib.rcParams) == before


def test_the_style_of_figures(tmp_path):
    """A light grid behind the curves, no frame, no background; a page has the same every time."""
    config = tiny_config(tmp_path)
    [axes] = schedule_figure(config, "a").axes
    spines = {name for name, spine in axes.spines.items() if spine.get_visible()}
    assert spines == {"left", "bottom"}
    for axis in (axes.xaxis, axes.yaxis):
        line, label = axis.get_gridlines()[0], axis.get_ticklabels()[0]
        assert line.get_visible() and (line.get_color(), line.get_linewidth()) == (GRID, 0.6)
        assert label.get_color() == FOREGROUND and label.get_fontsize() == 9
        assert axis.label.get_color() == axes.title.get_color() == FOREGROUND
        assert axis.get_major_formatter()(10_000) == "10,000"
    assert axes.get_axisbelow() is True and axes.get_facecolor() == (0, 0, 0, 0)
    assert axes.spines["left"].get_edgecolor() == to_rgba(FOREGROUND)
    assert (axes.lines[0].get_linewidth(), axes.lines[1].get_markersize()) == (1.3, 4)
    legend = positions_figure(config, "a").axes[-1].get_legend()
    assert not legend.get_frame_on() and legend.get_texts()[0].get_fontsize() < 9
    pages = [inline(schedule_figure(config, "a"), "x") for _ in range(2)]
    assert pages[0] == pages[1]


def test_characters_without_a_font_are_named_once(monkeypatch, caplog):
    """And drawn as squares, ten at most; control characters silently."""
    monkeypatch.setattr(canvas, "_FONTS", ("DejaVu Sans", "STIXGeneral", "No Such Font"))
    monkeypatch.setattr(canvas, "_reported", set())
    texts = ["▁東 京", "\u200b", "a\n b", "\N{SINGLE HIGH-REVERSED-9 QUOTATION MARK}", "\U0001d7ff"]
    assert drawable(texts)[:3] == [f"▁{UNDRAWABLE} {UNDRAWABLE}", UNDRAWABLE, "a b"]
    drawable(texts[:1])
    [message] = caplog.messages
    assert message.startswith(
        "no font has 京 (U+4EAC) 東 (U+6771); drawn as □: install fonts-noto-"
    )
    for first, count, end in ((0x4E00, 10, "U+4E09)"), (0x4F00, 11, "U+4F09) ...")):
        drawable(["".join(map(chr, range(first, first + count)))])
        assert caplog.messages[-1].partition("; drawn")[0].endswith(end)


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
    config = tiny_config(
        tmp_path, optim__warmup_steps=warmup, optim__lr_scale=2.0, train__max_steps=steps
    )
    figure = schedule_figure(config, "tiny_$x$" * 20)
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
    assert axes.get_ylim() == (0, pytest.approx(1.1 * max(curve.get_ydata())))
    assert not overlapping(figure)
    plain = schedule_figure(tiny_config(tmp_path, optim__warmup_steps=9), "a").axes[0].get_title()
    assert plain == "a\nwidth 16, warm-up 9 steps: highest rate 0.0833 at step 9"


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
    encodings = np.array(
        [
            [(math.sin, math.cos)[i % 2](p / 10000 ** ((i - i % 2) / width)) for i in range(width)]
            for p in range(POSITIONS)
        ]
    )
    sines, cosines, _, curves = figure.axes
    np.testing.assert_allclose(sines.images[0].get_array(), encodings[:, 0::2].T, atol=1e-4)
    np.testing.assert_allclose(cosines.images[0].get_array(), encodings[:, 1::2].T, atol=1e-4)
    extent = (-0.5, POSITIONS - 0.5, -0.5, width - 0.5)
    for axes, title in ((sines, "even dimensions: sines"), (cosines, "odd dimensions: cosines")):
        [image] = axes.images
        assert image.get_clim() == (-1, 1) and tuple(image.get_extent()) == extent
        assert axes.get_title() == title and image.origin == "lower"
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("position", "dimension")
        assert image.get_interpolation() == "nearest" and axes.get_aspect() == "auto"
    assert figure.get_suptitle().endswith(f"\npositional encodings of width {width}")
    labels = [text.get_text() for text in curves.get_legend().get_texts()]
    assert labels == [f"dimension {dimension}" for dimension in drawn]
    assert len({line.get_linestyle() for line in curves.lines}) == len(drawn)
    assert (curves.get_xlabel(), curves.get_ylabel()) == ("position", "value")
    assert curves.get_xlim() == extent[:2] and curves.get_ylim() == (-1.1, 1.6)
    for dimension, line in zip(drawn, curves.lines, strict=True):
        np.testing.assert_allclose(line.get_ydata(), encodings[:, dimension], atol=1e-4)
    assert not overlapping(figure)
