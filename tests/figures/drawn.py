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
    extents = {}
    for text in figure.findobj(Text):
        if text.get_text().strip() and text.get_visible():
            box = text.get_window_extent(renderer)
            # Ticks outside the limits of an axis are not drawn.
            if is_tick_of_view(text, figure):
                extents[text] = box
                assert box.x0 > -1 and box.y0 > -1, f"{text} is cut off"
                assert box.x1 < limits.x1 + 1 and box.y1 < limits.y1 + 1, f"{text} is cut off"
    return extents


def is_tick_of_view(text: Text, figure: Figure) -> bool:
    """Tells whether a text is drawn: not the label of a tick beyond the limits of its axis."""
    for axes in figure.axes:
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            for tick in axis.get_major_ticks() + axis.get_minor_ticks():
                if text in (tick.label1, tick.label2):
                    low, high = sorted(limits)
                    margin = 1e-9 * (high - low)
                    return bool(low - margin <= tick.get_loc() <= high + margin)
    return True


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Lists the pairs of texts that overlap by a pixel or more."""
    extents = drawn_texts(figure)
    return [
        (one.get_text(), other.get_text())
        for (one, a), (other, b) in combinations(extents.items(), 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) >= 1 and min(a.y1, b.y1) - max(a.y0, b.y0) >= 1
    ]
