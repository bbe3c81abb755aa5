"""How a step fits the machine: its micro-batches, memory that runs out, compiling that fails."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import around_steps, losses, refuses, tiny_config
from simulated_cuda import SimulatedCuda

from transformer_mt.checkpoints.run_directory import load_newest
from transformer_mt.config.keys import Config, DataConfig, ModelConfig, TrainConfig
from transformer_mt.errors import DeviceError
from transformer_mt.system.processes import Processes
from transformer_mt.text.batching import EncodedPairs, flatten, padded_size
from transformer_mt.training import fit, starting_state
from transformer_mt.training.engine import Engine
from transformer_mt.training.fit import StepFitter, most_demanding
from transformer_mt.training.run import build_trainer, train
from transformer_mt.training.validation import Validator

FEW = {"model__dropout": 0.0, "data__valid": "validation[:3]", "data__train": "train[:600]"}
FEW["train__batch_tokens"] = 200


class Smaller(Processes):
    """Processes of which another has the smaller value."""

    def min(self, value: int) -> int:
        return value // 2


def fitter_of(device: str, threads: int, processes: Processes) -> StepFitter:
    """Gives a fitter of the paper's base model, which is not allocated."""
    weights = [torch.empty(63_100_000, device="meta")], torch.empty(37_000, 512, device="meta")
    model = SimpleNamespace(parameters=lambda: weights[0], output_weight=weights[1])
    parts = {"device": torch.device(device), "processes": processes, "model": model}
    config = Config(data=DataConfig(path="text"), train=TrainConfig(compile=False))
    count = SimpleNamespace(count=lambda: threads)
    return StepFitter(SimpleNamespace(config=config, threads=count, **parts))


BOUNDS = """cuda 8 1 8.5 2048, cuda 8 1 25.4 16384, cuda 1 1 85.0 65536, cpu 1 1 25.4 4096,
    cpu 1 8 25.4 512, cpu 1 2 25.4 2048, cpu 2 1 25.4 512, cpu 1 1 2.0 512"""


@pytest.mark.parametrize("words", BOUNDS.split(","))
def test_the_bound_depends_on_the_machine_alone(monkeypatch, words):
    """For the paper's base; on a CPU also on the processes and threads; the longest pair fits."""
    device, *numbers, gigabytes, limit = words.split()
    processes, threads = map(int, numbers)
    monkeypatch.setattr(fit, "total_memory", lambda device: int(float(gigabytes) * 1e9))
    fitter = fitter_of(device, threads, Processes(world_size=processes))
    assert fitter.workers == processes * threads
    assert fitter.find_micro_batch_tokens() == int(limit) > fitter.engine.config.data.max_length


