"""Perplexity against a computation by hand, whatever the batches; what validation scores."""

import math

import pytest
import torch

from transformer_mt.config import ModelConfig
from transformer_mt.corpus import RawPairs
from transformer_mt.evaluator import evaluate, mean_nll, perplexity
from transformer_mt.model import Transformer
from transformer_mt.pairs import IdPairs, flatten
from transformer_mt.scoring import bleu
from transformer_mt.vocab import BOS_ID, EOS_ID, PAD_ID

V = 13
SRC = [[5, 6], [7], [4, 8, 9, 10, 11, 12, 4, 5, 6], [9, 9, 9], []]
TGT = [[4], [5, 6, 7, 8, 9, 10, 11], [12, 4], [], [6, 6]]


def build_model() -> Transformer:
    """Builds a random model with strong dropout."""
    torch.manual_seed(3)
    layers = {"encoder_layers": 1, "decoder_layers": 1, "dropout": 0.5}
    return Transformer(ModelConfig(d_model=16, d_ff=32, n_heads=2, **layers), V, V, PAD_ID)


@torch.no_grad()
def nats_of(model: Transformer, src: list[int], tgt: list[int]) -> float:
    """Sums -log p of the target's pieces and end mark, one sentence alone, without padding."""
    logits = model(torch.tensor([[*src, EOS_ID]]), torch.tensor([[BOS_ID, *tgt]]))[0].double()
    scores = zip(logits.softmax(-1).tolist(), [*tgt, EOS_ID], strict=True)
    return -sum(math.log(row[token]) for row, token in scores)


@pytest.mark.parametrize("micro_batch_tokens", [1, 12, 30, 1000])
def test_mean_nll_by_hand(micro_batch_tokens):
    """It is the sum over all target tokens divided by their number, end marks included.

    The lengths differ, so the batches hold padding, and one pair is longer than the limit.
    Sabotage: divide by the source tokens, or by the padded positions; average over sentences;
    cut the batches by the lengths of one side.
    """
    model, sizes = build_model().eval(), []
    nats = sum(nats_of(model, *pair) for pair in zip(SRC, TGT, strict=True))
    model.register_forward_pre_hook(lambda module, ids: sizes.append(max(i.numel() for i in ids)))
    expected = nats / sum(len(tgt) + 1 for tgt in TGT)
    found = mean_nll(model, IdPairs(flatten(SRC), flatten(TGT)), micro_batch_tokens)
    assert found == pytest.approx(expected, rel=1e-5)
    swapped = mean_nll(model, IdPairs(flatten(TGT), flatten(SRC)), micro_batch_tokens)
    assert max(sizes) <= max(micro_batch_tokens, 10)
    nats = sum(nats_of(model, *pair) for pair in zip(TGT, SRC, strict=True))
    assert swapped == pytest.approx(nats / sum(len(src) + 1 for src in SRC), rel=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_model_is_restored(training):
    """It is measured without dropout, and the model keeps the mode that it had."""
    model = build_model().train(training)
    pairs = IdPairs(flatten(SRC), flatten(TGT))
    found = mean_nll(model, pairs, 100)
    assert model.training == training
    assert found == mean_nll(model.eval(), pairs, 100)


def test_perplexity_is_the_exponential():
    """Of nats per token; where a float ends it is infinite."""
    assert perplexity(0.0) == 1.0
    assert perplexity(math.log(37.5)) == pytest.approx(37.5)
    assert perplexity(699.0) == math.exp(699.0)
    assert perplexity(710.0) == perplexity(math.inf) == math.inf


class Reverser:
    """Stands for a translator: gives the words of a line in reverse."""

    def translate(self, lines):
        return (" ".join(reversed(line.split())) for line in lines)


def test_validation_scores_translations_of_the_source():
    """They are scored against the references, not the sources.

    Sabotage: exchange the two sides.
    """
    pairs = RawPairs(["e d c b a", "x y z"], ["a b c d e", "x y z w"])
    found = evaluate(Reverser(), pairs)
    assert found.hypotheses == ["a b c d e", "z y x"]
    assert found.bleu == bleu(found.hypotheses, pairs.tgt) and 10 < found.bleu.value < 99
