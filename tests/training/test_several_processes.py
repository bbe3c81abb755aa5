"""Several processes train the same as one."""

import sys

import pytest
import torch
from conftest import tiny_values, write_toml
from launch import assert_close, exit_codes, launch, launch_faulty, messages, records

from transformer_mt.checkpoints.run_directory import load_newest
from transformer_mt.config.loading import load_config
from transformer_mt.system import processes as launcher
from transformer_mt.system.processes import ALONE, join_processes
from transformer_mt.training.run import train


def write_config(folder, corpus_dir, **changes):
    """Writes the configuration of a run whose steps have about four micro-batches.

    With a larger epsilon, Adam does not turn the rounding of a gradient near zero into a full step.
    """
    settings = {"train__micro_batch_tokens": 200, "train__ema_decay": 0.9, "optim__eps": 1e-5}
    settings |= changes
    return write_toml(folder / "tiny.toml", tiny_values(corpus_dir, **settings))


@pytest.fixture(scope="module", params=[0.1, 0.0], ids=["dropout", "no dropout"])
def alone(request, corpus_dir, tmp_path_factory):
    """Gives a configuration and the run of it that one process has trained."""
    folder = tmp_path_factory.mktemp("alone")
    config = write_config(folder, corpus_dir, model__dropout=request.param)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    train(load_config(config), folder / "run")
    torch.set_num_threads(threads)
    return config, folder / "run"


@pytest.mark.parametrize(
    "world_size", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3, 5))]
)
def test_the_number_of_processes_does_not_matter(alone, tmp_path, world_size):
    """Weights agree up to rounding, with dropout too, and so do losses and validations.

    Of five processes some have no micro-batch in a step. Sabotage: let every process compute all
    micro-batches, or drop the last one; divide by the tokens of a process; seed by the rank.
    """
    config, run_dir = alone
    done = launch(world_size, "train", config, "--run", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert_close(tmp_path / "run", run_dir)
    valid, expected = records(tmp_path / "run", "valid"), records(run_dir, "valid")
    assert [each["step"] for each in valid] == [10, 20]
    for one, other in zip(valid, expected, strict=True):
        assert (one["bleu"], one["ema_bleu"]) == (other["bleu"], other["ema_bleu"])
        assert one["nll"] == pytest.approx(other["nll"], abs=1e-5)
    train, expected = records(tmp_path / "run", "train"), records(run_dir, "train")
    assert [each["loss"] for each in train] == pytest.approx([e["loss"] for e in expected], 1e-5)
    # Each line once: the others neither log nor show anything.
    assert done.stderr.count("done: train.max_steps = 20") == 1
    environment = load_newest(tmp_path / "run").state.environment
    assert environment["processes"] == str(world_size)
    if world_size == 1:
        weights = [
            load_newest(run).path / "model.safetensors" for run in (tmp_path / "run", run_dir)
        ]
        assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.parametrize("fault", ["missing text", pytest.param("key", marks=pytest.mark.slow)])
def test_an_error_that_all_have_is_printed_once(corpus_dir, tmp_path, fault):
    """By the main process, and nothing hangs. Sabotage: let every process print it."""
    config = write_config(tmp_path, corpus_dir, data__path=str(tmp_path / "none"))
    if fault == "key":
        config.write_text(config.read_text().replace("d_model", "d_modl"))
    done = launch(2, "train", config, "--run", tmp_path / "run")
    [message] = messages(done.stderr)
    assert ("no such folder" if fault != "key" else "did you mean model.d_model") in message
    assert "process" not in message
    assert done.returncode == 1 and 2 in exit_codes(done.stderr)
    assert not (tmp_path / "run").exists()


FAULTS = {
    "memory": (1, "out of memory on cpu", "(process 1 of 2)"),
    "nan": (1, "5 steps in a row had non-finite gradients", "lower optim.lr_scale"),
    "disk": (0, "cannot save step 20: No space left on device", "on device"),
    "kill": (1, "another process has ended", "(process 0 of 2)"),
}


@pytest.mark.parametrize(
    "fault", ["memory", *(pytest.param(f, marks=pytest.mark.slow) for f in ("nan", "disk", "kill"))]
)
def test_an_error_of_one_process_ends_all(corpus_dir, tmp_path, fault):
    """With its message alone. Sabotage: let the others wait; let them report the lost peer."""
    rank, message, end = FAULTS[fault]
    changes = {"train__save_every": 1000, "train__max_bad_steps": 5, "train__precision": "fp32"}
    config = write_config(tmp_path, corpus_dir, **changes)
    done = launch_faulty(fault, rank, 8, "train", config, "--quiet", "--run", tmp_path / "run")
    *_, last = errors = [line for line in messages(done.stderr) if line.startswith("error")]
    assert len(errors) == 1 and message in last and last.endswith(end)
    assert done.returncode == 1
    assert 2 in exit_codes(done.stderr) or fault == "kill"
    assert fault == "nan" or load_newest(tmp_path / "run") is None


def test_one_process_uses_no_distributed_code(monkeypatch):
    """Without the variables of a launcher. Sabotage: always make a process group."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    with join_processes("cpu") as joined:
        assert joined is ALONE and joined.is_main and not joined.is_launched
        joined.watch_peers()
        assert joined.max(1, 2.5) == [1, 2.5]
        assert joined.gather("value") == ["value"] and joined.broadcast("value") == "value"
        joined.finish()
    assert launcher.is_main_process()