def test_all_processes_cut_alike(monkeypatch):
    """As the one with the fewest threads and the least memory does."""
    monkeypatch.setattr(fit, "total_memory", lambda device: int(25.4e9))
    fitter = fitter_of("cuda", 4, Smaller(world_size=3))
    assert (fitter.workers, fitter.find_micro_batch_tokens()) == (6, 16_384 // 2)
    fitter.packs = True  # all logits of which are in memory at once
    assert fitter.find_micro_batch_tokens() == 8192 // 2


@pytest.mark.parametrize(("device", "needed"), [("cpu", 44.8), ("cuda", 25.6)])
def test_a_model_that_is_too_large(corpus_dir, tmp_path, monkeypatch, device, needed):
    """Weights, gradients and moments are counted, of the 1.6 billion parameters of layers alone."""
    sizes = {"d_model": 10_000, "d_ff": 10_000, "encoder_layers": 1, "decoder_layers": 1}
    config = ModelConfig(**sizes, n_heads=8)
    monkeypatch.setattr(fit, "total_memory", lambda device: int((needed + 0.1) * 1e9))
    fit.require_memory(config, torch.device(device))
    monkeypatch.setattr(fit, "total_memory", lambda device: int((needed - 2) * 1e9))
    message = (
        "model.d_model = 10000, model.d_ff = 10000, model.encoder_layers = 1, model.decoder_layers"
        f" = 1: the model needs at least {needed:.0f} GB to be trained, and this {device} device"
        f" has {needed - 2:.0f} GB; choose smaller sizes"
    )
    refuses(DeviceError, f"^{message}$", fit.require_memory, config, torch.device(device))
    with pytest.raises(DeviceError, match=r"model.d_ff = 4000000000, .* needs at least [\d,]+ GB"):
        train(tiny_config(corpus_dir, model__d_ff=4 * 10**9), tmp_path / "run")
    assert not list(tmp_path.iterdir())  # at once


def limit_memory(monkeypatch, first_step: int, positions: int, error: Exception) -> list[int]:
    """Lets memory run out, from a step on, with larger micro-batches; gives the sizes computed."""
    sizes, steps, real_loss = [], [0], Engine._loss
    around_steps(monkeypatch, before=lambda _, step: steps.append(step))

    def loss(self, batch):
        size = len(batch.src) * max(batch.src.size(1), batch.tgt_in.size(1))
        if steps[-1] >= first_step and size > positions:
            raise error
        sizes.append(size)
        return real_loss(self, batch)

    monkeypatch.setattr(Engine, "_loss", loss)
    return sizes


@pytest.mark.parametrize(
    ("device", "error"),
    [("cpu", MemoryError()), ("cuda", torch.OutOfMemoryError("CUDA out of memory"))],
)
def test_without_memory_a_step_is_cut(corpus_dir, tmp_path, monkeypatch, caplog, device, error):
    """It is cut finer, nothing of the attempt is applied, and training goes on, resumed or not."""
    freed: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(1))
    changes = {"train__device": device, "train__compile": False, **FEW}
    for name, steps in (("enough", 5), ("little", 4), ("little", 5)):
        with monkeypatch.context() as patch, SimulatedCuda() if device == "cuda" else nullcontext():
            limited = name == "little" and steps == 4
            sizes = limit_memory(patch, 3 if limited else 100, 100, error)
            patch.setattr(Validator, "_translate", lambda self, *_: ([""] * len(self._pairs), 1.0))
            config = tiny_config(corpus_dir, train__max_steps=steps, **changes)
            progress = train(config, tmp_path / name)
        assert progress.step == steps
    assert losses(tmp_path / "little") == pytest.approx(losses(tmp_path / "enough"), rel=1e-4)
    assert (progress.micro_batch_tokens, progress.finer_step) == (64, 3)
    assert load_newest(tmp_path / "little").progress == progress and max(sizes) <= 64
    warnings = [text for text in caplog.messages if text.startswith(f"out of memory on {device}")]
    end = "; now micro-batches of at most 64 positions, from step 3 on, which ends bit-equality"
    assert warnings[-1].endswith(end)
    log = (tmp_path / "little" / "train.log").read_text()
    assert log.count(f" warning: {warnings[-1]}\n") == 1
    unit = "GPU" if device == "cuda" else "CPU thread"
    message = f" micro-batches of at most 64 positions, lowered at step 3; 1 {unit}\n"
    assert log.count(message) == 1 and bool(freed) == (device == "cuda")


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
    message = "^out of memory on cpu with a single pair: to train, choose a smaller model or"
    refuses(DeviceError, message, train, tiny_config(corpus_dir, **FEW), tmp_path / "third")


@pytest.mark.parametrize("muon", [True, False])
def test_the_check_of_memory_changes_nothing(corpus_dir, tmp_path, monkeypatch, muon):
    """It tries each micro-batch as often as train at once, makes the moments, and takes no step."""
    config = tiny_config(corpus_dir, train__ema_decay=0.9, optim__muon=muon)
    torch.set_num_threads(2)
    checked, unchecked = (build_trainer(config, tmp_path) for _ in range(2))
    steps, tried, real = checked.start_epoch(), [], Engine._loss
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "_loss", lambda e, x: tried.append(len(x.src)) or real(e, x))
        progress = checked.fitter.check_memory(checked.progress, checked.pairs, steps)
    assert progress == checked.progress
    model = checked.engine.model
    assert len(tried) == 6 and tried[::2] == tried[1::2]  # on both threads
    assert len(checked.engine.optimizer.state) == len(list(model.parameters()))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert unchecked.start_epoch()[0].tolist() == steps[0].tolist()
    for trainer in (checked, unchecked):
        trainer.take_step(steps[0])
    assert all(map(torch.equal, model.parameters(), unchecked.engine.model.parameters()))


