"""The state of the training engine: saved, loaded, and continued bit-equal."""

from dataclasses import asdict

import pytest
import torch
from conftest import tiny_config

from transformer_mt.checkpoints.checkpoint import MODEL, TRAINING, load_checkpoint, save_checkpoint
from transformer_mt.checkpoints.state import Progress, RunState
from transformer_mt.config import Config
from transformer_mt.errors import CheckpointError
from transformer_mt.text.batching import Batch
from transformer_mt.text.prepared import PreparedCorpus, prepare
from transformer_mt.training.engine import Engine, LogWindow
from transformer_mt.training.run import restore_engine
from transformer_mt.training.trainer import TENSOR_FILES


@pytest.fixture(scope="module")
def prepared(corpus_dir) -> PreparedCorpus:
    """Gives a vocabulary and pairs."""
    return prepare(tiny_config(corpus_dir))


def build_engine(config: Config, prepared: PreparedCorpus, precision: str = "fp32") -> Engine:
    sizes = prepared.vocab.src_size, prepared.vocab.tgt_size
    return Engine(config, *sizes, torch.device("cpu"), precision)


def batch_from(prepared: PreparedCorpus, first: int) -> Batch:
    """Gives eight pairs."""
    return prepared.pairs.batch(torch.arange(first, first + 8).numpy())


def save(path, engine: Engine, prepared: PreparedCorpus) -> None:
    """Saves the state of an engine as a run does."""
    state = engine.state_dict()
    tensors = {file: state[key] for key, file in TENSOR_FILES.items() if key in state}
    run_state = RunState(Progress(step=3), state["counters"])
    save_checkpoint(path, tensors, run_state, engine.config, prepared.vocab)


def equal_weights(engine: Engine, other: Engine) -> bool:
    return all(map(torch.equal, engine.model.parameters(), other.model.parameters()))


def test_a_restored_engine_continues_bit_equal(corpus_dir, prepared, tmp_path):
    """Weights, moments, moving average, loss scale and counters all come back.

    Sabotage: leave out any of them.
    """
    config = tiny_config(corpus_dir, train__ema_decay=0.9, train__precision="fp16")
    engine = build_engine(config, prepared, "fp16")
    for step in (1, 2, 3):
        engine.train_step(step, [batch_from(prepared, 8 * step)])
    engine.scaler.update(1024.0)
    engine.skipped_steps.fill_(5)
    engine.nonfinite_in_row.fill_(2)
    window = LogWindow(loss=3.5, tokens=7, flops=11.0, seconds=0.5)
    engine.start_window(window)
    save(tmp_path / "saved", engine, prepared)
    restored = build_engine(config, prepared, "fp16")
    restore_engine(restored, load_checkpoint(tmp_path / "saved"))
    assert restored.scaler.get_scale() == 1024.0
    assert (int(restored.skipped_steps), int(restored.nonfinite_in_row)) == (5, 2)
    saved_window = load_checkpoint(tmp_path / "saved").state.counters["window"]
    assert (
        asdict(restored.window)
        == saved_window
        == {**asdict(window), "seconds": pytest.approx(0.5, abs=0.1)}
    )
    assert restored.read_window().loss == 3.5
    for each in (engine, restored):
        each.train_step(4, [batch_from(prepared, 40)])
    assert equal_weights(engine, restored)
    with engine.ema.in_place(), restored.ema.in_place():
        assert equal_weights(engine, restored)


def test_what_cannot_be_restored(corpus_dir, prepared, tmp_path):
    """Weights of another shape, and moments without the names of the weights."""
    config = tiny_config(corpus_dir)
    engine = build_engine(config, prepared)
    engine.train_step(1, [batch_from(prepared, 0)])
    save(tmp_path / "saved", engine, prepared)
    checkpoint = load_checkpoint(tmp_path / "saved")
    narrower = build_engine(tiny_config(corpus_dir, model__d_ff=96), prepared)
    with pytest.raises(CheckpointError, match="saved: does not fit this run: .*size mismatch"):
        restore_engine(narrower, checkpoint)
    (checkpoint.path / TRAINING).write_bytes((checkpoint.path / MODEL).read_bytes())
    with pytest.raises(CheckpointError, match="saved: does not fit this run: .*exp_avg"):
        restore_engine(build_engine(config, prepared), checkpoint)
