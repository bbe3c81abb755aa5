"""torch.compile does not change training."""

import sys

import fork_server
import pytest
import torch
from conftest import tiny_config, write_config
from test_engine import batch_from, build_engine

from transformer_mt.errors import DeviceError
from transformer_mt.model import kernels
from transformer_mt.model.transformer import evaluation_mode
from transformer_mt.text.batching import Batch
from transformer_mt.text.vocabulary import PAD_ID
from transformer_mt.training import loss as loss_module
from transformer_mt.training.compilation import pad_single_sizes
from transformer_mt.training.environment import numeric_environment

# PyTorch's own while it compiles: of its parts, and one that it hides.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor:UserWarning"
)


@pytest.fixture
def cuda_branches(monkeypatch):
    """Makes the kernels take the branches on a CPU that they take on CUDA."""
    monkeypatch.setattr(kernels, "_on_cpu", lambda x: False)
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("backend", "precision", "tolerance", "first"),
    [
        ("aot_eager", "bf16", 0.01, (1, 1, 1)),
        pytest.param("inductor", "fp32", 1e-4, (7, 7, 7), marks=pytest.mark.slow),
    ],
)
def test_two_graphs_compute_what_all_layers_compute(
    corpus_dir, prepared, cuda_branches, monkeypatch, backend, precision, tolerance, first
):
    """For every shape, with one row and one token first; validation needs no others."""
    from torch._dynamo.testing import CompileCounterWithBackend  # takes seconds

    if backend != "inductor":
        eager_loss = loss_module._losses_and_gradients
        monkeypatch.setattr(loss_module, "_compile_losses_and_gradients", lambda: eager_loss)
    layers = {"model__encoder_layers": 3, "model__decoder_layers": 3, "model__dropout": 0.0}
    config = tiny_config(corpus_dir, optim__lr_scale=0.03, **layers)
    eager, compiled = (build_engine(config, prepared, precision) for _ in range(2))
    counter = CompileCounterWithBackend(backend)
    compiled.compile(counter)
    special = [(1, 5, 6), (5, 1, 6), (5, 6, 1), (5, 5, 5), (64, 3, 3), (2, 2, 2), (3, 99, 60)]
    ordinary = [(2 + i % 5, 3 + i % 17, 30 - i) for i in range(0, 22, 3)]
    for step, (rows, src_length, tgt_length) in enumerate([first, *special, *ordinary], 1):
        src, tgt = (torch.randint(4, 292, (rows, length)) for length in (src_length, tgt_length))
        for engine in (eager, compiled):
            engine.train_step(step, [Batch(src, tgt, tgt, src.numel(), tgt.numel())])
        assert compiled.read_window().loss == pytest.approx(eager.read_window().loss, rel=tolerance)
    assert counter.frame_count == 2
    with evaluation_mode(compiled.model), torch.no_grad():
        compiled.model(src, tgt)
    assert counter.frame_count == 2


def test_a_cpu_trains_without_importing_it(corpus_dir, tmp_path):
    """Since that takes seconds. Sabotage: build PyTorch's own Adam."""
    config = write_config(tmp_path, corpus_dir, train__max_steps=2)
    script = tmp_path / "script.py"
    script.write_text(
        "import sys; from transformer_mt.cli.program import main; main()\n"
        "print('torch.optim' in sys.modules, 'torch._dynamo' in sys.modules)\n"
    )
    done = fork_server.run([sys.executable, script, "train", config, "--run", tmp_path / "run"])
    assert (done.returncode, done.stdout) == (0, b"True False\n")


def test_padding_of_single_sizes_changes_no_loss(corpus_dir, prepared):
    """Nor the number of tokens."""
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


def test_a_failed_compilation_is_one_line(corpus_dir, prepared, caplog, monkeypatch):
    """During training the error names the key to change; before, training continues without."""

    def broken(graph, inputs):
        raise RuntimeError("no compiler")

    torch._dynamo.reset()
    engine, batch = build_engine(tiny_config(corpus_dir), prepared), batch_from(prepared, 0)
    engine.compile(broken)
    with pytest.raises(DeviceError, match="(?s)no compiler.*train.compile = false"):
        engine.train_step(1, [batch])
    tried = []
    loss = engine._loss
    monkeypatch.setattr(engine, "_loss", lambda batch: tried.append(batch) or loss(batch))
    engine.check_memory([batch], 1)
    assert engine.compile_failed and not engine.compiled and len(tried) == 2
    [message] = messages(caplog)
    assert message == (
        "torch.compile failed (backend='broken' raised:\nRuntimeError: no compiler): install a C"
        " compiler and Python's headers, or set train.compile = false; this run continues without"
        " it, more slowly"
    )
    assert all(parameter.grad is None for parameter in engine.model.parameters())
    engine.train_step(1, [batch])
    assert numeric_environment(engine)["torch.compile"] == "failed"
    engine.check_memory([batch], 1)
    assert len(messages(caplog)) == 1
