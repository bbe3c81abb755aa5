"""Runs that begin with the weights or the vocabulary of another."""

import shutil
from dataclasses import replace
from functools import partial

import pytest
from conftest import equal, records, refuses, weights, write_config, write_pairs
from test_run import first, small_config

from transformer_mt.checkpoints import run_description as stored
from transformer_mt.checkpoints.layout import EMA
from transformer_mt.checkpoints.run_description import read_description
from transformer_mt.checkpoints.run_directory import find_checkpoint, load_newest
from transformer_mt.errors import CheckpointError, ConfigError, DataError
from transformer_mt.training.run import build_trainer, train
from transformer_mt.translation.options import LoadOptions
from transformer_mt.translation.translation_model import build_translation_model

__all__ = ["first"]  # a fixture


@pytest.mark.usefixtures("untranslated")
def test_fine_tuning_goes_on_without_its_origin(corpus_dir, first, tmp_path, caplog):
    """Lines are split by all text that the weights have seen. Sabotage: by its own text."""
    origin = shutil.copytree(first, tmp_path / "origin")
    changes = {"train__seed": 7, "train__ema_decay": 0.9, "data__max_length": 6}
    small = partial(small_config, corpus_dir, **{"train__init_from": str(origin), **changes})
    begun = find_checkpoint(origin)
    expected = {"step": begun.progress.step, "digest": begun.digest, "name": "origin"}
    expected |= {"text": corpus_dir.name, "text_digest": begun.progress.corpus_digest}
    with caplog.at_level("INFO"):
        train(small(train__max_steps=0), tmp_path / "run")
    message = f"starting from {origin} at step {expected['step']} (digest {begun.digest})"
    assert message in caplog.messages and expected["step"] > 0
    start = find_checkpoint(tmp_path / "run")
    assert start.progress.step == 0 and equal(weights(start.path), weights(begun.path))
    assert equal(weights(start.path, EMA), weights(begun.path))
    assert start.vocab.src_model == begun.vocab.src_model
    shutil.rmtree(origin)
    for step, path in ((3, str(origin)), (4, None)):
        changed = small(train__init_from=path, train__max_steps=step)
        assert train(changed, tmp_path / "run").step == step
    assert "is not used" not in caplog.text
    assert load_newest(tmp_path / "run").progress.init_digest == begun.digest
    assert read_description(tmp_path / "run").init_from == stored.InitialWeights(**expected)
    assert read_description(first).init_from is None
    tuned, known = find_checkpoint(tmp_path / "run"), begun.sources
    corpus = build_trainer(small_config(corpus_dir, data__max_length=6), tmp_path / "other").corpus
    assert corpus.sources.longest == 6 < known.longest
    sources = tuned.sources
    assert (sources.longest, sources.percentile) == (known.longest, known.percentile)
    splitter = build_translation_model([tuned], LoadOptions()).splitter
    assert splitter.max_length == known.longest


def test_fine_tuning_scores_the_old_text(corpus_dir, first, tmp_path, caplog):
    """Sabotage: score the new text twice; do not validate before the first step."""
    write_pairs(tmp_path, "validation", [("zzz", "zzz")])
    for language in ("de", "en"):
        shutil.copy(corpus_dir / f"train.{language}", tmp_path)
    keys = {"train__init_from": str(first), "train__ema_decay": 0.9, "valid__every": 2}
    keys |= {"data__path": str(tmp_path), "data__valid": "validation", "valid__old_text": True}
    with caplog.at_level("INFO"):
        for steps in (2, 4):
            train(small_config(corpus_dir, **keys, train__max_steps=steps), tmp_path / "run")
    lines = records(tmp_path / "run", "valid")
    assert [line["step"] for line in lines] == [0, 2, 4]
    trainer = build_trainer(small_config(corpus_dir, **keys, train__max_steps=4), tmp_path / "run")
    trainer.progress = replace(trainer.progress, best_bleu=-1.0)  # as of a run that diverged
    assert trainer._is_validated
    before = records(first, "valid")[-1]
    assert lines[0]["old_nll"] == lines[0]["old_ema_nll"] == before["nll"] != lines[0]["nll"]
    assert lines[0]["old_bleu"] == before["bleu"] and lines[2]["old_nll"] != before["nll"]
    told = f"step 0: validation BLEU {lines[0]['bleu']:.2f}, of the moving average"
    assert any(text.startswith(told) and "of the old text" in text for text in caplog.messages)
    gone = first.rename(tmp_path / "gone")
    with pytest.raises(CheckpointError, match="; or set valid.old_text = false$"):
        train(small_config(corpus_dir, **keys, train__max_steps=6), tmp_path / "run")
    keys["train__init_from"], end = str(gone), "is not the checkpoint that the run began with; "
    train(small_config(corpus_dir, **keys, train__max_steps=5), tmp_path / "run")
    assert "is not used" not in caplog.text and end not in caplog.text
    keys["train__init_from"] = str(tmp_path / "run")
    train(small_config(corpus_dir, **keys, train__max_steps=6), tmp_path / "run")
    assert "is not used" not in caplog.text and caplog.text.count(end) == 1
    small = small_config(corpus_dir, train__max_steps=0, model__d_ff=16)
    train(small, tmp_path / "small")
    keys["train__init_from"] = str(tmp_path / "small")
    with pytest.raises(ConfigError, match="d_ff = 16, not 32; .*; or set valid.old_text = false$"):
        train(small_config(corpus_dir, **keys, train__max_steps=7), tmp_path / "run")
    gone.rename(first)
    with pytest.raises(ConfigError, match=r"^valid.old_text requires train.init_from$"):
        train(small_config(corpus_dir, valid__old_text=True), tmp_path / "other")


