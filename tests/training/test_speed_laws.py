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
from transformer_mt.model.transformer import evaluation_mode
from transformer_mt.text.batching import Batch, cut_micro_batches, plan_epoch
from transformer_mt.text.prepared import PreparedCorpus
from transformer_mt.text.vocabulary import PAD_ID
from transformer_mt.training import engine as engine_module
from transformer_mt.training import loss as loss_module
from transformer_mt.training.compilation import pad_single_sizes
from transformer_mt.training.environment import numeric_environment

# PyTorch's own while it compiles: of its parts, and one that it hides.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor:UserWarning"
)

STEPS = 40


def losses(corpus_dir, prepared: PreparedCorpus) -> list[float]:
    """Trains without dropout; gives the loss per token of each step."""
    sizes = {"model__d_model": 64, "model__d_ff": 128}
    config = tiny_config(corpus_dir, model__dropout=0.0, optim__lr_scale=0.03, **sizes)
    lengths, engine = prepared.pairs.lengths, build_engine(config, prepared)
    per_token: list[float] = []
    while len(per_token) < STEPS:
        for step in plan_epoch(*lengths, config.train.batch_tokens, 1, len(per_token)):
            parts = cut_micro_batches(step, *lengths, 600)
            engine.train_step(len(per_token) + 1, [prepared.pairs.batch(part) for part in parts])
            window = engine.read_window()
            per_token.append(window.per_token(window.loss))
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


@pytest.mark.parametrize(
    ("backend", "precision", "tolerance"),
    [("aot_eager", "bf16", 0.01), pytest.param("inductor", "fp32", 1e-4, marks=pytest.mark.slow)],
)
def test_the_compiled_model_is_the_eager_one(
    corpus_dir, prepared, cuda_branches, backend, precision, tolerance
):
    """Losses are the same up to rounding, and a few graphs serve batches of every shape.

    Sabotage: compile each layer by itself; omit the smoothing in `_losses_and_gradients`.
    """
    config = tiny_config(corpus_dir, model__dropout=0.0, optim__lr_scale=0.03)
    eager, compiled = (build_engine(config, prepared, precision) for _ in range(2))
    counter, shapes = CompileCounterWithBackend(backend), set()
    compiled.compile(counter)
    compiled.compiled = backend == "inductor"
    for number, step in enumerate(plan_epoch(*prepared.pairs.lengths, 200, 1, 0)[:24], 1):
        batch = prepared.pairs.batch(step)
        shapes.add((*batch.src.shape, batch.tgt_in.size(1)))
        for engine in (eager, compiled):
            engine.train_step(number, [batch])
        assert compiled.read_window().loss == pytest.approx(eager.read_window().loss, rel=tolerance)
    assert len(shapes) >= 12 and counter.frame_count == 2


@pytest.mark.parametrize("first", [(7, 7, 7), (1, 1, 1)])
def test_two_graphs_serve_all_layers_and_shapes(
    corpus_dir, prepared, cuda_branches, monkeypatch, first
):
    """Single sentences and pieces too, whatever comes first, and validation needs no others.

    Sabotage: do not pad single sizes; do not mark sizes as dynamic; compile in evaluation.
    """
    eager_loss = loss_module._losses_and_gradients
    monkeypatch.setattr(loss_module, "_compile_losses_and_gradients", lambda: eager_loss)
    layers = {"model__encoder_layers": 3, "model__decoder_layers": 3}
    config = tiny_config(corpus_dir, **layers)
    engine = build_engine(config, prepared, "bf16")
    counter = CompileCounterWithBackend("aot_eager")
    engine.compile(counter)
    special = [(1, 5, 6), (5, 1, 6), (5, 6, 1), (5, 5, 5), (64, 3, 3), (2, 2, 2), (3, 99, 60)]
    ordinary = [(2 + i % 5, 3 + i % 17, 30 - i) for i in range(22)]
    for step, (rows, src_length, tgt_length) in enumerate([first, *special, *ordinary], 1):
        src, tgt = (torch.full((rows, length), 5) for length in (src_length, tgt_length))
        engine.train_step(step, [Batch(src, tgt, tgt, src.numel(), tgt.numel())])
    assert counter.frame_count == 2
    with evaluation_mode(engine.model), torch.no_grad():
        engine.model(src, tgt)
    assert counter.frame_count == 2


def test_padding_of_single_sizes_changes_no_loss(corpus_dir, prepared):
    """Nor the number of tokens. Sabotage: let the copy of a sentence count."""
    engine = build_engine(tiny_config(corpus_dir, model__dropout=0.0), prepared)
    for src, tgt in ([[5, 6]], [[7, 8, 9]]), ([[5]], [[7]]), ([[5], [6]], [[7], [8]]):
        ids, tgt_ids = torch.tensor(src), torch.tensor(tgt)
        batch = Batch(ids, tgt_ids, tgt_ids, ids.numel(), tgt_ids.numel())
        padded = pad_single_sizes(batch)
        assert min(*padded.src.shape, *padded.tgt_out.shape) == 2
        assert (padded.tgt_out != PAD_ID).sum() == padded.tgt_tokens == tgt_ids.numel()
        torch.testing.assert_close(engine._loss(padded), engine._loss(batch))


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
    assert numeric_environment(engine)["torch.compile"] == "failed"
    engine.check_memory([batch], 1)
    assert len(messages(caplog)) == 1
