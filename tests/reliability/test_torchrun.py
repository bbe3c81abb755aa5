"""Workers and launchers that are killed or stopped: the run continues as if nothing happened."""

import itertools
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import launch
import pytest
from launch import assert_close, assert_equal, children, small_config, start, together, wait_until

from transformer_mt.checkpoints.run_directory import load_newest
from transformer_mt.config.loading import load_config
from transformer_mt.training.run import train

pytestmark = pytest.mark.slow

STEPS = 600
STOPS = [
    (50, signal.SIGTERM, True),
    (200, signal.SIGINT, True),
    (350, signal.SIGKILL, True),
    (500, signal.SIGKILL, False),
]
"""A step, what the launcher is then sent, and whether its messages are read. Far apart: a fast run
logs further steps before it has stopped, and the next one must not find its own step there."""


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    return small_config(
        tmp_path_factory.mktemp("torchrun"),
        optim__eps=1e-5,  # a smaller one would turn rounding into steps
        train__max_steps=STEPS,
        train__save_every=40,
        train__log_every=10,
        valid__every=100,
    )


def wait_for_step(run_dir: Path, step: int, process: subprocess.Popen[str]) -> None:
    log = run_dir / "metrics.jsonl"
    wait_until(lambda: launch.count_text(log, f'"step": {step},') > 0, process)


def wait_for_end(ids: list[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(is_running(pid) for pid in ids):
        assert time.monotonic() < deadline, "still running"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_killed_and_stopped_again_and_again_a_run_ends_as_if_never_stopped(config, tmp_path):
    """First random workers, while the launcher restarts them, then the launcher.

    If it is stopped, all stop at the same step and save. If it is killed, all end unsaved, even if
    no one reads their messages. Sabotage: let the survivor of a worker go on, or save; restore in
    the main process alone; let each process obey its own signal alone; report a peer that obeyed it
    as lost; do not end with the launcher.
    """
    whole, run_dir = tmp_path / "whole", tmp_path / "run"
    done = together(2, "train", config, "--run", whole)
    assert done.returncode == 0, done.stderr
    rng, arguments = random.Random(1), ("train", config, "--run", run_dir)
    process, starts = start(2, *arguments, options=("--max-restarts", 20)), itertools.count(1)

    def wait_for_start() -> None:
        """Waits until a start has removed what an earlier one logged after its last checkpoint."""
        log, number = run_dir / "train.log", next(starts)
        wait_until(lambda: launch.count_text(log, " command: ") >= number, process)

    for _ in range(2):
        wait_for_start()
        time.sleep(3 * rng.random())
        workers = children(process)
        assert len(workers) == 2
        os.kill(rng.choice(workers), signal.SIGKILL)
        wait_for_end(workers, 10)
    for step, signum, is_read in STOPS:
        wait_for_start()
        wait_for_step(run_dir, step, process)
        workers = children(process)
        assert len(workers) == 2
        if not is_read:
            process.stderr.close()
        process.send_signal(signum)
        wait_for_end(workers, 10)
        stderr = process.communicate(timeout=30)[1] if is_read else ""
        assert process.wait(timeout=30)
        if signum != signal.SIGKILL:
            saved = load_newest(run_dir).progress.step
            assert saved >= step, stderr
            assert stderr.count(f"interrupted and saved at step {saved}") == 1
            # Before the last start, the survivor of a killed worker may have said so.
            assert "unreachable" not in stderr.rpartition(" training pairs of ")[2]
        process = start(2, *arguments)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    assert_equal(run_dir, whole, STEPS)


def test_resuming_with_another_number_of_processes(config, tmp_path):
    """It ends up close, and says that bit-equality ends. Sabotage: do not record the number."""
    values, run_dir = ["model.dropout=0.0", "valid.every=15"], tmp_path / "run"
    train(load_config(config, [*values, "train.max_steps=30"]), tmp_path / "whole")
    for steps, size, change in ((10, 2, ""), (20, 1, "(was 2, is 1)"), (30, 3, "(was 1, is 3)")):
        settings = [f"--set={value}" for value in (*values, f"train.max_steps={steps}")]
        done = together(size, "train", config, "--run", run_dir, *settings)
        assert done.returncode == 0, done.stderr
        assert ("bit-equal" in done.stderr) == bool(change)
        assert not change or f"processes {change}" in done.stderr
    assert_close(run_dir, tmp_path / "whole")


def test_two_machines(config, tmp_path):
    """If one is killed, the other ends; both resume. Sabotage: let both main processes own it."""
    run_dir = tmp_path / "run"
    nodes = start_nodes(config, run_dir)
    wait_for_step(run_dir, 100, nodes[0])
    workers = [pid for node in nodes for pid in children(node)]
    nodes[1].kill()
    wait_for_end(workers, 10)
    [message] = launch.messages("".join(node.communicate(timeout=60)[1] for node in nodes))
    assert "has ended or is unreachable" in message and nodes[0].returncode != 0
    shutil.copytree(run_dir, tmp_path / "copy")
    nodes = start_nodes(config, run_dir, "--set", "train.max_steps=200")
    for node in nodes:
        _, stderr = node.communicate(timeout=200)
        assert node.returncode == 0, stderr
    done = together(2, "train", config, "--run", tmp_path / "copy", "--set", "train.max_steps=200")
    assert done.returncode == 0, done.stderr
    assert_close(run_dir, tmp_path / "copy")


def start_nodes(config: Path, run_dir: Path, *settings: str) -> list[subprocess.Popen[str]]:
    """Starts one launcher for each of two machines, both of which are this one."""
    shared = ("--nnodes", 2, "--master-port", launch.free_port())
    arguments = ("train", config, "--run", run_dir, *settings)
    return [start(1, *arguments, options=(*shared, "--node-rank", rank)) for rank in (0, 1)]
