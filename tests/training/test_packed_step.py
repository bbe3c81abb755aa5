"""Steps whose pairs are packed, on simulated CUDA, against those of padded batches."""

import sys
import weakref
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import fork_server
import numpy as np
import pytest
import torch
from conftest import equal, losses, tiny_config, weights, write_config
from simulated_cuda import SimulatedCuda

from transformer_mt.checkpoints.checkpoint import Progress
from transformer_mt.checkpoints.run_directory import list_checkpoints
from transformer_mt.config.keys import ModelConfig
from transformer_mt.errors import DeviceError
from transformer_mt.model import kernels
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.processes import Processes
from transformer_mt.text.batching import EncodedPairs, flatten
from transformer_mt.text.packing import pack_capacity, pack_pairs
from transformer_mt.text.vocabulary import PAD_ID
from transformer_mt.training.engine import Engine
from transformer_mt.training.environment import numeric_environment
from transformer_mt.training.fit import StepFitter
from transformer_mt.training.loss import label_smoothed_loss
from transformer_mt.training.packed_step import PackedStep
from transformer_mt.training.run import build_trainer, train

VOCAB, CAPACITY = 40, 256
FEW = {"data__valid": "validation[:3]", "data__train": "train[:600]", "train__batch_tokens": 100}


def made_pairs(count: int, seed: int) -> EncodedPairs:
    """Pairs of 0 to 19 pieces a side."""
    rng = np.random.default_rng(seed)
    lines = [rng.integers(4, VOCAB, rng.integers(0, 20)).tolist() for _ in range(2 * count)]
    return EncodedPairs(flatten(lines[:count]), flatten(lines[count:]))


def build_model(norm: str = "post", dropout: float = 0.0, tied: bool = True) -> Transformer:
    torch.manual_seed(1)
    sizes = {"d_model": 16, "d_ff": 32, "n_heads": 2, "encoder_layers": 2, "decoder_layers": 2}
    config = ModelConfig(**sizes, norm=norm, dropout=dropout, tie_embeddings=tied)
    return Transformer(config, VOCAB, VOCAB, PAD_ID).train()


def padded_gradients(model: Transformer, pairs: EncodedPairs, indices, scale: float):
    batch = pairs.batch(indices)
    logits = model(batch.src, batch.tgt_in)
    loss, nll = label_smoothed_loss(logits, batch.tgt_out, 0.1, PAD_ID)
    gradients = torch.autograd.grad(loss * scale, list(model.parameters()))
    return torch.stack((loss.detach(), nll.detach())), gradients


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("norm", ["post", "pre", "sublayer"])
def test_gradients_are_those_of_padded_batches(norm, tied):
    """Of three packs after one capture, each added to the same tensors."""
    model = build_model(norm, tied=tied)
    packs = [(made_pairs(count, seed=count), np.arange(count)) for count in (1, 9, 12)]
    expected = [padded_gradients(model, *pack, scale=0.5) for pack in packs]
    total = [sum(gradients) for gradients in zip(*(g for _, g in expected), strict=True)]
    with SimulatedCuda():
        step = PackedStep(model.to("cuda"), CAPACITY, 0.1, "fp32")
        for parameter in model.parameters():
            parameter.grad.zero_()
        scale = torch.full((), 0.5, device="cuda")
        for pack, (losses, _) in zip(packs, expected, strict=True):
            packed = step.add_gradients(pack_pairs(*pack, CAPACITY), 1, scale)
            torch.testing.assert_close(packed.cpu(), losses, rtol=1e-5, atol=1e-5)
        for parameter, gradient in zip(model.parameters(), total, strict=True):
            torch.testing.assert_close(parameter.grad.cpu(), gradient, rtol=1e-4, atol=1e-5)


