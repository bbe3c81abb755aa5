"""The state of the training engine: saved, loaded, and continued bit-equal."""

import itertools
import os
from types import SimpleNamespace

import pytest
import torch
from conftest import refuses, tiny_config
from simulated_cuda import SimulatedCuda
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import transformer_mt
from transformer_mt.checkpoints.checkpoint import RunState, load_checkpoint, save_checkpoint
from transformer_mt.config.keys import Config
from transformer_mt.errors import CheckpointError
from transformer_mt.model import kernels
from transformer_mt.system.processes import Processes
from transformer_mt.text.batching import Batch, TokenCounts
from transformer_mt.text.prepared import PreparedCorpus
from transformer_mt.text.vocabulary import PAD_ID
from transformer_mt.training import engine as engine_module
from transformer_mt.training import environment, flops
from transformer_mt.training.engine import Engine, LogWindow, dropout_seed
from transformer_mt.training.environment import numeric_environment
from transformer_mt.training.fit import StepFitter
from transformer_mt.training.flops import flops_per_token, measure_peak_flops
from transformer_mt.training.loss import label_smoothed_loss
from transformer_mt.training.optimizer import ExponentialMovingAverage, noam_rate
from transformer_mt.training.saving import tensor_files
from transformer_mt.training.starting_state import restore_engine


def build_engine(config: Config, prepared: PreparedCorpus, precision: str = "fp32") -> Engine:
    sizes = prepared.vocab.src.size, prepared.vocab.tgt.size
    return Engine(config, *sizes, torch.device("cpu"), precision)


def batch_from(prepared: PreparedCorpus, first: int) -> Batch:
    return prepared.pairs.batch(torch.arange(first, first + 8).numpy())


def save(path, engine: Engine, prepared: PreparedCorpus) -> None:
    """Saves the state of an engine as a run does."""
    state = engine.state_dict()
    run_state = RunState(counters=state["counters"])
    save_checkpoint(path, tensor_files(state), run_state, engine.config, prepared.vocab)


def equal_weights(engine, other) -> bool:
    """Compares the weights of two engines or moving averages."""
    return all(map(torch.equal, engine.model.parameters(), other.model.parameters()))


def test_what_a_run_is_computed_with(corpus_dir, prepared, monkeypatch):
    """Weights of the seed; packs on CUDA."""
    config = tiny_config(corpus_dir, train__compile=True, model__n_heads=1)
    torch.set_num_threads(2)  # but a GPU is one worker
    engine, other = (build_engine(tiny_config(corpus_dir, train__seed=n), prepared) for n in (1, 2))
    assert not equal_weights(engine, other)
    monkeypatch.setattr(environment, "cpu_bf16_instructions", lambda: ["AMX"])
    monkeypatch.setattr(environment, "cpu_maker", lambda: "maker")
    recorded = numeric_environment(StepFitter(engine))
    assert recorded["program version"] == transformer_mt.__version__
    assert recorded["CPU features"] == f"{torch.backends.cpu.get_cpu_capability()}, AMX"
    assert (recorded["CPU maker"], recorded["torch.compile"]) == ("maker", "off")
    with SimulatedCuda():
        fitter = StepFitter(Engine(config, 20, 20, torch.device("cuda"), "fp32"))
        recorded = numeric_environment(fitter)
    assert fitter.packs and fitter.workers == 1
    assert (recorded["device"], recorded["torch.compile"]) == ("simulated", "on")


