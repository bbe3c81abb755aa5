"""`data.normalize`: what it changes in a text, and that all text that a model reads passes it."""

import random
import unicodedata
from collections import Counter

import pytest
from checkpoints.small_checkpoint import save_model, small_config
from conftest import refuses, tiny_config, write_pairs
from hypothesis import given
from hypothesis import strategies as st

import transformer_mt
from transformer_mt.checkpoints.run_directory import load_newest
from transformer_mt.config.keys import DataConfig, VocabConfig
from transformer_mt.errors import CheckpointError, ConfigError
from transformer_mt.text.normalization import INVISIBLE, LIGATURES, is_blank, normalize_text
from transformer_mt.text.prepared import prepare
from transformer_mt.text.splitting import LineSplitter, SourceStatistics
from transformer_mt.text.vocabulary import SentencePieceModel, Vocabulary, train_vocabulary
from transformer_mt.training.run import train
from transformer_mt.translation.translation_model import find_models

WORDS = "Männer größe über Café fünf weiß Ärger".split()
PLAIN = " ".join(WORDS)


def variants(text: str) -> list[str]:
    """Gives a text as PDF files, macOS and web pages have it."""
    decomposed = unicodedata.normalize("NFD", text)
    return [
        decomposed,
        "\u00ad".join(text),
        "\u200b".join(decomposed),  # also between letters and their accents
        f"\ufeff {text}\u2060\n",
        text.replace(" ", " \u200b "),
    ]


def learn(form="nfc", kind: str = "bpe") -> Vocabulary:
    size = 300 if kind == "bpe" else 40
    return train_vocabulary([Counter(WORDS)], VocabConfig(size=size, kind=kind), form)


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("plain", "plain"),
        ("u\u0308 A\u030a \u212b", "ü Å Å"),
        ("u\u00ad\u0308", "ü"),
        ("\ufeffa\u00adb\u200bc\u2060d", "abcd"),
        ("a\u0323\u0302 a\u0302\u0323", "ậ ậ"),
        ("\u1112\u1161\u11ab", "한"),
        ("\u200eab\u200f \u202acd\u202e \u2066ef\u2069", "ab cd ef"),
        ("ﬀ ﬁnden ﬂ oﬃziell ﬄ ﬅ ﬆ", "ff finden fl offiziell ffl st st"),
        ("½ ² ĳ \u3000 …", "½ ² ĳ \u3000 …"),
        ("क\u094d\u200dष می\u200cخواهم", "क\u094d\u200dष می\u200cخواهم"),  # joiners
        ("\U0001f469\u200d\U0001f33e", "\U0001f469\u200d\U0001f33e"),
    ],
)
def test_what_is_composed_and_dropped(text, normalized):
    """Letters and accents, ligatures, invisible characters; not what looks alike, nor joiners."""
    assert normalize_text(text, "nfc") == normalized
    assert normalize_text(text, "none") == text


@given(st.text(st.characters() | st.sampled_from(INVISIBLE + "ﬁﬆu\u0308\u0323 한\u1161")))
def test_normalising_twice_changes_nothing(text):
    """All that is left is composed, and nothing but invisible characters is lost."""
    normalized = normalize_text(text, "nfc")
    assert normalize_text(normalized, "nfc") == normalized
    assert not {*INVISIBLE, *LIGATURES} & set(normalized)
    left = text.translate(str.maketrans(LIGATURES | dict.fromkeys(INVISIBLE, "")))
    assert normalized == unicodedata.normalize("NFC", left)
    assert is_blank(text) == (not left.strip())


@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_every_variant_has_the_ids_of_plain_text(kind):
    """Sabotage: compose before invisible characters are dropped."""
    vocab, without = learn(kind=kind), learn("none", kind)
    expected = vocab.src.encode([PLAIN])
    for text in variants(PLAIN):
        assert vocab.src.encode([text]) == vocab.tgt.encode([text]) == expected, ascii(text)
        assert without.src.encode([text]) != expected, ascii(text)
        assert vocab.src.fold(text) == PLAIN
    assert without.src.encode([PLAIN]) == expected
    assert vocab.src.encode([INVISIBLE, " \u200b "]) == [[], []]