def test_dropout_is_a_function_of_the_seed():
    pack = pack_pairs(made_pairs(9, seed=1), np.arange(9), CAPACITY)
    with SimulatedCuda():
        step = PackedStep(build_model(dropout=0.3).to("cuda"), CAPACITY, 0.1, "fp32")
        scale = torch.ones((), device="cuda")
        losses = [step.add_gradients(pack, seed, scale)[0].item() for seed in (7, 8, 7)]
    assert losses[0] == losses[2] != losses[1]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_replay_waits_for_nothing_and_moves_no_gradient(precision):
    pack = pack_pairs(made_pairs(9, seed=1), np.arange(9), CAPACITY)
    with SimulatedCuda() as cuda:
        model = build_model().to("cuda")
        step = PackedStep(model, CAPACITY, 0.1, precision)
        addresses = [parameter.grad.data_ptr() for parameter in model.parameters()]
        scale = torch.ones((), device="cuda")
        with cuda.counted() as waits:
            losses = step.add_gradients(pack, 1, scale)
        assert not waits
        assert [parameter.grad.data_ptr() for parameter in model.parameters()] == addresses
        assert losses.isfinite().all() and losses[0] > 0


def packed_config(corpus_dir, **changes):
    values = {"model__n_heads": 1, "train__device": "cuda", "train__compile": True}
    return tiny_config(corpus_dir, **{**values, **FEW, **changes})


@pytest.mark.usefixtures("untranslated")
def test_a_resumed_run_is_bit_equal(corpus_dir, tmp_path):
    """With dropout. Sabotage: seed packs by their number alone; leave warm-up gradients."""
    recipe = {"model__dropout": 0.3, "train__ema_decay": 0.9}
    for name, ends in (("whole", (3,)), ("parts", (2, 3))):
        for steps in ends:
            with SimulatedCuda():
                train(packed_config(corpus_dir, train__max_steps=steps, **recipe), tmp_path / name)
    whole, parts = (weights(list_checkpoints(tmp_path / name)[0]) for name in ("whole", "parts"))
    assert equal(whole, parts)


@pytest.mark.usefixtures("untranslated")
def test_several_packs_are_one_step(corpus_dir, tmp_path):
    """Where memory does not hold it at once: the same losses, of packs of one smaller capacity."""
    for name, limit in (("one", "auto"), ("several", 200)):
        recipe = {"train__micro_batch_tokens": limit, "model__dropout": 0.0}
        recipe |= {"train__batch_tokens": 600, "train__max_steps": 2}
        with SimulatedCuda():
            train(packed_config(corpus_dir, **recipe), tmp_path / name)
        log = (tmp_path / name / "train.log").read_text()
        assert f"packs of {768 if name == 'one' else 128} tokens a side" in log
    assert losses(tmp_path / "several") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)


@pytest.mark.usefixtures("untranslated")
def test_smaller_packs_if_memory_runs_out(corpus_dir, tmp_path, monkeypatch, caplog):
    """At the start; a run in which not even the smallest packs fit ends."""
    largest, real = [200], PackedStep.__init__

    def init(step, model, capacity, *arguments):
        if capacity > largest[0]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        real(step, model, capacity, *arguments)

    monkeypatch.setattr(PackedStep, "__init__", init)
    config = packed_config(corpus_dir, train__batch_tokens=600, train__max_steps=1)
    with SimulatedCuda():
        progress = train(config, tmp_path / "run")
        assert "out of memory on cuda; now packs of 128 tokens a side" in caplog.messages
        assert progress.finer_step == 0
        largest[0] = 0
        with pytest.raises(DeviceError, match="out of memory on cuda with a single pair: to train"):
            train(config, tmp_path / "other")


def test_the_sum_over_processes_is_tried_beside_the_packs(corpus_dir, tmp_path, monkeypatch):
    """Or its buffer would not fit at the first step. Sabotage: try the packs alone."""
    cat = torch.cat

    def fail_beside_large_packs(tensors, *arguments):
        packed = trainer.engine.packed
        if packed and packed.capacity > 128 and sum(map(torch.numel, tensors)) >= parameters:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return cat(tensors, *arguments)

    with SimulatedCuda():
        config = packed_config(corpus_dir, train__batch_tokens=600)
        trainer = build_trainer(config, tmp_path, processes=Pair(world_size=2))
        parameters = sum(p.numel() for p in trainer.engine.model.parameters())
        monkeypatch.setattr(torch, "cat", fail_beside_large_packs)
        steps = trainer.start_epoch()
        progress = trainer.fitter.check_memory(trainer.progress, trainer.pairs, steps)
        assert trainer.engine.packed.capacity == 128
        assert progress.micro_batch_tokens < trainer.progress.micro_batch_tokens


