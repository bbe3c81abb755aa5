"""Several processes train the same as one, and report errors once."""

import copy
import signal
import sys
from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from conftest import around_steps, equal, records, refuses, tiny_config, write_config
from launch import FAULTY, assert_close, exit_codes, launch, launch_faulty, messages, together

from transformer_mt.checkpoints.checkpoint import Progress
from transformer_mt.checkpoints.run_directory import load_newest
from transformer_mt.config.loading import load_config
from transformer_mt.errors import ConfigError, Interrupted, TrainingError
from transformer_mt.system.launcher import is_main_process
from transformer_mt.system.processes import ALONE, Processes, join_processes
from transformer_mt.training import run as run_module
from transformer_mt.training.engine import Engine
from transformer_mt.training.run import build_trainer, train


def write_exact_config(folder, corpus_dir, **changes):
    """Writes a configuration whose run no rounding changes: no dropout, a large epsilon."""
    exact = {"model__dropout": 0.0, "model__attention_bias": False, "optim__eps": 1e-5}
    steps = {"train__ema_decay": 0.9, "train__max_steps": 10, "valid__every": 5}
    return write_config(folder, corpus_dir, **{**exact, **steps, **changes})


@pytest.fixture(scope="module")
def alone(corpus_dir, tmp_path_factory):
    """Gives a configuration and the run of it that one process has trained."""
    folder = tmp_path_factory.mktemp("alone")
    config, threads = write_exact_config(folder, corpus_dir), torch.get_num_threads()
    torch.set_num_threads(1)
    train(load_config(config), folder / "run")
    torch.set_num_threads(threads)
    return config, folder / "run"


SLOW = pytest.mark.slow


