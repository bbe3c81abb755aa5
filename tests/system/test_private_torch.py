"""Private PyTorch API: what it computes, and what happens where a build of PyTorch lacks it."""

import torch

from transformer_mt.system import private_torch


def test_bf16_support_of_the_cpu(monkeypatch):
    """The kinds of instructions are named."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    for answers in ((True, False), (False, True), (False, False)):
        for name, answer in zip(names, answers, strict=True):
            monkeypatch.setattr(torch.cpu, name, lambda answer=answer: answer)
        kinds = zip(("AVX512_BF16", "AMX"), answers, strict=True)
        assert private_torch.cpu_bf16_instructions() == [kind for kind, answer in kinds if answer]


def test_loss_scale():
    """Of a scaler that has not scaled anything yet, and of one that has."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    assert private_torch.loss_scale(scaler).item() == 8.0
    scaler.scale(torch.ones(()))
    assert private_torch.loss_scale(scaler).item() == 8.0


def test_compile_errors():
    """Other errors are not of torch.compile."""
    assert private_torch.is_compile_error(torch._dynamo.exc.TorchDynamoException("no compiler"))
    assert not private_torch.is_compile_error(RuntimeError("no compiler"))
    private_torch.mark_dynamic(torch.ones(3), 0)
