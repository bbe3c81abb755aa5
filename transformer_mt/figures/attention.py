"""Attention weights of a sentence as a heat map, its pieces on the axes."""

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from transformer_mt.errors import ConfigError, DataError
from transformer_mt.figures.canvas import ACCENT, InlineFigure, drawable, figure_style
from transformer_mt.text.vocabulary import WORD_MARK
from transformer_mt.translation.pytorch_runtime import Array
from transformer_mt.translation.translation_model import PairAttention, TranslationModel

MAX_PIECES = 200
"""Pieces of the longest sentence that is drawn."""
_CELL = 0.17
"""Inches per piece, enough for a line of the labels."""
_SMALLEST_MAP = 2.4
"""Inches of the longer side of a map of few pieces."""
_GAP = 0.4
"""Inches between maps, enough for a title."""
_SCALE_HEIGHT = 2.0
_FONT_SIZE = 8
_MAX_LABEL = 24
_TITLE_WIDTH, _TITLE_LINES = 60, 3
"""Characters of a line, and lines, of the sentence in the title."""
_DRAWN_MARK = "◦"
"""Stands for SentencePiece's mark, which hangs below the line and touches the next label."""
_COLORS = LinearSegmentedColormap.from_list("attention", [f"{ACCENT}00", ACCENT])
"""Transparent at 0, so that they suit any background."""
_AXES = {
    "cross": ("source piece", "target piece being predicted"),
    "encoder": ("source piece attended to", "source piece"),
    "decoder": ("decoder input attended to", "target piece being predicted"),
}
"""Labels of the horizontal and the vertical axis."""


def sentence_attention(model: TranslationModel, src: str, tgt: str | None = None) -> PairAttention:
    """Computes the attention of a sentence and its translation, by default the greedy one.

    Raises:
        DataError: If one of the two is empty, or too long to draw.
    """
    texts = ("source", model.vocab.src, src), ("translation", model.vocab.tgt, tgt)
    for name, vocab, text in texts:
        if text is not None and not 1 <= len(vocab.encode([text])[0]) <= MAX_PIECES:
            raise DataError(f"to be drawn, a {name} must have 1 to {MAX_PIECES} pieces")
    return model.attention(src, tgt)


def attention_figure(
    attention: PairAttention, kind: str = "cross", layer: int | None = None, by_head: bool = False
) -> Figure:
    """Draws the attention weights of one layer, the mean of its heads or each of them.

    The figure grows with the sentence, so that labels keep their size. The darkest colour is the
    largest weight of the figure.

    Args:
        attention: All weights of a sentence.
        kind: `cross`, `encoder` or `decoder`.
        layer: Number of the layer, from 1; None is the last.
        by_head: Whether to draw each head separately.

    Raises:
        ConfigError: If there is no such kind or layer.
    """
    if kind not in _AXES:
        raise ConfigError(f"kind {kind}: choose {', '.join(_AXES)}")
    layers: list[Array] = getattr(attention, kind)
    number = len(layers) if layer is None else layer
    if not 1 <= number <= len(layers):
        raise ConfigError(f"layer {number}: choose 1 to {len(layers)}")
    weights = layers[number - 1]  # (H, queries, keys)
    maps = weights if by_head else weights.mean(axis=0, keepdims=True)
    keys = attention.tgt_pieces if kind == "decoder" else attention.src_pieces
    queries = attention.src_pieces if kind == "encoder" else attention.predicted_pieces
    with figure_style():
        figure, grid, scale_axes = _layout(len(maps), len(keys), len(queries), _AXES[kind])
        for head, (axes, values) in enumerate(zip(grid.flat, maps, strict=True), 1):
            image = axes.imshow(
                values, _COLORS, vmin=0, vmax=maps.max(), aspect="auto", interpolation="nearest"
            )
            axes.tick_params(length=2, labelsize=_FONT_SIZE)
            axes.set_xticks(range(len(keys)), _labels(keys), rotation=90)
            axes.set_yticks(range(len(queries)), _labels(queries))
            axes.label_outer()
            axes.spines[:].set_visible(True)
            if by_head:
                axes.set_title(f"head {head}", fontsize=_FONT_SIZE + 1, pad=3)
        for axes in figure.axes:
            axes.grid(False)
        figure.colorbar(image, cax=scale_axes).ax.tick_params(labelsize=_FONT_SIZE)
        heads = "each head" if by_head else f"mean of {len(weights)} heads"
        what = "Cross-attention" if kind == "cross" else f"{kind.capitalize()} self-attention"
        shown = f"{what}, layer {number} of {len(layers)}, {heads}"
        title = "\n".join([shown, *_wrap(attention.source)])
        figure.suptitle(title, y=1 + 0.3 / figure.get_figheight(), va="bottom")
        return figure


def _wrap(sentence: str) -> list[str]:
    text = drawable(sentence)
    return textwrap.wrap(text, _TITLE_WIDTH, max_lines=_TITLE_LINES, placeholder=" …")


def _labels(pieces: Sequence[str]) -> list[str]:
    texts = [drawable(piece.replace(WORD_MARK, _DRAWN_MARK)) for piece in pieces]
    return [text if len(text) <= _MAX_LABEL else f"{text[: _MAX_LABEL - 1]}…" for text in texts]


def _layout(
    maps: int, keys: int, queries: int, names: tuple[str, str]
) -> tuple[InlineFigure, Any, Axes]:
    """Makes a figure of exactly the size of the maps, with axes for each and for the scale.

    Labels lie beyond its edges, where `render` includes them.
    """
    cell = max(_CELL, _SMALLEST_MAP / max(keys, queries))
    map_width, map_height = cell * keys, cell * queries
    # As near to a square as the number of maps allows without an empty place.
    rows = max(n for n in range(1, math.isqrt(maps) + 1) if maps % n == 0)
    columns = maps // rows
    width = columns * (map_width + _GAP) - _GAP
    height = rows * (map_height + _GAP) - _GAP
    figure = InlineFigure((width, height))
    figure.subplots_adjust(0, 0, 1, 1, _GAP / map_width, _GAP / map_height)
    grid = figure.subplots(rows, columns, squeeze=False)
    # In the middle of all columns and rows.
    grid[-1, 0].set_xlabel(names[0], x=width / map_width / 2)
    grid[-1, 0].set_ylabel(names[1], y=height / map_height / 2)
    scale_height = min(height, _SCALE_HEIGHT)
    scale = 1 + 0.15 / width, 0.5 - scale_height / height / 2, 0.12 / width, scale_height / height
    return figure, grid, figure.add_axes(scale)
