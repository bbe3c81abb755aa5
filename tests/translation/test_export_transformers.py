"""A checkpoint as a model of Hugging Face's transformers."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import yaml
from checkpoints.small_checkpoint import VOCAB, build_model, save_model, small_config
from conftest import NASTY, copy_lines, learn_elsewhere, refuses
from safetensors import safe_open

from transformer_mt.checkpoints.checkpoint import Checkpoint
from transformer_mt.checkpoints.layout import MODEL
from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.config.keys import VocabConfig
from transformer_mt.errors import ConfigError
from transformer_mt.text.vocabulary import EOS_ID, Vocabulary, train_vocabulary
from transformer_mt.translation.export import export
from transformer_mt.translation.options import LoadOptions
from transformer_mt.translation.translation_model import build_translation_model

SAMPLE = Path(__file__).parents[2] / "data/sample"
WORDS = Counter((SAMPLE / "train.de").read_text(encoding="utf-8").split()[:20_000])
LITERAL = ["<s>", "</s>", "<unk>", "<pad>", "<0x41>", "a<0x0A>b", "▁", "a ▁▁ b▁"]
LITERAL += ["\x1ca\x1fb\u3000", "½ ﬁ Å e\u0301", "\U0010ffff\ufffe", "\u0600\u0627 中文"]
LITERAL += ["aaaaaaa", "1999", "...", "\r\n a\0", "u\u00ad\u0308ber", "a\u200db"]
LITERAL += ["\ufeff a \u200b b\u2060\u202a"]
LITERAL += ["ﬀ ﬁ ﬂ ﬃ ﬄ ﬅ ﬆ", "a\u0302\u0323", "\u1112\u1161\u11ab"]
ALPHABETS = ["ab ", "<>/0x41sunk ", "en er▁ ", " \t\x1c\x85\u2028a", "19.!-"]
ALPHABETS += ["aou\u0308\u0323\u00ad\u200b "]


def random_checkpoint(folder: Path, vocab: Vocabulary, **changes: object) -> Checkpoint:
    """Saves a model all of whose weights, biases too, are random and far from zero."""
    config = small_config(**changes)
    torch.manual_seed(1)
    model = build_model(config, vocab).state_dict()
    weights = {name: tensor + 0.3 * torch.randn_like(tensor) for name, tensor in model.items()}
    return save_model(folder, config, vocab, weights)


def subwords(size: int = 600, symbols: Sequence[str] = (), kind: str = "bpe") -> Vocabulary:
    return train_vocabulary([WORDS], VocabConfig(kind=kind, size=size, symbols=list(symbols)))


def load(folder: Path):
    """Loads an exported model and its tokenizer; no tensor is missing or superfluous."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    model, report = AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    return model, AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_every_model_it_can_express(tmp_path, norm, tied):
    """Either norm, tied or not, with biases or without, uneven stacks."""
    changes = {"model__norm": norm, "model__tie_embeddings": tied, "model__attention_bias": tied}
    changes |= {"model__encoder_layers": 2, "model__decoder_layers": 1, "model__dropout": 0.3}
    changes |= {"model__attention_dropout": 0.2, "model__activation_dropout": 0.1}
    checkpoint = random_checkpoint(tmp_path / "step", subwords(), **changes)
    folder = export(checkpoint, tmp_path / "out", format="transformers")
    model, tokenizer = load(folder)
    names = ("dropout", "attention_dropout", "activation_dropout")
    assert [getattr(model.config, name) for name in names] == [0.3, 0.2, 0.1]
    lines = (SAMPLE / "test.de").read_text(encoding="utf-8").split("\n")[:20]
    batch = tokenizer(lines, return_tensors="pt", padding=True)
    tgt_in = torch.randint(4, 600, (20, 30))
    with torch.no_grad():
        logits = model(**batch, decoder_input_ids=tgt_in).logits
        expected = checkpoint.build_model()(batch.input_ids, tgt_in)
    assert expected.std() > 1
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("count", [200, pytest.param(2_000, marks=pytest.mark.slow)])
def test_it_translates_as_ours_does(copy_run, tmp_path, monkeypatch, count):
    """As the card says, if `generate` stops a beam search as early; by default it does not."""
    folder = export(find_checkpoint(copy_run), tmp_path / "out", format="transformers")
    lines = copy_lines(count, 11)
    card = (folder / "README.md").read_text()
    code = card.split("## How to use it\n\n")[1].split("\n\nThis is")[0].replace("    ", "")
    code = code.replace('["..."]', "lines").replace("print(", "texts.extend(")
    beam = "num_beams=4, length_penalty=0.0, early_stopping=True"
    assert beam in card.replace("\n", " ") and "`max_new_tokens`, 74 by default" in card
    monkeypatch.chdir(folder)
    ours = build_translation_model([find_checkpoint(copy_run)], LoadOptions())
    of_beam = {"beam_size": 4, "length_penalty": 0.0}
    searches = {"": {}, f", {beam}": of_beam, f", {beam.replace('True', 'False')}": of_beam}
    for search, options in searches.items():
        differs, texts = search.endswith("False"), list[str]()
        text = lines[:200] if differs else lines  # few lines show that some differ
        for first in range(0, len(text), 500):
            names = {"lines": text[first : first + 500], "texts": texts}
            exec(code.replace("=limit", f"=limit{search}"), names)
        assert (texts == ours.translate(text, **options)) != differs
    limits = names["model"].generation_config.max_new_tokens, names["tokenizer"].model_max_length
    assert limits == (74, 1072)
    options = json.loads(Path("tokenizer_config.json").read_text())
    assert options["clean_up_tokenization_spaces"] is False
    with safe_open(MODEL, "pt") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize("count", [400, pytest.param(5_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("symbols", [[], ["<bt>", "<bt>x", "[a|b]"]])
@pytest.mark.parametrize("form", ["nfc", "none"])
def test_ids_are_ours(tmp_path, form, symbols, count):
    vocab, keys = subwords(900, symbols), {"data__normalize": form}
    checkpoint = random_checkpoint(tmp_path / "step", vocab, vocab__symbols=symbols, **keys)
    _, tokenizer = load(export(checkpoint, tmp_path / "out", format="transformers"))
    vocab, rng = checkpoint.vocab.src, random.Random(1)
    lines = [*LITERAL, *(line.decode(errors="replace") for line in NASTY)]
    lines += (SAMPLE / "train.en").read_text(encoding="utf-8").split("\n")[: count // 2]
    while len(lines) < count:
        line = "".join(rng.choices(rng.choice(ALPHABETS), k=rng.randint(1, 40)))
        lines.append(line + rng.choice(["", *symbols]) + rng.choice(lines))
    # A symbol alone, but for invisible characters, has no space mark.
    lines = [line for line in lines if vocab.fold(line) not in symbols]
    rows = tokenizer(lines).input_ids, vocab.encode(lines)
    for line, ids, expected in zip(lines, *rows, strict=True):
        assert ids == [*expected, EOS_ID], line
        assert [tokenizer.decode(ids, skip_special_tokens=True)] == vocab.decode([expected])


def test_what_it_refuses(tmp_path):
    """By name, leaving nothing behind."""
    other = other_vocabulary(byte_fallback=True, normalization_rule_name="nmt_nfkc")
    for message, vocab, changes in (
        ("model.norm = sublayer", subwords(), {"model__norm": "sublayer"}),
        ("vocab.shared = false", [subwords(500), subwords()], {"model__tie_embeddings": False}),
        ("vocab.kind = char", VOCAB, {}),
        ("vocab.kind = unigram", subwords(kind="unigram"), {}),
        ("no byte pieces", other_vocabulary(), {}),
        ("normalises", other, {}),
    ):
        if isinstance(vocab, list):
            vocab = Vocabulary(*(each.tgt_model for each in vocab))
        checkpoint = random_checkpoint(tmp_path / message, vocab, **changes)
        refuses(ConfigError, message, export, checkpoint, tmp_path / "out", format="transformers")
    assert not list(tmp_path.glob("*out*"))


def other_vocabulary(**options: object) -> Vocabulary:
    """Trains a vocabulary as another program may, with SentencePiece's own ids."""
    options = {"normalization_rule_name": "identity", "hard_vocab_limit": False, **options}
    model = learn_elsewhere(WORDS, vocab_size=500, model_type="bpe", **options)
    return Vocabulary(model, model)


@pytest.mark.parametrize("special", [{}, {"unk_id": 1, "bos_id": -1, "eos_id": 0}])
def test_a_vocabulary_with_other_special_pieces(tmp_path, special):
    """Without padding, as is SentencePiece's default, and without BOS, as in Marian."""
    vocab = other_vocabulary(byte_fallback=True, **special)
    checkpoint = random_checkpoint(tmp_path / "step", vocab)
    _, tokenizer = load(export(checkpoint, tmp_path / "out", format="transformers"))
    lines = (SAMPLE / "test.de").read_text(encoding="utf-8").split("\n")[:20]
    assert tokenizer(lines).input_ids == [[*ids, EOS_ID] for ids in vocab.src.encode(lines)]
    assert tokenizer.pad_token_id == 0
    first, second = vocab.src.encode(["ein", "zwei"])
    assert tokenizer("ein", "zwei").input_ids == [*first, EOS_ID, *second, EOS_ID]


def test_the_command_and_its_card(tmp_path, call):
    """A licence only if it is given. Needs no extra to write."""
    random_checkpoint(tmp_path / "step", subwords())
    options = ("--format", "transformers", "-o", tmp_path / "out", "--license", "cc-by-4.0")
    done = call("export", tmp_path / "step", *options)
    assert done.code == 0 and done.out.decode() == f"{tmp_path / 'out'}\n"
    header = yaml.safe_load((tmp_path / "out/README.md").read_text().split("---\n")[1])
    assert header["library_name"] == "transformers" and header["license"] == "cc-by-4.0"
    done = call("export", tmp_path / "step", *options[:3], tmp_path / "b", "--quantization", "int8")
    assert done.code == 2 and "--quantization is for CTranslate2" in done.err
