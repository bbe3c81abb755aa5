"""`vocab.symbols`: one piece in whatever text, in no translation, and what is refused."""

from collections import Counter
from pathlib import Path
from unittest.mock import ANY, Mock

import numpy as np
import pytest
import torch
from checkpoints.small_checkpoint import build_model, save_model, small_config
from conftest import copy_lines, refuses, tiny_config

from transformer_mt import load
from transformer_mt.checkpoints.checkpoint import Checkpoint
from transformer_mt.config.keys import VocabConfig
from transformer_mt.errors import CheckpointError, ConfigError
from transformer_mt.text.batching import EncodedLines, flatten
from transformer_mt.text.bpe_dropout import LineSampler
from transformer_mt.text.prepared import prepare
from transformer_mt.text.splitting import leading_symbols
from transformer_mt.text.vocabulary import BOS_ID, EOS_ID, Vocabulary, train_vocabulary
from transformer_mt.training import validation
from transformer_mt.training.run import train
from transformer_mt.translation.export import export
from transformer_mt.translation.options import SearchOptions
from transformer_mt.translation.pytorch_runtime import PyTorchRuntime
from transformer_mt.translation.runtime import Source

SYMBOLS = ["<bt>", "<bt>x", "back,translated", 'a"b']
WORDS = copy_lines(900, 1) + ["back <bt>ted transla <b"] * 200
TEXT = ["<bt> ab cd", "ab <bt> cd", "ab<bt>cd<bt>xx", "<bt>", "back,translated", 'a"ba"b <bt', ""]


def learn(kind: str = "bpe", symbols: list[str] = SYMBOLS, shared: bool = True) -> Vocabulary:
    words, other = (Counter(" ".join(text).split()) for text in (WORDS, WORDS[::2]))
    config = VocabConfig(kind=kind, size=330, symbols=symbols, shared=shared)
    return train_vocabulary([words] if shared else [words, other], config)


def occurrences(text: str, symbol: str) -> int:
    """Counts a symbol; <bt>x, which is looked for first, has another inside."""
    return text.replace("<bt>x", "X").count(symbol.replace("<bt>x", "X"))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
def test_a_symbol_is_one_piece(kind, shared):
    """Alone, inside a word, beside another; also where segmentations are drawn."""
    vocab = learn(kind, shared=shared)
    for side in (vocab.src, vocab.tgt):
        rows = side.encode(TEXT)
        drawn = [rows]
        if kind == "bpe":
            sampler, lines = LineSampler(side, 0.5), flatten(rows)
            lines = EncodedLines(lines.ids.astype(np.int32), lines.offsets)
            sampled = sampler.sample(lines, np.random.default_rng(1))
            drawn.append([sampled[i].tolist() for i in range(len(rows))])
        for rows in drawn:
            for text, ids in zip(TEXT, rows, strict=True):
                pieces = side.pieces(ids)
                for symbol in SYMBOLS:
                    assert pieces.count(symbol) == occurrences(text, symbol), pieces
                assert kind == "char" or side.decode([ids]) == [text]


def favouring(folder: Path, symbols: list[str]) -> Checkpoint:
    """Saves a model to which symbols are by far the most probable pieces of any translation."""
    vocab = learn()
    config = small_config(model__tie_embeddings=False, vocab__symbols=symbols, vocab__size=330)
    torch.manual_seed(1)
    weights = build_model(config, vocab).state_dict()
    weights["decoder_norm.bias"] += 1
    weights["out_embedding"][vocab.symbol_ids(SYMBOLS)] = 1.0
    return save_model(folder, config, vocab, weights)


