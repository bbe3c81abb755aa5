"""torch.compile does not change training."""

import sys

import fork_server
import numpy as np
import pytest
import torch
from conftest import tiny_config, write_config
from test_engine import build_engine

from transformer_mt.checkpoints.checkpoint import Progress
from transformer_mt.model import kernels
from transformer_mt.model.transformer import evaluation_mode
from transformer_mt.text.batching import EncodedPairs, flatten
from transformer_mt.training import loss as loss_module
from transformer_mt.training.environment import numeric_environment
from transformer_mt.training.fit import StepFitter
from transformer_mt.training.run import build_trainer

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
    fitters = [StepFitter(build_engine(config, prepared, precision)) for _ in range(2)]
    eager, compiled = (fitter.engine for fitter in fitters)
    counter = CompileCounterWithBackend(backend)
    fitters[1].compile(counter)
    special = [(1, 5, 6), (5, 1, 6), (5, 6, 1), (5, 5, 5), (64, 3, 3), (2, 2, 2), (3, 99, 60)]
    ordinary = [(2 + i % 5, 3 + i % 17, 30 - i) for i in range(0, 22, 3)]
    for step, (rows, *lengths) in enumerate([first, *special, *ordinary]):
        sides = (torch.randint(4, 292, (rows, length - 1)).tolist() for length in lengths)
        pairs, progress = EncodedPairs(*map(flatten, sides)), Progress(step, micro_batch_tokens=999)
        for fitter in fitters:
            fitter.fit_step(progress, pairs, np.arange(rows))
        assert compiled.read_window().loss == pytest.approx(eager.read_window().loss, rel=tolerance)
    assert counter.frame_count == 2
    with evaluation_mode(compiled.model), torch.no_grad():
        compiled.model(torch.tensor([[5, 6]]), torch.tensor([[5, 6, 7]]))
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


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Gives the program's own messages, without PyTorch's."""
    return [r.getMessage() for r in caplog.records if r.name.startswith("transformer_mt")]


@pytest.mark.parametrize("late", [False, True])
def test_a_failed_compilation_is_one_line(corpus_dir, tmp_path, caplog, late):
    """Training goes on without it, be it at the start or for a shape that comes late.

    Sabotage: fall back only at the start; leave the layers compiled.
    """

    def broken(graph, inputs):
        raise RuntimeError("no compiler")

    torch._dynamo.reset()
    trainer = build_trainer(tiny_config(corpus_dir), tmp_path)
    trainer.fitter.compile(broken)
    steps = trainer.start_epoch()
    if not late:
        trainer.fitter.check_memory(trainer.progress, trainer.pairs, steps)
    for _ in range(2):
        trainer.take_step(steps[0])
        [message] = messages(caplog)
    assert message == (
        "torch.compile failed (backend='broken' raised:\nRuntimeError: no compiler): install a C"
        " compiler and Python's headers, or set train.compile = false; this run continues without"
        " it, more slowly"
    )
    assert trainer.progress.step == 2 and not trainer.engine.compiled
    assert numeric_environment(trainer.fitter)["torch.compile"] == "failed"
