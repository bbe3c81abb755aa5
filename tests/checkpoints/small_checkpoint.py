"""Checkpoints of a small model that was never trained."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from conftest import tiny_config

from transformer_mt.checkpoints.checkpoint import (
    MOMENTS,
    Checkpoint,
    Progress,
    RunState,
    load_checkpoint,
    save_checkpoint,
)
from transformer_mt.checkpoints.layout import MODEL, TRAINING, checkpoint_path
from transformer_mt.checkpoints.run_description import (
    RunDescription,
    SentenceLengths,
    ValidationText,
    VocabularySizes,
    read_description,
    write_description,
)
from transformer_mt.config.keys import Config, VocabConfig
from transformer_mt.model.transformer import Transformer
from transformer_mt.text.corpus_report import CorpusReport
from transformer_mt.text.splitting import SourceStatistics
from transformer_mt.text.vocabulary import PAD_ID, Vocabulary, train_vocabulary

VOCAB = train_vocabulary([Counter({"abcdefgh": 1})], VocabConfig(kind="char", size=16))


def small_config(**changes: object) -> Config:
    """Gives a configuration; changes are dotted keys with __ for the dot."""
    return tiny_config(Path("none"), **changes)


def build_model(config: Config, vocab: Vocabulary = VOCAB) -> Transformer:
    """Builds the model of a configuration with random weights."""
    return Transformer(config.model, vocab.src.size, vocab.tgt.size, PAD_ID)


def save_model(folder: Path, config: Config, vocab: Vocabulary = VOCAB, weights=None) -> Checkpoint:
    """Saves the weights of a model that was not trained, or those given."""
    weights = weights or build_model(config, vocab).state_dict()
    save_checkpoint(folder, {MODEL: weights}, RunState(Progress(step=1)), config, vocab)
    return load_checkpoint(folder)


def moments(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gives what Adam would keep of the weights."""
    zeros = {"exp_avg": torch.zeros_like, "exp_avg_sq": torch.zeros_like}
    return {
        f"{key}.{name}": zeros.get(key, lambda _: torch.tensor(1.0))(weight)
        for name, weight in weights.items()
        for key in MOMENTS
    }


def describe(config: Config, corpus_digest: str = "", **changes: object) -> RunDescription:
    """Gives what run.json would say of a run; changes are its keys."""
    values = {
        "config": config,
        "corpus": CorpusReport(
            pairs=9,
            kept=8,
            dropped={"empty": 1},
            pieces_per_word=1.5,
            pieces=99,
            unknown={"source": 0, "target": 0},
            longest=20,
            sources=SourceStatistics.measure(np.array([5] * 8), 0, 0),
            dtype="uint16",
        ),
        "corpus_digest": corpus_digest,
        "lengths": SentenceLengths({"src": 1.0, "tgt": 1.0}),
        "validation": ValidationText(2, ""),
        "init_from": None,
        "vocabulary": VocabularySizes(90, 80, "bpe"),
        "complete": True,
        "parameters": 7_065_600,
        "software": "transformer-mt",
        "environment": {},
    }
    return RunDescription(**{**values, **changes})


def change_config(run_dir: Path, section: str, **keys: object) -> Config:
    """Changes keys of a section in run.json; gives the whole configuration."""
    description = read_description(run_dir)
    values = description.config.model_dump()
    values[section] |= keys
    config = Config.model_validate(values)
    write_description(run_dir, replace(description, config=config))
    return config


def save_step(run_dir: Path, step: int, **progress: object) -> Path:
    """Saves a checkpoint with moments and weights of its own, and gives its directory."""
    path, config = checkpoint_path(run_dir, step), small_config()
    torch.manual_seed(step)
    weights = build_model(config).state_dict()
    tensors = {MODEL: weights, TRAINING: moments(weights)}
    save_checkpoint(path, tensors, RunState(Progress(step=step, **progress)), config, VOCAB)
    return path
