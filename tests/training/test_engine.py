"""The state of the training engine: saved, loaded, and continued bit-equal."""

import copy
import itertools
from dataclasses import asdict
from unittest.mock import Mock

import pytest
import torch
from conftest import equal, tiny_config
from test_loss import smoothed_loss
from torch.utils.flop_counter import FlopCounterMode

from transformer_mt.checkpoints.checkpoint import (
    Progress,
    RunState,
    load_checkpoint,
    save_checkpoint,
)
from transformer_mt.config.keys import Config
from transformer_mt.errors import CheckpointError, OutOfMemoryError
from transformer_mt.model import cpu_kernels
from transformer_mt.text.batching import Batch
from transformer_mt.text.prepared import PreparedCorpus
from transformer_mt.text.vocabulary import PAD_ID
from transformer_mt.training.engine import Engine, dropout_seed
from transformer_mt.training.flops import flops_per_token
from transformer_mt.training.optimizer import ExponentialMovingAverage, noam_rate
from transformer_mt.training.run import restore_engine
from transformer_mt.training.run_log import LogWindow
from transformer_mt.training.saving import tensor_files


def build_engine(config: Config, prepared: PreparedCorpus, precision: str = "fp32") -> Engine:
    sizes = prepared.vocab.src.size, prepared.vocab.tgt.size
    return Engine(config, *sizes, torch.device("cpu"), precision)


def batch_from(prepared: PreparedCorpus, first: int) -> Batch:
    return prepared.pairs.batch(torch.arange(first, first + 8).numpy())


def save(path, engine: Engine, prepared: PreparedCorpus) -> None:
    """Saves the state of an engine as a run does."""
    state = engine.state_dict()
    run_state = RunState(Progress(step=3), state["counters"])
    save_checkpoint(path, tensor_files(state), run_state, engine.config, prepared.vocab)


def equal_weights(engine: Engine, other: Engine) -> bool:
    return all(map(torch.equal, engine.model.parameters(), other.model.parameters()))


def test_vocabularies_of_two_sizes(corpus_dir):
    """The logits are of the target's. Sabotage: give the model one size twice."""
    config = tiny_config(corpus_dir, vocab__shared=False, model__tie_embeddings=False)
    engine = Engine(config, 20, 30, torch.device("cpu"), "fp32")
    ids = torch.tensor([[5, 2]])
    engine.train_step(1, [Batch(ids, ids, ids, 2, 2)])
    assert engine.model(torch.tensor([[19]]), torch.tensor([[29]])).shape == (1, 1, 30)
    assert engine.read_window().flops == 2 * sum(flops_per_token(engine.config.model, 30))
    with pytest.raises(IndexError):
        engine.model(torch.tensor([[20]]), torch.tensor([[29]]))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_threads_change_no_bit(corpus_dir, prepared, precision):
    """With a micro-batch for each, whichever ends first, dropout included.

    Sabotage: draw from PyTorch's own generator; add gradients as they come.
    """
    config = tiny_config(corpus_dir, model__dropout=0.3, model__attention_dropout=0.1)
    engines = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        engines.append(engine := build_engine(config, prepared, precision))
        for step in (1, 2, 3):
            engine.train_step(step, [batch_from(prepared, 8 * part) for part in range(3)])
        assert torch.get_num_threads() == threads
    assert equal_weights(engines[0], engines[1]) and equal_weights(engines[0], engines[2])


def test_dropout_is_seeded_by_seed_step_and_number_of_a_micro_batch(corpus_dir, prepared):
    """By nothing that was drawn before. Sabotage: seed once a step, or in every step alike."""
    config = tiny_config(corpus_dir, model__dropout=0.5)
    engine = build_engine(config, prepared)

    def losses(*firsts: int, step: int = 2) -> list[float]:
        batches = [batch_from(prepared, first) for first in firsts]
        return [float(loss) for (loss, _), _ in engine._gradients(step, batches, 100)]

    first, second = losses(0, 0)
    assert first != second
    torch.rand(3)
    assert losses(0, 0) == [first, second] and losses(8, 0)[1] == second
    assert losses(0, step=3) != [first]
    engine.config = tiny_config(corpus_dir, model__dropout=0.5, train__seed=2)
    assert losses(0) != [first]


