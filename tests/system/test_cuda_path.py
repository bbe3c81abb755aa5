"""Training, validation and search on CUDA, simulated: which device, and when the host waits."""

import json
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import tiny_config
from simulated_cuda import CUDA, SimulatedCuda
from torch import Tensor

from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.evaluation.evaluator import mean_nll
from transformer_mt.model.transformer import Transformer
from transformer_mt.text.batching import encode_pairs
from transformer_mt.text.corpus import load_split
from transformer_mt.text.prepared import PreparedCorpus, prepare
from transformer_mt.training import flops
from transformer_mt.training.engine import Engine
from transformer_mt.training.run import train
from transformer_mt.translation import forced_decoding
from transformer_mt.translation.options import LoadOptions, SearchOptions
from transformer_mt.translation.translation_model import build_translation_model

PRECISIONS = ("fp32", "bf16", "fp16")
FEW = {
    "model__d_model": 16,
    "model__d_ff": 32,
    "data__valid": "validation[:3]",
    "data__train": "train[:600]",
    "train__batch_tokens": 100,
}


# --- The simulation itself ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "mix",
    [
        lambda x, host: x + host,
        lambda x, host: torch.where(host > 0, x, 0.0),
        lambda x, host: x.gather(0, host.long()),
        lambda x, host: host[0, 0].add_(x[0, 0]),
        lambda x, host: torch.mul(x, 2, out=host),
        lambda x, host: F.scaled_dot_product_attention(x, x, x, host > 0),
        lambda x, host: torch.optim.Adam([_with_grad(x, host)], fused=True).step(),
        lambda x, host: np.asarray(x),
    ],
)
def test_a_mix_of_devices_fails(mix):
    """Sabotage: accept an operand on the host."""
    with SimulatedCuda(), pytest.raises((RuntimeError, TypeError), match="cuda:0"):
        mix(torch.ones(3, 3, device="cuda"), torch.ones(3, 3))


def _with_grad(x: Tensor, grad: Tensor) -> Tensor:
    parameter = torch.nn.Parameter(x)
    parameter.register_hook(lambda _: grad)
    parameter.sum().backward()
    return parameter


@pytest.mark.parametrize(
    ("wait", "kind"),
    [
        (lambda x: x.sum().item(), "_local_scalar_dense"),
        (lambda x: bool(x.sum() > 0), "_local_scalar_dense"),
        (lambda x: x.tolist(), "tolist"),
        (lambda x: x.cpu(), "copy to the host"),
        (lambda x: torch.zeros(3, 3).copy_(x), "copy to the host"),
        (lambda x: x.copy_(torch.zeros(3, 3)), "copy to the device"),
        (lambda x: torch.zeros(3).to(x.device, non_blocking=True), "copy to the device"),
        (lambda x: torch.zeros(3).pin_memory().to(x.device), "copy to the device"),
        (lambda x: torch.tensor([1.0], device=x.device), "copy to the device"),
        (lambda x: x[torch.tensor([0, 1])], "index on the host"),
        (lambda x: x[x > 0], "mask as index"),
        (lambda x: x.__setitem__(x > 0, x.flatten().clone()), "mask as index"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: x.unique(), "_unique2"),
        (lambda x: x.flatten().repeat_interleave(x.flatten().long()), "repeat_interleave"),
        (lambda x: torch.cuda.synchronize(), "synchronize"),
    ],
)
def test_each_synchronisation_counts_once(wait, kind):
    """Sabotage: leave out a kind."""
    with SimulatedCuda() as cuda:
        x = torch.ones(3, 3, device="cuda")
        with cuda.counted() as waits:
            wait(x)
    [(place, count)] = waits.items()
    assert kind in place and count == 1


