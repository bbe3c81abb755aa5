"""Two trainers, a second signal, and the clock."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import command, tiny_values, write_toml

from transformer_mt.checkpoints.run_directory import list_checkpoints, load_newest

pytestmark = pytest.mark.slow


@pytest.fixture
def config(corpus_dir, tmp_path) -> Path:
    """Gives a configuration that trains until it is stopped."""
    values = tiny_values(corpus_dir, train__max_steps=10**6, train__save_every=10**6)
    values["valid"]["every"] = 10**6
    return write_toml(tmp_path / "tiny.toml", values)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Gives a function that starts a trainer; what still runs after the test is killed."""
    started = []

    def start_trainer(config: Path, *settings: str) -> subprocess.Popen[str]:
        options = [part for setting in settings for part in ("--set", setting)]
        run = ["train", config, "--run", config.parent / "run", *options]
        started.append(subprocess.Popen(command(*run), stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start_trainer
    for process in started:
        process.kill()
        process.wait()
        process.stderr.close()


def wait_for_steps(config: Path, process: subprocess.Popen[str], steps: int = 3) -> None:
    metrics, began = config.parent / "run" / "metrics.jsonl", time.monotonic()
    before = metrics.read_text() if metrics.exists() else ""
    while not metrics.exists() or metrics.read_text().count("\n") < before.count("\n") + steps:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() - began < 60
        time.sleep(0.02)


def test_the_second_trainer_is_refused_and_the_lock_dies_with_its_holder(config, start):
    """The first is named and not disturbed; after SIGKILL the run is free at once.

    Sabotage: ask whether the lock file exists.
    """
    first = start(config)
    wait_for_steps(config, first)
    second = start(config)
    _, said = second.communicate(timeout=60)
    assert second.returncode == 2 and len(said.splitlines()) == 1
    assert f"process {first.pid} is training this run" in said
    assert first.poll() is None
    first.kill()
    first.communicate()
    third = start(config)
    wait_for_steps(config, third)
    third.send_signal(signal.SIGTERM)
    third.communicate(timeout=30)
    assert third.returncode == 143


def test_the_second_interrupt_stops_at_once_and_harms_nothing(config, start):
    """Even in a step that takes long, which is not finished; what is on disk is as it was."""
    process = start(config, "train.batch_tokens=40000", "model.d_ff=16384")  # a step of seconds
    log = config.parent / "run" / "train.log"
    while not log.exists() or "training pairs" not in log.read_text():
        time.sleep(0.02)
    time.sleep(0.5)  # now it is in its first step
    began = time.monotonic()
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    process.communicate(timeout=30)
    assert process.returncode == 130 and time.monotonic() - began < 8  # on a busy machine
    assert not list_checkpoints(config.parent / "run")


def test_saving_by_the_clock(config, start):
    """Every so many minutes there is a checkpoint, whatever `train.save_every` says."""
    process = start(config, "train.save_every_minutes=0.01", "train.keep_last=100")
    wait_for_steps(config, process, 150)
    process.kill()
    process.communicate()
    run_dir = config.parent / "run"
    steps = [int(path.name.removeprefix("step-")) for path in list_checkpoints(run_dir)]
    assert steps and load_newest(run_dir)
    records = map(json.loads, (run_dir / "metrics.jsonl").read_text().split("\n")[:-1])
    seconds = {record["step"]: record["seconds"] for record in records}
    moments = [seconds[step] for step in sorted(steps) if step in seconds]
    gaps = [later - earlier for earlier, later in zip(moments, moments[1:], strict=False)]
    assert all(gap >= 0.55 for gap in gaps)
