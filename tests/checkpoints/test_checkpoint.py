"""One checkpoint: written whole or not at all, and read back as it was."""

import json
import math
import os
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import safetensors.torch
import torch
from conftest import HOSTILE_JSON, equal, refuses, replace_file
from small_checkpoint import VOCAB, build_model, moments, save_step, small_config

from transformer_mt.checkpoints import checkpoint as checkpoint_module
from transformer_mt.checkpoints.checkpoint import FORMAT, RunState, load_checkpoint, save_checkpoint
from transformer_mt.checkpoints.layout import CONFIG, EMA, MODEL, STATE, TRAINING, checkpoint_digest
from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.config.keys import VocabConfig
from transformer_mt.errors import CheckpointError
from transformer_mt.system.device import is_out_of_memory
from transformer_mt.system.manifest import MANIFEST, read_manifest, write_manifest
from transformer_mt.text.splitting import SourceStatistics
from transformer_mt.text.vocabulary import Vocabulary, train_vocabulary
from transformer_mt.version import source_digest


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    """Configuration, vocabulary, state and tensors, transposed ones too; files are listed."""
    changes = {"train__ema_decay": 0.9, "model__decoder_layers": 2}
    config = small_config(train__seed=5, **changes)
    values = 5, 1, 2, 3.5, 20.25, 4, 1, 5, "bf16", 64, 3, "a", "b", 6, "c", {"n": "d"}, 0.5
    end = checkpoint_module.Progress(*values)
    sources = SourceStatistics(longest=9, percentile=8, several_sentences=0.25)
    state = RunState(end, {"skipped_steps": 2}, {"threads": "2"}, sources)
    weights = build_model(config).state_dict()
    weights["src_embedding"] = weights["src_embedding"].t().contiguous().t()
    save_checkpoint(tmp_path / "saved", {MODEL: weights}, state, config, VOCAB)
    checkpoint = load_checkpoint(tmp_path / "saved")
    [vocabulary] = checkpoint.state.vocabulary
    assert checkpoint.state == replace(state, vocabulary=[vocabulary])
    assert checkpoint.progress == state.progress
    assert checkpoint.config == config and checkpoint.path == tmp_path / "saved"
    assert (checkpoint.step, checkpoint.sources) == (5, sources)
    checkpoint.require_config(config)
    message = "made with another configuration: train.seed (was 5, is 6); name another --run"
    with pytest.raises(CheckpointError, match=re.escape(f"{tmp_path}: {message}")):
        checkpoint.require_config(small_config(train__seed=6, **changes))
    assert checkpoint.vocab.has_same_ids(VOCAB)
    assert checkpoint.files == {path.name for path in checkpoint.path.iterdir()} - {MANIFEST}
    assert checkpoint.digest == checkpoint_digest(tmp_path / "saved")
    assert equal(checkpoint.load_tensors(MODEL), weights)
    refuses(CheckpointError, f"saved: has no {TRAINING}", checkpoint.load_tensors, TRAINING)


def test_all_files_may_be_read_by_the_same_users(tmp_path):
    """As the process's umask says. Sabotage: leave the mode that safetensors gives its files."""
    umask = os.umask(0o027)
    try:
        path = save_step(tmp_path, 1)
    finally:
        os.umask(umask)
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o640}


def test_the_moving_average_is_preferred(tmp_path):
    """Unless raw weights are asked for. Sabotage: leave the average out of the digest."""
    config = small_config()
    raw, average = build_model(config).state_dict(), build_model(config).state_dict()
    save_checkpoint(tmp_path / "both", {MODEL: raw, EMA: average}, RunState(), config, VOCAB)
    save_checkpoint(tmp_path / "one", {MODEL: raw}, RunState(), config, VOCAB)
    both, one = load_checkpoint(tmp_path / "both"), load_checkpoint(tmp_path / "one")
    assert both.digest != one.digest
    asked = [(both, False), (both, True), (one, False), (one, True)]
    assert [which.is_averaged(raw) for which, raw in asked] == [True, False, False, False]
    assert [which.is_raw(raw) for which, raw in asked] == [False, True, False, False]
    built = (both.build_model(), both.build_model(raw=True), one.build_model())
    for model, weights in zip(built, (average, raw, raw), strict=True):
        assert not model.training and equal(model.state_dict(), weights)


