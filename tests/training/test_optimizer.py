"""The learning rate against the paper's formula, Adam, and skipped steps."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from transformer_mt.config.keys import OptimConfig
from transformer_mt.training.optimizer import (
    ExponentialMovingAverage,
    build_adam,
    clip_gradients,
    noam_rate,
)


@pytest.mark.parametrize(("d_model", "warmup"), [(512, 4000), (1024, 7), (256, 1)])
def test_rate_is_the_papers(d_model, warmup):
    """The rate rises linearly to 1 / sqrt(d_model * warmup), then falls as 1 / sqrt(step)."""
    for step in {1, max(1, warmup - 1), warmup, warmup + 1, 100_000}:
        peak = 1 / math.sqrt(d_model * warmup)
        paper = peak * step / warmup if step <= warmup else 1 / math.sqrt(d_model * step)
        assert noam_rate(step, d_model, warmup) == pytest.approx(paper, rel=1e-12)
        assert noam_rate(step, d_model, warmup, 2.5) == pytest.approx(2.5 * paper, rel=1e-12)


def test_adam_is_as_configured():
    optimizer = build_adam(nn.Linear(3, 4), OptimConfig(betas=(0.7, 0.8), eps=0.05))
    expected = {"betas": (0.7, 0.8), "eps": 0.05, "weight_decay": 0, "amsgrad": False}
    assert optimizer.defaults.items() >= {**expected, "fused": True}.items()


@pytest.mark.parametrize(("max_norm", "factor"), [(0.0, 1), (1.0, 1 / 13), (13.5, 1), (6.5, 0.5)])
def test_gradients_are_clipped_to_a_total_norm(max_norm, factor):
    """Over all parameters that have a gradient; 0 is no limit; the norm before is returned."""
    parameters = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
    parameters[0].grad, parameters[2].grad = torch.tensor([3.0, 4.0]), torch.tensor([0.0, 12.0])
    assert clip_gradients(iter(parameters), max_norm).item() == pytest.approx(13)
    assert_close(parameters[0].grad, factor * torch.tensor([3.0, 4.0]))
    assert_close(parameters[2].grad, factor * torch.tensor([0.0, 12.0]))
    assert parameters[1].grad is None


def test_moving_average_by_hand():
    """A step keeps min(decay, (1 + step) / (10 + step)) of the average; the weights come back."""
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(8.0)
    ema = ExponentialMovingAverage(model, 0.25)
    expected = 8.0
    for step, weight in enumerate((4.0, 2.0, -6.0), start=1):
        model.weight.data.fill_(weight)
        ema.update(step)
        kept = (2 / 11, 0.25, 0.25)[step - 1]
        expected = kept * expected + (1 - kept) * weight
        with ema.in_place():
            assert model.weight.item() == pytest.approx(expected, rel=1e-6)
        assert model.weight.item() == weight
