"""Workers and launchers that are killed or stopped: the run continues as if nothing happened."""

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import tiny_values, write_copy_corpus, write_toml
from launch import (
    ENVIRONMENT,
    PROGRAM,
    assert_close,
    children,
    free_port,
    launch,
    launch_faulty,
    launcher,
    messages,
    records,
    start,
)

from transformer_mt.checkpoints.run_directory import load_newest

pytestmark = pytest.mark.slow

STEPS = 300
KILLS = 4


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    """Gives the configuration of a tiny model, dropout and a moving average included."""
    folder = tmp_path_factory.mktemp("torchrun")
    write_copy_corpus(folder / "corpus", {"train": 600, "validation": 12})
    values = tiny_values(
        folder / "corpus",
        model__d_model=16,
        model__d_ff=32,
        model__n_heads=2,
        model__dropout=0.2,
        optim__eps=1e-5,  # a smaller one would turn rounding into steps
        train__batch_tokens=300,
        train__micro_batch_tokens=100,
        train__max_steps=STEPS,
        train__save_every=40,
        train__log_every=10,
        train__ema_decay=0.9,
        valid__every=100,
    )
    return write_toml(folder / "tiny.toml", values)


@pytest.fixture(scope="module")
def whole(config) -> Path:
    """Gives a run of two processes that nothing stopped."""
    run_dir = config.parent / "whole"
    done = launch(2, "train", config, "--run", run_dir)
    assert done.returncode == 0, done.stderr
    return run_dir


def wait_for(log: Path, text: str, times: int, process: subprocess.Popen[str]) -> None:
    """Waits until a log contains a text so many times."""
    began = time.monotonic()
    while not log.exists() or log.read_text().count(text) < times:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() - began < 120
        time.sleep(0.05)


def wait_for_step(run_dir: Path, step: int, process: subprocess.Popen[str]) -> None:
    """Waits until a run has logged a step."""
    wait_for(run_dir / "metrics.jsonl", f'"step": {step},', 1, process)


def wait_for_end(ids: list[int], seconds: float) -> None:
    """Waits until processes have ended, which are no children of this one."""
    deadline = time.monotonic() + seconds
    while any(is_running(pid) for pid in ids):
        assert time.monotonic() < deadline, "still running"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def assert_equal(run_dir: Path, whole: Path) -> None:
    """Compares every tensor and metric of two finished runs."""
    newest, other = load_newest(run_dir), load_newest(whole)
    assert newest.progress.step == STEPS
    for name in newest.files - {"state.json", "manifest.json"}:
        assert (newest.path / name).read_bytes() == (other.path / name).read_bytes(), name
    for kind in ("train", "valid"):
        assert records(run_dir, kind) == records(whole, kind)


def test_workers_killed_again_and_again_end_as_if_never_killed(config, whole, tmp_path):
    """A random one of two, while the launcher restarts them.

    Sabotage: let the survivor go on, or save; restore in the main process alone.
    """
    rng, run_dir = random.Random(1), tmp_path / "run"
    arguments = ("train", config, "--quiet", "--run", run_dir)
    process = start(2, *arguments, options=("--max-restarts", 20))
    for kill in range(KILLS):
        wait_for(run_dir / "train.log", " command: ", kill + 1, process)
        time.sleep(3 * rng.random())
        workers = children(process)
        assert len(workers) == 2
        os.kill(rng.choice(workers), signal.SIGKILL)
        wait_for_end(workers, 10)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    assert_equal(run_dir, whole)