WEIGHT = "decoder.0.cross_attention.q.weight"
NAN = torch.full((16, 16), 1.0).fill_diagonal_(math.nan)
WRONG = [
    (MODEL, WEIGHT, None, "is missing, not torch.float32 (16, 16)"),
    (MODEL, "extra", torch.ones(1), "is torch.float32 (1,), not known"),
    (MODEL, WEIGHT, torch.ones(16, 15), "is torch.float32 (16, 15), not torch.float32 (16, 16)"),
    (MODEL, WEIGHT, torch.ones(16, 16).long(), "is torch.int64 (16, 16), not torch.float32"),
    (MODEL, WEIGHT, NAN, "is not finite: training has diverged"),
    (EMA, WEIGHT, torch.full((16, 16), -math.inf), "is not finite"),
    (TRAINING, f"exp_avg_sq.{WEIGHT}", torch.zeros(3, 16), "is torch.float32 (3, 16), not"),
    (TRAINING, f"step.{WEIGHT}", torch.tensor(3), "is torch.int64 (), not torch.float32 ()"),
]


@pytest.mark.parametrize(("name", "tensor", "value", "message"), WRONG)
def test_every_tensor_is_verified_before_it_is_used(tmp_path, caplog, name, tensor, value, message):
    """File and tensor are named. Sabotage: compare no types; verify weights alone, or only NaN."""
    save_step(tmp_path, 1)
    path = save_step(tmp_path, 2)
    weights = safetensors.torch.load_file(path / MODEL)
    content = {MODEL: weights, EMA: weights, TRAINING: moments(weights)}[name] | {tensor: value}
    content = {key: tensor for key, tensor in content.items() if tensor is not None}
    others = {file: digest for file, digest in read_manifest(path).items() if file != TRAINING}
    write_manifest(path, others)
    replace_file(path, name, safetensors.torch.save(content))
    refuses(CheckpointError, re.escape(f"{path / name}: {tensor} {message}"), load_checkpoint, path)
    assert find_checkpoint(tmp_path).progress.step == 1 and str(path / name) in caplog.text


def test_a_changed_model_is_not_called_damage(tmp_path, caplog, monkeypatch):
    """A wrong tensor of the same source is. Sabotage: say it of any tensor that does not fit."""
    path, current = tmp_path / "step-00000000", source_digest("model")
    state = RunState(environment={"source of model/": current})
    weights = build_model(small_config()).state_dict()
    save_checkpoint(path, {MODEL: weights}, state, small_config(), VOCAB)
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()} | {"gate.bias": (3,)}
    monkeypatch.setattr(checkpoint_module, "parameter_shapes", lambda *sizes: shapes)
    with pytest.raises(CheckpointError, match="no checkpoint can be used; restore one from"):
        find_checkpoint(tmp_path)
    [warning] = caplog.messages
    assert "gate.bias is missing, not torch.float32 (3,); trying" in warning
    monkeypatch.setattr(checkpoint_module, "source_digest", lambda package: 32 * "0")
    message = "gate.bias is missing, not torch.float32 (3,); the source of model/ has changed"
    refuses(CheckpointError, re.escape(f"{path / MODEL}: {message}"), load_checkpoint, path)


def test_moments_are_missing_only_before_the_first_step(tmp_path):
    """An empty file later would start Adam anew without a word. Sabotage: accept it always."""
    config, empty = small_config(), tmp_path / "empty"
    files = {MODEL: build_model(config).state_dict(), TRAINING: {}}
    save_checkpoint(empty, files, RunState(), config, VOCAB)
    assert load_checkpoint(empty)
    save_checkpoint(empty, files, RunState(checkpoint_module.Progress(step=1)), config, VOCAB)
    refuses(CheckpointError, rf"{TRAINING}: exp_avg\.\S+ is missing", load_checkpoint, empty)


