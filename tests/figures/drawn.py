"""What a figure shows, measured after it was drawn."""

from itertools import combinations
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text


def drawn_texts(figure: Figure) -> dict[Text, Any]:
    """Draws a figure, and gives its visible texts with their extents in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    limits = figure.bbox
    hidden = hidden_ticks(figure)
    extents = {}
    for text in figure.findobj(Text):
        if text.get_text().strip() and text.get_visible() and text not in hidden:
            extents[text] = box = text.get_window_extent(renderer)
            assert box.x0 > -1 and box.y0 > -1, f"{text} is cut off"
            assert box.x1 < limits.x1 + 1 and box.y1 < limits.y1 + 1, f"{text} is cut off"
    return extents


def hidden_ticks(figure: Figure) -> set[Text]:
    """Gives the labels of ticks beyond the limits of their axes, which are not drawn."""
    hidden = set()
    for axes in figure.axes:
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            low, high = sorted(limits)
            margin = 1e-9 * (high - low)
            for tick in axis.get_major_ticks() + axis.get_minor_ticks():
                if not low - margin <= tick.get_loc() <= high + margin:
                    hidden |= {tick.label1, tick.label2}
    return hidden


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Lists the pairs of texts that overlap by a pixel or more."""
    extents = drawn_texts(figure)
    return [
        (one.get_text(), other.get_text())
        for (one, a), (other, b) in combinations(extents.items(), 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) >= 1 and min(a.y1, b.y1) - max(a.y0, b.y0) >= 1
    ]
