"""Attention weights of a sentence as a heat map, its pieces on the axes."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from transformer_mt.errors import ConfigError, DataError
from transformer_mt.figures.canvas import (
    FILE_STYLE,
    Style,
    matplotlib_defaults,
    new_figure,
    style_axes,
)
from transformer_mt.figures.fonts import drawable
from transformer_mt.figures.options import AttentionKind
from transformer_mt.translation.forced_decoding import PairAttention, Weights
from transformer_mt.translation.translation_model import TranslationModel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_PIECES = 200
"""Pieces of the longest sentence that is drawn."""
_CELL = 0.17
"""Inches per piece, enough for a line of the labels."""
_FONT_SIZE = 8
_MAX_LABEL = 24
_SMALLEST_MAP = 2.4
"""Inches of the longer side of a map of few pieces."""
_Labels = tuple[list[str], list[str], list[str]]
"""Texts of the columns, of the rows, and the fonts to draw them in."""
_AXES = {
    "cross": ("source piece", "target piece being predicted"),
    "encoder": ("source piece attended to", "source piece"),
    "decoder": ("decoder input attended to", "decoder input"),
}
"""Labels of the horizontal and the vertical axis."""


def sentence_attention(model: TranslationModel, sentence: str) -> PairAttention:
    """Computes the attention of a sentence and its greedy translation.

    Args:
        model: A single model.
        sentence: Source text.

    Raises:
        DataError: If the sentence is empty or too long to draw.
    """
    [ids] = model.vocab.encode_src([sentence])
    if not ids:
        raise DataError("the sentence is empty: there is no attention to draw")
    if len(ids) > MAX_PIECES:
        raise DataError(
            f"the sentence has {len(ids)} pieces; the limit of a plot is {MAX_PIECES}: shorten it"
        )
    return model.attention(sentence)


def attention_figure(
    attention: PairAttention,
    kind: AttentionKind = "cross",
    layer: int | None = None,
    by_head: bool = False,
    style: Style = FILE_STYLE,
    title: bool = True,
) -> "Figure":
    """Draws the attention weights of one layer.

    Args:
        attention: All weights of a sentence.
        kind: Which attention to draw.
        layer: Number of the layer, from 1; None is the last.
        by_head: Whether to draw each head separately, instead of their mean.
        style: Colours.
        title: Whether to put a title above the figure.

    Raises:
        ConfigError: If there is no such layer.
    """
    layers: list[Weights] = getattr(attention, kind)
    number = len(layers) if layer is None else layer
    if not 1 <= number <= len(layers):
        raise ConfigError(f"--layer {number}: the model has layers 1 to {len(layers)}")
    weights = layers[number - 1]  # (H, queries, keys)
    maps = weights if by_head else weights.mean(axis=0, keepdims=True)
    heads = "each head" if by_head else f"mean of {len(weights)} heads"
    what = "Cross-attention" if kind == "cross" else f"{kind.capitalize()} self-attention"
    heading = f"{what}, layer {number} of {len(layers)}, {heads}" if title else ""
    labels = _labels(attention, kind)
    with matplotlib_defaults():
        figure, grid, bar_axes = _layout(maps, labels, style, kind, heading)
        for head, (axes, values) in enumerate(zip(grid.flat, maps, strict=False), 1):
            image = _draw(axes, values, float(maps.max()), style)
            if by_head:
                axes.set_title(
                    f"head {head}", fontsize=_FONT_SIZE + 1, color=style.foreground, pad=3
                )
        _label_axes(grid, len(maps), labels, style)
        bar = figure.colorbar(image, cax=bar_axes)
        bar.ax.tick_params(colors=style.foreground, labelsize=_FONT_SIZE)
        bar.outline.set_edgecolor(style.foreground)
        bar.ax.set_facecolor("none")
        return figure


def _labels(attention: PairAttention, kind: AttentionKind) -> _Labels:
    """Returns the texts of the columns and rows, and the fonts to draw them in."""
    src, tgt = attention.src_pieces, attention.tgt_pieces
    # The query at a piece predicts the next piece; the source ends with EOS, too.
    predicted = [*tgt[1:], src[-1]]
    columns, rows = {"cross": (src, predicted), "encoder": (src, src), "decoder": (tgt, tgt)}[kind]
    texts, families = drawable([*columns, *rows])
    texts = [text if len(text) <= _MAX_LABEL else f"{text[: _MAX_LABEL - 1]}…" for text in texts]
    return texts[: len(columns)], texts[len(columns) :], families


def _layout(
    maps: Weights, labels: _Labels, style: Style, kind: AttentionKind, heading: str
) -> tuple["Figure", Any, "Axes"]:
    """Makes a figure with axes for each map and for the scale, large enough for every label.

    Sizes are in inches. The figure grows with the sentence, so that labels keep their size.
    """
    columns_of_map, rows_of_map, families = labels
    cell = max(_CELL, _SMALLEST_MAP / max(len(columns_of_map), len(rows_of_map)))
    map_width, map_height = cell * len(columns_of_map), cell * len(rows_of_map)
    columns = _columns(len(maps), map_width, map_height)
    rows = math.ceil(len(maps) / columns)
    gap = 0.4 if len(maps) > 1 else 0.15  # titles of heads
    left, bottom = (0.45 + _widest(texts, families) for texts in (rows_of_map, columns_of_map))
    maps_width = columns * (map_width + 0.15)
    maps_height = rows * (map_height + gap)
    content = left + maps_width + 0.65, bottom + maps_height + (0.35 if heading else 0.0)
    width, height = max(content[0], 4.4 if heading else 0.0), max(content[1], 2.6)
    x, y = (width - content[0]) / 2 + left, (height - content[1]) / 2 + bottom
    figure = new_figure(width, height, style)
    figure.set_layout_engine("none")
    grid = np.empty((rows, columns), dtype=object)
    for number in range(len(maps)):
        row, column = divmod(number, columns)
        corner = x + column * (map_width + 0.15), y + (rows - 1 - row) * (map_height + gap)
        grid[row, column] = _add_axes(figure, *corner, map_width, map_height)
    scale = min(maps_height - gap, 2.0)
    bar_axes = _add_axes(figure, x + maps_width, y + (maps_height - gap - scale) / 2, 0.12, scale)
    text = {"fontsize": _FONT_SIZE + 1, "color": style.foreground}
    x_label, y_label = _AXES[kind]
    center = (x + (maps_width - 0.15) / 2) / width
    figure.supxlabel(x_label, x=center, y=(y - bottom + 0.08) / height, va="bottom", **text)
    figure.supylabel(y_label, x=(x - left + 0.08) / width, ha="left", **text)
    if heading:
        figure.suptitle(heading, y=1 - 0.1 / height, color=style.foreground)
    return figure, grid, bar_axes


def _add_axes(figure: "Figure", x: float, y: float, width: float, height: float) -> "Axes":
    """Adds axes at a position given in inches."""
    total_width, total_height = figure.get_size_inches()
    return figure.add_axes(
        (x / total_width, y / total_height, width / total_width, height / total_height)
    )


def _widest(texts: Sequence[str], families: list[str]) -> float:
    """Measures the width of the widest text as drawn, in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(dpi=100)
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    drawn = [
        figure.text(0, 0, text, fontfamily=families, fontsize=_FONT_SIZE, parse_math=False)
        for text in set(texts)
    ]
    return float(max(text.get_window_extent(renderer).width for text in drawn)) / 100


