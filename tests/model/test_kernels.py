"""The CPU's fast paths compute what plain PyTorch computes."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from transformer_mt.model import kernels
from transformer_mt.model.kernels import Dropout, Linear, dropout, linear, reordered_weights
from transformer_mt.model.multi_head_attention import Attention, attention, attention_weights


def value_and_gradients(function, *inputs):
    """Gives the output for copies of the inputs, and the gradients of an uneven sum of it."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    output = function(*leaves)
    (output.sin() * torch.arange(output.size(-1))).sum().backward()
    return [output.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("is_intel", [True, False])
@pytest.mark.parametrize("shape", [(5, 6), (2, 3, 6), (1, 1, 6)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_is_the_reference(monkeypatch, shape, bias, is_intel):
    monkeypatch.setattr(kernels, "has_fast_mkl", lambda: is_intel)
    torch.manual_seed(0)
    inputs = [torch.randn(shape), torch.randn(4, 6), *([torch.randn(4)] if bias else [])]
    expected = value_and_gradients(F.linear, *inputs)
    assert_close(value_and_gradients(linear, *inputs), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_in_half_precision_is_the_reference(dtype, bias):
    """With gradients, under autocast or in the type itself, whatever the number of rows."""
    torch.manual_seed(0)
    for shape in ((3, 6), (2, 32, 6), (5, 13, 6)):
        inputs = [torch.randn(shape), torch.randn(4, 6), *([torch.randn(4)] if bias else [])]
        with torch.autocast("cpu", dtype):
            expected = value_and_gradients(F.linear, *inputs)
            computed = value_and_gradients(linear, *inputs)
        assert [x.dtype for x in computed] == [x.dtype for x in expected]
        assert_close(computed, expected, atol=0.02, rtol=0.02)
        halves = [x.to(dtype) for x in inputs]
        expected = value_and_gradients(F.linear, *halves)
        assert_close(value_and_gradients(linear, *halves), expected, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_in_half_precision_have_few_numbers_of_rows(dtype):
    """Forwards and backwards, rows come in multiples of 64, so that kernels are reused."""
    counts = set()

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
                counts.update(size for matrix in args[-2:] for size in matrix.shape)
            return function(*args, **(kwargs or {}))

    with Recorder(), torch.autocast("cpu", dtype):
        for rows in (1, 63, 64, 65, 130):
            value_and_gradients(linear, torch.randn(rows, 6), torch.randn(4, 6), torch.randn(4))
    assert counts == {4, 6, 64, 128, 192}
    assert kernels.pad_rows(torch.ones(65, 2), torch.float32).shape == (65, 2)
    padded = kernels.pad_rows(torch.ones(65, 2), dtype)
    assert padded[:65].eq(1).all() and padded[65:].eq(0).all() and len(padded) == 128


def test_other_devices_use_the_references(monkeypatch):
    """None of the fast paths runs where a tensor is not on a CPU, or PyTorch has no operators."""
    torch.manual_seed(0)
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace())
    module, x, heads = Linear(8, 4), torch.randn(3, 8), torch.randn(2, 4, 5, 3)
    expected = F.linear(x, module.weight, module.bias)
    assert module(x).equal(expected)
    monkeypatch.setattr(kernels, "_on_cpu", lambda x: False)
    assert module(x).equal(expected)
    torch.manual_seed(1)
    dropped = dropout(x, 0.5)
    torch.manual_seed(1)
    assert dropped.equal(F.dropout(x, 0.5))
    expected = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    assert Attention(0.0)(heads, heads, heads, None, True).equal(expected)


@pytest.mark.parametrize("is_mkl_fast", [True, False])
def test_reordered_weights_are_copies_and_end(monkeypatch, is_mkl_fast):
    """They give the same for any number of rows, but for gradients and after a change.

    Sabotage: use a copy whatever its weight is now; use it where gradients are wanted.
    """
    monkeypatch.setattr(kernels, "has_fast_mkl", lambda: is_mkl_fast)
    module = Linear(64, 48)
    inputs = [torch.randn(1, rows, 64) for rows in (1, 2, 15, 128, 300)]
    with torch.no_grad():
        expected = list(map(module, inputs))
    product = Mock(wraps=kernels.onednn_linear)
    monkeypatch.setattr(kernels, "onednn_linear", product)
    with reordered_weights(module):
        with reordered_weights(module), torch.no_grad():
            assert_close(list(map(module, inputs)), expected, atol=1e-5, rtol=1e-5)
        assert all(call.args[1] is not module.weight for call in product.mock_calls)
        assert product.call_count == len(inputs)
        module(inputs[0]).sum().backward()
        assert_close(module.weight.grad, inputs[0].sum((0, 1)).expand(48, 64))
        with torch.no_grad():
            module.weight.zero_()
            assert_close(module(inputs[0]), module.bias.expand(1, 1, -1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_mean(dtype, p):
    """It zeroes a share p, scales the rest, and passes the same gradient."""
    torch.manual_seed(0)
    x = torch.ones(1_000_003, dtype=dtype, requires_grad=True)
    output = dropout(x, p)
    zeros = (output.detach() == 0).float()
    assert float(zeros.mean()) == pytest.approx(p, abs=0.003)
    assert float(output.detach().float().mean()) == pytest.approx(1.0, abs=0.01)
    lanes = zeros[:1_000_000].view(-1, 4).mean(0)  # the four 16-bit parts of a drawn number
    assert torch.allclose(lanes, torch.tensor(p), atol=0.005)
    output.sum().backward()
    assert x.grad.equal(output.detach())


def test_dropout_is_seeded_and_ends_with_training():
    """The same seed gives the same zeros; none in evaluation, none with probability 0."""
    module, x = Dropout(0.3), torch.ones(7, 11)
    torch.manual_seed(5)
    first = module(x)
    torch.manual_seed(5)
    assert module(x).equal(first) and not module(x).equal(first)
    drawn = []
    for _ in range(2):
        # For this thread until the end of the block.
        with kernels.seeded_dropout(torch.device("cpu"), 6):
            drawn.append(module(x))
    assert drawn[0].equal(drawn[1]) and not drawn[0].equal(first)
    torch.manual_seed(5)
    assert module(x).equal(first)
    with kernels.seeded_dropout(torch.device("meta"), 5):  # any other device
        assert module(x).equal(first)
    assert torch.isfinite(Dropout(0.9999999)(x)).all()
    assert module.eval()(x) is x and Dropout(0.0)(x) is x


@pytest.mark.parametrize("n_queries", [1, kernels.FEW_QUERIES, kernels.FEW_QUERIES + 3])
@pytest.mark.parametrize("masking", ["causal", "mask", "none"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_attention_is_the_equation(n_queries, masking, dtype, tolerance):
    """Value and gradients are those of softmax(QK^T / sqrt(K))V, under autocast too."""
    torch.manual_seed(0)
    n_keys = n_queries if masking == "causal" else 7
    mask = (torch.arange(n_keys) < torch.tensor([[4], [7]]))[:, None, None]
    mask = mask if masking == "mask" else None
    q = torch.randn(2, 4, n_queries, 8)
    k, v = torch.randn(2, 2, 4, n_keys, 8)
    inputs = [x.to(dtype) for x in (q, k, v)]
    causal = masking == "causal"

    def equation(q, k, v):
        return (attention_weights(q, k, mask, causal) @ v.float()).to(dtype)

    expected = value_and_gradients(equation, *inputs)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        computed = value_and_gradients(lambda *qkv: Attention(0.0)(*qkv, mask, causal), *inputs)
        formula = value_and_gradients(lambda *qkv: attention(*qkv, mask, causal, 0.0), *inputs)
    assert_close(formula, expected, atol=tolerance, rtol=tolerance)
    assert [x.dtype for x in computed] == [dtype] * 4
    assert_close(computed, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mask_as_a_bias_hides_the_same_keys(monkeypatch, dtype):
    """It has the type of the queries and rows multiples of 8 apart; it is made once for a type."""
    monkeypatch.setattr(kernels, "_on_cpu", lambda x: False)
    for length in (1, 2, 7, 8, 9, 16):
        mask = (torch.arange(length) < torch.tensor([[1], [length]]))[:, None, None]
        q, k, v = torch.randn(3, 2, 4, length, 8, dtype=dtype)
        expected = F.scaled_dot_product_attention(q, k, v, mask)
        assert Attention(0.0)(q, k, v, mask, False).equal(expected)
        bias = kernels._bias(mask, dtype)
        assert bias is kernels._bias(mask, dtype) and bias.dtype == dtype
        assert bias.shape == mask.shape and bias.stride(-1) == 1
        assert all(stride % 8 == 0 for stride in bias.stride()[:-1])
        assert kernels._bias(mask, torch.float16).dtype == torch.float16


@pytest.mark.parametrize(("n_queries", "on_cpu"), [(2, True), (20, True), (20, False)])
def test_attention_dropout_keeps_the_mean(monkeypatch, n_queries, on_cpu):
    """On any device, however many queries: weights are dropped, and the others scaled up."""
    monkeypatch.setattr(kernels, "_on_cpu", lambda x: on_cpu)
    torch.manual_seed(0)
    q, k = torch.zeros(50, 4, n_queries, 8), torch.randn(50, 4, 30, 8)
    output = Attention(0.5)(q, k, torch.ones_like(k), None, False)
    assert float(output.std()) > 0.05
    assert float(output.mean()) == pytest.approx(1.0, abs=0.02)