def test_the_old_text_has_moved(corpus_dir, first, tmp_path, caplog):
    """It is said whose data.path that is, and if another text is there.

    Sabotage: leave out whose; take the other text for the old one.
    """
    shutil.copytree(corpus_dir, tmp_path / "text")
    keys = {"train__init_from": str(first), "valid__old_text": True}
    config = small_config(corpus_dir, **keys, data__path=str(tmp_path / "text"))
    moved = corpus_dir.rename(tmp_path / "moved")
    message = f"^the validation text of {first}/step-00000008: data.path = {corpus_dir}: .* false$"
    try:
        refuses(DataError, message, train, config, tmp_path / "run")
        corpus_dir.mkdir()
        write_pairs(corpus_dir, "validation", [("ab", "ab")])
        build_trainer(config, tmp_path / "run")
        assert f"old_text: is not the text that {first}/step-00000008 was valid" in caplog.text
    finally:
        shutil.rmtree(corpus_dir, ignore_errors=True)
        moved.rename(corpus_dir)


def test_fine_tuning_needs_the_same_shapes(corpus_dir, first, tmp_path):
    """They are named, as in TOML. Sabotage: compare configurations, which vocab.path overrides."""
    start = partial(small_config, corpus_dir, train__init_from=str(first))
    model = {"model__d_ff": 64, "model__dropout": 0.3, "model__norm": "post"}
    vocab = {"vocab__kind": "unigram", "vocab__size": 300}
    two = {"vocab__shared": False, "model__tie_embeddings": False}
    for changes, message in (
        (model, 'it has model.d_ff = 32, not 64, model.norm = "pre", not "post"; use its values'),
        (vocab, 'it has vocab.kind = "bpe", not "unigram", vocab.size = 292, not 300; use its'),
        ({"vocab__size": 300}, r"300; use its values in \[vocab\], or leave out train.init_from$"),
        ({"vocab__symbols": ["<bt>"]}, r'it has vocab.symbols = \[\], not \["<bt>"\]; use'),
        (two, r"tie_embeddings = true, not false, vocab.shared = true, .* in \[model\] and \[voc"),
    ):
        refuses(ConfigError, message, train, start(**changes), tmp_path / "run")
    own = str(find_checkpoint(first).path)
    assert build_trainer(start(vocab__path=own, **vocab), tmp_path / "run").progress.init_digest
    assert not (tmp_path / "run").exists()


def test_text_is_prepared_with_the_vocabulary_of_training(corpus_dir, first, tmp_path, call):
    """So that `prepare` counts what is unknown to it, every time. Sabotage: learn a new one."""
    text = {"data__path": str(tmp_path), "data__prepared_dir": str(tmp_path / "prepared")}
    write_pairs(tmp_path, "train", [("ขาว ดี", "ขาว ดี")])
    config = write_config(tmp_path, corpus_dir, train__init_from=str(first), **text)
    for _ in range(2):
        done = call("prepare", config)
        assert "warning: 88.2% of the source pieces are unknown or single bytes: " in done.err
        assert done.code == 0


@pytest.mark.usefixtures("untranslated")
def test_a_vocabulary_may_have_fewer_characters_than_configured(corpus_dir, tmp_path):
    """So the configured size of its run, or its own, suit it; a smaller one does not."""
    chars = partial(small_config, corpus_dir, vocab__kind="char", train__max_steps=0)
    train(chars(vocab__size=100), tmp_path / "first")
    size = find_checkpoint(tmp_path / "first").vocab.src.size
    start = partial(chars, train__init_from=str(tmp_path / "first"))
    assert size < 50
    for allowed in (100, size, 80):
        assert build_trainer(start(vocab__size=allowed), tmp_path / "run").progress.init_digest
    with pytest.raises(ConfigError, match=f"vocab.size = {size}, not {size - 1}; use"):
        build_trainer(start(vocab__size=size - 1), tmp_path / "run")


def test_a_vocabulary_made_elsewhere(corpus_dir, first, tmp_path):
    """A file or a checkpoint's folder gives its pieces; what is none is refused by name."""
    origin = find_checkpoint(first)
    for name in ("vocab.model", ""):
        config = small_config(corpus_dir, vocab__path=str(origin.path / name))
        vocab = build_trainer(config, tmp_path / "run").corpus.vocab
        assert vocab.src_model == origin.vocab.src_model
    wrong = small_config(corpus_dir, vocab__path=str(origin.path / "config.json"))
    refuses(DataError, "not a SentencePiece model", train, wrong, tmp_path / "none")
    two = {"vocab__shared": False, "model__tie_embeddings": False}
    with pytest.raises(ConfigError, match=r"one shared vocabulary; set vocab.shared"):
        train(small_config(corpus_dir, vocab__path=str(origin.path), **two), tmp_path / "none")
