"""Heat maps of attention."""

import io

import numpy as np
import pytest
from drawn import overlapping, texts_of
from matplotlib.image import imread

import transformer_mt
from transformer_mt.errors import ConfigError, DataError
from transformer_mt.figures.attention import MAX_PIECES, attention_figure, sentence_attention
from transformer_mt.figures.canvas import render
from transformer_mt.translation.translation_model import PairAttention

SOURCE = "Ein Satz, dessen Ende der Titel nicht mehr zeigt, $x_{$ " + 40 * "lang "
SRC = ["▁Москва", "▁العربية", "▁$x", "$_{$", "Donaudampfschifffahrtsgesellschaftskapitän", "</s>"]
TGT = ["<s>", "▁Moscow", "_{", "a\nb"]


def weights(heads: int, queries: int, keys: int) -> np.ndarray:
    values = np.random.default_rng(queries).random((heads, queries, keys)) ** 4
    return (values / values.sum(-1, keepdims=True)).astype(np.float32)


def fake_attention(src: list[str], tgt: list[str]) -> PairAttention:
    """Makes up the weights of four heads, the same in no two of two layers."""
    s, t = len(src), len(tgt)
    sizes = {"encoder": (s, s), "decoder": (t, t), "cross": (t, s)}
    maps = {kind: [weights(4, *size) ** (i + 1) for i in range(2)] for kind, size in sizes.items()}
    return PairAttention(SOURCE, src, tgt, [*tgt[1:], "</s>"], **maps)


def tick_labels(axes) -> tuple[list[str], list[str]]:
    return tuple([t.get_text() for t in axis.get_ticklabels()] for axis in (axes.xaxis, axes.yaxis))


def test_cross_attention_has_the_pieces_on_its_axes():
    """A row is what is predicted there. Sabotage: scale to 1, or each head for itself."""
    attention = fake_attention(["▁Ein", "▁Satz", "</s>"], ["<s>", "▁A", "▁sentence"])
    figure = attention_figure(attention)
    axes, scale = figure.axes
    assert tick_labels(axes) == (["◦Ein", "◦Satz", "</s>"], ["◦A", "◦sentence", "</s>"])
    [image] = axes.images
    assert image.get_clim() == (0.0, attention.cross[1].mean(axis=0).max())
    np.testing.assert_array_equal(image.get_array(), attention.cross[1].mean(axis=0))
    assert axes.get_xlabel() == "source piece"
    assert axes.get_ylabel() == "target piece being predicted"
    title, *sentence = figure.get_suptitle().split("\n")
    assert title == "Cross-attention, layer 2 of 2, mean of 4 heads"
    assert sentence[0] == SOURCE[:60] and sentence[2].endswith("lang …") and len(sentence) == 3
    assert image.cmap(0.0)[3] == 0 and image.cmap(1.0)[3] == 1 and not scale.images
    figure = attention_figure(attention, "decoder")
    axes = figure.axes[0]
    assert tick_labels(axes) == (["<s>", "◦A", "◦sentence"], ["◦A", "◦sentence", "</s>"])
    assert axes.get_xlabel() == "decoder input attended to"
    assert figure.get_suptitle().startswith("Decoder self-attention, layer 2 of 2, mean of 4 heads")
    figure = attention_figure(attention, "encoder", layer=1, by_head=True)
    assert figure.get_suptitle().startswith("Encoder self-attention, layer 1 of 2, each head\n")
    *by_head, _ = figure.axes
    assert by_head[2].get_xlabel() == "source piece attended to"
    assert by_head[2].get_ylabel() == "source piece"
    for head, axes in enumerate(by_head):
        np.testing.assert_array_equal(axes.images[0].get_array(), attention.encoder[0][head])
        assert axes.get_title() == f"head {head + 1}"
        assert axes.images[0].get_clim() == (0.0, attention.encoder[0].max())


@pytest.mark.parametrize(("repeats", "by_head", "rows"), [(1, True, 2), (9, False, 1)])
def test_nothing_overlaps_or_is_cut_off(repeats, by_head, rows):
    """Long sentences, long pieces, other scripts, and what looks like mathematics."""
    src, tgt = SRC[:-1] * repeats + SRC[-1:], TGT[:1] + TGT[1:] * repeats
    figure = attention_figure(fake_attention(src, tgt), by_head=by_head)
    assert not overlapping(figure)
    texts = [text.get_text() for text in texts_of(figure)]
    assert {"◦$x", "$_{$", "_{", "a b", "Donaudampfschifffahrtsg…"} <= set(texts)
    assert texts.count("◦Moscow") == rows * repeats  # not beside the maps within
    pixels = imread(io.BytesIO(render(figure, "png")))
    edges = [pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]]
    assert all((edge == 1).all() for edge in edges)
    assert min(pixels.shape[:2]) > 150 * min(figure.get_size_inches())


def test_what_cannot_be_drawn(untrained_run):
    for choice, message in (
        ({"layer": 0}, "layer 0: choose 1 to 2"),
        ({"layer": 3}, "layer 3: choose 1 to 2"),
        ({"kind": "self"}, "kind self: choose cross, encoder, decoder"),
    ):
        with pytest.raises(ConfigError, match=f"^{message}$"):
            attention_figure(fake_attention(SRC, TGT), **choice)
    model, too_long = transformer_mt.load(untrained_run), "é" * (MAX_PIECES // 2)
    for text in ("  ", too_long):
        for name, pair in (("source", (text,)), ("translation", ("ab", text))):
            with pytest.raises(DataError, match=f"a {name} must have 1 to {MAX_PIECES} pieces"):
                sentence_attention(model, *pair)