def _columns(maps: int, width: float, height: float) -> int:
    """Chooses how many maps are placed side by side, so that the figure is about square."""
    return min(maps, max(1, round(math.sqrt(maps * height / width))))


def _draw(axes: "Axes", values: Weights, largest: float, style: Style) -> Any:
    from matplotlib.colors import LinearSegmentedColormap, to_rgb

    # Transparent at 0, so that it suits any background.
    accent = to_rgb(style.accent)
    colors = LinearSegmentedColormap.from_list("attention", [(*accent, 0.0), (*accent, 1.0)])
    style_axes(axes, style, grid=False)
    return axes.imshow(
        values, cmap=colors, vmin=0.0, vmax=largest, aspect="equal", interpolation="nearest"
    )


def _label_axes(grid: Any, maps: int, labels: _Labels, style: Style) -> None:
    """Writes the pieces beside each row's leftmost and below each column's lowest map."""
    columns, rows, families = labels
    text = {
        "fontfamily": families,
        "fontsize": _FONT_SIZE,
        "parse_math": False,
        "color": style.foreground,
    }
    height, width = grid.shape
    for number, axes in enumerate(grid.ravel()[:maps]):
        axes.tick_params(length=2)
        is_lowest = number + width >= maps
        is_left = number % width == 0
        axes.set_xticks(np.arange(len(columns)), columns if is_lowest else [], **text)
        axes.set_yticks(np.arange(len(rows)), rows if is_left else [], **text)
        if is_lowest:
            axes.tick_params(axis="x", labelrotation=90)