def test_the_moments_are_in_memory_when_packs_are_captured(corpus_dir, tmp_path, monkeypatch):
    """Or memory would run out after its trial. Sabotage: capture before the optimizer's step."""
    real, moments = PackedStep.__init__, []

    def init(step, model, *arguments):
        moments.append(len(trainer.engine.optimizer.state) == len(list(model.parameters())))
        real(step, model, *arguments)

    monkeypatch.setattr(PackedStep, "__init__", init)
    with SimulatedCuda():
        trainer = build_trainer(packed_config(corpus_dir), tmp_path)
        trainer.fitter.check_memory(trainer.progress, trainer.pairs, trainer.start_epoch())
    assert moments == [True]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("limit", [1, 100, 128, 129, 200, 256, 511, 512, 10_000])
def test_packs_are_as_few_as_the_limit_allows(corpus_dir, limit, workers):
    config = packed_config(corpus_dir, train__batch_tokens=1000)
    with SimulatedCuda():
        engine = Engine(config, VOCAB, VOCAB, torch.device("cuda"), "fp32")
        fitter = StepFitter(engine)
    fitter.workers, longest = workers, config.data.max_length + 1
    capacity = fitter._pack_capacity(Progress(micro_batch_tokens=limit))
    shares = [-(-1000 // packs) for packs in range(workers, 1000 + workers, workers)]
    capacities = [pack_capacity(share, longest) for share in shares]
    assert capacity == next((each for each in capacities if each <= limit), capacities[-1])
    progress, none = Progress(micro_batch_tokens=limit), np.arange(0)
    assert fitter.count_positions(progress, made_pairs(1, seed=1), none) == 2 * capacity


def test_a_failed_compilation_is_one_line(corpus_dir, tmp_path, monkeypatch, caplog):
    """Training goes on with padded batches; the next start tries again."""
    error = RuntimeError("backend='inductor' raised:\nno compiler\n\nadvice")
    monkeypatch.setattr(PackedStep, "_capture", Mock(side_effect=error))
    config = packed_config(corpus_dir, train__max_steps=2)
    with SimulatedCuda():
        trainer = build_trainer(config, tmp_path)
        steps = trainer.start_epoch()
        trainer.progress = trainer.fitter.check_memory(trainer.progress, trainer.pairs, steps)
        trainer.take_step(steps[0])
        recorded = numeric_environment(trainer.fitter)["torch.compile"]
    assert [each for each in caplog.messages if "compile" in each] == [
        "torch.compile failed (backend='inductor' raised: no compiler): install a C compiler and"
        " Python's headers if they are missing, or set train.compile = false; training continues"
        " without it, more slowly"
    ]
    assert recorded == "off" and not trainer.fitter.packs and not trainer.engine.packed


@pytest.mark.parametrize("changes", [{"attention_dropout": 0.1}, {"n_heads": 2}])
def test_what_has_no_kernel_for_packs_is_padded(corpus_dir, changes):
    """Dropout of attention weights, and heads narrower than 16."""
    config = packed_config(corpus_dir, **{f"model__{key}": n for key, n in changes.items()})
    with SimulatedCuda():
        engine = Engine(config, VOCAB, VOCAB, torch.device("cuda"), "fp32")
        assert not StepFitter(engine).packs


def test_packs_are_cut_anew_when_a_padded_run_goes_on(corpus_dir, tmp_path, monkeypatch):
    """With the bound that is found for packs. Sabotage: CUT_BY without torch.compile."""
    monkeypatch.setattr(StepFitter, "find_micro_batch_tokens", lambda fitter: 64 + fitter.packs)
    with SimulatedCuda():
        train(packed_config(corpus_dir, train__compile=False, train__max_steps=1), tmp_path)
        for compiled, bound in ((False, 64), (True, 65)):
            trainer = build_trainer(packed_config(corpus_dir, train__compile=compiled), tmp_path)
            assert trainer.progress.micro_batch_tokens == bound


class Pair(Processes):
    """Two processes in one: what is summed is doubled."""

    def sum(self, tensor: torch.Tensor) -> None:
        tensor *= 2


def test_gradients_keep_their_addresses(corpus_dir, prepared):
    """Through sums over processes, clipping and the step. Sabotage: replace what they hold."""
    config = packed_config(corpus_dir, optim__muon=True)
    sizes = prepared.vocab.src.size, prepared.vocab.tgt.size
    with SimulatedCuda():
        engine = Engine(config, *sizes, torch.device("cuda"), "fp32", Pair(world_size=2))
        fitter, progress = StepFitter(engine), Progress(micro_batch_tokens=10_000)
        progress = fitter.fit_step(progress, prepared.pairs, np.arange(8))
        addresses = [parameter.grad.data_ptr() for parameter in engine.model.parameters()]
        assert not any(parameter.grad.any().item() for parameter in engine.model.parameters())
        fitter.fit_step(progress, prepared.pairs, np.arange(8))
        assert [p.grad.data_ptr() for p in engine.model.parameters()] == addresses


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_one_graph_serves_all_packs(monkeypatch, backend):
    """It has no breaks, and its losses and gradients are those of padded batches.

    On a CPU PyTorch applies the masks, but not their lists of blocks. Sabotage: a block mask with
    `compute_q_blocks=False`.
    """
    from torch._dynamo.testing import CompileCounterWithBackend  # takes seconds
    from torch.nn.attention import flex_attention

    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(PackedStep, "_capture", lambda step: None)
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)  # no gradients
    model = build_model("pre")
    step = PackedStep(model, CAPACITY, 0.1, "fp32")
    compiled = torch.compile(step._sum_losses, backend=counter, dynamic=False, fullgraph=True)
    # A sentence over two blocks, one that ends with its block, one without pieces.
    odd = [[5] * 126], [[5] * 250], [[5] * 127, [], [6] * 5], [[], [5] * 127, [6] * 5]
    texts = [EncodedPairs(flatten(src), flatten(tgt)) for src, tgt in (odd[:2], odd[2:])]
    for pairs in (*texts, *(made_pairs(count, seed=count) for count in (5, 12))):
        indices = np.arange(pairs.lengths.shape[1])
        expected, expected_gradients = padded_gradients(model, pairs, indices, scale=1.0)
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "_on_cpu", lambda x: False)
            losses = compiled(*pack_pairs(pairs, indices, CAPACITY).tensors)
            gradients = torch.autograd.grad(losses[0], list(model.parameters()))
        torch.testing.assert_close(torch.stack(losses), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(gradients, expected_gradients, rtol=1e-4, atol=1e-4)
    assert counter.frame_count == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_process_may_compile_any_number_of_steps(monkeypatch):
    """Each is freed. Sabotage: no reset; keep what is compiled; capture outside the stream."""
    torch._dynamo.reset()
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **kw: compile_(f, backend="eager", **kw))
    side, current = (SimpleNamespace(wait_stream=lambda other: None) for _ in range(2))
    streams = [current]

    @contextmanager
    def use(stream):
        streams.append(stream)
        yield
        streams.pop()

    def capture(graph, stream, **options):
        assert streams[-1] is stream
        return nullcontext()

    replacements = {"Stream": lambda: side, "stream": use, "graph": capture, "CUDAGraph": object}
    for name, value in {**replacements, "current_stream": lambda: current}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(PackedStep, "_run", lambda step, compiled: compiled(*step._inputs))
    monkeypatch.setattr(kernels, "_on_cpu", lambda x: False)
    model = build_model()
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=1):
        for capacity in (128, 256, 384):
            step = weakref.ref(PackedStep(model, capacity, 0.1, "fp32"))
            assert step() is None


def test_a_cpu_trains_without_importing_a_compiler(corpus_dir, tmp_path):
    """Since that takes seconds. Sabotage: build PyTorch's own Adam; import flex_attention."""
    config, script = write_config(tmp_path, corpus_dir, train__max_steps=2), tmp_path / "script.py"
    script.write_text(
        "import sys; from transformer_mt.cli.program import main; main()\n"
        "print('torch.optim' in sys.modules, 'torch._dynamo' in sys.modules)\n"
    )
    done = fork_server.run([sys.executable, script, "train", config, "--run", tmp_path / "run"])
    assert (done.returncode, done.stdout) == (0, b"True False\n")