@pytest.mark.parametrize("world_size", [2, *(pytest.param(n, marks=SLOW) for n in (1, 5))])
def test_the_number_of_processes_does_not_matter(alone, tmp_path, world_size):
    """Sabotage: compute all micro-batches in each; drop the last; divide by own tokens."""
    config, run_dir = alone
    done = together(world_size, "train", config, "--run", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert_close(tmp_path / "run", run_dir)
    valid, expected = records(tmp_path / "run", "valid"), records(run_dir, "valid")
    assert [each["step"] for each in valid] == [5, 10]
    for one, other in zip(valid, expected, strict=True):
        assert (one["bleu"], one["ema_bleu"]) == (other["bleu"], other["ema_bleu"])
        assert one["nll"] == pytest.approx(other["nll"], abs=1e-5)
    losses = [[each["loss"] for each in records(d, "train")] for d in (tmp_path / "run", run_dir)]
    assert len(losses[0]) == 10 and losses[0] == pytest.approx(losses[1], 1e-5)
    # Each line once: the others neither log nor show anything.
    assert done.stderr.count("done: train.max_steps = 10") == 1
    newest, other = load_newest(tmp_path / "run"), load_newest(run_dir)
    assert newest.state.environment["processes"] == str(world_size)
    if world_size == 1:
        bits = [(each.path / "model.safetensors").read_bytes() for each in (newest, other)]
        assert bits[0] == bits[1]


@SLOW
def test_an_error_that_all_have_is_printed_once(corpus_dir, tmp_path):
    """By the main process, and nothing hangs. Sabotage: let every process print it at once.

    The same without torchrun, in the default suite: tests/system/test_launcher.py.
    """
    config = write_exact_config(tmp_path, corpus_dir, data__path=str(tmp_path / "none"))
    done = launch(2, "train", config, "--run", tmp_path / "run")
    [message] = messages(done.stderr)
    assert message.startswith("error: ") and "no such folder" in message
    assert done.returncode == 1 and 2 in exit_codes(done.stderr) and not (tmp_path / "run").exists()


FAULTS = {
    "nan": (1, "error: step ", "a lower optim.lr_scale"),
    "disk": (0, "error: ", "cannot save step 10: No space left on device"),
    "kill": (1, "", "Signal 9 (SIGKILL)"),  # which torchrun reports
}


@pytest.mark.parametrize("fault", ["kill", *(pytest.param(f, marks=SLOW) for f in ("nan", "disk"))])
def test_an_error_of_one_process_ends_all(corpus_dir, tmp_path, fault):
    """With its message alone. Sabotage: let the others wait; let them report the loss at once."""
    rank, beginning, end = FAULTS[fault]
    changes = {"train__save_every": 1000, "train__max_bad_steps": 5, "train__precision": "fp32"}
    config = write_exact_config(tmp_path, corpus_dir, **changes)
    done = launch_faulty(fault, rank, 4, "train", config, "--quiet", "--run", tmp_path / "run")
    errors = [line for line in messages(done.stderr) if "error: " in line]
    if fault == "kill":  # torchrun's signal may come before the survivor notices, or after
        assert end in done.stderr and len(errors) <= 1
        assert all("another process has ended or is unreachable" in error for error in errors)
    else:
        assert len(errors) == 1, done.stderr
        [error] = errors
        assert error.startswith(beginning) and end in error, done.stderr
    assert done.returncode == 1
    assert 2 in exit_codes(done.stderr) or fault == "kill"
    assert fault == "nan" or load_newest(tmp_path / "run") is None


@pytest.mark.parametrize(("rank", "expected"), [(0, TrainingError), (1, Interrupted)])
def test_an_error_after_the_signal_of_the_launcher(
    corpus_dir, tmp_path, monkeypatch, rank, expected
):
    """Only the main process reports its own. Sabotage: forget the signal at an error."""

    def fail(engine: Engine, step: int) -> None:
        if step == 2:
            signal.raise_signal(signal.SIGTERM)
            raise TrainingError

    around_steps(monkeypatch, before=fail)
    config = tiny_config(corpus_dir, train__max_steps=3)
    trainer = build_trainer(config, tmp_path / "run", processes=Processes(rank, 2))
    with pytest.raises(expected):
        trainer.run(None)


def test_memory_that_runs_out_in_one_process(alone, tmp_path):
    """All repeat the step. Sabotage: keep the gradients; let one go on alone, or count it."""
    config, run_dir = alone
    program = (FAULTY, "memory", 1, 4)
    done = together(2, "train", config, "--quiet", "--run", tmp_path / "run", program=program)
    assert done.returncode == 0, done.stderr
    warnings = messages(done.stderr)
    assert all(text.startswith("warning: process 1: out of memory on cpu") for text in warnings)
    assert warnings[-1].endswith("at most 64 positions, from step 4 on, which ends bit-equality")
    progress = load_newest(tmp_path / "run").progress
    assert (progress.step, progress.micro_batch_tokens, progress.finer_step) == (10, 64, 4)
    assert_close(tmp_path / "run", run_dir)


def test_one_process_uses_no_distributed_code(monkeypatch):
    """Without the variables of a launcher. Sabotage: always make a process group."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    with join_processes("cpu") as joined:
        assert joined is ALONE and joined.is_main and joined.max(1, 2.5) == [1, 2.5]
        assert joined.gather("value") == ["value"] and joined.broadcast("value") == "value"
        joined.finish()
    assert is_main_process()


class Two(Processes):
    """One of two processes: what the first sends, the second receives."""

    sent: ClassVar[list[object]] = []

    def broadcast(self, value: object) -> object:
        if self.is_main:
            self.sent.append(copy.deepcopy(value))
        return value if self.is_main else self.sent.pop(0)


def test_other_processes_get_the_state_of_the_main_one(corpus_dir, tmp_path, monkeypatch):
    """Who alone reads the run, and old text. Sabotage: restore in the main process alone."""
    changes = {"train__max_steps": 3, "train__ema_decay": 0.9, "data__valid": "validation[:5]"}
    train(tiny_config(corpus_dir, data__valid="train[:7]", train__max_steps=0), tmp_path / "first")
    changes |= {"train__init_from": str(tmp_path / "first"), "valid__old_text": True}
    config = tiny_config(corpus_dir, **changes)
    train(config, tmp_path / "run")
    main = build_trainer(config, tmp_path / "run", processes=Two(0, 2))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # nobody has trained on that machine
    other = build_trainer(config, tmp_path / "none", processes=Two(1, 2))
    assert main.progress == other.progress and main.progress.step == 3
    old, others = (trainer._validator._of_old_text._pairs for trainer in (main, other))
    assert old == others and len(old.src) == 7
    states = [trainer.engine.state_dict() for trainer in (main, other)]
    assert all(equal(states[0][part], states[1][part]) for part in ("model", "optimizer", "ema"))


def test_machines_must_have_the_same_text_and_configuration(corpus_dir):
    """Or none trains; the one that differs is named. Sabotage: leave out the configuration."""
    config, gathered = tiny_config(corpus_dir), []
    processes = SimpleNamespace(gather=lambda values: gathered.append(values) or gathered)
    compare = partial(run_module._require_same_everywhere, processes=processes)

    compare(config, Progress())
    compare(tiny_config(corpus_dir, data__path="other"), Progress())  # where it has the same text
    other = tiny_config(corpus_dir, train__seed=5, valid__patience=3)
    names = "precision, train.seed, valid.patience, validation text"
    message = f"^process 2 differs from process 0 in {names}; all machines need"
    refuses(ConfigError, message, compare, other, Progress(valid_digest="other", precision="bf16"))
    gathered[0] = {**gathered[1], "torch version": "other"}
    gathered[1] = {**gathered[1], "key of a later version": "x"}
    with pytest.raises(ConfigError, match="process 1 .* in key of a later version, torch version;"):
        compare(config, Progress())