def test_a_launcher_killed_twice(config, whole, tmp_path):
    """Its workers end by themselves, though no one reads their messages, and the command continues.

    Sabotage: do not watch the launcher; let the message fail.
    """
    run_dir = tmp_path / "run"
    for step in (100, 200):
        process = start(2, "train", config, "--quiet", "--run", run_dir)
        wait_for_step(run_dir, step, process)
        workers = children(process)
        assert len(workers) == 2
        if step == 200:
            process.stderr.close()
        process.kill()
        wait_for_end(workers, 10)
        process.wait()
        if step == 100:
            [message] = messages(process.communicate(timeout=30)[1])
            assert "the launcher has ended" in message
    done = launch(2, "train", config, "--run", run_dir)
    assert done.returncode == 0, done.stderr
    assert_equal(run_dir, whole)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_launcher_saves_once(config, whole, tmp_path, signum):
    """All stop at the same step, and the same command continues.

    Sabotage: let each process obey its own signal alone.
    """
    run_dir = tmp_path / "run"
    process = start(2, "train", config, "--run", run_dir)
    wait_for_step(run_dir, 100, process)
    began = time.monotonic()
    process.send_signal(signum)
    _, stderr = process.communicate(timeout=60)
    assert time.monotonic() - began < 20 and process.returncode != 0
    step = load_newest(run_dir).progress.step
    assert stderr.count(f"interrupted and saved at step {step}") == 1 and not messages(stderr)
    done = launch(2, "train", config, "--run", run_dir)
    assert done.returncode == 0, done.stderr
    assert_equal(run_dir, whole)


@pytest.mark.parametrize("world_size", [1, 3])
def test_resuming_with_another_number_of_processes(config, tmp_path, world_size):
    """Works, ends up close, and says that bit-equality ends. Sabotage: do not record the number."""
    settings = ("--set", "train.max_steps=30", "--set", "valid.every=15")
    for run_dir, sizes in ((tmp_path / "whole", (2,)), (tmp_path / "run", (2, world_size))):
        for part, size in enumerate(sizes, 1):
            steps = f"train.max_steps={30 * part // len(sizes)}"
            done = launch(size, "train", config, "--run", run_dir, *settings, "--set", steps)
            assert done.returncode == 0, done.stderr
    assert f"processes (was 2, is {world_size})" in done.stderr
    assert_close(tmp_path / "run", tmp_path / "whole")


def test_a_peer_that_hangs_is_left(config, tmp_path):
    """After a minute, unsaved, with one message. Sabotage: no time-out for the heartbeat."""
    began = time.monotonic()
    arguments = ("train", config, "--quiet", "--run", tmp_path / "run")
    done = launch_faulty("stop", 1, 50, *arguments)
    assert 55 < time.monotonic() - began < 180 and done.returncode == 1
    [message] = messages(done.stderr)
    assert "another process has ended or is unreachable" in message


def test_two_machines(config, tmp_path):
    """Two launchers, each with one process; when one is killed, the other ends and both resume.

    Sabotage: let each main process of a machine own the run.
    """
    run_dir = tmp_path / "run"
    nodes = start_nodes(config, run_dir)
    wait_for_step(run_dir, 100, nodes[0])
    workers = [pid for node in nodes for pid in children(node)]
    nodes[1].kill()
    wait_for_end(workers, 10)
    _, stderr = nodes[0].communicate(timeout=60)
    [message] = messages(stderr)
    assert "another process has ended or is unreachable" in message and nodes[0].returncode != 0
    nodes[1].communicate(timeout=60)
    shutil.copytree(run_dir, tmp_path / "copy")
    nodes = start_nodes(config, run_dir, "--set", "train.max_steps=200")
    for node in nodes:
        _, stderr = node.communicate(timeout=200)
        assert node.returncode == 0, stderr
    done = launch(2, "train", config, "--run", tmp_path / "copy", "--set", "train.max_steps=200")
    assert done.returncode == 0, done.stderr
    assert_close(run_dir, tmp_path / "copy")


def start_nodes(config: Path, run_dir: Path, *options: str) -> list[subprocess.Popen[str]]:
    """Starts one launcher for each of two machines, both of which are this one."""
    command = [*launcher(1, "--nnodes", 2), *PROGRAM, "train", config, "--run", run_dir, *options]
    position = command.index("--master-port") + 1
    command[position] = str(free_port())
    return [
        subprocess.Popen(
            [*map(str, command[:3]), "--node-rank", str(rank), *map(str, command[3:])],
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        for rank in (0, 1)
    ]
