"""What is done for speed changes no training: 200 steps of it beside the plain path."""

import pytest
import torch
import torch.nn.functional as F
from conftest import tiny_config

from transformer_mt import learner, linear
from transformer_mt.batching import cut_micro_batches, plan_epoch
from transformer_mt.device import supports
from transformer_mt.learner import Learner
from transformer_mt.loss import smoothed_loss
from transformer_mt.prepared import Prepared, prepare
from transformer_mt.run_log import Talk

STEPS = 200


@pytest.fixture(scope="module")
def prepared(corpus_dir) -> Prepared:
    return prepare(tiny_config(corpus_dir), Talk(quiet=True))


def losses(corpus_dir, prepared: Prepared, precision: str) -> list[float]:
    """Trains without dropout; gives the loss a token of each step."""
    config = tiny_config(corpus_dir, model__dropout=0.0, optim__lr_scale=0.03)
    lengths, vocab = prepared.pairs.lengths, prepared.vocab
    device = torch.device("cpu")
    learning = Learner(config, vocab.src_size, vocab.tgt_size, device, precision)
    found: list[float] = []
    while len(found) < STEPS:
        for step in plan_epoch(*lengths, config.train.batch_tokens, 1, len(found)):
            parts = cut_micro_batches(step, *lengths, config.train.micro_batch_tokens)
            learning.train_step(len(found) + 1, [prepared.pairs.batch(part) for part in parts])
            found.append(float(learning.window.loss) / learning.window.tokens)
            learning.new_window()
    return found[:STEPS]


def test_the_fast_path_is_the_plain_one(corpus_dir, prepared, monkeypatch):
    """In fp32 within 1e-4 of PyTorch's product and loss at every step.

    Sabotage: spread the smoothing over V - 1; leave the bias's gradient out.
    """
    fast = losses(corpus_dir, prepared, "fp32")
    monkeypatch.setattr(linear, "_ONEDNN", False)
    monkeypatch.setattr(
        learner,
        "projected_loss",
        lambda hidden, matrix, *rest: smoothed_loss(F.linear(hidden, matrix), *rest),
    )
    plain = losses(corpus_dir, prepared, "fp32")
    assert plain[-1] < 0.8 * plain[0]
    assert fast == pytest.approx(plain, rel=1e-4)


@pytest.mark.skipif(not supports("bf16", torch.device("cpu")), reason="no bf16 on this CPU")
def test_bf16_stays_within_a_hundredth(corpus_dir, prepared):
    """Of the loss of fp32, at every step."""
    wide, narrow = (losses(corpus_dir, prepared, name) for name in ("fp32", "bf16"))
    assert narrow == pytest.approx(wide, rel=0.01)
