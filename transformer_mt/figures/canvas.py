"""Figures without a display: how they look, and how they become files.

Matplotlib's object interface alone is used, without pyplot, and its defaults, whatever the
user's matplotlibrc says: the same command draws the same picture everywhere.
"""

import importlib.util
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_mt.errors import ConfigError, OutputError
from transformer_mt.system.outputs import Output, check_output, open_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
"""Formats of files, which are also the endings of their names."""

_DPI = 150
_MAX_PIXELS = 16_000
"""Longest side of a PNG; larger figures get fewer dots per inch."""


@dataclass(frozen=True)
class Style:
    """Colours of a figure.

    Attributes:
        ink: Text, axes, and the line of a single run.
        grid: Lines of the grid.
        accent: The colour of the largest attention weight; weight 0 is transparent.
        paper: Background.
    """

    ink: str = "#1a1a1a"
    grid: str = "#d9d9d9"
    accent: str = "#08306b"
    paper: str = "white"


FILE_STYLE = Style()
"""Dark on white, for files."""


def require_plots(command: str) -> None:
    """Refuses to begin without the packages for drawing, which are optional.

    Args:
        command: What needs it.

    Raises:
        ConfigError: Saying what to install.
    """
    for name in ("Matplotlib", "Jinja2"):
        if importlib.util.find_spec(name.lower()) is None:
            raise ConfigError(f"{command} needs {name}: pip install 'transformer-mt[plots]'")


def check_figure_output(path: Path) -> Output:
    """Checks the file of a figure before any work is done for it.

    Raises:
        OutputError: If its ending names no format, or it cannot be written.
    """
    if _format(path) not in FORMATS:
        raise OutputError(f"{path}: name a file that ends in .png, .svg or .pdf")
    return check_output(path)


def _format(path: Path) -> str:
    return path.suffix.lower().removeprefix(".")


@contextmanager
def matplotlib_defaults() -> Iterator[None]:
    """Sets Matplotlib's own defaults for a while, instead of those of the user."""
    from matplotlib import style

    # Ids of an SVG are random without a salt.
    ours = {"svg.hashsalt": "transformer-mt", "font.size": 9.0, "axes.unicode_minus": True}
    with style.context(["default", ours]):
        yield


def new_figure(width: float, height: float, look: Style = FILE_STYLE) -> "Figure":
    """Makes an empty figure.

    Args:
        width: In inches.
        height: In inches.
        look: Its colours.
    """
    from matplotlib.figure import Figure

    return Figure((width, height), facecolor=look.paper, layout="constrained")


def style_axes(axes: Any, look: Style, grid: bool = True) -> None:
    """Gives axes the colours of a style, and takes away the frame of a chart with a grid."""
    axes.set_facecolor("none")
    axes.tick_params(colors=look.ink, which="both", length=3)
    for name, spine in axes.spines.items():
        spine.set_edgecolor(look.ink)
        spine.set_linewidth(0.8)
        spine.set_visible(not grid or name in ("left", "bottom"))
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
        text.set_color(look.ink)
    for text in (axes.xaxis.get_offset_text(), axes.yaxis.get_offset_text()):
        text.set_color(look.ink)
    if grid:
        axes.grid(True, color=look.grid, linewidth=0.6)
        axes.set_axisbelow(True)


def render(figure: "Figure", file_format: str) -> bytes:
    """Draws a figure as the content of a file; equal figures give equal bytes.

    Args:
        figure: The figure.
        file_format: One of `FORMATS`.
    """
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    dpi = min(_DPI, _MAX_PIXELS / max(figure.get_size_inches()))
    content = io.BytesIO()
    with matplotlib_defaults():
        figure.savefig(content, format=file_format, dpi=dpi, metadata=dates[file_format])
    return content.getvalue()


def write_figure(figure: "Figure", path: Path, output: Output) -> None:
    """Writes a figure to a checked output.

    Args:
        figure: The figure.
        path: The file as the user typed it, whose ending names the format.
        output: What `check_figure_output` gave for it.

    Raises:
        OutputError: If it cannot be written.
    """
    content = render(figure, _format(path))
    with open_output(output) as file:
        file.write(content)