def test_another_error_stays_as_it_is(corpus_dir, tmp_path, monkeypatch):
    trainer = build_trainer(tiny_config(corpus_dir), tmp_path)
    limit_memory(monkeypatch, 0, 0, RuntimeError("a bug"))
    refuses(RuntimeError, "^a bug$", trainer.take_step, trainer.start_epoch()[0])


@pytest.mark.parametrize("lengths", [([2, 8], [8, 39]), ([8, 39], [2, 8])])
def test_the_longer_side_decides(corpus_dir, tmp_path, monkeypatch, lengths):
    """By how much a step is cut finer. Sabotage: measure the sources alone."""
    trainer = build_trainer(tiny_config(corpus_dir), tmp_path)
    pairs = EncodedPairs(*(flatten([[5] * n for n in side]) for side in lengths))
    limit_memory(monkeypatch, 0, 79, MemoryError())
    progress = trainer.fitter.fit_step(trainer.progress, pairs, np.arange(2))
    assert progress.micro_batch_tokens == 32  # a power of two of at most half of 2 x 40


def test_other_workers_or_another_key_replace_it(corpus_dir, tmp_path, monkeypatch):
    """The key is obeyed, or memory decides again."""
    with monkeypatch.context() as patch:
        limit_memory(patch, 2, 100, MemoryError())
        found = train(tiny_config(corpus_dir, train__max_steps=2, **FEW), tmp_path / "run")
        assert (found.micro_batch_tokens, found.finer_step) == (64, 2)
    recorded = load_newest(tmp_path / "run").state.environment
    workers = "threads", "device", "processes"
    for limit, changed in ((300, "torch version"), *(("auto", name) for name in workers)):
        now = {**recorded, changed: "other"}
        monkeypatch.setattr(starting_state, "numeric_environment", lambda _, now=now: now)
        config = tiny_config(corpus_dir, train__micro_batch_tokens=limit, **FEW)
        progress = build_trainer(config, tmp_path / "run").progress
        assert progress.micro_batch_tokens == limit or progress.micro_batch_tokens > 1000, changed
        assert progress.finer_step == 0, changed


def as_lists(steps: list[np.ndarray]) -> list[list[int]]:
    return [step.tolist() for step in steps]


@pytest.mark.parametrize("swapped", [False, True])
def test_the_most_demanding_micro_batches(swapped):
    """Of equals the largest. Sabotage: order by one side; leave out the longest, or the most."""
    src, tgt = np.array([50] * 200 + [1] + [5] * 12), np.array([1] * 200 + [60] + [5] * 12)
    corpus = np.stack((tgt, src) if swapped else (src, tgt))
    steps = [np.array([i]) for i in range(201)]
    assert as_lists(most_demanding(steps, corpus, 60)) == [[200]] * 3
    assert as_lists(most_demanding(steps[198:], corpus, 60)) == [[200]] * 3
    assert as_lists(most_demanding([np.arange(3)], corpus, 60)) == [[0]] * 3
    alike = np.array([[60, 60], [1, 50]])
    assert as_lists(most_demanding(steps[:2], alike, 60)) == [[1]] * 3
    many = np.arange(201, 213)
    assert as_lists(most_demanding([*steps, many], corpus, 60)) == [many.tolist(), [200], [*many]]
    halves = as_lists(most_demanding([*steps, many], corpus, 60, 2))
    assert halves == [[200], [200], many[:6].tolist()]
    assert padded_size(many, corpus) == 120 and padded_size(np.array([0, 200]), corpus) == 220
    # Neither is among the steps with the most positions.
    corpus = np.array([[50] * 200 + [60] + [5] * 12, [50] * 200 + [1] * 13])
    corpus = corpus[::-1] if swapped else corpus
    assert as_lists(most_demanding([*steps, many], corpus, 60))[1:] == [[200], [*many]]
