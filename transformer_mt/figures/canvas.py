"""The style of figures, and how they are written to files.

Only Matplotlib's object interface is used, without pyplot, and nothing of the user's matplotlibrc:
no display is needed, and the same command draws the same picture everywhere.
"""

import io
import unicodedata
import warnings
from contextlib import AbstractContextManager
from pathlib import Path

from matplotlib import font_manager, rc_params_from_file
from matplotlib.figure import Figure
from matplotlib.style import context

_STYLE_FILE = Path(__file__).with_name("figures.mplstyle")
_STYLE = rc_params_from_file(_STYLE_FILE, fail_on_error=True, use_default_template=False)
FOREGROUND, GRID = _STYLE["text.color"], _STYLE["grid.color"]
ACCENT = "#2f74b5"
"""Legible on white and on black."""
UNDRAWABLE = "\N{WHITE SQUARE}"
"""What is drawn for a control character."""
_JOINERS = "\u200c\u200d"
"""They decide how the letters beside them are drawn, as in Persian."""

_DPI = 150
_MAX_PIXELS = 16_000
"""Longest side of a PNG; larger figures get fewer dots per inch."""


class InlineFigure(Figure):
    """A figure that a notebook shows below the cell that returns it."""

    def _repr_png_(self) -> bytes:
        return render(self, "png")


def render(figure: Figure, file_format: str, transparent: bool = False) -> bytes:
    """Renders a figure as `png`, `svg` or `pdf`, including what lies beyond its edges."""
    dpi = min(_DPI, _MAX_PIXELS / max(figure.get_size_inches()))
    content = io.BytesIO()
    metadata = {"Date": None} if file_format == "svg" else None  # equal pictures, equal files
    with figure_style(), warnings.catch_warnings():
        # A character that no font has is drawn as a box.
        warnings.filterwarnings("ignore", r"Glyph .* missing from font")
        figure.savefig(
            content,
            format=file_format,
            dpi=dpi,
            bbox_inches="tight",
            transparent=transparent,
            metadata=metadata,
        )
    return content.getvalue()


def figure_style() -> AbstractContextManager[None]:
    """Temporarily uses the style of this module, with those of its fonts that are installed."""
    installed = set(font_manager.get_font_names())
    fonts = [family for family in _STYLE["font.family"] if family in installed]
    return context(["default", _STYLE_FILE, {"font.family": fonts}])


def drawable(text: str) -> str:
    """Replaces white space by blanks, and control characters, which SVG forbids, by squares."""
    return "".join(
        UNDRAWABLE if unicodedata.category(each).startswith("C") and each not in _JOINERS else each
        for each in " ".join(text.split())
    )
