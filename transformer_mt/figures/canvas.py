"""Figures without a display: their style, and how they are written to files.

Only Matplotlib's object interface is used, without pyplot, and with its defaults, whatever the
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
"""File formats, which are also the file extensions."""

_DPI = 150
_MAX_PIXELS = 16_000
"""Longest side of a PNG; larger figures get fewer dots per inch."""


@dataclass(frozen=True)
class Style:
    """Colours of a figure.

    Attributes:
        foreground: Text, axes, and the line of a single run.
        grid: Lines of the grid.
        accent: The colour of the largest attention weight; weight 0 is transparent.
        background: Background.
    """

    foreground: str = "#1a1a1a"
    grid: str = "#d9d9d9"
    accent: str = "#08306b"
    background: str = "white"


FILE_STYLE = Style()
"""Dark on white, for files."""


def require_packages(command: str, *names: str) -> None:
    """Refuses to start without packages of the extra `plots`.

    Args:
        command: The command that needs them.
        names: The packages.

    Raises:
        ConfigError: Saying what to install.
    """
    for name in names:
        if importlib.util.find_spec(name.lower()) is None:
            raise ConfigError(f"{command} needs {name}: pip install 'transformer-mt[plots]'")


def check_figure_output(path: Path) -> Output:
    """Checks the output file of a figure before any work is done for it.

    Args:
        path: The file as the user typed it.

    Returns:
        Where to write it.

    Raises:
        OutputError: If its extension is not a known format, or it cannot be written.
    """
    if _format(path) not in FORMATS:
        raise OutputError(f"{path}: name a file that ends in .png, .svg or .pdf")
    return check_output(path)


def _format(path: Path) -> str:
    return path.suffix.lower().removeprefix(".")


@contextmanager
def matplotlib_defaults() -> Iterator[None]:
    """Temporarily uses Matplotlib's own defaults instead of the user's."""
    from matplotlib.style import context

    # Ids of an SVG are random without a salt.
    settings = {"svg.hashsalt": "transformer-mt", "font.size": 9.0, "axes.unicode_minus": True}
    with context(["default", settings]):
        yield


def new_figure(width: float, height: float, style: Style = FILE_STYLE) -> "Figure":
    """Makes an empty figure.

    Args:
        width: In inches.
        height: In inches.
        style: Its colours.
    """
    from matplotlib.figure import Figure

    return Figure((width, height), facecolor=style.background, layout="constrained")


def style_axes(axes: Any, style: Style, grid: bool = True) -> None:
    """Applies the colours of a style to axes.

    Args:
        axes: Matplotlib axes, with their labels.
        style: The colours.
        grid: Whether to draw a grid, and only the left and lower sides of the frame.
    """
    axes.set_facecolor("none")
    axes.tick_params(colors=style.foreground, which="both", length=3)
    for name, spine in axes.spines.items():
        spine.set_edgecolor(style.foreground)
        spine.set_linewidth(0.8)
        spine.set_visible(not grid or name in ("left", "bottom"))
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
        text.set_color(style.foreground)
    for text in (axes.xaxis.get_offset_text(), axes.yaxis.get_offset_text()):
        text.set_color(style.foreground)
    if grid:
        axes.grid(True, color=style.grid, linewidth=0.6)
        axes.set_axisbelow(True)


def render(figure: "Figure", file_format: str) -> bytes:
    """Renders a figure as the content of a file; equal figures give equal bytes.

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
        path: The file as the user typed it; its extension names the format.
        output: What `check_figure_output` returned for it.

    Raises:
        OutputError: If it cannot be written.
    """
    content = render(figure, _format(path))
    with open_output(output) as file:
        file.write(content)
