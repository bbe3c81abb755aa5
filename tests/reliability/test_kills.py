"""Dozens of SIGKILLs: a run ends with the weights of one that was never stopped."""

import random
import subprocess
import sys
from pathlib import Path

import fork_server
import pytest
from conftest import command
from launch import assert_equal, records, small_config

from transformer_mt.checkpoints.checkpoint import load_checkpoint
from transformer_mt.checkpoints.run_directory import list_checkpoints

pytestmark = pytest.mark.slow

KILLER = Path(__file__).with_name("kill_at.py")
SAVE_EVERY = 5
STEPS = 60
KILLED_WITHIN = {"save": 10, "step": 25}
"""A process is killed at a line that it would run within as many steps: within two saves, or within
five saves and a validation. With fewer lines than a validation and the steps up to a save take, no
process would get past it."""


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    """Gives the configuration of a tiny model."""
    return small_config(
        tmp_path_factory.mktemp("kills"),
        train__max_steps=STEPS,
        train__save_every=SAVE_EVERY,
        train__log_every=2,
        train__keep_last=3,
        valid__every=25,
    )


@pytest.fixture(scope="module")
def whole(config) -> Path:
    """Gives a run that nothing stopped."""
    run_dir = config.parent / "whole"
    done = fork_server.run(command("train", config, "--run", run_dir))
    assert done.returncode == 0, done.stderr
    return run_dir


def kill_at(where: str, line: int, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    """Runs a command that is killed at a line; see kill_at.py."""
    return fork_server.run([sys.executable, KILLER, where, line, *arguments])


def kill_until_done(config: Path, run_dir: Path, where: str, line_count: int) -> tuple[int, int]:
    """Starts, kills at one of the first lines and starts again until the run has ended.

    Returns:
        The number of kills, and of those that left a save half-done.
    """
    rng, kills, inside, before, idle = random.Random(where), 0, 0, 0, 0
    while True:
        process = kill_at(where, rng.randint(1, line_count), "train", config, "--run", run_dir)
        if process.returncode == 0:
            return kills, inside
        assert process.returncode == -9, process.stderr
        kills += 1
        inside += any(run_dir.glob(".step-*.partial"))
        # A kill damages nothing: every checkpoint loads.
        checkpoints = [load_checkpoint(path) for path in list_checkpoints(run_dir)]
        resumed = checkpoints[0].progress.step if checkpoints else 0
        logged = records(run_dir) if (run_dir / "metrics.jsonl").exists() else []
        assert max((record["step"] for record in logged), default=0) - resumed <= SAVE_EVERY
        assert resumed >= before, "work is lost"
        idle = 0 if resumed > before else idle + 1
        assert idle < 30, f"no process gets beyond step {resumed}"
        before = resumed


@pytest.mark.parametrize(("where", "kills", "half_done"), [("save", 10, 5), ("step", 4, 0)])
def test_killed_at_any_line_a_run_ends_as_if_never_stopped(config, whole, where, kills, half_done):
    """In the middle of saving and pruning, and of steps, logging and validation.

    Sabotage: write into the final directory; prune before the rename; do not keep the sums of the
    log window; validate only after the save.
    """
    steps = f"train.max_steps={KILLED_WITHIN[where]}"
    run_dir, counted_dir = config.parent / where, config.parent / f"counted-{where}"
    counted = kill_at(where, 0, "train", config, "--run", counted_dir, "--set", steps)
    total, inside = kill_until_done(config, run_dir, where, int(counted.stdout))
    assert_equal(run_dir, whole, STEPS)
    print(f"{total} kills, {inside} of them left a save half-done")
    assert total >= kills and inside >= half_done
