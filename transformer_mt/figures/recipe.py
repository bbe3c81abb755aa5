"""Figures that need only a configuration: the learning rate and the positional encodings."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from transformer_mt.config.keys import Config
from transformer_mt.figures.canvas import FILE_STYLE, matplotlib_defaults, new_figure, style_axes
from transformer_mt.figures.fonts import drawable_names
from transformer_mt.model.transformer import sinusoid
from transformer_mt.training.optimizer import noam_rate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POSITIONS = 100
_SAMPLES = 1000
_DASHES = ("-", "--", ":", "-.")


def schedule_figure(config: Config, name: str) -> "Figure":
    """Draws the learning rate of a configuration, up to train.max_steps.

    Args:
        config: The configuration; without max_steps, four times the warm-up is drawn.
        name: Its name in the title.
    """
    from matplotlib.ticker import FuncFormatter

    optim, d_model = config.optim, config.model.d_model
    last = config.train.max_steps or 4 * optim.warmup_steps
    peak = min(optim.warmup_steps, last)
    steps = sorted({peak, *np.linspace(1, last, min(last, _SAMPLES), dtype=int).tolist()})
    rates = [noam_rate(step, d_model, optim.warmup_steps, optim.lr_scale) for step in steps]
    highest = rates[steps.index(peak)]
    with matplotlib_defaults():
        figure = new_figure(7, 3.8)
        axes = figure.subplots()
        style_axes(axes, FILE_STYLE)
        axes.plot(steps, rates, color=FILE_STYLE.accent)
        axes.plot([peak], [highest], "o", color=FILE_STYLE.accent, markersize=5)
        side = 1 if peak < last / 2 else -1
        axes.annotate(
            f"{highest:.2e} at step {peak:,}",
            (peak, highest),
            (8 * side, 2),
            textcoords="offset points",
            ha="left" if side == 1 else "right",
            va="bottom",
        )
        axes.set_xlim(0, last)
        axes.set_ylim(0, 1.12 * highest)
        axes.set_xlabel("step")
        axes.set_ylabel("learning rate")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 3), useMathText=True)
        scale = "" if optim.lr_scale == 1 else f", lr_scale {optim.lr_scale:g}"
        [name], families = drawable_names([name])
        axes.set_title(
            f"{name}\nwidth {d_model}, warm-up {optim.warmup_steps:,} steps{scale}",
            parse_math=False,
            fontfamily=families,
        )
        return figure


def positions_figure(config: Config, name: str) -> "Figure":
    """Draws the positional encodings of a model: all dimensions, and four of them as curves.

    Args:
        config: The configuration; only its model width is used.
        name: Its name in the title.
    """
    d_model = config.model.d_model
    positions = sinusoid(torch.arange(POSITIONS), d_model).numpy()  # (L, D)
    with matplotlib_defaults():
        figure = new_figure(9, 6.4)
        grid = figure.add_gridspec(2, 2, height_ratios=(3, 2))
        # Separated, since alternating in one picture they would look like stripes.
        for column, title in enumerate(("even dimensions: sines", "odd dimensions: cosines")):
            axes = figure.add_subplot(grid[0, column])
            style_axes(axes, FILE_STYLE, grid=False)
            image = axes.imshow(
                positions[:, column::2].T,
                cmap="cividis",
                vmin=-1,
                vmax=1,
                aspect="auto",
                interpolation="nearest",
                origin="lower",
                extent=(-0.5, POSITIONS - 0.5, -0.5, d_model - 0.5),
            )
            axes.set(title=title, ylabel="dimension", xlabel="position")
        bar = figure.colorbar(image, ax=figure.axes, fraction=0.03, pad=0.02)
        bar.set_ticks([-1, 0, 1])
        below = figure.add_subplot(grid[1, :])
        style_axes(below, FILE_STYLE)
        for dimension, dashes in zip(_curve_dimensions(d_model), _DASHES, strict=False):
            below.plot(positions[:, dimension], linestyle=dashes, label=f"dimension {dimension}")
        below.set_ylabel("value")
        below.set_ylim(-1.1, 1.6)
        below.set_yticks([-1, 0, 1])
        below.legend(loc="upper center", ncols=4, fontsize="small", frameon=False)
        below.set(xlim=(-0.5, POSITIONS - 0.5), xlabel="position")
        [name], families = drawable_names([name])
        title = f"{name}\npositional encodings of width {d_model}"
        figure.suptitle(title, parse_math=False, fontfamily=families)
        return figure


def _curve_dimensions(d_model: int) -> Sequence[int]:
    """Chooses two pairs of a sine and a cosine whose periods fit in the picture."""
    first = min(d_model // 8 // 2 * 2, max(d_model - 4, 0))
    second = min(d_model // 4 // 2 * 2, max(d_model - 2, 0))
    return [d for d in dict.fromkeys((first, first + 1, second, second + 1)) if d < d_model]
