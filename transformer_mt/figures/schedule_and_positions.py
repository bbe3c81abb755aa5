"""Figures that need only a configuration: the learning rate and the positional encodings."""

import numpy as np
import torch
from matplotlib.figure import Figure

from transformer_mt.config.keys import Config
from transformer_mt.figures.canvas import ACCENT, THOUSANDS, drawable_name, figure_style
from transformer_mt.model.transformer import sinusoid
from transformer_mt.training.limits import describe_limit
from transformer_mt.training.optimizer import noam_rate

POSITIONS = 100
_SAMPLES = 1000


def schedule_figure(config: Config, name: str) -> Figure:
    """Draws the learning rate of a configuration up to max_steps, or four times its warm-up.

    How many steps epochs or minutes are depends on the text and the machine: such limits are named.
    """
    optim, d_model, train = config.optim, config.model.d_model, config.train
    limits = {"train.max_epochs": train.max_epochs, "train.max_minutes": train.max_minutes}
    earlier = " or ".join(describe_limit(config, key) for key, value in limits.items() if value)
    xlabel = f"step (earlier end: {earlier})" if earlier else "step"
    last = train.max_steps or 4 * optim.warmup_steps
    peak = min(optim.warmup_steps, last)
    steps = sorted({peak, *np.linspace(1, last, min(last, _SAMPLES), dtype=int).tolist()})
    rates = [noam_rate(step, d_model, optim.warmup_steps, optim.lr_scale) for step in steps]
    highest = rates[steps.index(peak)]
    scale = "" if optim.lr_scale == 1 else f", lr_scale {optim.lr_scale:g}"
    settings = f"width {d_model}, warm-up {optim.warmup_steps:,} steps{scale}"
    shown = f"highest rate {highest:.3g} at step {peak:,}"
    with figure_style():
        figure = Figure((7, 3.8), layout="constrained")
        axes = figure.subplots()
        axes.plot(steps, rates, color=ACCENT)
        axes.plot([peak], [highest], "o", color=ACCENT)
        axes.set(xlim=(0, last), ylim=(0, 1.1 * highest), xlabel=xlabel, ylabel="learning rate")
        axes.xaxis.set_major_formatter(THOUSANDS)
        axes.yaxis.set_major_formatter(THOUSANDS)
        axes.set_title(f"{drawable_name(name)}\n{settings}: {shown}")
        return figure


def positions_figure(config: Config, name: str) -> Figure:
    """Draws the positional encodings of a model: all dimensions, and four of them as curves."""
    d_model = config.model.d_model
    positions = sinusoid(torch.arange(POSITIONS), d_model).numpy()  # (L, D)
    with figure_style():
        figure = Figure((9, 6.4), layout="constrained")
        grid = figure.add_gridspec(2, 2, height_ratios=(3, 2))
        # Separated, since alternating in one picture they would look like stripes.
        for column, title in enumerate(("even dimensions: sines", "odd dimensions: cosines")):
            axes = figure.add_subplot(grid[0, column])
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
            axes.grid(False)
            axes.set(title=title, ylabel="dimension", xlabel="position")
        figure.colorbar(image, ax=figure.axes, fraction=0.03, pad=0.02, ticks=[-1, 0, 1])
        below = figure.add_subplot(grid[1, :])
        # Two pairs of a sine and a cosine whose periods fit in the picture.
        first, second = d_model // 16 * 2, d_model // 8 * 2
        dimensions = dict.fromkeys((first, first + 1, second, second + 1))
        for dimension, dashes in zip(dimensions, ("-", "--", ":", "-."), strict=False):
            below.plot(positions[:, dimension], dashes, label=f"dimension {dimension}")
        below.set(xlim=(-0.5, POSITIONS - 0.5), ylim=(-1.1, 1.6), yticks=[-1, 0, 1])
        below.set(xlabel="position", ylabel="value")
        below.legend(loc="upper center", ncols=4)
        figure.suptitle(f"{drawable_name(name)}\npositional encodings of width {d_model}")
        return figure
