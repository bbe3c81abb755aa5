"""Floating-point operations against PyTorch's own count, and MFU in the metrics."""

import json

import pytest
import torch
from conftest import tiny_config
from torch.utils.flop_counter import FlopCounterMode

from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.config.keys import ModelConfig
from transformer_mt.model import cpu_kernels
from transformer_mt.text.prepared import prepare
from transformer_mt.training import trainer
from transformer_mt.training.dry_run import dry_run
from transformer_mt.training.engine import Engine
from transformer_mt.training.flops import flops_per_token
from transformer_mt.training.run import train

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
    engine = Engine(config, vocab.src_size, vocab.tgt_size, CPU, "fp32")
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


def test_mfu_is_reported(corpus_dir, tmp_path, monkeypatch):
    """MFU is the operations per second over the peak, in the metrics and in a dry run."""
    monkeypatch.setattr(trainer, "measure_peak_flops", lambda device, precision: 1e12)
    config = tiny_config(corpus_dir, train__max_steps=10, train__log_every=5)
    train(config, tmp_path / "run")
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    training = [line for line in lines if line["kind"] == "train"]
    size = find_checkpoint(tmp_path / "run").vocab.tgt_size
    for line in training:  # the corpus is copied: as many source as target tokens
        per_second = sum(flops_per_token(config.model, size)) * line["tokens_per_second"]
        assert line["mfu"] == pytest.approx(per_second / 1e12, rel=0.02, abs=1e-4)
    assert len(training) == 2
    assert "% of peak (3 steps on cpu" in dry_run(config, tmp_path / "other")
