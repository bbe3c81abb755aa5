"""Dozens of SIGKILLs: a run ends with the weights of one that was never stopped."""

import json
import random
import subprocess
import sys
from pathlib import Path

import fork_server
import pytest
from conftest import command, tiny_values, write_copy_corpus, write_toml

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
    done = fork_server.run(command("train", config, "--run", run_dir))
    assert done.returncode == 0, done.stderr
    return run_dir


def kill_at(where: str, line: int, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    return fork_server.run([sys.executable, KILLER, where, line, "train", *arguments])


def records(run_dir: Path) -> list[dict[str, object]]:
    """Reads the metrics, wall times aside, up to a line that a killed process began."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)
    timed = ("seconds", "tokens_per_second", "mfu")
    return [
        {key: value for key, value in json.loads(line).items() if key not in timed}
        for line in lines
        if line.endswith("\n")
    ]


def kill_until_done(config: Path, run_dir: Path, where: str, line_count: int) -> tuple[int, int]:
    """Starts, kills at one of the first lines and starts again until the run has ended.

    Returns:
        The number of kills, and of those that left a save half-done.
    """
    rng, kills, inside, before, idle = random.Random(where), 0, 0, 0, 0
    while True:
        process = kill_at(where, rng.randint(1, line_count), config, "--run", run_dir)
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


def files(run_dir: Path) -> dict[str, bytes]:
    newest = load_checkpoint(list_checkpoints(run_dir)[0])
    return {name: (newest.path / name).read_bytes() for name in newest.files}


def assert_equal(run_dir: Path, whole: Path) -> None:
    """Compares weights, moments, moving average, vocabulary and metrics; times may differ."""
    left, right = files(run_dir), files(whole)
    assert left.keys() == right.keys()
    for name in left.keys() - {"state.json", "manifest.json"}:
        assert left[name] == right[name], name
    states = [json.loads(each["state.json"]) for each in (left, right)]
    for state in states:
        del state["progress"]["seconds"], state["counters"]["window"]["seconds"]
    assert states[0] == states[1] and states[0]["progress"]["step"] == STEPS
    assert records(run_dir) == records(whole)


@pytest.mark.parametrize(("where", "kills", "half_done"), [("save", 10, 5), ("step", 4, 0)])
def test_killed_at_any_line_a_run_ends_as_if_never_stopped(config, whole, where, kills, half_done):
    """In the middle of saving and pruning, and of steps, logging and validation.

    Sabotage: write into the final directory; prune before the rename; do not keep the sums of the
    log window; validate only after the save.
    """
    steps = f"train.max_steps={KILLED_WITHIN[where]}"
    counted = kill_at(where, 0, config, "--run", config.parent / f"counted-{where}", "--set", steps)
    run_dir = config.parent / where
    total, inside = kill_until_done(config, run_dir, where, int(counted.stdout))
    assert_equal(run_dir, whole)
    print(f"{total} kills, {inside} of them left a save half-done")
    assert total >= kills and inside >= half_done