def test_a_symbol_is_in_no_translation(tmp_path):
    """By any search of a run, an ensemble or an export, though it is the most probable piece."""
    lines = [*copy_lines(3, 4), "<bt> ab"]
    checkpoint = favouring(tmp_path / "step", SYMBOLS)
    favouring(tmp_path / "other", SYMBOLS[:1])
    exported = export(checkpoint, tmp_path / "exported")
    option = f"beam_size=4, suppress_sequences={[[symbol] for symbol in SYMBOLS]})"
    assert option in (exported / "README.md").read_text()
    run = load(tmp_path / "step")
    texts = run.sample(lines)
    for model in (run, load(tmp_path / "other", tmp_path / "step"), load(exported)):
        texts += model.translate(lines) + model.translate(lines, beam_size=4)
        assert model.translate(["<bt> 1 - 2"]) == ["1 - 2"]  # which has no words to translate
        texts += [each.text for ranked in model.n_best(lines, n=2) for each in ranked]
    assert any(texts) and not any(symbol in text for text in texts for symbol in SYMBOLS)
    assert all("<bt>x" in text for text in load(tmp_path / "other").translate(lines))


def test_the_model_of_transformers_leaves_them_out_too(tmp_path):
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    checkpoint = favouring(tmp_path / "step", SYMBOLS)
    folder = export(checkpoint, tmp_path / "out", format="transformers")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    ours, batch = load(checkpoint.path), tokenizer(["ab cd"], return_tensors="pt")
    source = Source(tuple(batch.input_ids[0, :-1].tolist()))
    for beams in (1, 3):
        options = {"num_beams": beams, "length_penalty": 0.0, "early_stopping": beams > 1}
        output = model.generate(**batch, max_new_tokens=len(source.ids) + 50, **options)
        [[[best, *_]]] = ours.runtime.decode([[source]], SearchOptions(beams, 0.0))
        ids = [i for i in output[0].tolist() if i not in (BOS_ID, EOS_ID)]
        assert ids == best.ids and len(ids) > 5


def test_a_run_with_symbols(corpus_dir, tmp_path, monkeypatch):
    """Trains and validates without giving them; another list is refused by the name of the key."""
    build = Mock(side_effect=PyTorchRuntime)
    monkeypatch.setattr(validation, "PyTorchRuntime", build)
    changes = {"data__train": "train[:300]", "train__max_steps": 1, "valid__every": 1}
    config = tiny_config(corpus_dir, vocab__symbols=["<bt>"], **changes)
    train(config, tmp_path / "run")
    build.assert_called_once_with(ANY, [4])
    other = tiny_config(corpus_dir, vocab__symbols=["<x>"], **changes)
    refuses(CheckpointError, r"vocab.symbols \(was", train, other, tmp_path / "run")


def test_an_existing_vocabulary_must_have_them(corpus_dir, tmp_path):
    """As symbols, not as pieces of text, and as they are written."""
    assert VocabConfig(symbols=["<BT>"]).symbols == ["<BT>"]
    vocab = learn()
    [path] = vocab.save(tmp_path)
    texts = [text for text in vocab.src.table().ids if "\u2581" not in text]
    last = [vocab.src.pieces(ids)[-1] for ids in vocab.src.encode(texts)]
    text = next(text for text, piece in zip(texts, last, strict=True) if text == piece)
    first, second = SYMBOLS[:2]
    other_order = Vocabulary(learn(symbols=[second, first]).src_model, vocab.tgt_model)
    assert other_order.symbol_ids([first, second]) == [4, 5]
    sides, message = [learn(symbols=[]).src_model, vocab.tgt_model], "is not a user-def"
    for without in (Vocabulary(*sides), Vocabulary(*reversed(sides))):
        refuses(ConfigError, f"^vocab.symbols: {first} {message}", without.symbol_ids, [first])
    config = tiny_config(corpus_dir, vocab__path=str(path), vocab__symbols=[first, second])
    assert prepare(config).vocab.symbol_ids([first, second]) == [4, 5]
    for symbol in ("<zz>", text):
        config = tiny_config(corpus_dir, vocab__path=str(path), vocab__symbols=[symbol])
        refuses(ConfigError, f"^vocab.symbols: {symbol} {message}", prepare, config)


def test_few_symbols_stand_before_each_part_of_a_line():
    """More are text, since the positions of a model are limited. Sabotage: take them all."""
    pattern = leading_symbols(["<bt>", "<x>"])
    assert pattern.match("<bt> <x> ab <bt>").group() == "<bt> <x> "
    assert pattern.match("<bt> " * 1000 + "ab").group() == "<bt> " * 8