def test_variables_that_choose_kernels_are_recorded(corpus_dir, prepared, monkeypatch):
    """An empty one is not set; what only logs, caches or counts threads is left out."""
    for name in filter(environment._VARIABLES.fullmatch, list(os.environ)):
        monkeypatch.delenv(name)
    fitter = StepFitter(build_engine(tiny_config(corpus_dir), prepared))
    chosen = """MKL_CBWR MKL_ENABLE_INSTRUCTIONS MKL_DEBUG_CPU_TYPE ONEDNN_MAX_CPU_ISA
        DNNL_MAX_CPU_ISA ONEDNN_CPU_ISA_HINTS ONEDNN_DEFAULT_FPMATH_MODE DNNL_DEFAULT_FPMATH_MODE
        OPENBLAS_CORETYPE NPY_DISABLE_CPU_FEATURES CUBLAS_WORKSPACE_CONFIG NVIDIA_TF32_OVERRIDE
        TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_BLAS_PREFER_CUBLASLT GLIBC_TUNABLES
        TORCHDYNAMO_DISABLE""".split()
    others = """MKL_VERBOSE ONEDNN_VERBOSE ONEDNN_PRIMITIVE_CACHE_CAPACITY OMP_NUM_THREADS
        MKL_NUM_THREADS CUDNN_HOME NVIDIA_VISIBLE_DEVICES TORCH_CPP_LOG_LEVEL""".split()

    def recorded(**variables: str) -> str:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            return numeric_environment(fitter)["environment variables"]

    assert recorded() == "none"
    for name in chosen:
        assert recorded(**{name: "1"}) == f"{name}=1" and recorded(**{name: ""}) == "none"
    assert recorded(**dict.fromkeys(others, "1")) == "none"
    both = recorded(ONEDNN_MAX_CPU_ISA="AVX2", MKL_CBWR="AVX2")
    assert both == "MKL_CBWR=AVX2, ONEDNN_MAX_CPU_ISA=AVX2"


def test_each_precision_is_used(corpus_dir, prepared):
    """Muon uses bf16 in bf16 alone. Sabotage: always."""
    config, sums = tiny_config(corpus_dir, model__dropout=0.0, optim__muon=True), []
    dtypes = []
    for precision in ("fp32", "bf16", "fp16"):
        engine = build_engine(config, prepared, precision)
        engine.train_step(1, [batch_from(prepared, 0)])
        sums.append(engine.read_window().loss)
        dtypes.append(engine.optimizer._dtype)
    assert len(set(sums)) == 3 and sums == pytest.approx([sums[0]] * 3, rel=0.01)
    assert dtypes == [torch.float32, torch.bfloat16, torch.float32]


