"""The built wheel contains the whole package."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

OTHER_FILES = (
    "py.typed",
    "checkpoints/model_card.md",
    "figures/report.html",
    "training/new_config.toml",
)


@pytest.mark.slow
def test_the_wheel_contains_every_module(tmp_path):
    """Sabotage: name only the top package in pyproject.toml."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", tmp_path, ROOT]
    subprocess.run(build, check=True)
    [wheel] = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {path for path in (ROOT / "transformer_mt").rglob("*") if path.suffix == ".py"}
    expected = {path.relative_to(ROOT).as_posix() for path in sources}
    assert packed == expected | {f"transformer_mt/{name}" for name in OTHER_FILES}
