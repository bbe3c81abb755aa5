"""Products through oneDNN, dropout from random bits: the same mathematics, faster."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from transformer_mt.model.cpu_kernels import Dropout, Linear, packed, product


@pytest.mark.parametrize("shape", [(5, 6), (2, 3, 6), (1, 1, 6)])
@pytest.mark.parametrize("biased", [True, False])
def test_a_product_and_its_gradients(shape, biased):
    """Those of `F.linear`. Sabotage: transpose nothing in the backward pass; forget the bias."""
    torch.manual_seed(0)
    x, matrix, bias = torch.randn(shape), torch.randn(4, 6), torch.randn(4) if biased else None
    found = []
    for function in (product, F.linear):
        inputs = [t.clone().requires_grad_() for t in (x, matrix, bias) if t is not None]
        out = function(*inputs)
        (out.sin() * torch.arange(4)).sum().backward()
        found.append([out, *(t.grad for t in inputs)])
    for ours, theirs in zip(*found, strict=True):
        assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_a_product_may_be_changed_in_place():
    """As the feed-forward network does with its ReLU."""
    linear, x = Linear(6, 4), torch.randn(2, 3, 6)
    linear(x).relu_().sum().backward()
    grad, linear.weight.grad = linear.weight.grad, None
    F.linear(x, linear.weight, linear.bias).relu().sum().backward()
    assert_close(grad, linear.weight.grad)


@torch.no_grad()
def test_packed_is_the_same_and_ends():
    """Within rounding, in either precision, and not after the weights may have changed."""
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        linear, x = Linear(64, 48).to(dtype), torch.randn(3, 5, 64, dtype=dtype)
        plain = linear(x)
        with packed(linear):
            assert linear.packed is not None
            assert_close(linear(x), plain, atol=tolerance, rtol=tolerance)
        assert linear.packed is None
        linear.weight.mul_(2)
        assert not torch.allclose(linear(x), plain, atol=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_mean(dtype, p):
    """It zeroes that share, scales the rest, and lets the same gradient through.

    Sabotage: draw from int64's default range, whose sign bit is never set.
    """
    torch.manual_seed(0)
    x = torch.ones(1_000_003, dtype=dtype, requires_grad=True)
    out = Dropout(p)(x)
    share = float((out.detach() == 0).float().mean())
    assert share == pytest.approx(p, abs=0.003)
    assert float(out.detach().float().mean()) == pytest.approx(1.0, abs=0.01)
    blocks = (out[:1_000_000] == 0).view(-1, 4).float().mean(0)  # all parts of a drawn number
    assert torch.allclose(blocks, torch.tensor(p), atol=0.005)
    out.sum().backward()
    assert x.grad.equal(out.detach())


def test_dropout_is_seeded_and_ends_with_training():
    """The same seed, the same zeros; none in evaluation, none without a probability."""
    dropout, x = Dropout(0.3), torch.ones(7, 11)
    torch.manual_seed(5)
    first = dropout(x)
    torch.manual_seed(5)
    assert dropout(x).equal(first) and not dropout(x).equal(first)
    assert torch.isfinite(Dropout(0.9999999)(x)).all()
    assert dropout.eval()(x) is x and Dropout(0.0)(x) is x
