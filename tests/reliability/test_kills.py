"""Dozens of SIGKILLs: a run ends as if it was never stopped, and nothing half-written is used."""

import random
import shutil
import subprocess
import sys
from functools import partial
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
    run_dir = config.parent / "whole"
    done = fork_server.run(command("train", config, "--run", run_dir))
    assert done.returncode == 0, done.stderr
    return run_dir


def kill_at(where: str, line: int, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    return fork_server.run([sys.executable, KILLER, where, line, *arguments])


def kill_until_done(config: Path, run_dir: Path, where: str, line_count: int) -> tuple[int, int]:
    """Starts, kills and starts again until the end; counts kills, and those during a save."""
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
        # A save that is not complete is lost, and the next one waits for it.
        assert max((record["step"] for record in logged), default=0) - resumed <= 2 * SAVE_EVERY
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


COMMANDS = {
    "prepare": "DIR/tiny.toml --set data.prepared_dir=DIR/new",
    "average": "DIR/whole --last 2",
    "export": "DIR/whole -o DIR/exported",
    "init": "DIR/new --src DIR/corpus/train.de --tgt DIR/corpus/train.en",
    "prune": "DIR/whole 60 1 25",
}


def read_files(folder: Path) -> dict[str, bytes]:
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in paths.items() if "/." not in f"/{name}"}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_can_be_repeated(whole, tmp_path, name):
    """Files are old or new, and appear together. Sabotage: write into the final directory."""
    folder, rng = tmp_path / "work", random.Random(name)
    arguments = COMMANDS[name].replace("DIR", str(folder)).split()
    others = shutil.ignore_patterns("save", "step", "counted-*")  # runs of the other test
    copy = partial(shutil.copytree, whole.parent, folder, ignore=others)
    copy()
    before = read_files(folder)
    done = kill_at("save", 0, name, *arguments)
    assert done.returncode == 0, done.stderr
    after, lines = read_files(folder), int(done.stdout.split()[-1])
    assert after != before
    for _ in range(3):
        shutil.rmtree(folder)
        copy()
        done = kill_at("save", rng.randint(1, lines), name, *arguments)
        assert done.returncode == -9, done.stderr
        left = read_files(folder)
        assert left.items() <= before.items() | after.items()
        added = left.keys() - before.keys()
        assert added in (set(), after.keys() - before.keys())
        assert all(map(load_checkpoint, list_checkpoints(folder / "whole")))
        if not added:
            done = kill_at("save", 0, name, *arguments)
            assert done.returncode == 0, done.stderr
        assert read_files(folder) == after and not list(folder.rglob(".*.partial"))
