"""A change of the model that one of the code paths does not know is noticed."""

import logging

import pytest
import torch.nn.functional as F
from conftest import tiny_config

from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.errors import ConfigError
from transformer_mt.model.multi_head_attention import SelfAttention
from transformer_mt.model.transformer import FeedForward
from transformer_mt.training.run import train
from transformer_mt.translation.export import export


def test_decoding_that_does_not_know_a_change_is_a_warning(
    corpus_dir, tmp_path, monkeypatch, caplog
):
    """At the first validation, once. Sabotage: compare nothing, or `forward` with itself."""
    config = tiny_config(corpus_dir, train__max_steps=2, valid__every=1)
    train(config, tmp_path / "healthy")
    assert "position by position" not in caplog.text
    decode_position = SelfAttention.decode_position
    monkeypatch.setattr(
        SelfAttention, "decode_position", lambda *arguments: 2 * decode_position(*arguments)
    )
    train(config, tmp_path / "changed")
    warned = [each for each in caplog.records if "position by position" in each.message]
    assert [each.levelno for each in warned] == [logging.WARNING]
    assert "`decode_position`" in warned[0].message and "`forward`" in warned[0].message


@pytest.mark.parametrize("library", ["ctranslate2", "transformers"])
def test_an_export_that_does_not_know_a_change_is_refused(
    untrained_run, tmp_path, monkeypatch, library
):
    """And leaves no directory. Sabotage: do not compare."""
    checkpoint = find_checkpoint(untrained_run)
    monkeypatch.setattr(
        FeedForward, "forward", lambda self, x: self.outer(F.leaky_relu(self.inner(x), 0.5))
    )
    with pytest.raises(ConfigError, match="gives other scores than the checkpoint"):
        export(checkpoint, tmp_path / "out", format=library)
    assert not list(tmp_path.iterdir())