def test_a_full_disk_is_an_oserror(tmp_path, monkeypatch):
    """The previous checkpoint stays, and nothing is half written."""
    full = Mock(side_effect=safetensors.SafetensorError("No space left on device"))
    path = save_step(tmp_path / "deep" / "run", 1)
    before = read_manifest(path)
    monkeypatch.setattr("safetensors.torch.save_file", full)
    error = refuses(OSError, "No space left on device", save_step, tmp_path / "deep" / "run", 1)
    assert error.filename == str(path) and list(path.parent.iterdir()) == [path]
    assert read_manifest(path) == before and load_checkpoint(path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], r"damaged \(content: .*object"),
        ({}, "format None, not 2"),
        ({"format": FORMAT - 1}, f"format {FORMAT - 1}, not {FORMAT}; use the version of"),
        ({"format": FORMAT + 1, "new": 1}, f"format {FORMAT + 1}, not {FORMAT}; use the version"),
        ({"format": FORMAT, "step": 3}, "unknown key step; use a newer transformer-mt"),
        ({"format": FORMAT, "progress": {"step": "1"}}, r"damaged \(progress\.step: .*integer"),
        ({"format": FORMAT, "progress": {"step": -1, "x": 1}}, r"unknown key progress\.x; use a n"),
        ({"format": FORMAT, "progress": {"precision": "fp8"}}, r"damaged \(progress\.precision"),
        *((f'{{"format": 2, "counters": {{"a": {bad}}}}}', "damaged") for bad in HOSTILE_JSON[2:]),
    ],
)
def test_a_malformed_state_is_named(tmp_path, values, message):
    """File and key, even if the manifest agrees with it, in one line."""
    path = save_step(tmp_path, 3)
    content = values if isinstance(values, str) else json.dumps(values)
    replace_file(path, STATE, content.encode())
    error = refuses(CheckpointError, rf"state\.json: {message}", load_checkpoint, path)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"activation": "gelu"}, r"unknown key model\.activation.*; use a newer transformer-mt"),
        ({"encoder_layers": 2_000_000}, "model.encoder_layers: Input should be less than"),
        ({"d_model": 2**32 - 8}, "model too large: .*overflowed"),
    ],
)
def test_a_key_of_a_newer_version_or_an_absurd_size_is_refused_at_once(tmp_path, sizes, message):
    """Before any layer is built. Sabotage: no limit on layers; build the model to compare."""
    path = save_step(tmp_path, 3)
    config = json.loads((path / CONFIG).read_text())
    replace_file(path, CONFIG, json.dumps({**config, "model": sizes}).encode())
    refuses(CheckpointError, message, load_checkpoint, path)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("Cannot allocate memory (12)")])
def test_too_little_memory_is_no_damage(tmp_path, monkeypatch, error):
    """Or a run would go back to the checkpoint before. Sabotage: catch RuntimeError."""
    save_step(tmp_path, 2)
    monkeypatch.setattr("safetensors.torch.load_file", Mock(side_effect=error))
    assert is_out_of_memory(refuses(type(error), "", find_checkpoint, tmp_path))


def test_a_checkpoint_is_on_disk_before_and_after_it_is_renamed(tmp_path, monkeypatch):
    """All files and both folders, or a power cut loses it. Sabotage: leave out the last sync."""
    synced: list[tuple[str, bool]] = []
    real, final = os.fsync, tmp_path / "step-00000001"

    def fsync(descriptor: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), final.exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    save_step(tmp_path, 1)
    before = {Path(path).name for path, renamed in synced if not renamed}
    assert before >= {path.name for path in final.iterdir()} | {f".{final.name}.partial"}
    assert [path for path, renamed in synced if renamed] == [str(tmp_path)]


def test_what_the_manifest_does_not_list_is_not_read(tmp_path):
    """Nor missed. Sabotage: choose the files by what is in the directory."""
    other = train_vocabulary([Counter({"xyz": 1})], VocabConfig(kind="char", size=16))
    two, path = Vocabulary(VOCAB.src_model, other.src_model), tmp_path / "step-00000001"
    config = small_config(model__tie_embeddings=False)
    weights, average = (build_model(config, two).state_dict() for _ in range(2))
    save_checkpoint(path, {MODEL: weights, EMA: average}, RunState(), config, two)
    (path / "vocab.model").write_bytes(VOCAB.src_model)
    assert load_checkpoint(path).vocab.has_same_ids(two) and not VOCAB.has_same_ids(two)
    listed = read_manifest(path)
    for name in listed:
        write_manifest(path, {other: listed[other] for other in listed if other != name})
        if name == EMA:
            assert equal(load_checkpoint(path).build_model().state_dict(), weights)
            continue
        refuses(CheckpointError, f"manifest does not list {name}", load_checkpoint, path)


def test_a_checkpoint_deleted_before_its_weights_are_read(tmp_path):
    """By a trainer, while other files were read. Sabotage: give the library's message."""
    checkpoint = load_checkpoint(path := save_step(tmp_path, 1))
    shutil.rmtree(path)
    message = f"{MODEL}: was deleted meanwhile; run the command again"
    refuses(CheckpointError, message, checkpoint.build_model)


def test_a_vocabulary_of_other_pieces_is_noticed(tmp_path):
    """One of the same size, with a right manifest. Sabotage: compare the sizes alone."""
    other = train_vocabulary([Counter({"abcdefgh": 1, "h": 5})], VocabConfig(kind="char", size=16))
    path = save_step(tmp_path, 1)
    replace_file(path, "vocab.model", other.src_model)
    message = f"^{path / 'vocab.model'}: not the vocabulary of the trained model$"
    refuses(CheckpointError, message, load_checkpoint, path)
