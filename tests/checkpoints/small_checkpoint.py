"""Checkpoints of a small model that was never trained."""

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from conftest import tiny_config

from transformer_mt.checkpoints import checkpoint
from transformer_mt.checkpoints import run_description as stored
from transformer_mt.checkpoints.layout import MODEL, TRAINING, checkpoint_path
from transformer_mt.config.keys import Config, VocabConfig
from transformer_mt.model.transformer import Transformer
from transformer_mt.text.corpus_report import CorpusReport
from transformer_mt.text.splitting import SourceStatistics
from transformer_mt.text.vocabulary import PAD_ID, Vocabulary, train_vocabulary

VOCAB = train_vocabulary([Counter({"abcdefgh": 1})], VocabConfig(kind="char", size=16))


small_config = partial(tiny_config, Path("none"))


def build_model(config: Config, vocab: Vocabulary = VOCAB) -> Transformer:
    return Transformer(config.model, vocab.src.size, vocab.tgt.size, PAD_ID)


def save_model(
    folder: Path, config: Config, vocab: Vocabulary = VOCAB, weights=None, **progress: object
) -> checkpoint.Checkpoint:
    """Saves the weights of a model that was not trained, or those given."""
    weights = weights or build_model(config, vocab).state_dict()
    state = checkpoint.RunState(checkpoint.Progress(**{"step": 1, **progress}))
    checkpoint.save_checkpoint(folder, {MODEL: weights}, state, config, vocab)
    return checkpoint.load_checkpoint(folder)


def moments(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gives what Adam would keep of the weights."""
    return {
        f"{key}.{name}": torch.zeros_like(weight) if "exp" in key else torch.tensor(1.0)
        for name, weight in weights.items()
        for key in checkpoint.MOMENTS
    }


def describe(config: Config, corpus_digest: str = "", **changes: object) -> stored.RunDescription:
    """Gives what run.json would say of a run; changes are its keys."""
    counts = {"pairs": 9, "kept": 8, "dropped": {"empty": 1}, "pieces_per_word": 1.5, "pieces": 99}
    sources = SourceStatistics.measure(np.array([5] * 8), 0, 0)
    counts |= {"unknown": {"source": 0, "target": 0}, "longest": 20, "sources": sources}
    values = {"config": config, "corpus": CorpusReport(**counts, dtype="uint16")}
    values |= {"corpus_digest": corpus_digest, "init_from": None, "complete": True}
    values["lengths"] = stored.SentenceLengths({"src": 1.0, "tgt": 1.0})
    values["validation"] = stored.ValidationText(2, "")
    values["vocabulary"] = stored.VocabularySizes(90, 80, "bpe")
    values |= {"parameters": 7_065_600, "software": "transformer-mt", "environment": {}}
    return stored.RunDescription(**{**values, **changes})


def change_config(run_dir: Path, section: str, **keys: object) -> Config:
    """Changes keys of a section in run.json; gives the whole configuration."""
    description = stored.read_description(run_dir)
    values = description.config.model_dump()
    values[section] |= keys
    config = Config.model_validate(values)
    stored.write_description(run_dir, replace(description, config=config))
    return config


def save_step(run_dir: Path, step: int, **progress: object) -> Path:
    """Saves a checkpoint with moments and weights of its own, and gives its directory."""
    path, config = checkpoint_path(run_dir, step), small_config()
    torch.manual_seed(step)
    weights = build_model(config).state_dict()
    tensors = {MODEL: weights, TRAINING: moments(weights)}
    state = checkpoint.RunState(checkpoint.Progress(step=step, **progress))
    checkpoint.save_checkpoint(path, tensors, state, config, VOCAB)
    return path
