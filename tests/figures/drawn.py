"""What a figure shows, measured after it was drawn."""

from itertools import combinations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from transformer_mt.figures.canvas import figure_style


def texts_of(figure: Figure) -> list[Text]:
    """Draws a figure, and gives its visible texts."""
    with figure_style():
        FigureCanvasAgg(figure).draw()
    beyond = set()  # labels of ticks beyond the limits of their axes, which are not drawn
    for axes in figure.axes:
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            low, high = sorted(limits)
            margin = 1e-9 * (high - low)
            for tick in axis.get_major_ticks() + axis.get_minor_ticks():
                if not low - margin <= tick.get_loc() <= high + margin:
                    beyond |= {tick.label1, tick.label2}
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text not in beyond]
    return [text for text in texts if text.get_text().strip()]


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Lists the pairs of texts that overlap by a pixel or more."""
    extents = [(text.get_text(), text.get_window_extent()) for text in texts_of(figure)]
    return [
        (one, other)
        for (one, a), (other, b) in combinations(extents, 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) >= 1 and min(a.y1, b.y1) - max(a.y0, b.y0) >= 1
    ]
