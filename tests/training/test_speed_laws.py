"""What is done for speed changes no training: 200 steps of it beside the plain path."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import tiny_config
from torch._dynamo.testing import CompileCounterWithBackend

from transformer_mt.errors import DeviceError
from transformer_mt.model import attention
from transformer_mt.model import cpu_kernels as linear
from transformer_mt.system.device import supports
from transformer_mt.text.batching import cut_micro_batches, plan_epoch
from transformer_mt.text.prepared import PreparedCorpus, prepare
from transformer_mt.training import engine
from transformer_mt.training.engine import Engine, compile_hidden
from transformer_mt.training.loss import smoothed_loss

STEPS = 200


@pytest.fixture(scope="module")
def prepared(corpus_dir) -> PreparedCorpus:
    return prepare(tiny_config(corpus_dir))


def losses(corpus_dir, prepared: PreparedCorpus, precision: str) -> list[float]:
    """Trains without dropout; gives the loss a token of each step."""
    config = tiny_config(corpus_dir, model__dropout=0.0, optim__lr_scale=0.03)
    lengths, vocab = prepared.pairs.lengths, prepared.vocab
    device = torch.device("cpu")
    learning = Engine(config, vocab.src_size, vocab.tgt_size, device, precision)
    found: list[float] = []
    while len(found) < STEPS:
        for step in plan_epoch(*lengths, config.train.batch_tokens, 1, len(found)):
            parts = cut_micro_batches(step, *lengths, config.train.micro_batch_tokens)
            learning.train_step(len(found) + 1, [prepared.pairs.batch(part) for part in parts])
            found.append(learning.read_window().loss / learning.window.tokens)
            learning.new_window()
    return found[:STEPS]


def test_the_fast_path_is_the_plain_one(corpus_dir, prepared, monkeypatch):
    """In fp32 within 1e-4 of PyTorch's product and loss at every step.

    Sabotage: spread the smoothing over V - 1; leave the bias's gradient out.
    """
    fast = losses(corpus_dir, prepared, "fp32")
    monkeypatch.setattr(linear, "_ONEDNN", False)
    monkeypatch.setattr(
        engine,
        "projected_loss",
        lambda hidden, matrix, *rest: smoothed_loss(F.linear(hidden, matrix), *rest[:3]),
    )
    plain = losses(corpus_dir, prepared, "fp32")
    assert plain[-1] < 0.8 * plain[0]
    assert fast == pytest.approx(plain, rel=1e-4)


@pytest.mark.skipif(not supports("bf16", torch.device("cpu")), reason="no bf16 on this CPU")
def test_bf16_stays_within_a_hundredth(corpus_dir, prepared):
    """Of the loss of fp32, at every step."""
    wide, narrow = (losses(corpus_dir, prepared, name) for name in ("fp32", "bf16"))
    assert narrow != wide
    assert narrow == pytest.approx(wide, rel=0.01)


@pytest.fixture
def cudas_path(monkeypatch):
    """Lets the CPU take the branches that CUDA takes."""
    monkeypatch.setattr(linear, "_ONEDNN", False)
    monkeypatch.setattr(attention, "FEW_QUERIES", 0)
    monkeypatch.setattr(linear, "_noise", lambda x, p: F.dropout(torch.ones_like(x), p))
    torch._dynamo.reset()


def train_compiled(corpus_dir, prepared: PreparedCorpus, rate: float, precision: str, backend: str):
    """Trains eagerly and compiled beside each other; gives losses, graphs and shapes."""
    config = tiny_config(corpus_dir, model__dropout=rate, optim__lr_scale=0.03)
    sizes = prepared.vocab.src_size, prepared.vocab.tgt_size
    eager, compiled = (Engine(config, *sizes, torch.device("cpu"), precision) for _ in range(2))
    counter, shapes, found = CompileCounterWithBackend(backend), set(), []
    compiled._hidden = compile_hidden(compiled.model, config.data.max_length + 1, counter)
    compiled.fused = backend == "inductor"
    for number, step in enumerate(plan_epoch(*prepared.pairs.lengths, 200, 1, 0)[:60], 1):
        batch = prepared.pairs.batch(step)
        shapes.add((*batch.src.shape, batch.tgt_in.size(1)))
        for learning in (eager, compiled):
            learning.train_step(number, [batch])
        found.append((compiled.read_window().loss, eager.read_window().loss))
    return found, counter.frame_count, len(shapes)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, of its parts
@pytest.mark.parametrize(
    ("backend", "precision", "tolerance"),
    [
        ("aot_eager", "fp32", 1e-4),
        pytest.param("inductor", "fp32", 1e-4, marks=pytest.mark.slow),
        pytest.param("inductor", "bf16", 0.01, marks=pytest.mark.slow),
    ],
)
def test_compiled_it_is_the_eager_model(
    corpus_dir, prepared, cudas_path, backend, precision, tolerance
):
    """It trains alike, and a few graphs serve batches of every shape.

    Sabotage: compile with `dynamic=False`; leave the smoothing out of `_gradients`' nats.
    """
    found, graphs, shapes = train_compiled(corpus_dir, prepared, 0.0, precision, backend)
    ours, theirs = zip(*found, strict=True)
    assert ours == pytest.approx(theirs, rel=tolerance)
    assert shapes >= 20 and 1 <= graphs <= 4


def test_dropout_and_bf16_need_no_more_graphs(corpus_dir, prepared, cudas_path):
    """Sabotage: a branch on a size in the model."""
    found, graphs, shapes = train_compiled(corpus_dir, prepared, 0.1, "bf16", "aot_eager")
    assert found[-1][0] > 0 and shapes >= 20 and 1 <= graphs <= 4


def test_what_cannot_be_compiled_is_a_line(corpus_dir, prepared):
    """It names the key, and is no traceback."""

    def broken(graph, inputs):
        raise RuntimeError("no compiler")

    torch._dynamo.reset()
    sizes = prepared.vocab.src_size, prepared.vocab.tgt_size
    learning = Engine(tiny_config(corpus_dir), *sizes, torch.device("cpu"), "fp32")
    learning.fused, learning._hidden = True, compile_hidden(learning.model, 61, broken)
    with pytest.raises(DeviceError, match="(?s)no compiler.*train.compile = false"):
        learning.train_step(1, [prepared.pairs.batch(np.arange(3))])
