"""The learning rate against the paper's formula, Adam, Muon against PyTorch's, and the average."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from transformer_mt.config.keys import ModelConfig, OptimConfig
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.private_torch import skip_step_if
from transformer_mt.training import optimizer as ours


@pytest.mark.parametrize(("d_model", "warmup"), [(512, 4000), (1024, 7), (256, 1)])
def test_rate_is_the_papers(d_model, warmup):
    """The rate rises linearly to 1 / sqrt(d_model * warmup), then falls as 1 / sqrt(step)."""
    for step in {1, max(1, warmup - 1), warmup, warmup + 1, 100_000}:
        peak = 1 / math.sqrt(d_model * warmup)
        paper = peak * step / warmup if step <= warmup else 1 / math.sqrt(d_model * step)
        assert ours.noam_rate(step, d_model, warmup) == pytest.approx(paper, rel=1e-12)
        assert ours.noam_rate(step, d_model, warmup, 2.5) == pytest.approx(2.5 * paper, rel=1e-12)


def test_adam_is_as_configured():
    config = OptimConfig(betas=(0.7, 0.8), eps=0.05)
    optimizer = ours.build_optimizer(nn.Linear(3, 4), config, torch.bfloat16)
    expected = {"betas": (0.7, 0.8), "eps": 0.05, "weight_decay": 0, "amsgrad": False}
    assert optimizer.defaults.items() >= {**expected, "fused": True}.items()


@pytest.mark.parametrize("bias", [True, False])
def test_muon_is_pytorchs(bias):
    """On each projection of attention and each feed-forward layer; all else is left to Adam."""
    sizes = {"d_model": 16, "d_ff": 48, "n_heads": 2, "encoder_layers": 1, "decoder_layers": 2}
    model = Transformer(ModelConfig(**sizes, attention_bias=bias), 30, 30, 0)
    config = OptimConfig(muon=True, betas=(0.8, 0.9), eps=0.01)
    muon, lr = ours.build_optimizer(model, config, torch.bfloat16), 0.01
    skip_step_if(muon, torch.tensor(False))
    matrices, others = [], []  # of PyTorch's optimizers, with the parameter and the rows of ours
    for name, parameter in model.named_parameters():
        is_fused = next((n for part, n in (("qkv", 3), ("kv", 2)) if f".{part}." in name), 1)
        is_matrix = parameter.ndim == 2 and "embedding" not in name
        for rows in torch.arange(len(parameter)).chunk(is_fused if is_matrix else 1):
            copy = nn.Parameter(parameter.detach()[rows].clone())
            (matrices if is_matrix else others).append((copy, parameter, rows))
    assert len(matrices) == 6 + 2 * 10
    references = [
        torch.optim.Muon([copy for copy, *_ in matrices], lr, 0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.Adam([copy for copy, *_ in others], lr, betas=(0.8, 0.9), eps=0.01),
    ]
    for group in muon.param_groups:
        group["lr"] = lr
    for _ in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        for copy, parameter, rows in matrices + others:
            copy.grad = parameter.grad[rows].clone()
        for optimizer in (muon, *references):
            optimizer.step()
    for copy, parameter, rows in matrices + others:
        assert_close(parameter[rows], copy, rtol=0, atol=0.02 * lr)
    skip_step_if(muon, torch.tensor(True))
    before = [parameter.clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad.fill_(math.nan)
    muon.step()
    assert all(map(torch.equal, model.parameters(), before))
    assert not ours.orthogonalise(torch.zeros(2, 5, 40)).any()


def test_moving_average_by_hand():
    """A step keeps min(decay, (1 + step) / (10 + step)) of the average; the weights stay."""
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(8.0)
    ema, expected = ours.ExponentialMovingAverage(model, 0.25), 8.0
    for step, weight in enumerate((4.0, 2.0, -6.0), start=1):
        model.weight.data.fill_(weight)
        ema.update(step)
        kept = (2 / 11, 0.25, 0.25)[step - 1]
        expected = kept * expected + (1 - kept) * weight
        assert ema.model.weight.item() == pytest.approx(expected, rel=1e-6)
        assert model.weight.item() == weight
