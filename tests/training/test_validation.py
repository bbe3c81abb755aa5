"""Perplexity against its definition."""

import math
import re

import pytest
import torch
from conftest import tiny_config

import transformer_mt
from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.config.keys import ModelConfig
from transformer_mt.model.transformer import Transformer, evaluation_mode
from transformer_mt.text.batching import EncodedPairs, flatten
from transformer_mt.text.corpus import RawPairs
from transformer_mt.text.vocabulary import BOS_ID, EOS_ID, PAD_ID
from transformer_mt.training.run import build_trainer, train
from transformer_mt.training.validation import Validator, mean_nll
from transformer_mt.translation import pytorch_runtime

V = 13
SOURCES = [[5, 6], [7], [4, 8, 9, 10, 11, 12, 4, 5, 6], [9, 9, 9], []]
TARGETS = [[4], [5, 6, 7, 8, 9, 10, 11], [12, 4], [], [6, 6]]


@pytest.fixture
def model() -> Transformer:
    """Gives a random model, in training mode, with dropout."""
    torch.manual_seed(3)
    config = ModelConfig(
        d_model=16, d_ff=32, n_heads=2, encoder_layers=1, decoder_layers=1, dropout=0.5
    )
    return Transformer(config, V, V, PAD_ID).train()


@torch.no_grad()
def nats_of_a_pair(model: Transformer, src: list[int], tgt: list[int]) -> float:
    """Sums the negative log-probabilities of a target and its end mark, without padding."""
    with evaluation_mode(model):
        logits = model(torch.tensor([[*src, EOS_ID]]), torch.tensor([[BOS_ID, *tgt]]))[0].double()
    probabilities = zip(logits.softmax(-1).tolist(), [*tgt, EOS_ID], strict=True)
    return -sum(math.log(row[token]) for row, token in probabilities)


@pytest.mark.parametrize("positions", [1, 12, 30, 1000])
@pytest.mark.parametrize(("sources", "targets"), [(SOURCES, TARGETS), (TARGETS, SOURCES)])
def test_mean_nll_is_per_target_token(model, monkeypatch, sources, targets, positions):
    """However the pairs are batched, without dropout; one is longer than the smallest limit."""
    sizes, by_one = list[int](), lambda function, items: function(items)
    nats = [nats_of_a_pair(model, *pair) for pair in zip(sources, targets, strict=True)]
    model.register_forward_pre_hook(lambda _, batch: sizes.extend(ids.numel() for ids in batch))
    monkeypatch.setattr(pytorch_runtime, "SCORED_POSITIONS", positions)
    for training in (False, True):
        model.train(training)
        actual = mean_nll(model, EncodedPairs(flatten(sources), flatten(targets)), by_one)
        assert model.training == training
    tokens = sum(len(tgt) + 1 for tgt in targets)
    assert actual == pytest.approx(sum(nats) / tokens, rel=1e-5)
    assert max(sizes) <= max(positions, 10)


def test_validation_translates_as_the_saved_model(untrained_run):
    """It splits the same lines, of several sentences and long ones, at the same places."""
    trainer = build_trainer(find_checkpoint(untrained_run).config, untrained_run)
    lines = ["Abc de. Fgh ij.", "Ab. Cd. Ef.", "ab cd", " ".join(["abc"] * 40), ""]
    validator = Validator(trainer.engine, RawPairs(lines, lines), trainer.corpus)
    result = validator.validate(lambda count: None)
    assert result.hypotheses == transformer_mt.load(untrained_run, device="cpu").translate(lines)


def test_vocabularies_of_two_sizes(corpus_dir, tmp_path):
    """The source has one letter. Sabotage: swap the sides that are compared with decoding."""
    for split in ("train", "validation"):
        lines = (corpus_dir / f"{split}.en").read_text()
        (tmp_path / f"{split}.en").write_text(lines)
        (tmp_path / f"{split}.de").write_text(re.sub(r"\S", "a", lines))
    changes = {"vocab__kind": "char", "vocab__shared": False, "model__tie_embeddings": False}
    changes |= {"data__prepared_dir": str(tmp_path / "prepared")}
    config = tiny_config(tmp_path, train__max_steps=1, valid__every=1, **changes)
    assert train(config, tmp_path / "run").best_step == 1
