"""The learning rate and the positions of a configuration."""

import math

import numpy as np
import pytest
from conftest import tiny_config
from drawn import overlapping

from transformer_mt.figures.recipe import POSITIONS, positions_figure, schedule_figure


@pytest.mark.parametrize(("warmup", "steps"), [(400, 3000), (4000, 2500), (100, 0)])
def test_the_rate_is_the_papers(tmp_path, warmup, steps):
    """At every step drawn, its peak included. Sabotage: leave lr_scale out; start at step 0."""
    config = tiny_config(
        tmp_path, optim__warmup_steps=warmup, optim__lr_scale=2.0, train__max_steps=steps
    )
    figure = schedule_figure(config, "tiny_$x$" * 20)
    curve, peak = figure.axes[0].lines
    last = steps or 4 * warmup
    drawn = curve.get_xdata()
    assert drawn[0] == 1 and drawn[-1] == last and min(warmup, last) in drawn
    for step, rate in zip(drawn, curve.get_ydata(), strict=True):
        expected = 2 * 64**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert math.isclose(rate, expected)
    assert peak.get_ydata() == [max(curve.get_ydata())]
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "learning rate")
    assert f"highest rate {max(curve.get_ydata()):.3g} at step" in axes.get_title()
    assert axes.get_xlim() == (0, last)
    assert not overlapping(figure)


@pytest.mark.parametrize("width", [2, 64])
def test_the_positions_are_the_papers(tmp_path, width):
    """Sines and cosines of section 3.5, as maps and as curves. Sabotage: swap the maps."""
    config = tiny_config(tmp_path, model__d_model=width, model__n_heads=1)
    figure = positions_figure(config, "a_$b$" * 20)
    encodings = np.array(
        [
            [(math.sin, math.cos)[i % 2](p / 10000 ** ((i - i % 2) / width)) for i in range(width)]
            for p in range(POSITIONS)
        ]
    )
    sines, cosines, _, curves = figure.axes
    np.testing.assert_allclose(sines.images[0].get_array(), encodings[:, 0::2].T, atol=1e-4)
    np.testing.assert_allclose(cosines.images[0].get_array(), encodings[:, 1::2].T, atol=1e-4)
    for line in curves.lines:
        dimension = int(line.get_label().removeprefix("dimension "))
        np.testing.assert_allclose(line.get_ydata(), encodings[:, dimension], atol=1e-4)
    assert len({line.get_linestyle() for line in curves.lines}) == (4 if width == 64 else 2)
    assert (curves.get_xlabel(), curves.get_ylabel()) == ("position", "value")
    assert not overlapping(figure)
