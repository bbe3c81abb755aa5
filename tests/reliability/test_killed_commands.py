"""Commands that write, killed at random lines: nothing half-written is left to be used."""

import random
import shutil
from pathlib import Path

import pytest
from conftest import copy_lines
from launch import small_config
from test_kills import kill_at

from transformer_mt.checkpoints.checkpoint import load_checkpoint
from transformer_mt.checkpoints.run_directory import list_checkpoints
from transformer_mt.config.loading import load_config
from transformer_mt.training.run import train

pytestmark = pytest.mark.slow

KILLS = 3
COMMANDS = {
    "prepare": "DIR/tiny.toml --set data.prepared_dir=DIR/new",
    "average": "DIR/run --last 2",
    "export": "DIR/run -o DIR/exported",
    "report": "DIR/run -o DIR/report.html",
    "init": "DIR/new --src DIR/text.de --tgt DIR/text.en",
    "prune": "DIR/run 8 1 4",
}


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    """Gives a folder with text, and a run with four checkpoints that is best at step 4."""
    folder = tmp_path_factory.mktemp("killed") / "original"
    steps = {"train__max_steps": 8, "train__save_every": 2, "train__keep_last": 4}
    config = small_config(folder, valid__every=4, **steps)
    train(load_config(config), folder / "run")
    for name in ("text.de", "text.en"):
        (folder / name).write_text("".join(f"{line}\n" for line in copy_lines(2000, 5)))
    return folder


def read_files(folder: Path) -> dict[str, bytes]:
    """Reads all files that are not hidden."""
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in paths.items() if "/." not in f"/{name}"}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_can_be_repeated(original, tmp_path, name):
    """Each file is as before or as at the end; new ones appear together; checkpoints load.

    Sabotage: write into the final file or directory; delete a checkpoint in place.
    """
    folder, rng = tmp_path / "work", random.Random(name)
    arguments = COMMANDS[name].replace("DIR", str(folder)).split()
    shutil.copytree(original, folder)
    before = read_files(folder)
    done = kill_at("save", 0, name, *arguments)
    assert done.returncode == 0, done.stderr
    after, lines = read_files(folder), int(done.stdout.split()[-1])
    assert after != before
    for _ in range(KILLS):
        shutil.rmtree(folder)
        shutil.copytree(original, folder)
        done = kill_at("save", rng.randint(1, lines), name, *arguments)
        assert done.returncode == -9, done.stderr
        left = read_files(folder)
        assert left.items() <= before.items() | after.items()
        added = left.keys() - before.keys()
        assert added in (set(), after.keys() - before.keys())
        assert all(map(load_checkpoint, list_checkpoints(folder / "run")))
        if not added:
            done = kill_at("save", 0, name, *arguments)
            assert done.returncode == 0, done.stderr
        assert read_files(folder) == after and not list(folder.rglob(".*.partial"))
