"""The commands `plot ...`, what all figures have in common, and the figures of a recipe."""

import math
import sys

import matplotlib
import numpy as np
import pytest
from conftest import assert_one_error, tiny_config, write_config
from drawn import overlapping
from test_training_figure import write_run

from transformer_mt.figures import canvas
from transformer_mt.figures.canvas import UNDRAWABLE, drawable, render
from transformer_mt.figures.recipe import POSITIONS, positions_figure, schedule_figure
from transformer_mt.translation import pytorch_runtime
from transformer_mt.translation.options import LoadOptions


@pytest.mark.parametrize(
    ("name", "ending"),
    [("training", ".png"), ("attention", ".SVG"), ("schedule", ".pdf"), ("positions", ".png")],
)
def test_every_command_writes_its_file(
    corpus_dir, untrained_run, tmp_path, monkeypatch, call, name, ending
):
    """The path on stdout, nothing on stderr, without pyplot, which would look for a display.

    Sabotage: write PNG whatever the extension.
    """
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
    """Sabotage: always draw the last; always the moving average."""
    taken, real = [], pytorch_runtime.load_checkpoints

    def load(checkpoints, options):
        taken.append(options)
        return real(checkpoints, options)

    monkeypatch.setattr(pytorch_runtime, "load_checkpoints", load)
    arguments = "attention", untrained_run, "ab cd", "-o", tmp_path / "x.png"
    result = call("plot", *arguments, "--layer", 2, "--raw")
    assert_one_error(result, "--layer 2: the model has layers 1 to 1")
    assert taken == [LoadOptions("cpu", raw=True)]


def test_an_output_is_checked_before_anything_else(tmp_path, call):
    """Before the run is read, which is missing here. Sabotage: check it when it is written."""
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
    """Without one, a line says what to install. Sabotage: do not look for it."""
    monkeypatch.setitem(sys.modules, package.lower(), None)
    done = call(*command.split(), "none", "-o", tmp_path / "x.png")
    install = "pip install -c constraints.txt -e '.[plots]'"
    message = f"error: {command.split()[0]} needs {package}: {install}\n"
    assert (done.code, done.err) == (2, message)


def test_settings_of_the_user_change_nothing_and_are_kept(tmp_path):
    """Sabotage: draw with the user's settings; set rcParams."""
    config = tiny_config(tmp_path)
    plain = render(schedule_figure(config, "a"), "png")
    mine = {"text.usetex": True, "lines.linewidth": 9, "font.size": 30, "savefig.facecolor": "red"}
    with matplotlib.rc_context(mine):
        before = dict(matplotlib.rcParams)
        assert render(schedule_figure(config, "a"), "png") == plain
        assert dict(matplotlib.rcParams) == before


def test_characters_without_a_font_are_named_once(monkeypatch, caplog):
    """And drawn as squares; control characters silently.

    Sabotage: draw them as they are; forget what was named; ask one font instead of all.
    """
    monkeypatch.setattr(canvas, "_FONTS", ("DejaVu Sans", "STIXGeneral", "No Such Font"))
    monkeypatch.setattr(canvas, "_reported", set())
    texts = ["▁東 京", "\u200b", "a\n b", "\N{SINGLE HIGH-REVERSED-9 QUOTATION MARK}", "\U0001d7ff"]
    assert drawable(texts)[:3] == [f"▁{UNDRAWABLE} {UNDRAWABLE}", UNDRAWABLE, "a b"]
    drawable(texts[:1])
    [message] = caplog.messages
    assert "no font has 京 (U+4EAC) 東 (U+6771); drawn as □: install fonts-noto-core, " in message


@pytest.mark.parametrize(("warmup", "steps"), [(400, 3000), (4000, 2500), (100, 0)])
def test_the_rate_is_the_papers(tmp_path, warmup, steps):
    """At every step drawn, its peak included. Sabotage: leave lr_scale out; start at step 0."""
    config = tiny_config(
        tmp_path, optim__warmup_steps=warmup, optim__lr_scale=2.0, train__max_steps=steps
    )
    figure = schedule_figure(config, "tiny_$x$" * 20)
    curve, peak = figure.axes[0].lines
    last = steps or 4 * warmup
    drawn = curve.get_xdata()
    assert drawn[0] == 1 and drawn[-1] == last and min(warmup, last) in drawn
    for step, rate in zip(drawn, curve.get_ydata(), strict=True):
        expected = 2 * 16**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert math.isclose(rate, expected)
    assert peak.get_ydata() == [max(curve.get_ydata())]
    assert not overlapping(figure)


@pytest.mark.parametrize("width", [2, 64])
def test_the_positions_are_the_papers(tmp_path, width):
    """Sines and cosines of section 3.5, as maps and as curves. Sabotage: swap the maps."""
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
    for line in curves.lines:
        dimension = int(line.get_label().removeprefix("dimension "))
        np.testing.assert_allclose(line.get_ydata(), encodings[:, dimension], atol=1e-4)
    assert not overlapping(figure)
