"""At least a hundred SIGKILLs: every run ends with the weights of one that was never stopped."""

import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fork_server
import pytest
from conftest import command, tiny_values, write_copy_corpus, write_toml

from transformer_mt.checkpoints.checkpoint import load_checkpoint
from transformer_mt.checkpoints.run_directory import list_checkpoints

pytestmark = pytest.mark.slow

KILLER = Path(__file__).with_name("kill_at.py")
SAVE_EVERY = 5
STEPS = 120
KILLED_WITHIN = {"save": 10, "step": 25}
"""A process is killed at a line that it would run within as many steps: within two saves, or within
five saves and a validation. With fewer lines than a validation and the steps up to a save take, no
process would get past it."""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    """Gives the configuration of a tiny model, dropout and a moving average included."""
    folder = tmp_path_factory.mktemp("kills")
    write_copy_corpus(folder / "corpus", {"train": 600, "validation": 12})
    values = tiny_values(
        folder / "corpus",
        model__d_model=16,
        model__d_ff=32,
        model__n_heads=2,
        model__dropout=0.2,
        train__batch_tokens=300,
        train__max_steps=STEPS,
        train__save_every=SAVE_EVERY,
        train__log_every=2,
        train__ema_decay=0.9,
        train__keep_last=3,
        valid__every=25,
    )
    return write_toml(folder / "tiny.toml", values)


@pytest.fixture(scope="module")
def whole(config) -> Path:
    """Gives a run that nothing stopped."""
    run_dir = config.parent / "whole"
    done = subprocess.run(
        command("train", config, "--run", run_dir), env=ENVIRONMENT, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    return run_dir


@pytest.fixture(scope="module")
def line_counts(config) -> dict[str, int]:
    """Counts the lines in which a process may be killed."""
    counts = {}
    for where, steps in KILLED_WITHIN.items():
        run_dir = config.parent / f"counted-{where}"
        arguments = [config, "--run", run_dir, "--set", f"train.max_steps={steps}"]
        words = [sys.executable, str(KILLER), where, "0", "train", *map(str, arguments)]
        done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, check=True)
        counts[where] = int(done.stdout)
    return counts


def records(run_dir: Path) -> list[dict[str, object]]:
    """Reads the metrics, wall times aside."""
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    timed = ("seconds", "tokens_per_second", "mfu")
    return [{key: value for key, value in line.items() if key not in timed} for line in lines]


def last_step(run_dir: Path) -> int:
    """Gives the last step that a killed process wrote to its metrics."""
    path = run_dir / "metrics.jsonl"
    steps = [0]
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            steps.append(json.loads(line)["step"])
        except ValueError:
            pass  # it was killed while writing
    return max(steps)


def kill_until_done(
    config: Path, run_dir: Path, where: str, line_count: int, seed: int
) -> tuple[int, int]:
    """Starts, kills at one of the first lines and starts again until the run has ended.

    The first process of the first run is started anew, the others are forked.

    Returns:
        The number of kills, and of those that left a save half-done.
    """
    rng, kills, inside, before, idle = random.Random(seed), 0, 0, 0, 0
    while True:
        limit = rng.randint(1, line_count)
        arguments = [where, limit, "train", config, "--run", run_dir]
        words = [sys.executable, str(KILLER), *map(str, arguments)]
        if seed == kills == 0:
            process = subprocess.run(words, env=ENVIRONMENT, capture_output=True)
        else:
            process = fork_server.run(words, env=ENVIRONMENT)
        if process.returncode == 0:
            return kills, inside
        assert process.returncode == -9, process.stderr
        kills += 1
        inside += any(run_dir.glob(".step-*.partial"))
        # A kill damages nothing: every checkpoint loads.
        checkpoints = [load_checkpoint(path) for path in list_checkpoints(run_dir)]
        resumed = checkpoints[0].progress.step if checkpoints else 0
        assert last_step(run_dir) - resumed <= SAVE_EVERY
        assert resumed >= before, "work is lost"
        idle = 0 if resumed > before else idle + 1
        assert idle < 30, f"no process gets beyond step {resumed}"
        before = resumed


def files(run_dir: Path) -> dict[str, bytes]:
    newest = load_checkpoint(list_checkpoints(run_dir)[0])
    return {name: (newest.path / name).read_bytes() for name in newest.files}


def assert_equal(run_dir: Path, whole: Path) -> None:
    """Compares weights, moments, moving average, vocabulary and metrics; times may differ."""
    left, right = files(run_dir), files(whole)
    assert left.keys() == right.keys()
    for name in left.keys() - {"state.json", "manifest.json"}:
        assert left[name] == right[name], name
    states = [json.loads(some["state.json"]) for some in (left, right)]
    for state in states:
        del state["progress"]["seconds"], state["counters"]["window"]["seconds"]
    assert states[0] == states[1] and states[0]["progress"]["step"] == STEPS
    assert records(run_dir) == records(whole)


@pytest.mark.parametrize(
    ("where", "kills", "half_done"), [("save", 60, 30), ("step", 40, 0)], ids=["save", "step"]
)
def test_killed_at_any_line_a_run_ends_as_if_never_stopped(
    config, whole, line_counts, where, kills, half_done
):
    """In the middle of saving and pruning, and of steps, logging and validation.

    Sabotage: write into the final directory; prune before the rename; do not keep the sums of the
    log window; validate only after the save.
    """

    def attack(seed: int) -> tuple[int, int]:
        run_dir = config.parent / f"{where}-{seed}"
        counts = kill_until_done(config, run_dir, where, line_counts[where], seed)
        assert_equal(run_dir, whole)
        return counts

    total, inside, seed = 0, 0, 0
    with ThreadPoolExecutor(2) as pool:
        while total < kills:
            for found in pool.map(attack, (seed, seed + 1)):
                total, inside = total + found[0], inside + found[1]
            seed += 2
    print(f"{total} kills, {inside} of them left a save half-done")
    assert inside >= half_done
