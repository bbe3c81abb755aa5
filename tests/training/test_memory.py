"""The bound on micro-batches: found at the start, lowered when memory runs out, kept on resume."""

from contextlib import nullcontext
from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import losses, tiny_config
from simulated_cuda import SimulatedCuda

from transformer_mt.checkpoints.run_directory import load_newest
from transformer_mt.config.keys import Config, DataConfig, ModelConfig
from transformer_mt.errors import CompileError, DeviceError
from transformer_mt.training import engine as engine_module
from transformer_mt.training import flops, memory, saving
from transformer_mt.training.engine import Engine
from transformer_mt.training.environment import numeric_environment
from transformer_mt.training.run import build_trainer, train
from transformer_mt.training.validation import Validator

FEW = {
    "model__dropout": 0.0,
    "data__valid": "validation[:3]",
    "data__train": "train[:600]",
    "train__batch_tokens": 200,
}


@pytest.mark.parametrize(
    ("device", "processes", "workers", "gigabytes", "limit"),
    [
        ("cuda", 1, 8, 8.5, 2048),
        ("cuda", 1, 8, 25.4, 16_384),
        ("cuda", 1, 1, 85.0, 65_536),
        ("cpu", 1, 1, 25.4, 4096),
        ("cpu", 1, 8, 25.4, 512),
        ("cpu", 1, 2, 25.4, 2048),
        ("cpu", 2, 2, 25.4, 512),
        ("cpu", 1, 1, 2.0, 512),
    ],
)
def test_the_bound_depends_on_the_machine_alone(
    monkeypatch, device, processes, workers, gigabytes, limit
):
    """For the paper's base; on a CPU also on the processes and threads; the longest pair fits."""
    monkeypatch.setattr(memory, "total_memory", lambda device: int(gigabytes * 1e9))
    model = SimpleNamespace(
        parameters=lambda: [torch.empty(63_100_000, device="meta")],
        output_weight=torch.empty(37_000, 512, device="meta"),
    )
    config = Config(data=DataConfig(path="text"))
    engine = SimpleNamespace(
        config=config,
        model=model,
        device=torch.device(device),
        workers=workers,
        processes=SimpleNamespace(world_size=processes, max=lambda *values: values),
    )
    assert memory.find_micro_batch_tokens(engine) == limit > config.data.max_length
    engine.processes.max = lambda tokens: [max(tokens, -256)]  # of another process
    assert memory.find_micro_batch_tokens(engine) == 256


def test_a_position_of_the_papers_base_model():
    """Nine vectors of its width in an encoder layer, fifteen in a decoder layer, and two inside."""
    layers = 9 * 512 + 2 * 2048, 15 * 512 + 2 * 2048
    assert memory.bytes_per_position(ModelConfig()) == 4 * 6 * sum(layers)
    deeper = ModelConfig(encoder_layers=5, decoder_layers=7)
    assert memory.bytes_per_position(deeper) == 4 * (5 * layers[0] + 7 * layers[1])


@pytest.mark.parametrize(("device", "needed"), [("cpu", 44.8), ("cuda", 25.6)])
def test_a_model_that_is_too_large(corpus_dir, tmp_path, monkeypatch, device, needed):
    """Weights, gradients and moments are counted, of the 1.6 billion parameters of layers alone."""
    sizes = {"d_model": 10_000, "d_ff": 10_000, "encoder_layers": 1, "decoder_layers": 1}
    config = ModelConfig(**sizes, n_heads=8)
    monkeypatch.setattr(memory, "total_memory", lambda device: int((needed + 0.1) * 1e9))
    memory.require_memory(config, torch.device(device))
    monkeypatch.setattr(memory, "total_memory", lambda device: int((needed - 2) * 1e9))
    message = (
        "model.d_model = 10000, model.d_ff = 10000, model.encoder_layers = 1, model.decoder_layers"
        f" = 1: the model needs at least {needed:.0f} GB to be trained, and this {device} device"
        f" has {needed - 2:.0f} GB; choose smaller sizes"
    )
    with pytest.raises(DeviceError, match=f"^{message}$"):
        memory.require_memory(config, torch.device(device))
    with pytest.raises(DeviceError, match=r"model.d_ff = 4000000000, .* needs at least [\d,]+ GB"):
        train(tiny_config(corpus_dir, model__d_ff=4 * 10**9), tmp_path / "run")
    assert not list(tmp_path.iterdir())  # at once


def limit_memory(monkeypatch, first_step: int, positions: int, error: Exception) -> list[int]:
    """Lets memory run out, from a step on, with larger micro-batches; gives the sizes computed."""
    sizes, step_of, real_step, real_loss = [], [0], Engine.train_step, Engine._loss

    def train_step(self, step, micro_batches) -> None:
        step_of[0] = step
        real_step(self, step, micro_batches)

    def loss(self, batch):
        size = len(batch.src) * max(batch.src.size(1), batch.tgt_in.size(1))
        if step_of[0] >= first_step and size > positions:
            raise error
        sizes.append(size)
        return real_loss(self, batch)

    monkeypatch.setattr(Engine, "train_step", train_step)
    monkeypatch.setattr(Engine, "_loss", loss)
    return sizes


