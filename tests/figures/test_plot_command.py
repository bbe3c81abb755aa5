"""The commands `plot ...`, and what all figures have in common."""

import re
import struct
import sys
from pathlib import Path

import matplotlib
import pytest
from conftest import assert_one_error, refuses
from matplotlib.figure import Figure
from test_training_figure import write_run

import transformer_mt
from transformer_mt.checkpoints.metrics import RunMetrics
from transformer_mt.errors import ConfigError
from transformer_mt.figures.canvas import UNDRAWABLE, render
from transformer_mt.figures.training import training_figure


def picture(title: str = "a") -> Figure:
    """Draws one curve."""
    records = [{"kind": "train", "step": step, "lr": step} for step in (10, 20_000)]
    return training_figure([RunMetrics("run", records)], panels=["lr"], title=title)


def texts_in(svg: Path) -> set[str]:
    """Gives what is written in a picture; letters are drawn as paths, with the text beside them."""
    return set(re.findall("<!-- (.*?) -->", svg.read_text()))


@pytest.mark.parametrize("file", ["training.png", "attention.SVG", "training.pdf"])
def test_every_command_writes_its_file(untrained_run, tmp_path, monkeypatch, call, file):
    """The path on stdout, nothing on stderr, without pyplot, which would look for a display."""
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    commands = {"training": ["training", write_run(tmp_path / "run"), "--panel", "loss"]}
    commands["attention"] = ["attention", untrained_run, "ab cd", "--heads", "--quiet"]
    path = tmp_path / file
    assert call("plot", *commands[path.stem], "-o", path) == (0, f"{path}\n".encode(), "")
    start = {".png": b"\x89PNG\r\n", ".SVG": b"<?xml", ".pdf": b"%PDF-"}[path.suffix]
    assert path.read_bytes().startswith(start) and path.stat().st_size > 4_000


def test_what_to_draw(untrained_run, tmp_path, call):
    """Kind, layer, heads, translation; panels, x axis, names, title. Sabotage: ignore an option."""
    path, run = tmp_path / "x.svg", write_run(tmp_path / "run")
    attention = "plot", "attention", untrained_run, "ab cd", "-o", path
    assert_one_error(call(*attention, "--layer", 2), "layer 2: choose 1 to 1")
    call(*attention)
    assert {"Cross-attention, layer 1 of 1, mean of 4 heads", "ab cd"} <= texts_in(path)
    call(*attention, "--kind", "encoder", "--layer", 1, "--heads")
    assert {"Encoder self-attention, layer 1 of 1, each head", "head 4"} <= texts_in(path)
    call(*attention, "--tgt", "\u1234")
    assert {"&lt;0xE1&gt;", "&lt;0x88&gt;", "&lt;0xB4&gt;"} <= texts_in(path)  # in UTF-8
    training = "plot", "training", run, run, "-o", path
    call(*training)
    assert {"step", "run", "Speed", "Validation BLEU"} <= texts_in(path)
    options = "--x minutes --panel lr --panel loss --title both --label one --label two"
    call(*training, *options.split())
    shown = {"minutes of training", "Learning rate", "Training loss, label-smoothed", "both"}
    assert shown | {"one", "two"} <= texts_in(path) and "Speed" not in texts_in(path)
    assert_one_error(call(*training, "--label", "one"), "2 curves need as many --label; 1 given")
    call(*training, "--mean", "--panel", "loss")  # of a run that is named twice
    assert "run" in texts_in(path) and "one" not in texts_in(path)


def test_an_output_is_checked_before_anything_else(tmp_path, call):
    for name, message in {
        "x.jpg": "name a file that ends in .png, .svg, .pdf",
        "x": "name a file that ends in .png, .svg, .pdf",
        "none/x.png": "there is no folder",
    }.items():
        for command in (["training", "none"], ["attention", "none", "a"]):
            assert_one_error(call("plot", *command, "-o", tmp_path / name), message)
    result = call("plot", "training", "none", "-o", tmp_path / "x.png")
    assert_one_error(result, "none: no such run")
    result = call("report", "none", "-o", tmp_path / "x.png")
    assert_one_error(result, "x.png: name a file that ends in .html, .htm")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "package"),
    [("plot training", "Matplotlib"), ("report", "Matplotlib"), ("report", "Jinja2")],
)
def test_packages_are_optional(tmp_path, monkeypatch, call, command, package):
    monkeypatch.setitem(sys.modules, package.lower(), None)
    done = call(*command.split(), "none", "-o", tmp_path / "x.png")
    install = "pip install -c constraints.txt -e '.[plots]'"
    message = f"error: {command.split()[0]} needs {package}: {install}\n"
    assert (done.code, done.err) == (2, message)


def test_a_package_is_optional_in_python(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    message = "^plot_attention needs Matplotlib: pip install "
    refuses(ConfigError, message, transformer_mt.plot_attention, None)


def test_settings_of_the_user_change_nothing_and_are_kept():
    plain = render(picture(), "png")
    own = {"text.usetex": True, "lines.linewidth": 9, "font.size": 30, "savefig.facecolor": "red"}
    with matplotlib.rc_context(own):
        before = dict(matplotlib.rcParams)
        assert render(picture(), "png") == plain and dict(matplotlib.rcParams) == before
    svg = render(picture(), "svg")
    assert svg == render(picture(), "svg") and b"<dc:date>" not in svg


@pytest.mark.parametrize("file_format", ["png", "svg", "pdf"])
def test_a_character_without_a_font_is_a_box(file_format):
    """Without a warning. Sabotage: draw control characters, which SVG forbids."""
    hieroglyph, blank = chr(0x14400), " "  # of Anatolia, in no usual font
    pictures = (picture(f"a{c}a") for c in (hieroglyph, blank))
    assert len({render(each, file_format) for each in pictures}) == 2
    assert picture("a\n b\x1b\u200b").get_suptitle().startswith(f"a b{UNDRAWABLE}{UNDRAWABLE}")
    assert picture("می\u200cرود").get_suptitle().startswith("می\u200cرود")


def test_a_large_picture_has_fewer_dots_per_inch():
    """PNG has a largest side in most programs."""
    for size, drawn in (((200, 1), (16_016, 96)), ((2, 1), (330, 180))):  # with a margin
        figure = Figure(size)
        figure.add_axes((0, 0, 1, 1), xticks=[], yticks=[])
        assert struct.unpack(">II", render(figure, "png")[16:24]) == pytest.approx(drawn, abs=4)
