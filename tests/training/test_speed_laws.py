"""What is done for speed does not change training: 40 steps beside the plain path."""

import pytest
import torch
import torch.nn.functional as F
from conftest import tiny_config
from test_engine import batch_from, build_engine
from test_loss import smoothed_loss
from torch._dynamo.testing import CompileCounterWithBackend

from transformer_mt.errors import DeviceError
from transformer_mt.model import cpu_kernels
from transformer_mt.text.batching import cut_micro_batches, plan_epoch
from transformer_mt.text.prepared import PreparedCorpus
from transformer_mt.training import engine as engine_module
from transformer_mt.training.environment import numeric_environment

STEPS = 40


def losses(corpus_dir, prepared: PreparedCorpus) -> list[float]:
    """Trains without dropout; gives the loss per token of each step."""
    config = tiny_config(corpus_dir, model__dropout=0.0, optim__lr_scale=0.03)
    lengths, engine = prepared.pairs.lengths, build_engine(config, prepared)
    per_token: list[float] = []
    while len(per_token) < STEPS:
        for step in plan_epoch(*lengths, config.train.batch_tokens, 1, len(per_token)):
            parts = cut_micro_batches(step, *lengths, 600)
            engine.train_step(len(per_token) + 1, [prepared.pairs.batch(part) for part in parts])
            per_token.append(engine.read_window().mean_loss)
            engine.start_window()
    return per_token[:STEPS]


def test_the_fast_path_is_the_plain_one(corpus_dir, prepared, monkeypatch):
    """In fp32 within 1e-4 of PyTorch's linear layers and loss at every step.

    Sabotage: spread the smoothing over V - 1; omit the gradient of the bias.
    """
    monkeypatch.setattr(cpu_kernels, "has_fast_mkl", lambda: False)  # oneDNN, on Intel's CPUs too
    fast = losses(corpus_dir, prepared)
    monkeypatch.setattr(cpu_kernels, "has_onednn_linear", lambda: False)
    monkeypatch.setattr(
        engine_module,
        "projected_loss",
        lambda output, weight, targets, smoothing, pad_id, _: tuple(
            smoothed_loss(F.linear(output, weight), targets, s, pad_id) for s in (smoothing, 0.0)
        ),
    )
    plain = losses(corpus_dir, prepared)
    assert plain[-1] < 0.9 * plain[0]
    assert fast == pytest.approx(plain, rel=1e-4)


@pytest.fixture
def cuda_branches(monkeypatch):
    """Makes the kernels take the branches on a CPU that they take on CUDA."""
    monkeypatch.setattr(cpu_kernels, "_on_cpu", lambda x: False)
    torch._dynamo.reset()


def train_compiled(corpus_dir, prepared: PreparedCorpus, precision: str, backend: str):
    """Trains eagerly and compiled side by side; gives losses, counts of graphs and of shapes."""
    config = tiny_config(corpus_dir, model__dropout=0.0, optim__lr_scale=0.03)
    eager, compiled = (build_engine(config, prepared, precision) for _ in range(2))
    counter, shapes, pairs = CompileCounterWithBackend(backend), set(), []
    compiled.compile(counter)
    compiled.compiled = backend == "inductor"
    for number, step in enumerate(plan_epoch(*prepared.pairs.lengths, 200, 1, 0)[:24], 1):
        batch = prepared.pairs.batch(step)
        shapes.add((*batch.src.shape, batch.tgt_in.size(1)))
        for engine in (eager, compiled):
            engine.train_step(number, [batch])
        pairs.append((compiled.read_window().loss, eager.read_window().loss))
    return pairs, counter.frame_count, len(shapes)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, of its parts
@pytest.mark.parametrize(
    ("backend", "precision", "tolerance"),
    [
        ("aot_eager", "bf16", 0.01),
        pytest.param("inductor", "fp32", 1e-4, marks=pytest.mark.slow),
        pytest.param("inductor", "bf16", 0.01, marks=pytest.mark.slow),
    ],
)
def test_the_compiled_model_is_the_eager_one(
    corpus_dir, prepared, cuda_branches, backend, precision, tolerance
):
    """Losses are the same up to rounding, and a few graphs serve batches of every shape.

    Sabotage: compile with `dynamic=False`; omit the smoothing in `_losses_and_gradients`.
    """
    pairs, graphs, shapes = train_compiled(corpus_dir, prepared, precision, backend)
    compiled, eager = zip(*pairs, strict=True)
    assert compiled == pytest.approx(eager, rel=tolerance)
    assert shapes >= 12 and 1 <= graphs <= 4


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Gives the program's own messages, without PyTorch's."""
    return [r.getMessage() for r in caplog.records if r.name.startswith("transformer_mt")]


def test_a_failed_compilation_is_one_line(corpus_dir, prepared, caplog):
    """During training the error names the key to change; before, training continues without.

    Sabotage: leave the flag set, so that the loss is compiled.
    """

    def broken(graph, inputs):
        raise RuntimeError("no compiler")

    torch._dynamo.reset()
    engine, batch = build_engine(tiny_config(corpus_dir), prepared), batch_from(prepared, 0)
    engine.compile(broken)
    with pytest.raises(DeviceError, match="(?s)no compiler.*train.compile = false"):
        engine.train_step(1, [batch])
    engine.check_memory([batch], 1)
    assert engine.compile_failed and not engine.compiled
    [message] = messages(caplog)
    assert "no compiler" in message and "continues without it" in message
    assert all(parameter.grad is None for parameter in engine.model.parameters())
    engine.train_step(1, [batch])
    assert numeric_environment(engine, 1)["torch.compile"] == "failed"
    engine.check_memory([batch], 1)
    assert len(messages(caplog)) == 1