class Products(TorchDispatchMode):
    """Collects the types in which products of batches are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.bmm.default:
            self.dtypes.add(args[0].dtype)
        return func(*args, **(kwargs or {}))


def test_gradients_of_attention_are_computed_in_float32(corpus_dir, prepared):
    """Sabotage: compute the gradients within autocast."""
    config = tiny_config(corpus_dir, model__attention_dropout=0.1)
    engine = build_engine(config, prepared, "bf16")
    with Products() as products:
        engine.add_gradients(1, [batch_from(prepared, 0)], 1)
    assert products.dtypes == {torch.float32}


def test_a_scaler_that_finds_its_scale_skips_no_step(corpus_dir, prepared, monkeypatch):
    """A loss of NaN always counts. Sabotage: count every step that the scaler skips."""
    config, batch = tiny_config(corpus_dir), batch_from(prepared, 0)
    # The last scale is 1 after the step.
    for precision, scale, counted in (("bf16", None, 1), ("fp16", 4.0, 0), ("fp16", 2.0, 1)):
        engine = build_engine(config, prepared, precision)
        if scale:
            engine.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        hook = engine.model.decoder[0].feed_forward.inner.bias.register_hook(
            lambda gradient: torch.full_like(gradient, float("inf"))
        )
        engine.train_step(1, [batch])
        assert (int(engine.skipped_steps), int(engine.nonfinite_in_row)) == (counted, counted)
    hook.remove()
    engine.scaler.update(1024.0)
    nan = float("nan")
    monkeypatch.setattr(engine_module, "projected_loss", lambda x, *_: (x.sum() * nan, x.sum()))
    engine.train_step(2, [batch])
    assert int(engine.nonfinite_in_row) == 2


@pytest.mark.parametrize("muon", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_threads_change_no_bit(corpus_dir, prepared, precision, muon):
    """With a micro-batch for each, whichever ends first, dropout included."""
    changes = {"model__dropout": 0.3, "model__attention_dropout": 0.1, "optim__muon": muon}
    config, engines = tiny_config(corpus_dir, **changes), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        engines.append(engine := build_engine(config, prepared, precision))
        for step in (1, 2, 3):
            engine.train_step(step, [batch_from(prepared, 8 * part) for part in range(3)])
        assert torch.get_num_threads() == threads
    assert equal_weights(engines[0], engines[1]) and equal_weights(engines[0], engines[2])


def test_dropout_is_seeded_by_seed_step_and_number_of_a_micro_batch(corpus_dir, prepared):
    """By nothing that was drawn before."""
    config = tiny_config(corpus_dir, model__dropout=0.5)
    engine = build_engine(config, prepared)

    def loss(number: int, step: int = 2) -> float:
        of_others = [TokenCounts(9, 9)] * number  # of other processes
        return float(engine.add_gradients(step, [*of_others, batch_from(prepared, 0)], 100)[0])

    first, second = loss(0), loss(1)
    assert first != second
    torch.rand(3)
    assert (loss(0), loss(1)) == (first, second) and loss(0, step=3) != first
    engine.config = tiny_config(corpus_dir, model__dropout=0.5, train__seed=2)
    assert loss(0) != first


def test_a_process_without_a_micro_batch(corpus_dir, prepared):
    """Of a step of fewer pairs. Sabotage: sum only the gradients that there are."""
    engine = build_engine(tiny_config(corpus_dir), prepared)
    engine.processes = Processes(rank=1, world_size=2)
    engine.train_step(1, [TokenCounts(9, 9)])
    assert engine.grad_norm == 0 and engine.read_window().tokens == 9


def test_the_masks_of_a_micro_batch_depend_on_its_number_alone():
    """Pinned, since a run resumed by another version would draw others."""
    assert dropout_seed(1, 1, 0) == 77803131892610477
    seeds = {dropout_seed(*arguments) for arguments in itertools.product(range(20), repeat=3)}
    assert len({seed % 2**32 for seed in seeds}) == 20**3


def test_the_gradient_is_per_token_of_the_step(corpus_dir, prepared, monkeypatch):
    """It is that of plain PyTorch; clipped, it is Adam's first moment times a constant."""
    changes = {"label_smoothing": 0.3, "lr_scale": 2.5, "warmup_steps": 50, "max_grad_norm": 0.25}
    changes = {f"optim__{key}": value for key, value in changes.items()}
    config = tiny_config(corpus_dir, model__dropout=0.0, **changes)
    engine, other = build_engine(config, prepared), build_engine(config, prepared)
    batches = [batch_from(prepared, 0), batch_from(prepared, 8)]
    monkeypatch.setattr(kernels, "has_fast_mkl", lambda: False)  # oneDNN, on Intel's CPUs too
    engine.train_step(1, batches)
    monkeypatch.setattr(kernels, "has_onednn_linear", lambda: False)
    outputs = [(other.model(batch.src, batch.tgt_in), batch.tgt_out) for batch in batches]
    loss = sum(label_smoothed_loss(*each, 0.3, PAD_ID)[0] for each in outputs)
    nll = sum(label_smoothed_loss(*each, 0.0, PAD_ID)[0] for each in outputs)
    tokens, src_tokens = (sum(getattr(b, f"{s}_tokens") for b in batches) for s in ("tgt", "src"))
    (loss / tokens).backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in other.model.parameters()])
    factor = 0.25 / norm * (1 - config.optim.betas[0])
    for name, parameter in other.model.named_parameters():
        moment = engine.state_dict()["optimizer"][f"exp_avg.{name}"]
        torch.testing.assert_close(moment, factor * parameter.grad, rtol=1e-3, atol=1e-6)
    assert norm > 0.3 and engine.grad_norm.item() == pytest.approx(norm.item(), rel=1e-4)
    assert engine.lr == noam_rate(1, 16, 50, 2.5)
    window = engine.read_window()
    assert window.loss == pytest.approx(loss.item(), rel=1e-5)
    assert window.nll == pytest.approx(nll.item(), rel=1e-5)
    per_src, per_tgt = flops_per_token(config.model, prepared.vocab.tgt.size)
    assert (window.tokens, window.flops) == (tokens, src_tokens * per_src + tokens * per_tgt)


