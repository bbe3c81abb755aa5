"""Gradients of packs against those of padded batches, on simulated CUDA."""

import numpy as np
import pytest
import torch
from simulated_cuda import SimulatedCuda

from transformer_mt.config.keys import ModelConfig
from transformer_mt.model.transformer import Transformer
from transformer_mt.text.batching import EncodedPairs, flatten
from transformer_mt.text.packing import pack_pairs
from transformer_mt.text.vocabulary import PAD_ID
from transformer_mt.training.loss import label_smoothed_loss
from transformer_mt.training.packed_step import PackedStep

VOCAB, CAPACITY = 40, 256


def made_pairs(count: int, seed: int) -> EncodedPairs:
    """Pairs of 0 to 19 pieces a side."""
    rng = np.random.default_rng(seed)
    lines = [rng.integers(4, VOCAB, rng.integers(0, 20)).tolist() for _ in range(2 * count)]
    return EncodedPairs(flatten(lines[:count]), flatten(lines[count:]))


def build_model(norm: str = "post", dropout: float = 0.0, tied: bool = True) -> Transformer:
    torch.manual_seed(1)
    sizes = {"d_model": 16, "d_ff": 32, "n_heads": 2, "encoder_layers": 2, "decoder_layers": 2}
    config = ModelConfig(**sizes, norm=norm, dropout=dropout, tie_embeddings=tied)
    return Transformer(config, VOCAB, VOCAB, PAD_ID).train()


def padded_gradients(model: Transformer, pairs: EncodedPairs, indices, scale: float):
    batch = pairs.batch(indices)
    logits = model(batch.src, batch.tgt_in)
    loss, nll = label_smoothed_loss(logits, batch.tgt_out, 0.1, PAD_ID)
    gradients = torch.autograd.grad(loss * scale, list(model.parameters()))
    return torch.stack((loss.detach(), nll.detach())), gradients


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("norm", ["post", "pre", "sublayer"])
def test_gradients_are_those_of_padded_batches(norm, tied):
    """Of three packs after one capture, each added to the same tensors."""
    model = build_model(norm, tied=tied)
    packs = [(made_pairs(count, seed=count), np.arange(count)) for count in (1, 9, 12)]
    expected = [padded_gradients(model, *pack, scale=0.5) for pack in packs]
    total = [sum(gradients) for gradients in zip(*(g for _, g in expected), strict=True)]
    with SimulatedCuda():
        step = PackedStep(model.to("cuda"), CAPACITY, 0.1, "fp32")
        for parameter in model.parameters():
            parameter.grad.zero_()
        scale = torch.full((), 0.5, device="cuda")
        for pack, (losses, _) in zip(packs, expected, strict=True):
            packed = step.add_gradients(pack_pairs(*pack, CAPACITY), 1, scale)
            torch.testing.assert_close(packed.cpu(), losses, rtol=1e-5, atol=1e-5)
        for parameter, gradient in zip(model.parameters(), total, strict=True):
            torch.testing.assert_close(parameter.grad.cpu(), gradient, rtol=1e-4, atol=1e-5)


def test_dropout_is_a_function_of_the_seed():
    pack = pack_pairs(made_pairs(9, seed=1), np.arange(9), CAPACITY)
    with SimulatedCuda():
        step = PackedStep(build_model(dropout=0.3).to("cuda"), CAPACITY, 0.1, "fp32")
        scale = torch.ones((), device="cuda")
        losses = [step.add_gradients(pack, seed, scale)[0].item() for seed in (7, 8, 7)]
    assert losses[0] == losses[2] != losses[1]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_replay_waits_for_nothing_and_moves_no_gradient(precision):
    pack = pack_pairs(made_pairs(9, seed=1), np.arange(9), CAPACITY)
    with SimulatedCuda() as cuda:
        model = build_model().to("cuda")
        step = PackedStep(model, CAPACITY, 0.1, precision)
        addresses = [parameter.grad.data_ptr() for parameter in model.parameters()]
        scale = torch.ones((), device="cuda")
        with cuda.counted() as waits:
            losses = step.add_gradients(pack, 1, scale)
        assert not waits
        assert [parameter.grad.data_ptr() for parameter in model.parameters()] == addresses
        assert losses.isfinite().all() and losses[0] > 0
