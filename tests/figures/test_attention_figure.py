"""Heat maps of attention."""

import numpy as np
import pytest
from drawn import drawn_texts, overlapping

import transformer_mt
from transformer_mt.errors import ConfigError, DataError
from transformer_mt.figures import fonts
from transformer_mt.figures.attention import MAX_PIECES, attention_figure, sentence_attention
from transformer_mt.figures.canvas import render
from transformer_mt.translation.forced_decoding import PairAttention

SRC = ["▁Москва", "▁العربية", "▁$x", "$_{$", "Donaudampfschifffahrtsgesellschaftskapitän", "</s>"]
TGT = ["<s>", "▁Moscow", "_{", "a\nb"]


def weights(heads: int, queries: int, keys: int) -> np.ndarray:
    values = np.random.default_rng(queries).random((heads, queries, keys)) ** 4
    return (values / values.sum(-1, keepdims=True)).astype(np.float32)


def fake_attention(src: list[str], tgt: list[str], layers: int = 2) -> PairAttention:
    """Makes up the weights of three heads, the same in no two layers."""
    s, t = len(src), len(tgt)
    sizes = {"encoder": (s, s), "decoder": (t, t), "cross": (t, s)}
    maps = {
        kind: [weights(3, *size) ** (i + 1) for i in range(layers)] for kind, size in sizes.items()
    }
    return PairAttention(src, tgt, **maps)


def tick_labels(axes) -> tuple[list[str], list[str]]:
    return tuple([t.get_text() for t in axis.get_ticklabels()] for axis in (axes.xaxis, axes.yaxis))


def test_cross_attention_has_the_pieces_on_its_axes():
    """A row is the piece that is predicted there: the one after the decoder's input.

    Sabotage: label the rows with the inputs; draw the first layer; draw the first head.
    """
    attention = fake_attention(["▁Ein", "▁Satz", "</s>"], ["<s>", "▁A", "▁sentence"])
    figure = attention_figure(attention)
    axes = figure.axes[0]
    assert tick_labels(axes) == (["▁Ein", "▁Satz", "</s>"], ["▁A", "▁sentence", "</s>"])
    [image] = axes.images
    np.testing.assert_array_equal(image.get_array(), attention.cross[1].mean(axis=0))
    assert figure.get_supxlabel() == "source piece"
    assert figure.get_supylabel() == "target piece being predicted"
    assert figure.get_suptitle() == "Cross-attention, layer 2 of 2, mean of 3 heads"


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_each_head_of_a_layer(kind):
    """In order, on one scale. Sabotage: a scale of each map's own; transpose the weights."""
    attention = fake_attention(SRC, TGT)
    figure = attention_figure(attention, kind, layer=1, by_head=True)
    maps = getattr(attention, kind)[0]
    assert len(figure.axes) == 4  # three heads and the scale
    for head, axes in enumerate(figure.axes[:3]):
        np.testing.assert_array_equal(axes.images[0].get_array(), maps[head])
        assert axes.get_title() == f"head {head + 1}"
        assert axes.images[0].get_clim() == (0.0, maps.max())
    assert figure.get_suptitle().startswith(f"{kind.capitalize()} self-attention, layer 1 of 2")
    assert not overlapping(figure)


@pytest.mark.parametrize("by_head", [False, True])
def test_no_text_overlaps(by_head):
    """Long sentences, long pieces, other scripts, and what looks like mathematics.

    Sabotage: _CELL = 0.1; no limit on the length of a label; labels as mathematics.
    """
    for repeats in (1, 12):
        src, tgt = SRC[:-1] * repeats + SRC[-1:], TGT[:1] + TGT[1:] * repeats
        figure = attention_figure(fake_attention(src, tgt), by_head=by_head)
        assert not overlapping(figure)
        texts = [text.get_text() for text in drawn_texts(figure)]
        assert {"▁$x", "$_{$", "_{", "a b", "Donaudampfschifffahrtsg…"} <= set(texts)


def test_characters_without_a_font_are_named(monkeypatch, caplog):
    """And drawn as a square, without a warning of Matplotlib's.

    Sabotage: draw them as they are; take the font that only pretends to have all.
    """
    default = [e for e in fonts.font_manager.fontManager.ttflist if "DejaVu" in e.fname]
    pretenders = [e for e in fonts.font_manager.fontManager.ttflist if "Last" in e.name]
    assert pretenders
    monkeypatch.setattr(fonts.font_manager.fontManager, "ttflist", default + pretenders)
    figure = attention_figure(fake_attention(["▁東京", "\u200b", "</s>"], ["<s>", "▁T"]))
    render(figure, "svg")
    assert tick_labels(figure.axes[0])[0] == ["▁□□", "□", "</s>"]
    [message] = caplog.messages
    assert "no installed font has 京 (U+4EAC) 東 (U+6771)" in message


def test_a_font_is_chosen_that_has_the_characters(monkeypatch):
    """Among those that are installed. Sabotage: always the default alone."""
    paths = {"Some Font": "some", fonts.DEFAULT_FAMILY: "default"}
    entries = [type("Entry", (), {"name": n, "fname": f}) for n, f in paths.items()]
    monkeypatch.setattr(fonts.font_manager.fontManager, "ttflist", entries)
    monkeypatch.setattr(fonts, "_default_path", lambda: "default")
    known = {"some": {ord("東")}, "default": {ord("a")}}
    monkeypatch.setattr(fonts, "_characters", known.get)
    assert fonts.choose_fonts(["a東"]) == ([fonts.DEFAULT_FAMILY, "Some Font"], set())
    assert fonts.choose_fonts(["a東b"]) == ([fonts.DEFAULT_FAMILY, "Some Font"], {"b"})


def test_what_cannot_be_drawn(untrained_run):
    """No such layer, an empty sentence, one that is too long for a picture."""
    with pytest.raises(ConfigError, match="--layer 3: the model has layers 1 to 2"):
        attention_figure(fake_attention(SRC, TGT), layer=3)
    model = transformer_mt.load(untrained_run)
    with pytest.raises(DataError, match="the sentence is empty"):
        sentence_attention(model, "  ")
    with pytest.raises(DataError, match=f"{MAX_PIECES + 1} pieces; the limit"):
        sentence_attention(model, "é" * (MAX_PIECES // 2))
