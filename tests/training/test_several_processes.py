"""Several processes train the same as one, and report errors once."""

import sys

import pytest
import torch
from conftest import write_config
from launch import (
    FAULTY,
    assert_close,
    exit_codes,
    launch,
    launch_faulty,
    messages,
    records,
    together,
)

from transformer_mt.checkpoints.run_directory import load_newest
from transformer_mt.config.loading import load_config
from transformer_mt.system.launcher import is_main_process
from transformer_mt.system.processes import ALONE, join_processes
from transformer_mt.training.run import train


def write_exact_config(folder, corpus_dir, **changes):
    """Writes the configuration of a run without dropout, whose masks depend on the processes.

    With a larger epsilon, and without the biases of keys, Adam does not turn the rounding of a
    gradient near zero into a full step.
    """
    settings = {
        "model__dropout": 0.0,
        "model__attention_bias": False,
        "train__ema_decay": 0.9,
        "optim__eps": 1e-5,
    }
    settings |= {"train__max_steps": 10, "valid__every": 5} | changes
    return write_config(folder, corpus_dir, **settings)


@pytest.fixture(scope="module")
def alone(corpus_dir, tmp_path_factory):
    """Gives a configuration and the run of it that one process has trained."""
    folder = tmp_path_factory.mktemp("alone")
    config = write_exact_config(folder, corpus_dir)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    train(load_config(config), folder / "run")
    torch.set_num_threads(threads)
    return config, folder / "run"


@pytest.mark.parametrize(
    "world_size", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 5))]
)
def test_the_number_of_processes_does_not_matter(alone, tmp_path, world_size):
    """Weights agree up to rounding, and so do losses and validations.

    Sabotage: let every process compute all micro-batches, or drop the last one; divide by the
    tokens of a process.
    """
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


def test_an_error_that_all_have_is_printed_once(corpus_dir, tmp_path):
    """By the main process, and nothing hangs. Sabotage: let every process print it at once."""
    config = write_exact_config(tmp_path, corpus_dir, data__path=str(tmp_path / "none"))
    done = launch(2, "train", config, "--run", tmp_path / "run")
    [message] = messages(done.stderr)
    assert message.startswith("error: ") and "no such folder" in message
    assert done.returncode == 1 and 2 in exit_codes(done.stderr)
    assert not (tmp_path / "run").exists()


FAULTS = {
    "nan": (1, "error: step ", "a lower optim.lr_scale"),
    "disk": (0, "error: ", "cannot save step 10: No space left on device"),
    "kill": (1, "", "Signal 9 (SIGKILL)"),  # which torchrun reports
}


@pytest.mark.parametrize(
    "fault", ["kill", *(pytest.param(f, marks=pytest.mark.slow) for f in ("nan", "disk"))]
)
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
        [error] = errors
        assert error.startswith(beginning) and end in error, done.stderr
    assert done.returncode == 1
    assert 2 in exit_codes(done.stderr) or fault == "kill"
    assert fault == "nan" or load_newest(tmp_path / "run") is None


def test_memory_that_runs_out_in_one_process(alone, tmp_path):
    """All repeat the step with the same smaller micro-batches, and end as one process does.

    Sabotage: let the process that ran out go on alone, or the others count the step as taken.
    """
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
        assert joined is ALONE and joined.is_main
        assert joined.max(1, 2.5) == [1, 2.5]
        assert joined.gather("value") == ["value"] and joined.broadcast("value") == "value"
        joined.finish()
    assert is_main_process()
