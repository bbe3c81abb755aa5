"""The worked example of docs/training.md: its changes make the model that they promise."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from conftest import losses, tiny_values, write_toml

from transformer_mt.config.loading import load_config
from transformer_mt.training.run import train

ROOT = Path(__file__).parents[1]
TRAIN_WITH_BOTH = """\
import logging
from pathlib import Path
from transformer_mt.config.loading import load_config
from transformer_mt.training.run import train

logging.basicConfig(level=logging.WARNING, format="%(message)s")
for activation in ("relu", "gelu"):
    train(load_config(Path("tiny.toml"), [f"model.activation={activation}"]), Path(activation))
train(load_config(Path("tiny.toml"), ["train.max_steps=3"]), Path("before"))
"""


def apply_example(folder: Path) -> None:
    """Makes the changes of the page's only diff to the files under a folder."""
    page = (ROOT / "docs" / "training.md").read_text("utf-8")
    [diff] = re.findall(r"```diff\n(.*?)```", page, re.DOTALL)
    for name, hunks in re.findall(r"^--- (.+)\n((?:[^-].*\n|-[^-].*\n)+)", diff, re.MULTILINE):
        source = (folder / name).read_text("utf-8")
        for hunk in re.split(r"^@@.*\n", hunks, flags=re.MULTILINE)[1:]:
            lines = hunk.splitlines(keepends=True)
            old, new = ("".join(x[1:] for x in lines if x[0] != sign) for sign in "+-")
            assert source.count(old) == 1, old
            source = source.replace(old, new)
        (folder / name).write_text(source, "utf-8")


def test_the_worked_example(corpus_dir, tmp_path):
    """GELU trains another model, ReLU the same as before; a resumed run says what changed.

    Sabotage: leave a line out of the example; do not record the digests of the source.
    """
    sizes = {"model__d_model": 16, "model__d_ff": 32, "train__max_steps": 2, "valid__every": 9}
    write_toml(tmp_path / "tiny.toml", tiny_values(corpus_dir, **sizes))
    train(load_config(tmp_path / "tiny.toml"), tmp_path / "before")
    shutil.copytree(ROOT / "transformer_mt", tmp_path / "transformer_mt")
    apply_example(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    words = [sys.executable, "-c", TRAIN_WITH_BOTH]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    before, relu, gelu = (losses(tmp_path / name) for name in ("before", "relu", "gelu"))
    assert before[:2] == relu and before[2] and all(map(float.__ne__, relu, gelu))
    [warning] = [line for line in done.stderr.splitlines() if "bit-equal" in line]
    assert warning.endswith(" one: the source of model/ has changed")
