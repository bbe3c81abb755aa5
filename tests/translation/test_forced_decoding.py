"""Log-probabilities of tokens by hand."""

import numpy as np
import torch

from transformer_mt.config.keys import ModelConfig
from transformer_mt.model.transformer import Transformer
from transformer_mt.text.batching import Batch
from transformer_mt.text.vocabulary import PAD_ID
from transformer_mt.translation.forced_decoding import token_log_probabilities

V, PAD = 17, PAD_ID
SRC = torch.tensor([[5, 6, 7], [8, PAD, PAD]])
TGT_IN = torch.tensor([[1, 9, 10, 11], [1, 12, PAD, PAD]])
TGT_OUT = torch.tensor([[9, 10, 11, 2], [12, 2, PAD, PAD]])


def build_model() -> Transformer:
    torch.manual_seed(0)
    config = ModelConfig(d_model=16, d_ff=32, n_heads=2, encoder_layers=1, decoder_layers=1)
    return Transformer(config, V, V, PAD).eval()


@torch.no_grad()
def test_token_log_probabilities_by_hand():
    """Natural logarithm of the softmax at each target, 0 at padding.

    Sabotage: log2; label smoothing; the logits of the token before.
    """
    model = build_model()
    result = token_log_probabilities(model, Batch(SRC, TGT_IN, TGT_OUT, 0, 0))
    assert result.shape == TGT_OUT.shape and result.dtype == torch.float32
    exponentials = np.exp(model(SRC, TGT_IN).double().numpy())
    for row, column in np.ndindex(*TGT_OUT.shape):
        target, value = int(TGT_OUT[row, column]), float(result[row, column])
        scores = exponentials[row, column]
        expected = 0.0 if target == PAD else np.log(scores[target] / scores.sum())
        np.testing.assert_allclose(value, expected, atol=1e-5)


@torch.no_grad()
def test_bf16_gives_float32():
    """Logits in bf16 are normalised in float32."""
    model = build_model().bfloat16()
    src, tgt_in = SRC[:1].expand(V, -1), TGT_IN[:1, :1].expand(V, -1)
    every_token = torch.arange(V)[:, None]
    result = token_log_probabilities(model, Batch(src, tgt_in, every_token, 0, 0))
    assert result.dtype == torch.float32
    expected = model(src, tgt_in).float().log_softmax(-1).gather(2, every_token[:, None])[:, :, 0]
    expected[PAD] = 0.0
    torch.testing.assert_close(result, expected)
