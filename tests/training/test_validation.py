"""Perplexity against its definition."""

import json
import math
import re

import pytest
import torch
from conftest import equal, records, tiny_config, weights
from sacrebleu.metrics.bleu import BLEU

import transformer_mt
from transformer_mt.checkpoints.evaluations import read_evaluations
from transformer_mt.checkpoints.layout import EMA
from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.config.keys import ModelConfig
from transformer_mt.errors import ConfigError
from transformer_mt.model.transformer import Transformer, evaluation_mode
from transformer_mt.text.batching import EncodedPairs, flatten
from transformer_mt.text.corpus import RawPairs, load_split
from transformer_mt.text.vocabulary import BOS_ID, EOS_ID, PAD_ID
from transformer_mt.training import validation
from transformer_mt.training.dry_run import dry_run
from transformer_mt.training.run import build_trainer, train
from transformer_mt.training.validation import Validator, mean_nll
from transformer_mt.translation import pytorch_runtime
from transformer_mt.translation.options import LoadOptions
from transformer_mt.translation.translation_model import build_translation_model

V = 13
SOURCES = [[5, 6], [7], [4, 8, 9, 10, 11, 12, 4, 5, 6], [9, 9, 9], []]
TARGETS = [[4], [5, 6, 7, 8, 9, 10, 11], [12, 4], [], [6, 6]]


