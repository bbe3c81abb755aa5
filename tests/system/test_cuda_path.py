"""Training, validation and search on CUDA, simulated: which device, and when the host waits."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from conftest import losses, tiny_config
from simulated_cuda import CUDA, SimulatedCuda
from torch import Tensor

from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.model.transformer import Transformer
from transformer_mt.training.engine import Engine
from transformer_mt.training.run import train
from transformer_mt.translation.options import LoadOptions, SearchOptions
from transformer_mt.translation.translation_model import build_translation_model

FEW = {"data__valid": "validation[:3]", "data__train": "train[:600]", "train__batch_tokens": 100}


def cuda_config(corpus_dir, **changes):
    return tiny_config(corpus_dir, **{"train__device": "cuda", "train__compile": False, **changes})


def build_engine(corpus_dir, prepared, device: str, precision: str, **changes) -> Engine:
    sizes = prepared.vocab.src.size, prepared.vocab.tgt.size
    return Engine(cuda_config(corpus_dir, **changes), *sizes, torch.device(device), precision)


def batches(prepared, count: int):
    return [prepared.pairs.batch(np.arange(8 * i, 8 * i + 8)) for i in range(count)]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_training_step_waits_for_nothing(corpus_dir, prepared, precision):
    with SimulatedCuda() as cuda:
        engine = build_engine(corpus_dir, prepared, "cuda", precision, train__ema_decay=0.9)
        engine.train_step(1, batches(prepared, 2))
        with cuda.counted() as waits:
            engine.train_step(2, batches(prepared, 2))
        assert not waits
        assert engine.grad_norm.device == CUDA and engine.read_window().loss > 0


def test_weights_are_cast_once_a_step(corpus_dir, prepared):
    """A second micro-batch casts only what depends on it."""
    casts = []
    with SimulatedCuda() as cuda:
        for count in (1, 2):
            engine = build_engine(corpus_dir, prepared, "cuda", "bf16")
            before = cuda.operations["aten._to_copy.default"]
            engine.train_step(1, batches(prepared, count))
            casts.append(cuda.operations["aten._to_copy.default"] - before)
    matrices = sum(isinstance(m, torch.nn.Linear) for m in engine.model.modules())
    assert 2 * casts[0] - casts[1] >= matrices > 0


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_run_with_resumption_follows_the_cpu(corpus_dir, tmp_path, precision):
    """Training, validation, saving, resuming: the losses are the CPU's, up to the precision."""
    sizes, packs = {"model__dropout": 0.0, "model__n_heads": 1, **FEW}, precision == "fp32"
    train(tiny_config(corpus_dir, **sizes, train__max_steps=4), tmp_path / "cpu")
    for steps in (2, 4):
        with SimulatedCuda():
            recipe = {"train__precision": precision, "train__compile": packs}
            config = cuda_config(corpus_dir, **sizes, train__max_steps=steps, **recipe)
            assert train(config, tmp_path / "cuda").step == steps
    log = (tmp_path / "cuda" / "train.log").read_text()
    assert log.count(" packs of 256 tokens a side; 1 GPU") == 2 * packs
    expected = pytest.approx(losses(tmp_path / "cpu"), rel=1e-4 if packs else 0.02)
    assert losses(tmp_path / "cuda") == expected


@pytest.mark.parametrize("packs", [False, True])
def test_the_loop_waits_only_to_log(corpus_dir, tmp_path, monkeypatch, packs):
    """More steps between log lines cause no more waits; steps, not searches, use TF32."""
    totals, precisions = [], []
    for owner, method in ((Engine, Engine.train_step), (Transformer, Transformer.begin_decoding)):

        def noting(*arguments, real=method):
            precisions.append((real.__name__, torch.get_float32_matmul_precision()))
            return real(*arguments)

        monkeypatch.setattr(owner, method.__name__, noting)
    for steps in (6, 9):  # steps 1, 2 and 5 are logged
        every = {"train__save_every": 100, "train__log_every": 100, "valid__every": 100, **FEW}
        with SimulatedCuda() as cuda:
            recipe = {"train__max_steps": steps, "train__compile": packs, "model__n_heads": 1}
            train(cuda_config(corpus_dir, **every, **recipe), tmp_path / str(steps))
        places = {k: n for k, n in cuda.synchronisations.items() if k.startswith("training/")}
        totals.append(places)
    assert totals[0] == totals[1] and 0 < sum(totals[0].values())
    assert set(precisions) == {("train_step", "high"), ("begin_decoding", "highest")}


@pytest.mark.parametrize(("beam_size", "at_the_end"), [(1, 1), (4, 5)])
def test_search_waits_once_a_position(copy_run, monkeypatch, beam_size, at_the_end):
    """And finds what it finds on the CPU; hypotheses are copied once per batch."""
    rng = random.Random(3)
    lines = ["".join(rng.choices("abcdefg ", k=rng.randint(1, 20))) for _ in range(16)]
    positions: list[int] = []
    next_logits: Callable[..., Tensor] = Transformer.next_logits

    def counting(self, ids, state):
        positions.append(state.position)
        return next_logits(self, ids, state)

    monkeypatch.setattr(Transformer, "next_logits", counting)
    checkpoint, options = find_checkpoint(copy_run), SearchOptions(beam_size, batch_tokens=200)
    on_cpu = build_translation_model([checkpoint], LoadOptions("cpu")).translator(options)
    expected = list(on_cpu.translate(lines))
    positions.clear()
    with SimulatedCuda() as cuda:
        model = build_translation_model([checkpoint], LoadOptions("cuda"))
        assert model.runtime.batch_tokens == 1_024_000  # with a memory of 1,000 GB
        with cuda.counted() as waits:
            translator = model.translator(options)
            translations = translator.translate(lines)
    assert translations == expected and translator.chunk_lines == 8192
    n_batches = positions.count(0)
    assert n_batches > 1 and len(positions) > 5 * n_batches
    assert sum(waits.values()) <= len(positions) + at_the_end * n_batches, waits