def test_a_step_for_which_compiling_fails_is_repeated(corpus_dir, tmp_path, monkeypatch, caplog):
    """Without it, as for a shape that comes late. Sabotage: fall back only at the start."""
    real, failed = Engine.train_step, list[int]()

    def train_step(engine: Engine, step: int, micro_batches: object) -> None:
        if step == 3 and not failed:
            failed.append(step)
            raise CompileError("torch.compile failed")
        real(engine, step, micro_batches)

    monkeypatch.setattr(Engine, "train_step", train_step)
    monkeypatch.setattr(engine_module, "restore_layers", lambda model: None)
    assert train(tiny_config(corpus_dir, train__max_steps=4), tmp_path / "run").step == 4
    assert "torch.compile failed; this run continues without it, more slowly" in caplog.messages
    environment = load_newest(tmp_path / "run").state.environment
    assert environment["torch.compile"] == "failed"


@pytest.mark.parametrize(
    ("device", "error"),
    [("cpu", MemoryError()), ("cuda", torch.OutOfMemoryError("CUDA out of memory"))],
)
def test_a_step_for_which_memory_runs_out_is_repeated(
    corpus_dir, tmp_path, monkeypatch, caplog, device, error
):
    """It is cut finer, nothing of the attempt is applied, and training goes on, resumed or not."""
    monkeypatch.setitem(flops._SIZES, "cuda", 32)
    freed: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(1))
    changes = {"train__device": device, "train__compile": False, **FEW}
    for name, steps in (("enough", 5), ("little", 4), ("little", 5)):
        with (
            monkeypatch.context() as patch,
            SimulatedCuda() if device == "cuda" else nullcontext(),
        ):
            limited = name == "little" and steps == 4
            sizes = limit_memory(patch, 3 if limited else 100, 100, error)
            patch.setattr(Validator, "_translate", lambda self, _: ([""] * len(self._pairs), 1.0))
            config = tiny_config(corpus_dir, train__max_steps=steps, **changes)
            progress = train(config, tmp_path / name)
        assert progress.step == steps
    assert losses(tmp_path / "little") == pytest.approx(losses(tmp_path / "enough"), rel=1e-4)
    assert (progress.micro_batch_tokens, progress.finer_step) == (64, 3)
    assert load_newest(tmp_path / "little").progress == progress and max(sizes) <= 64
    warnings = [text for text in caplog.messages if text.startswith(f"out of memory on {device}")]
    assert warnings[-1].endswith(
        "; micro-batches have at most 64 positions from step 3 on, which ends bit-equality"
    )
    log = (tmp_path / "little" / "train.log").read_text()
    assert log.count(f" warning: {warnings[-1]}\n") == 1
    unit = "GPU" if device == "cuda" else "CPU thread"
    message = f" micro-batches of at most 64 positions, lowered at step 3; 1 {unit}\n"
    assert log.count(message) == 1
    assert bool(freed) == (device == "cuda")


def test_what_fits_is_tried_at_the_start(corpus_dir, tmp_path, monkeypatch, caplog):
    """The first step has the bound that fits; two starts find the same; a pair must fit."""
    found = []
    for name in ("first", "second"):
        with monkeypatch.context() as patch:
            sizes = limit_memory(patch, 0, 100, MemoryError())
            found.append(train(tiny_config(corpus_dir, train__max_steps=1, **FEW), tmp_path / name))
        assert max(sizes) <= 64
        log = (tmp_path / name / "train.log").read_text()
        assert log.count(" micro-batches of at most 64 positions; ") == 1
    assert found[0].micro_batch_tokens == found[1].micro_batch_tokens == 64
    assert found[0].finer_step == 0 and "bit-equality" not in caplog.text
    limit_memory(monkeypatch, 0, 2, MemoryError())
    message = (
        r"out of memory on cpu with a micro-batch of 1 x .*: to train, choose a smaller model or"
    )
    with pytest.raises(DeviceError, match=message):
        train(tiny_config(corpus_dir, **FEW), tmp_path / "third")


def test_the_longer_side_decides(corpus_dir, tmp_path):
    trainer = build_trainer(tiny_config(corpus_dir, **FEW), tmp_path)
    for trainer.lengths in permutations((np.array([3, 9]), np.array([9, 40]))):
        trainer._cut_finer([np.arange(2)], "")
        assert trainer.progress.micro_batch_tokens == 32


@pytest.mark.parametrize(
    ("limit", "changed"),
    [(300, "torch version"), ("auto", "threads"), ("auto", "device"), ("auto", "processes")],
)
def test_other_workers_or_another_key_replace_what_was_found(
    corpus_dir, tmp_path, monkeypatch, limit, changed
):
    """The key is obeyed, or memory decides again."""
    with monkeypatch.context() as patch:
        limit_memory(patch, 2, 100, MemoryError())
        other = {changed: "other"}
        patch.setattr(saving, "numeric_environment", lambda e: numeric_environment(e) | other)
        found = train(tiny_config(corpus_dir, train__max_steps=2, **FEW), tmp_path / "run")
        assert (found.micro_batch_tokens, found.finer_step) == (64, 2)
    changes = {"train__max_steps": 3, "train__micro_batch_tokens": limit, **FEW}
    progress = train(tiny_config(corpus_dir, **changes), tmp_path / "run")
    assert progress.micro_batch_tokens == limit or progress.micro_batch_tokens > 1000
    assert progress.finer_step == 0