@pytest.fixture
def model() -> Transformer:
    """Gives a random model, in training mode, with dropout."""
    torch.manual_seed(3)
    sizes = {"d_model": 16, "d_ff": 32, "n_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    return Transformer(ModelConfig(**sizes, dropout=0.5), V, V, PAD_ID).train()


@torch.no_grad()
def nats_of_a_pair(model: Transformer, src: list[int], tgt: list[int]) -> float:
    """Sums the negative log-probabilities of a target and its end mark, without padding."""
    with evaluation_mode(model):
        logits = model(torch.tensor([[*src, EOS_ID]]), torch.tensor([[BOS_ID, *tgt]]))[0].double()
    probabilities = zip(logits.softmax(-1).tolist(), [*tgt, EOS_ID], strict=True)
    return -sum(math.log(row[token]) for row, token in probabilities)


@pytest.mark.parametrize("positions", [1, 12, 30, 1000])
@pytest.mark.parametrize(("sources", "targets"), [(SOURCES, TARGETS), (TARGETS, SOURCES)])
def test_mean_nll_is_per_target_token(model, monkeypatch, sources, targets, positions):
    """However the pairs are batched, without dropout; one is longer than the smallest limit."""
    sizes, by_one = list[int](), lambda function, items: function(items)
    nats = [nats_of_a_pair(model, *pair) for pair in zip(sources, targets, strict=True)]
    model.register_forward_pre_hook(lambda _, batch: sizes.extend(ids.numel() for ids in batch))
    monkeypatch.setattr(pytorch_runtime, "SCORED_POSITIONS", positions)
    for training in (False, True):
        model.train(training)
        actual = mean_nll(model, EncodedPairs(flatten(sources), flatten(targets)), by_one)
        assert model.training == training
    tokens = sum(len(tgt) + 1 for tgt in targets)
    assert actual == pytest.approx(sum(nats) / tokens, rel=1e-5)
    assert max(sizes) <= max(positions, 10)


def test_validation_translates_as_the_saved_model(untrained_run):
    """It splits the same lines, of several sentences and long ones, at the same places."""
    trainer = build_trainer(find_checkpoint(untrained_run).config, untrained_run)
    lines = ["Abc de. Fgh ij.", "Ab. Cd. Ef.", "ab cd", " ".join(["abc"] * 40), ""]
    validator = Validator(trainer.engine, RawPairs(lines, lines), trainer.corpus)
    result = validator.validate(lambda count: None)
    assert result.hypotheses == transformer_mt.load(untrained_run, device="cpu").translate(lines)


def test_a_short_text_and_a_huge_perplexity(corpus_dir, tmp_path, monkeypatch):
    """Each sample is logged once; of a run that diverges not all of the 218 digits."""
    monkeypatch.setattr(validation, "mean_nll", lambda *_: 500.0)
    train(tiny_config(corpus_dir, data__valid="validation[:2]", train__max_steps=1), tmp_path)
    log = (tmp_path / "train.log").read_text()
    assert log.count("  source  ") == 2 and ", perplexity 1.4e+217 (best)\n" in log


def test_vocabularies_of_two_sizes(corpus_dir, tmp_path):
    """The source has one letter. Sabotage: swap the sides that are compared with decoding."""
    for split in ("train", "validation"):
        lines = (corpus_dir / f"{split}.en").read_text()
        (tmp_path / f"{split}.en").write_text(lines)
        (tmp_path / f"{split}.de").write_text(re.sub(r"\S", "a", lines))
    changes = {"vocab__kind": "char", "vocab__shared": False, "model__tie_embeddings": False}
    changes |= {"data__prepared_dir": str(tmp_path / "prepared")}
    config = tiny_config(tmp_path, train__max_steps=1, valid__every=1, **changes)
    assert train(config, tmp_path / "run").best_step == 1


@pytest.mark.parametrize("start", [train, dry_run])
def test_a_missing_tokenizer_shows_before_text_is_read(corpus_dir, tmp_path, monkeypatch, start):
    """The corpus has no Japanese at all."""
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    with pytest.raises(ConfigError, match=r"the language ja: .* 'sacrebleu\[ja\]'"):
        start(tiny_config(corpus_dir, data__tgt_lang="ja"), tmp_path / "run")


def test_the_moving_average_is_kept_scored_and_used(corpus_dir, tmp_path, caplog):
    """Validation scores both; a checkpoint holds both; commands take the average unless told.

    Sabotage: ignore `valid.tokenize`.
    """
    changes = {"train__ema_decay": 0.9, "train__max_steps": 4, "valid__tokenize": "char"}
    config = tiny_config(corpus_dir, **changes, valid__every=1000)
    train(config, tmp_path / "run")
    [record] = read_evaluations(tmp_path / "run")
    assert record.scores[0].tokenizer == "char"
    checkpoint = find_checkpoint(tmp_path / "run")
    assert not equal(weights(checkpoint.path), weights(checkpoint.path, EMA))
    [valid] = records(tmp_path / "run", "valid")
    pairs = load_split(config.data, config.data.valid)
    for raw, key in ((True, "bleu"), (False, "ema_bleu")):
        translator = build_translation_model([checkpoint], LoadOptions(raw=raw)).translator()
        bleu = BLEU(tokenize="char").corpus_score(translator.translate(pairs.src), [pairs.tgt])
        assert round(bleu.score, 4) == valid[key]
    assert checkpoint.progress.best_bleu == pytest.approx(valid["ema_bleu"], abs=1e-4)
    assert checkpoint.progress.best_nll == pytest.approx(valid["ema_nll"], abs=1e-5)
    assert valid["ema_nll"] != valid["nll"] and "of the moving average" in caplog.text


def test_validation_and_evaluate_choose_one_tokenizer(corpus_dir, copy_run, tmp_path, call, caplog):
    """By the script of the references, and each says so once. Sabotage: look at the code alone."""
    caplog.set_level("INFO")
    (tmp_path / "src").write_text("abc de fgh ij\nklm no\n")
    (tmp_path / "tgt").write_text("ครูซื้อหนังสือที่ตลาด abc de fgh ij\nแม่พบปลาวันนี้ klm no\n")
    changes = {"model__d_model": 64, "model__d_ff": 128, "optim__warmup_steps": 1_000_000}
    changes["data__valid"] = {"src": str(tmp_path / "src"), "tgt": str(tmp_path / "tgt")}
    changes |= {"train__init_from": str(copy_run), "train__max_steps": 1}
    config = tiny_config(corpus_dir, **changes, valid__every=1000)
    train(config, tmp_path / "run")
    [recorded] = records(tmp_path / "run", "valid")
    assert caplog.text.count("BLEU is by characters") == 1
    done = call("evaluate", tmp_path / "run", "--split", "valid", "--json")
    assert caplog.text.count("BLEU is by characters") == 2
    result = json.loads(done.out)
    assert result["tokenizer"] == "char" and result["bleu"] == recorded["bleu"] > 1