def test_what_does_not_wait():
    """Nor does what happens on the host. Sabotage: count every index."""
    with SimulatedCuda() as cuda:
        x, host = torch.ones(3, 3, device="cuda"), torch.ones(3, 3)
        x += torch.where(x > 0, 1.0, x[0].argmax())
        x[x > 0] = 0.0
        x[:, 0] = x[x[0].long(), 1] * host.sum()
        host.pin_memory().to(x.device, non_blocking=True)
        x.to("cpu", non_blocking=True)
        x.sort().indices.repeat_interleave(2)
        assert host.nonzero().tolist() and host[host > 0].sum().item() == 9.0
    assert not cuda.synchronisations


def test_what_lies_on_the_device():
    """Views, results, gradients and moments do; a copy to the host does not.

    Sabotage: do not mark what an operation returns.
    """
    with SimulatedCuda() as cuda:
        model = torch.nn.Linear(4, 4).to("cuda")
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        x = torch.ones(2, 4, device=CUDA)
        model(x).sum().backward()
        optimizer.step()
        state = [t for values in optimizer.state.values() for t in values.values()]
        weight = model.weight
        for tensor in (x[0].view(2, 2), weight.data, weight.grad, weight.detach().half(), *state):
            assert tensor.device == CUDA and tensor.is_cuda and tensor in cuda.storages
        for tensor in (torch.ones(2), x.cpu(), torch.zeros_like(x, device="cpu")):
            assert tensor.device.type == "cpu" and not tensor.is_cuda
    assert x.device.type == "cpu" and not torch.cuda.is_available()


# --- Training -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prepared(corpus_dir) -> PreparedCorpus:
    return prepare(tiny_config(corpus_dir))


def cuda_config(corpus_dir, **changes):
    return tiny_config(corpus_dir, train__device="cuda", train__compile=False, **changes)


def build_engine(corpus_dir, prepared, device: str, precision: str, **changes) -> Engine:
    sizes = prepared.vocab.src.size, prepared.vocab.tgt.size
    config = cuda_config(corpus_dir, **changes)
    return Engine(config, *sizes, torch.device(device), precision)


def batches(prepared, count: int):
    return [prepared.pairs.batch(np.arange(8 * i, 8 * i + 8)) for i in range(count)]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_training_step_waits_for_nothing(corpus_dir, prepared, precision):
    """Sabotage: `loss.item()` in `Engine.train_step`; leave out `pin_memory`."""
    with SimulatedCuda() as cuda:
        engine = build_engine(corpus_dir, prepared, "cuda", precision, train__ema_decay=0.9)
        engine.train_step(1, batches(prepared, 2))
        with cuda.counted() as waits:
            engine.train_step(2, batches(prepared, 2))
        assert not waits
        assert engine.grad_norm.device == CUDA and engine.read_window().loss > 0


def test_weights_are_cast_once_a_step(corpus_dir, prepared):
    """A second micro-batch casts what depends on it alone; the gradient has the same bits.

    Sabotage: no autocast around the micro-batches.
    """
    with SimulatedCuda() as cuda:
        together, apart = (
            build_engine(corpus_dir, prepared, "cuda", "bf16", optim__max_grad_norm=0.0)
            for _ in range(2)
        )
        together.optimizer.step = apart.optimizer.step = lambda: None
        together.optimizer.zero_grad = lambda set_to_none: None
        casts = []
        for count in (1, 2):
            for parameter in together.model.parameters():
                parameter.grad = None
            before = cuda.operations["aten._to_copy.default"]
            together.train_step(1, batches(prepared, count))
            casts.append(cuda.operations["aten._to_copy.default"] - before)
        tokens = sum(batch.tgt_tokens for batch in batches(prepared, 2))
        before = cuda.operations["aten._to_copy.default"]
        for number, batch in enumerate(batches(prepared, 2)):
            [(_, gradients)] = apart._gradients(1, [None] * number + [batch], tokens)
            apart._add_gradients(gradients)
        separately = cuda.operations["aten._to_copy.default"] - before
        pairs = zip(together.model.parameters(), apart.model.parameters(), strict=True)
        assert all(torch.equal(one.grad, other.grad) for one, other in pairs)
    matrices = sum(isinstance(m, torch.nn.Linear) for m in together.model.modules())
    assert separately - casts[1] >= matrices


