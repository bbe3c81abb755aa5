"""Floating-point operations against PyTorch's own count, and MFU in the metrics."""

import pytest
import torch
from conftest import tiny_config
from torch.utils.flop_counter import FlopCounterMode

from transformer_mt.config.keys import ModelConfig
from transformer_mt.model import cpu_kernels
from transformer_mt.text.prepared import prepare
from transformer_mt.training.engine import Engine
from transformer_mt.training.flops import flops_per_token

CPU = torch.device("cpu")


@pytest.mark.parametrize("layers", [(2, 3), (3, 1)])
def test_training_flops_are_those_pytorch_counts(corpus_dir, monkeypatch, layers):
    """On a batch without padding, the products inside attention left out.

    Sabotage: count cross-attention's keys and values per target token.
    """
    # The counter ignores oneDNN's product.
    monkeypatch.setattr(cpu_kernels, "has_onednn_linear", lambda: False)
    encoder, decoder = layers
    config = tiny_config(corpus_dir, model__encoder_layers=encoder, model__decoder_layers=decoder)
    prepared = prepare(config)
    src, tgt = prepared.pairs.lengths
    alike = ((src == src[0]) & (tgt == tgt[0])).nonzero()[0]
    batch = prepared.pairs.batch(alike)
    vocab = prepared.vocab
    engine = Engine(config, vocab.src.size, vocab.tgt.size, CPU, "fp32")
    with FlopCounterMode(display=False) as counter:
        engine.train_step(1, [batch])
    by_operation = counter.get_flop_counts()["Global"]
    products = sum(
        count for name, count in by_operation.items() if str(name) in ("aten.mm", "aten.addmm")
    )
    assert engine.read_window().flops == products


def test_the_papers_base_model():
    """About 0.38 GFLOP per target token and its source token, with 37,000 pieces."""
    assert sum(flops_per_token(ModelConfig(), 37_000)) == pytest.approx(0.38e9, rel=0.02)