def test_the_masks_of_a_micro_batch_depend_on_its_number_alone():
    """Pinned, since a run resumed by another version would draw others.

    Sabotage: add up seed, step and number.
    """
    assert dropout_seed(1, 1, 0) == 77803131892610477
    seeds = {dropout_seed(*arguments) for arguments in itertools.product(range(20), repeat=3)}
    assert len({seed % 2**32 for seed in seeds}) == 20**3


def test_the_gradient_is_per_token_of_the_step(corpus_dir, prepared):
    """Its norm is that of the plain loss over all tokens of all micro-batches, which are counted.

    Sabotage: divide by the tokens of a micro-batch; multiply by them.
    """
    config = tiny_config(corpus_dir, model__dropout=0.0)
    engine, other = build_engine(config, prepared), build_engine(config, prepared)
    batches = [batch_from(prepared, 0), batch_from(prepared, 8)]
    loss, nll = (
        sum(
            smoothed_loss(other.model(batch.src, batch.tgt_in), batch.tgt_out, smoothing, PAD_ID)
            for batch in batches
        )
        for smoothing in (0.1, 0.0)
    )
    tokens, src_tokens = (sum(getattr(b, f"{s}_tokens") for b in batches) for s in ("tgt", "src"))
    (loss / tokens).backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in other.model.parameters()])
    engine.train_step(1, batches)
    assert engine.grad_norm.item() == pytest.approx(norm.item(), rel=1e-4)
    assert engine.lr == noam_rate(1, 16, 100)
    window = engine.read_window()
    assert window.loss == pytest.approx(loss.item(), rel=1e-5)
    assert window.nll == pytest.approx(nll.item(), rel=1e-5)
    per_src, per_tgt = flops_per_token(config.model, prepared.vocab.tgt.size)
    assert (window.tokens, window.flops) == (tokens, src_tokens * per_src + tokens * per_tgt)


def test_a_restored_engine_continues_bit_equal(corpus_dir, prepared, tmp_path):
    """Weights, moments, moving average, loss scale and counters all come back.

    Sabotage: leave out any of them.
    """
    changes = {"train__ema_decay": 0.9, "train__precision": "fp16", "optim__eps": 0.01}
    config = tiny_config(corpus_dir, **changes)
    engine = build_engine(config, prepared, "fp16")
    assert engine.optimizer.defaults["eps"] == 0.01
    for step in (1, 2, 3):
        engine.train_step(step, [batch_from(prepared, 8 * step)])
    engine.scaler.update(1024.0)
    engine.skipped_steps.fill_(5)
    engine.nonfinite_in_row.fill_(2)
    window = LogWindow(loss=3.5, nll=2.5, tokens=7, flops=11.0, seconds=0.5)
    engine.start_window(window)
    save(tmp_path / "saved", engine, prepared)
    restored = build_engine(config, prepared, "fp16")
    restore_engine(restored, load_checkpoint(tmp_path / "saved"))
    assert restored.scaler.get_scale() == 1024.0
    assert (int(restored.skipped_steps), int(restored.nonfinite_in_row)) == (5, 2)
    saved_window = load_checkpoint(tmp_path / "saved").state.counters["window"]
    assert saved_window == {**asdict(window), "seconds": pytest.approx(0.5, abs=0.1)}
    assert asdict(restored.read_window()) == pytest.approx(saved_window, abs=0.1)
    assert (restored.read_window().loss, restored.read_window().nll) == (3.5, 2.5)
    for each in (engine, restored):
        each.train_step(4, [batch_from(prepared, 40)])
    assert equal_weights(engine, restored)
    with engine.ema.in_place(), restored.ema.in_place():
        assert equal_weights(engine, restored)


def test_the_moving_average_is_given_the_step(corpus_dir, prepared):
    """On which its decay depends. Sabotage: always step 1."""
    engine = build_engine(tiny_config(corpus_dir, train__ema_decay=0.9), prepared)
    expected = ExponentialMovingAverage(engine.model, 0.9)
    for step in (1, 2):
        engine.train_step(step, [batch_from(prepared, 8 * step)])
        expected.update(step)
    with expected.in_place():
        weights = copy.deepcopy(engine.model.state_dict())
    with engine.ema.in_place():
        assert equal(engine.model.state_dict(), weights)