@pytest.mark.parametrize(("precision", "muon"), [("fp16", True), ("fp16", False), ("bf16", False)])
def test_a_restored_engine_continues_bit_equal(corpus_dir, prepared, tmp_path, precision, muon):
    """Weights, moments, moving average, loss scale and counters; wrong ones are named."""
    changes = {"train__ema_decay": 0.9, "train__precision": precision, "optim__eps": 0.01}
    config = tiny_config(corpus_dir, **changes, optim__muon=muon)
    engine = build_engine(config, prepared, precision)
    assert engine.optimizer.defaults["eps"] == 0.01
    average = ExponentialMovingAverage(engine.model, 0.9)
    for step in (1, 2, 3):
        engine.train_step(step, [batch_from(prepared, 8 * step)])
        average.update(step)
    assert all(map(torch.equal, engine.ema.model.parameters(), average.model.parameters()))
    engine.scaler.update(1024.0)
    engine.skipped_steps.fill_(5)
    engine.nonfinite_in_row.fill_(2)
    window = LogWindow(loss=3.5, nll=2.5, tokens=7, flops=11.0)
    engine.start_window(window)
    save(tmp_path / "saved", engine, prepared)
    restored = build_engine(config, prepared, precision)
    restore_engine(restored, load_checkpoint(tmp_path / "saved"))
    assert restored.scaler.get_scale() == (1024.0 if precision == "fp16" else 1.0)
    assert (int(restored.skipped_steps), int(restored.nonfinite_in_row)) == (5, 2)
    assert restored.read_window() == window
    for each in (engine, restored):
        each.train_step(4, [batch_from(prepared, 40)])
    assert equal_weights(engine, restored)
    assert equal_weights(engine.ema, restored.ema)
    checkpoint = load_checkpoint(tmp_path / "saved")
    checkpoint.state.counters["window"] = [None]
    with pytest.raises(CheckpointError, match=r"saved/state\.json: counters: [^\n]*$"):
        restore_engine(restored, checkpoint)


def test_missing_counters_are_zero(corpus_dir, prepared):
    """So a new counter does not invalidate checkpoints; an unknown one is refused."""
    engine = build_engine(tiny_config(corpus_dir), prepared)
    engine.skipped_steps.fill_(5)
    state = {"model": engine.model.state_dict(), "optimizer": {}, "counters": {}}
    engine.load_state_dict(state)
    assert (int(engine.skipped_steps), int(engine.nonfinite_in_row)) == (0, 0)
    assert engine.read_window().tokens == 0
    of_earlier_version = {"window": {"tokens": 7, "seconds": 0.5}}
    engine.load_state_dict({**state, "counters": of_earlier_version})
    assert engine.read_window() == LogWindow(tokens=7)
    refuses(ValueError, "unknown", engine.load_state_dict, {**state, "counters": {"unknown": 1}})


@pytest.mark.parametrize("layers", [(2, 3), (3, 1)])
def test_training_flops_are_those_pytorch_counts(corpus_dir, prepared, monkeypatch, layers):
    """On a batch without padding, the products inside attention left out.

    The vocabularies have two sizes. Sabotage: swap them.
    """
    # The counter ignores oneDNN's product.
    monkeypatch.setattr(kernels, "has_onednn_linear", lambda: False)
    encoder, decoder = layers
    sizes = {"model__encoder_layers": encoder, "model__decoder_layers": decoder}
    config = tiny_config(corpus_dir, vocab__shared=False, model__tie_embeddings=False, **sizes)
    src, tgt = prepared.pairs.lengths
    alike = ((src == src[0]) & (tgt == tgt[0])).nonzero()[0]
    batch = prepared.pairs.batch(alike)
    engine = Engine(config, 300, 400, torch.device("cpu"), "fp32")
    with FlopCounterMode(display=False) as counter:
        engine.train_step(1, [batch])
    by_operation = counter.get_flop_counts()["Global"]
    products = sum(n for name, n in by_operation.items() if str(name) in ("aten.mm", "aten.addmm"))
    assert engine.read_window().flops == products and len(engine.model.output_weight) == 400


class Three(Processes):
    """Three processes with different values."""

    def gather(self, value: float) -> list[float]:
        return [value, 2 * value, 4 * value]


def test_the_peak_is_the_best_of_a_few_products(monkeypatch):
    """In training's precision; of several processes the sum. Sabotage: that of one process."""
    times, types = iter((0, 4, 10, 13, 20, 22, 30, 33, 40, 46)), set()
    monkeypatch.setitem(flops._SIZES, "cpu", 8)
    monkeypatch.setattr(flops, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    monkeypatch.setattr(flops, "linear", lambda x, weight: types.update((x.dtype, weight.dtype)))
    peak = measure_peak_flops(torch.device("cpu"), "bf16", Three(world_size=3))
    assert peak == 7 * 8 * 8 * (8 + 8) / 2 and types == {torch.bfloat16}
