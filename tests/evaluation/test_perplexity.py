"""Perplexity against its definition."""

import math

import pytest
import torch

from transformer_mt.config import ModelConfig
from transformer_mt.evaluation.perplexity import mean_nll, perplexity
from transformer_mt.model.transformer import Transformer
from transformer_mt.text.encoded_pairs import EncodedPairs, flatten
from transformer_mt.text.vocabulary import BOS_ID, EOS_ID, PAD_ID

V = 12
SOURCES = [[5, 6], [7], [8, 9, 10, 11, 4], [], [5, 5, 5]]
TARGETS = [[4], [5, 6, 7, 8], [9, 10], [11], []]


@pytest.fixture(scope="module")
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
    logits = model(torch.tensor([[*src, EOS_ID]]), torch.tensor([[BOS_ID, *tgt]]))[0]
    targets = torch.tensor([*tgt, EOS_ID])
    return -float(logits.log_softmax(-1).gather(1, targets[:, None]).sum())


@pytest.mark.parametrize("micro_batch_tokens", [1, 12, 1000])
def test_mean_nll_is_per_target_token(model, micro_batch_tokens):
    """However the pairs are batched, and without dropout; the mode is restored.

    Sabotage: divide by the pairs, by the source tokens, or by tokens without end marks.
    """
    pairs = EncodedPairs(flatten(SOURCES), flatten(TARGETS))
    actual = mean_nll(model, pairs, micro_batch_tokens)
    assert model.training
    model.eval()
    nats = [nats_of_a_pair(model, *pair) for pair in zip(SOURCES, TARGETS, strict=True)]
    model.train()
    tokens = sum(len(tgt) + 1 for tgt in TARGETS)
    assert actual == pytest.approx(sum(nats) / tokens, rel=1e-5)


def test_perplexity_is_the_exponential():
    """A model that gives each of V tokens the same probability has perplexity V."""
    assert perplexity(math.log(V)) == pytest.approx(V)
    assert perplexity(0.0) == 1.0
    assert perplexity(699.0) == math.exp(699.0)
    assert perplexity(710.0) == math.inf
