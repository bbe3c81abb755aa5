"""The model against the paper's equations in NumPy, and the laws a Transformer keeps."""

import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from transformer_mt.config.keys import ModelConfig
from transformer_mt.model import kernels
from transformer_mt.model.transformer import Transformer, sinusoid

each_norm = pytest.mark.parametrize("norm", ["post", "pre", "sublayer"])
V, PAD, HEADS = 23, 5, 4


def build(sizes: tuple[int, int] = (V, V), **changes: object) -> Transformer:
    """Builds a tiny model in evaluation mode, no bias zero and no norm weight one."""
    values = {"d_model": 16, "d_ff": 24, "n_heads": HEADS, "encoder_layers": 2, "decoder_layers": 3}
    torch.manual_seed(0)
    model = Transformer(ModelConfig(**{**values, "dropout": 0.0, **changes}), *sizes, PAD)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def padded_ids(lengths: tuple[int, ...]) -> torch.Tensor:
    """Gives random rows without padding inside, padded to the longest."""
    generator = torch.Generator().manual_seed(sum(lengths))
    rows = [torch.randint(PAD + 1, V, (length,), generator=generator) for length in lengths]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


def naive_sinusoid(length: int, width: int) -> np.ndarray:
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(pos / 10000^(2i/D))."""
    angles = [[pos / 10000 ** (2 * i / width) for i in range(width // 2)] for pos in range(length)]
    return np.array([[f(a) for a in row for f in (math.sin, math.cos)] for row in angles])


SRC, TGT = padded_ids((7, 3, 5)), padded_ids((4, 6, 1))


class Paper:
    """The paper's equations on one sentence without padding, in float64, head by head."""

    def __init__(self, model, norm="post", drop=lambda x: x, drop_inner=lambda x: x):
        self.placement, self.drop, self.drop_inner = norm, drop, drop_inner
        self.w = {}
        for name, tensor in model.state_dict().items():
            fused = re.search(r"\.(qkv|kv)\.", name)
            names = [name.replace(fused[0], f".{c}.") for c in fused[1]] if fused else [name]
            self.w |= zip(names, np.split(tensor.double().numpy(), len(names)), strict=True)
        self.attention_weights = {}

    def norm(self, x, name):
        scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return scaled * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def linear(self, x, name):
        return x @ self.w[f"{name}.weight"].T + self.w.get(f"{name}.bias", 0)

    def attention(self, x, y, name, causal):
        projected = [self.linear(z, f"{name}.{c}") for c, z in (("q", x), ("k", y), ("v", y))]
        heads, weights = [], []
        hidden = np.triu(np.full((len(x), len(y)), -np.inf), 1) if causal else 0
        for q, k, v in zip(*(np.split(p, HEADS, axis=-1) for p in projected), strict=True):
            scores = np.exp(q @ k.T / math.sqrt(q.shape[-1]) + hidden)
            weights.append(scores / scores.sum(-1, keepdims=True))
            heads.append(weights[-1] @ v)
        self.attention_weights[name] = np.stack(weights)
        return self.linear(np.concatenate(heads, -1), f"{name}.out")

    def residual(self, x, name, f):
        y = self.drop(f(self.norm(x, name) if self.placement == "pre" else x))
        if self.placement == "post":
            return self.norm(x + y, name)
        return x + (self.norm(y, name) if self.placement == "sublayer" else y)

    def stack(self, ids, matrix, side, memory=None):
        width = matrix.shape[1]
        x = self.drop(matrix[ids] * math.sqrt(width) + naive_sinusoid(len(ids), width))
        count = 1 + max(int(name.split(".")[1]) for name in self.w if name.startswith(f"{side}."))
        for layer in (f"{side}.{i}" for i in range(count)):
            sublayers = [
                lambda y, n=f"{layer}.self_attention": self.attention(y, y, n, memory is not None),
                lambda y, n=f"{layer}.cross_attention": self.attention(y, memory, n, False),
                lambda y, n=f"{layer}.feed_forward": self.linear(
                    self.drop_inner(np.maximum(self.linear(y, f"{n}.inner"), 0)), f"{n}.outer"
                ),
            ]
            for i, sublayer in enumerate(sublayers if memory is not None else sublayers[::2]):
                x = self.residual(x, f"{layer}.residuals.{i}.norm", sublayer)
        return x if self.placement == "post" else self.norm(x, f"{side}_norm")

    def logits(self, src, tgt_in):
        matrix = self.w["src_embedding"]
        tgt_matrix, out_matrix = (self.w.get(f"{x}_embedding", matrix) for x in ("tgt", "out"))
        memory = self.stack(src, matrix, "encoder")
        return self.stack(tgt_in, tgt_matrix, "decoder", memory) @ out_matrix.T


