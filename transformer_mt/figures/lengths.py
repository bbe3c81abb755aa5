"""Lengths of the training sentences of a run."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from transformer_mt.figures.canvas import Style, matplotlib_defaults, new_figure, style_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def lengths_figure(
    lengths: Mapping[str, Any], languages: tuple[str, str], style: Style
) -> "Figure":
    """Draws the distributions of source and target lengths.

    Args:
        lengths: The value of this name in run.json.
        languages: Source and target.
        style: Colours.
    """
    from matplotlib.ticker import FuncFormatter

    width = lengths["width"]
    with matplotlib_defaults():
        figure = new_figure(4.6, 2.9, style)
        axes = figure.subplots()
        style_axes(axes, style)
        for side, language, dashes, color in zip(
            ("src", "tgt"), languages, ("-", "--"), (style.accent, style.foreground), strict=True
        ):
            edges = np.arange(len(lengths[side]) + 1) * width
            axes.stairs(lengths[side], edges, color=color, linestyle=dashes, label=language)
        axes.set_title("Training sentences by length", color=style.foreground)
        axes.set_xlabel("pieces, end of sentence included", color=style.foreground)
        axes.set_ylabel("sentences", color=style.foreground)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axes.set_xlim(left=0)
        axes.legend(frameon=False, fontsize="small", labelcolor=style.foreground)
        return figure