def test_a_line_is_split_at_the_ends_of_sentences_that_are_seen():
    model = SentencePieceModel(learn().src_model, "nfc")
    data, single = DataConfig(path="none"), SourceStatistics(20, 20, 0.0)
    split = LineSplitter(model, data, single).split
    plain, hidden = split(["Männer da. Ärger fünf.", "Männer da.\u200b \u00adA\u0308rger fünf."])
    assert len(plain) == 2 and plain == hidden
    assert split(["\u200b\ufeff"]) == [[]]


def test_training_text_is_the_same_in_every_variant(tmp_path):
    """Ids, vocabulary, and which pairs are dropped; "none" reads other text."""
    rng, rows = random.Random(1), [PLAIN, *WORDS]
    write_pairs(tmp_path / "plain", "train", [(line, line) for line in [*rows, *rows, ""]])
    sides = [
        [*rows, *(rng.choice(variants(row)).strip() for row in rows), "\u200b\u00ad"]
        for _ in ("de", "en")
    ]
    write_pairs(tmp_path / "mixed", "train", list(zip(*sides, strict=True)))
    changes = {"vocab__kind": "char", "data__drop_duplicates": True}
    plain = prepare(tiny_config(tmp_path / "plain", **changes))
    mixed = prepare(tiny_config(tmp_path / "mixed", **changes))
    assert mixed.digest == plain.digest and mixed.vocab.src_model == plain.vocab.src_model
    dropped = {"duplicate": len(rows), "empty": 1}
    assert mixed.report.dropped == plain.report.dropped == dropped
    assert prepare(tiny_config(tmp_path / "mixed", **changes)).vocab.form == "nfc"
    other = prepare(tiny_config(tmp_path / "mixed", data__normalize="none", **changes))
    assert other.path != mixed.path and other.vocab.form == "none"
    assert other.digest != plain.digest and other.report.kept > len(rows)


def test_a_model_reads_every_variant_alike(tmp_path):
    """Translations, scores of sources and of given translations, and attention."""
    vocab = learn()
    save_model(tmp_path / "nfc", small_config(data__normalize="nfc"), vocab)
    save_model(tmp_path / "none", small_config(data__normalize="none"), vocab)
    model = transformer_mt.load(tmp_path / "nfc", device="cpu")
    old = transformer_mt.load(tmp_path / "none", device="cpu")
    [translation], [score] = model.translate([PLAIN]), model.score([PLAIN], [PLAIN])
    pieces = model.attention(PLAIN, PLAIN).src_pieces
    for text in variants(PLAIN):
        assert model.translate([text]) == [translation]
        assert model.score([text], [text]) == pytest.approx([score], abs=1e-4)
        attention = model.attention(text, text)
        assert attention.src_pieces == pieces and len(attention.tgt_pieces) == len(pieces)
        assert old.attention(text, text).src_pieces != pieces
    message, runs = "its vocabulary, or data.normalize, differs from", ("nfc", "none")
    refuses(CheckpointError, message, find_models, [tmp_path / run for run in runs])


def test_the_value_of_a_run_stays(corpus_dir, tmp_path):
    """As does that of a model from which another begins. Sabotage: compare the default."""
    steps = {"train__max_steps": 1, "vocab__kind": "char", "vocab__size": 30}
    old = tiny_config(corpus_dir, data__normalize="none", **steps)
    train(old, tmp_path / "run")
    newest = load_newest(tmp_path / "run")
    assert newest.config.data.normalize == newest.vocab.form == "none"
    new, message = tiny_config(corpus_dir, **steps), r'data.normalize \(was "none", is "nfc"\)'
    refuses(CheckpointError, message, train, new, tmp_path / "run")
    begun = {"train__init_from": str(tmp_path / "run")}
    tuned, message = tiny_config(corpus_dir, **steps, **begun), 'data.normalize = "none", not "nfc"'
    refuses(ConfigError, f"{message}; use its", train, tuned, tmp_path / "tuned")
    train(tiny_config(corpus_dir, data__normalize="none", **steps, **begun), tmp_path / "tuned")
    assert load_newest(tmp_path / "tuned").vocab.form == "none"
    train(new, tmp_path / "new")
    message = r'data.normalize \(was "nfc", is "none"\)'
    refuses(CheckpointError, message, train, old, tmp_path / "new")