def sentences(src, tgt_in):
    """Gives the number of each row, and its ids without padding."""
    real = ([row[row != PAD] for row in ids] for ids in (src, tgt_in))
    return zip(range(len(src)), *real, strict=True)


def assert_follows_paper(model, paper, src, tgt_in):
    """Compares every real position of a padded batch with the equations, sentence by sentence."""
    logits = model(src, tgt_in).detach().numpy()
    for row, s, t in sentences(src, tgt_in):
        np.testing.assert_allclose(logits[row, : len(t)], paper.logits(s, t), atol=1e-4, rtol=0)


@each_norm
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_those_of_the_paper(norm, bias, tied):
    sizes = (V, V) if tied else (V, V + 6)
    model = build(sizes, norm=norm, attention_bias=bias, tie_embeddings=tied)
    assert any("attention" in name and "bias" in name for name in model.state_dict()) == bias
    tgt_in = torch.where(TGT == PAD, PAD, TGT + sizes[1] - V)
    assert_follows_paper(model, Paper(model, norm), SRC, tgt_in)


@each_norm
@pytest.mark.parametrize("knob", ["dropout", "activation_dropout"])
def test_dropout_stands_where_the_paper_puts_it(norm, knob, monkeypatch):
    """Dropout acts on each sublayer's output and on embedding plus position, or inside the FFN."""
    monkeypatch.setattr(kernels.Dropout, "forward", lambda self, x: x.sin() if self.p else x)
    model = build(norm=norm, **{knob: 0.5})
    paper = Paper(model, norm, **{"drop" if knob == "dropout" else "drop_inner": np.sin})
    assert_follows_paper(model, paper, SRC, TGT)


@pytest.mark.parametrize("knob", ["dropout", "attention_dropout", "activation_dropout"])
def test_dropout_only_in_training(knob):
    plain, dropping = build(), build(**{knob: 0.5})
    assert_close(dropping(SRC, TGT), plain(SRC, TGT), rtol=0, atol=0)
    dropping.train()
    assert not torch.allclose(dropping(SRC, TGT), dropping(SRC, TGT), atol=1e-2)


def test_sizes():
    """Base has 63.1 and big 214.2 million parameters at 37,000 pieces; a tied matrix is one."""
    for sizes, millions in (({}, 63.1), ({"d_model": 1024, "d_ff": 4096, "n_heads": 16}, 214.2)):
        with torch.device("meta"):
            model = Transformer(ModelConfig(**sizes), 37_000, 37_000, PAD)
        assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == millions
    for tied, count in ((True, 1), (False, 3)):
        state = build(tie_embeddings=tied).state_dict()
        assert sum(tensor.shape == (V, 16) for tensor in state.values()) == count
        assert "positions" not in state
    with pytest.raises(ValueError, match="23 and 24"):
        build((V, V + 1))


@each_norm
def test_padding_and_company_change_nothing(norm):
    """A sentence alone, in a batch, and in a batch padded further has the same logits."""
    model = build(norm=norm)
    batch = model(SRC, TGT)
    padded = model(F.pad(SRC, (0, 4), value=PAD), F.pad(TGT, (0, 3), value=PAD))
    for row, s, t in sentences(SRC, TGT):
        for logits in (batch, padded):
            assert_close(logits[row, : len(t)], model(s[None], t[None])[0], rtol=0, atol=1e-5)


@each_norm
def test_no_logit_sees_the_future(norm):
    """Changing target token t changes logits at t and after, and none before."""
    model, src, tgt_in = build(norm=norm), padded_ids((6,)), padded_ids((6,))
    before = model(src, tgt_in)
    for position in range(6):
        changed = tgt_in.clone()
        changed[0, position] = PAD + 1 + (changed[0, position] - PAD) % (V - PAD - 1)
        difference = (model(src, changed) - before).abs().amax(dim=-1)[0]
        assert (difference[:position] < 1e-5).all()
        assert (difference[position:] > 1e-3).all()