def losses(run_dir) -> list[float]:
    records = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if record["kind"] == "train"]


@pytest.fixture
def _small_peak(monkeypatch):
    """Keeps the measurement of the peak quick: a CPU computes it."""
    monkeypatch.setitem(flops._SIZES, "cuda", 32)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("fp16", 0.02)])
def test_a_run_with_resumption_follows_the_cpu(
    corpus_dir, tmp_path, _small_peak, precision, tolerance
):
    """Training, validation, saving, resuming: the losses are the CPU's, up to the precision.

    Sabotage: leave the source mask on the CPU.
    """
    sizes = {"model__dropout": 0.0, **FEW}
    train(tiny_config(corpus_dir, **sizes, train__max_steps=4), tmp_path / "cpu")
    for steps in (2, 4):
        with SimulatedCuda():
            config = cuda_config(
                corpus_dir, **sizes, train__max_steps=steps, train__precision=precision
            )
            assert train(config, tmp_path / "cuda").step == steps
    assert losses(tmp_path / "cuda") == pytest.approx(losses(tmp_path / "cpu"), rel=tolerance)


def test_the_loop_waits_only_to_log(corpus_dir, tmp_path, _small_peak, monkeypatch):
    """More steps between log lines cause no more synchronisations; steps, not searches, use TF32.

    Sabotage: read the metrics after every step; train without `compute_settings`.
    """
    totals, precisions = [], []
    for method in (Engine.train_step, Transformer.begin_decoding):

        def noting(*arguments, real=method):
            precisions.append((real.__name__, torch.get_float32_matmul_precision()))
            return real(*arguments)

        owner = Engine if method is Engine.train_step else Transformer
        monkeypatch.setattr(owner, method.__name__, noting)
    for steps in (2, 5):
        every = {"train__save_every": 100, "train__log_every": 100, "valid__every": 100, **FEW}
        with SimulatedCuda() as cuda:
            config = cuda_config(corpus_dir, **every, train__max_steps=steps)
            train(config, tmp_path / str(steps))
        places = {k: n for k, n in cuda.synchronisations.items() if k.startswith("training/")}
        totals.append(places)
    assert totals[0] == totals[1] and 0 < sum(totals[0].values())
    assert set(precisions) == {("train_step", "high"), ("begin_decoding", "highest")}


# --- Validation and search ----------------------------------------------------------------------


def test_perplexity_waits_once(corpus_dir, prepared, monkeypatch):
    """However many micro-batches there are. Sabotage: sum at a mask as index."""
    config = cuda_config(corpus_dir)
    raw = load_split(config.data, "validation")
    pairs = encode_pairs(raw.src, raw.tgt, prepared.vocab)
    with SimulatedCuda() as cuda:
        engine = build_engine(corpus_dir, prepared, "cuda", "fp32")
        for positions in (300, 2000):
            monkeypatch.setattr(forced_decoding, "BATCH_POSITIONS", positions)
            with cuda.counted() as waits:
                mean_nll(engine.model, pairs)
            assert list(waits.values()) == [1]


@pytest.mark.parametrize(("beam_size", "at_the_end"), [(1, 1), (4, 5)])
def test_search_waits_once_a_position(copy_run, monkeypatch, beam_size, at_the_end):
    """And finds what it finds on the CPU; hypotheses are copied once per batch.

    Sabotage: read the ids at every position; ask with `any()` whether a row has ended.
    """
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
        with cuda.counted() as waits:
            translations = model.translator(options).translate(lines)
    assert translations == expected
    n_batches = positions.count(0)
    assert n_batches > 1 and len(positions) > 5 * n_batches
    assert sum(waits.values()) <= len(positions) + at_the_end * n_batches, waits
