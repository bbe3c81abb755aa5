"""Private PyTorch API: what it computes, and what happens without it."""

from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from transformer_mt.system import private_torch


@pytest.mark.parametrize("name", ["_linear_pointwise", "_reorder_linear_weight"])
def test_onednn_needs_both_operators(monkeypatch, name):
    """Without one of them nothing is computed through oneDNN."""
    assert private_torch.has_onednn_linear()
    operators = {"_linear_pointwise": None, "_reorder_linear_weight": None}
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace(**operators))
    assert private_torch.has_onednn_linear()
    monkeypatch.delattr(torch.ops.mkldnn, name)
    assert not private_torch.has_onednn_linear()


@pytest.mark.parametrize("name", ["_mkl_linear", "_mkl_reorder_linear_weight"])
def test_mkl_needs_both_operators(monkeypatch, name):
    """Without one of them nothing is packed for MKL."""
    operators = {"_mkl_linear": None, "_mkl_reorder_linear_weight": None}
    monkeypatch.setattr(torch.ops, "mkl", SimpleNamespace(**operators))
    assert private_torch.has_mkl_linear()
    monkeypatch.delattr(torch.ops.mkl, name)
    assert not private_torch.has_mkl_linear()


def test_bf16_support_of_the_cpu(monkeypatch):
    """The kinds of instructions are named; without the checks there are none."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    for answers in ((True, False), (False, True), (False, False)):
        for name, answer in zip(names, answers, strict=True):
            monkeypatch.setattr(torch.cpu, name, lambda answer=answer: answer)
        kinds = zip(("AVX512_BF16", "AMX"), answers, strict=True)
        assert private_torch.cpu_bf16_instructions() == [kind for kind, answer in kinds if answer]
    for name in names:
        monkeypatch.delattr(torch.cpu, name)
    assert not private_torch.cpu_bf16_instructions()


@pytest.mark.parametrize("available", [True, False])
def test_lerp_all(monkeypatch, available):
    """The same to the last bit with the operator and without."""
    torch.manual_seed(0)
    tensors, ends = list(torch.randn(2, 3, 5)), list(torch.randn(2, 3, 5))
    expected = [start.lerp(end, 0.3) for start, end in zip(tensors, ends, strict=True)]
    if not available:
        monkeypatch.delattr(torch, "_foreach_lerp_")
    private_torch.lerp_all_(tensors, ends, 0.3)
    assert_close(tensors, expected, rtol=0, atol=0)


def test_loss_scale():
    """Of a scaler that has scaled something, of one that has not, and without the private API."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    assert private_torch.loss_scale(scaler).item() == 8.0
    scaler.scale(torch.ones(()))
    assert private_torch.loss_scale(scaler).item() == 8.0
    assert private_torch.loss_scale(SimpleNamespace(get_scale=lambda: 4.0)).item() == 4.0


def test_compile_errors(monkeypatch):
    """Other errors are not of torch.compile, and none is if the class is gone."""
    error = torch._dynamo.exc.TorchDynamoException("no compiler")
    assert private_torch.is_compile_error(error)
    assert not private_torch.is_compile_error(RuntimeError("no compiler"))
    monkeypatch.delattr(torch._dynamo.exc, "TorchDynamoException")
    assert not private_torch.is_compile_error(error)


def test_mark_dynamic_may_be_absent(monkeypatch):
    """Then it does nothing."""
    private_torch.mark_dynamic(torch.ones(3), 0)
    monkeypatch.delattr(torch._dynamo, "maybe_mark_dynamic")
    private_torch.mark_dynamic(torch.ones(3), 0)