@each_norm
@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_incremental_decoding_equals_decode(norm, tied):
    """Also after rows are selected, and with three rows a source, as a beam has them."""
    model = build(norm=norm, tie_embeddings=tied)
    tgt_in, rows = padded_ids((7, 7, 7)), torch.tensor([2, 0, 0])
    state = model.begin_decoding(SRC, 7)
    first = torch.stack([model.next_logits(tgt_in[:, t], state) for t in range(3)], dim=1)
    assert_close(first, model(SRC, tgt_in[:, :3]), rtol=0, atol=1e-5)
    state.select(rows, rows)
    # From here on the two copies of row 0 differ.
    chosen = torch.cat((tgt_in[rows, :3], tgt_in[:, 3:]), dim=1)
    rest = torch.stack([model.next_logits(chosen[:, t], state) for t in range(3, 7)], dim=1)
    assert_close(rest, model(SRC[rows], chosen)[:, 3:], rtol=0, atol=1e-5)
    rows, state = torch.arange(3).repeat_interleave(3), model.begin_decoding(SRC, 7)
    state.select(rows)
    of_beam = padded_ids((7,) * 9)
    logits = torch.stack([model.next_logits(of_beam[:, t], state) for t in range(7)], dim=1)
    assert state.layers[0].memory_keys.size(0) == 3 and state.position == 7
    assert_close(logits, model(SRC[rows], of_beam), rtol=0, atol=1e-5)


@each_norm
@torch.no_grad()
def test_attention_weights_are_the_papers(norm):
    """Hidden places hold exactly 0; no hook stays behind, after an error either."""
    model, papers = build(norm=norm), [Paper(build(norm=norm), norm) for _ in SRC]
    weights = model.attention_weights(SRC, TGT)
    real, past = model.src_mask(SRC), torch.ones(6, 6, dtype=torch.bool).tril()
    for row, s, t in sentences(SRC, TGT):
        papers[row].logits(s, t)
    kinds = (
        ("encoder.{}.self_attention", weights["encoder"], real, (2, 7, 7)),
        ("decoder.{}.self_attention", weights["decoder"], past, (3, 6, 6)),
        ("decoder.{}.cross_attention", weights["cross"], real, (3, 6, 7)),
    )
    for name, layers, mask, (count, queries, keys) in kinds:
        assert [layer.shape for layer in layers] == [(3, HEADS, queries, keys)] * count
        for number, layer in enumerate(layers):
            assert_close(layer.sum(-1), torch.ones(layer.shape[:-1]))
            assert not layer.masked_select(~mask).any()
            for row, paper in enumerate(papers):
                expected = paper.attention_weights[name.format(number)]
                real_part = layer[row, :, : expected.shape[1], : expected.shape[2]]
                np.testing.assert_allclose(real_part, expected, atol=1e-5)
    with pytest.raises(IndexError):
        model.attention_weights(SRC, TGT + V)
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("tied", [True, False])
def test_all_products_are_reordered(monkeypatch, tied):
    """The weights of all linear layers and the output weight, but no embedding only looked up."""
    reordered = list[torch.Tensor]()
    monkeypatch.setattr(kernels, "reorder_onednn_weight", reordered.append)
    model = build(tie_embeddings=tied)
    with kernels.reordered_weights(model):
        for name, parameter in model.named_parameters():
            looked_up = not tied and name in ("src_embedding", "tgt_embedding")
            is_reordered = any(parameter is weight for weight in reordered)
            assert is_reordered == (parameter.dim() == 2 and not looked_up), name


@torch.no_grad()
def test_positions_are_the_papers_without_limit():
    """Positions follow section 3.5, in sentences longer than any seen before too, cached or not."""
    np.testing.assert_allclose(sinusoid(torch.arange(600), 32), naive_sinusoid(600, 32), atol=1e-4)
    model, tgt_in = build(encoder_layers=1, decoder_layers=1), padded_ids((290,))
    state = model.begin_decoding(SRC[:1], 290)
    logits = torch.stack([model.next_logits(ids, state) for ids in tgt_in.T], dim=1)
    assert_close(logits, model(SRC[:1], tgt_in), rtol=0, atol=1e-5)
    assert_follows_paper(model, Paper(model), padded_ids((300,)), tgt_in)


def test_initial_weights():
    """Embeddings have variance 1/D, each projection Xavier's own bound, biases 0, norms 1."""
    config = ModelConfig(d_model=64, d_ff=96, encoder_layers=1, tie_embeddings=False)
    for name, parameter in Transformer(config, 500, 500, PAD).named_parameters():
        if "embedding" in name:
            assert abs(parameter.std().item() * 8 - 1) < 0.03, name
        elif parameter.dim() == 2:
            bound = math.sqrt(6 / (64 + (96 if "feed_forward" in name else 64)))
            for part in parameter.split(64) if "attention" in name else [parameter]:
                assert 0.97 < part.abs().max().item() / bound <= 1.0, name
        else:
            assert (parameter == (1.0 if name.endswith("norm.weight") else 0.0)).all(), name