def test_missing_counters_are_zero(corpus_dir, prepared):
    """So a new counter does not invalidate checkpoints; an unknown one is refused."""
    engine = build_engine(tiny_config(corpus_dir), prepared)
    engine.skipped_steps.fill_(5)
    state = {"model": engine.model.state_dict(), "optimizer": {}, "counters": {}}
    engine.load_state_dict(state)
    assert (int(engine.skipped_steps), int(engine.nonfinite_in_row)) == (0, 0)
    assert engine.read_window().tokens == 0
    older_window = {"window": {"loss": 3.5, "tokens": 7, "flops": 11.0, "seconds": 0.5}}
    engine.load_state_dict({**state, "counters": older_window})
    assert engine.read_window().tokens == 0  # or its mean NLL would be too small
    with pytest.raises(ValueError, match="unknown"):
        engine.load_state_dict({**state, "counters": {"unknown": 1}})


def test_what_cannot_be_restored(corpus_dir, prepared, tmp_path):
    """Counters of a wrong type: the file is named, in one line."""
    config = tiny_config(corpus_dir)
    engine = build_engine(config, prepared)
    engine.train_step(1, [batch_from(prepared, 0)])
    save(tmp_path / "saved", engine, prepared)
    checkpoint = load_checkpoint(tmp_path / "saved")
    checkpoint.state.counters["window"] = [None]
    with pytest.raises(CheckpointError, match=r"saved/state\.json: counters: .*") as error:
        restore_engine(build_engine(config, prepared), checkpoint)
    assert "\n" not in str(error.value)


def test_the_check_of_memory_changes_nothing(corpus_dir, prepared, monkeypatch):
    """It tries each micro-batch as often as train at once and makes the moments, but takes no step.

    Sabotage: leave the gradients; update the weights; try one micro-batch; try each once.
    """
    config = tiny_config(corpus_dir, train__ema_decay=0.9)
    checked, unchecked = build_engine(config, prepared), build_engine(config, prepared)
    torch.set_num_threads(2)
    real, tried = checked._loss, []
    monkeypatch.setattr(checked, "_loss", lambda batch: tried.append(batch) or real(batch))
    checked.check_memory([batch_from(prepared, 0), batch_from(prepared, 8)], 3)
    assert len(tried) == 4
    assert len(checked.optimizer.state) == len(list(checked.model.parameters()))
    assert all(parameter.grad is None for parameter in checked.model.parameters())
    assert equal_weights(checked, unchecked)
    for engine in (checked, unchecked):
        engine.train_step(1, [batch_from(prepared, 8)])
    assert equal_weights(checked, unchecked)


def test_too_little_memory_is_explained(corpus_dir, prepared, monkeypatch):
    """With the sizes of the batch; other errors stay as they are. Sabotage: try no batch."""
    engine, batch = build_engine(tiny_config(corpus_dir), prepared), batch_from(prepared, 0)
    (rows, src), tgt = batch.src.shape, batch.tgt_in.size(1)
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")):
        monkeypatch.setattr(engine, "_loss", Mock(side_effect=error))
        message = f"^out of memory on cpu with a micro-batch of {rows} x {src} source and {rows} x"
        message += f" {tgt} target tokens$"
        with pytest.raises(OutOfMemoryError, match=message):
            engine.check_memory([batch], 1)
        assert all(parameter.grad is None for parameter in engine.model.parameters())
        engine.compiled = True  # which changes nothing
    monkeypatch.setattr(engine, "_loss", Mock(side_effect=RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        engine.check_memory([batch], 1)


@pytest.mark.parametrize("layers", [(2, 3), (3, 1)])
def test_training_flops_are_those_pytorch_counts(corpus_dir, prepared, monkeypatch, layers):
    """On a batch without padding, the products inside attention left out.

    Sabotage: count cross-attention's keys and values per target token.
    """
    # The counter ignores oneDNN's product.
    monkeypatch.setattr(cpu_kernels, "has_onednn_linear", lambda: False)
    encoder, decoder = layers
    config = tiny_config(corpus_dir, model__encoder_layers=encoder, model__decoder_layers=decoder)
    src, tgt = prepared.pairs.lengths
    alike = ((src == src[0]) & (tgt == tgt[0])).nonzero()[0]
    batch = prepared.pairs.batch(alike)
    engine = build_engine(config, prepared)
    with FlopCounterMode(display=False) as counter:
        engine.train_step(1, [batch])
    by_operation = counter.get_flop_counts()["Global"]
    products = sum(
        count for name, count in by_operation.items() if str(name) in ("aten.mm", "aten.addmm")
    )
    assert engine.read_window().flops == products
