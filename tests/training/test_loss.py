"""The loss and its gradients compared with plain PyTorch."""

import pytest
import torch
from torch.testing import assert_close

from transformer_mt.model.kernels import linear
from transformer_mt.training import loss
from transformer_mt.training.loss import label_smoothed_loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_the_formula_is_that_of_the_paper(smoothing):
    """Padding does not count. Sabotage: count it; spread over the other tokens alone."""
    torch.manual_seed(0)
    logits, targets = torch.randn(2, 5, 9), torch.tensor([[3, 4, 0, 5, 2], [8, 2, 0, 0, 0]])
    log_probabilities = logits.log_softmax(-1)
    nlls = -log_probabilities.gather(-1, targets[..., None])[..., 0]
    losses = (1 - smoothing) * nlls - smoothing * log_probabilities.mean(-1)
    loss, nll = label_smoothed_loss(logits, targets, smoothing, 0)
    assert_close(loss, losses[targets != 0].sum())
    assert_close(nll, nlls[targets != 0].sum())


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_projected_is_smoothed(monkeypatch, smoothing, rows):
    """Values and gradients, in chunks of every size, with padding within and at the end."""
    monkeypatch.setitem(loss.CHUNK_ROWS, "cpu", rows)
    torch.manual_seed(0)
    output, output_weight = torch.randn(2, 5, 4), torch.randn(9, 4)
    targets, results = torch.tensor([[3, 4, 0, 5, 2], [8, 2, 0, 0, 0]]), []
    for projected in (True, False):
        h, w = output.clone().requires_grad_(), output_weight.clone().requires_grad_()
        if projected:
            value, nll = loss.projected_loss(h, w, targets, smoothing, 0)
            assert not nll.requires_grad
        else:
            value, nll = label_smoothed_loss(h @ w.t(), targets, smoothing, 0)
        (value / 7).backward()
        results.append((value.detach(), nll.detach(), h.grad, w.grad))
    assert_close(*results, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_projected_under_autocast(dtype):
    """Within a few percent of fp32, and fp32 itself: a millionth of a loss has a gradient."""
    torch.manual_seed(0)
    inputs = [torch.randn(3, 6, 16, requires_grad=True), torch.randn(30, 16, requires_grad=True)]
    targets = torch.randint(1, 30, (3, 6))
    with torch.autocast("cpu", dtype):
        value, nll = loss.projected_loss(*inputs, targets, 0.1, 0)
    output, output_weight = inputs
    plain, unsmoothed = label_smoothed_loss(output @ output_weight.t(), targets, 0.1, 0)
    assert nll.item() == pytest.approx(unsmoothed.item(), rel=0.01)
    assert value.item() == pytest.approx(plain.item(), rel=0.01)
    gradients = torch.autograd.grad(value, inputs, torch.tensor(1e-6))
    for gradient, exact in zip(gradients, torch.autograd.grad(plain, inputs), strict=True):
        assert gradient.dtype == torch.float32
        assert (1e6 * gradient - exact).norm() < 0.02 * exact.norm()


def test_smoothing_is_not_rounded_in_bf16():
    """A sure token has the gradient 1 - 0.9. Sabotage: add -0.9 to the bf16 matrix itself."""
    output, output_weight = torch.eye(16)[None, 1:].requires_grad_(), torch.zeros(1000, 16)
    output_weight[:16] = 40 * torch.eye(16)
    with torch.autocast("cpu", torch.bfloat16):
        value, _ = loss.projected_loss(output, output_weight, torch.arange(1, 16)[None], 0.1, 0)
    value.backward()
    expected = 40 * (1 - (0.9 + 0.1 / 1000))
    assert_close(output.grad[0, :, 1:].diag(), torch.full((15,), expected), rtol=0.005, atol=0.0)


def test_small_probabilities_keep_their_precision():
    """In float16, with many equally probable tokens and a smoothing close to their probability."""
    size, smoothing = 29_000, 0.98
    output_weight = torch.zeros(size, 8, requires_grad=True)
    with torch.autocast("cpu", torch.float16):
        targets = torch.zeros(1, 2, dtype=torch.int64)
        value, _ = loss.projected_loss(torch.ones(1, 2, 8), output_weight, targets, smoothing, 1)
    value.backward()
    expected = torch.full((size - 1, 8), 2 * (1 - smoothing) / size)
    assert_close(output_weight.grad[1:], expected, rtol=0.01, atol=0.0)


@pytest.mark.parametrize("size", [0.0, 1.0, 12.0, 1000.0])
def test_gradients_in_float16_do_not_overflow(size):
    """However large the decoder's output, and if all positions have the same token."""
    output, output_weight = torch.full((1, 384, 8), size), torch.zeros(30, 8, requires_grad=True)
    targets = torch.ones(1, 384, dtype=torch.int64)
    with torch.autocast("cpu", torch.float16):
        value, _ = loss.projected_loss(output, output_weight, targets, 0.0, 0)
    value.backward()
    expected = torch.full((30, 8), 384 * size / 30)
    expected[1] -= 384 * size
    assert_close(output_weight.grad, expected, rtol=0.01, atol=0.0)


@pytest.mark.parametrize("gap, nll", [(80.0, 80.0), (1000.0, 87.3)])
def test_an_impossible_target_has_a_finite_loss(gap, nll):
    """Its probability is zero in float32, and its gradient as it should be.

    Sabotage: leave a smoothed loss whose NLL is cut as it is.
    """
    output_weight = torch.tensor([[0.0], [0.0], [-gap]], requires_grad=True)
    targets = torch.tensor([[2]])
    value, unsmoothed = loss.projected_loss(torch.ones(1, 1, 1), output_weight, targets, 0.0, 0)
    value.backward()
    assert value.item() == unsmoothed.item() == pytest.approx(nll, abs=1)
    assert_close(output_weight.grad, torch.tensor([[0.5], [0.5], [-1.0]]))
    smoothed, _ = loss.projected_loss(torch.ones(1, 1, 1), output_weight, targets, 0.9, 0)
    assert smoothed > 0.09 * unsmoothed


def test_sums_of_half_precision_logits_are_fp32():
    """Logits around 100 are rounded to bf16 once; their mean and log-sum-exp are not."""
    torch.manual_seed(0)
    output, output_weight = torch.randn(4, 50, 16), torch.randn(30, 16)
    output[..., 0], output_weight[:, 0] = 10.0, 10.0
    targets = torch.randint(1, 30, (4, 50))
    with torch.autocast("cpu", torch.bfloat16):
        value, _ = loss.projected_loss(output, output_weight, targets, 0.6, 0)
        logits = linear(output.flatten(0, 1).bfloat16(), output_weight.bfloat16())
    plain, _ = label_smoothed_loss(logits[None], targets.view(1, -1), 0.6, 0)
    assert value.item() == pytest.approx(plain.item(), abs=0.01 * 200)
