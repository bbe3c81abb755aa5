"""docs/tutorial.md: its commands run as they stand, and print lines of the kind it shows."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "docs" / "tutorial.md"
SIZES = (
    "model.d_model=16 model.d_ff=16 train.max_steps=60 train.save_every=10 valid.every=30"
    " valid.patience=0"
).split()
"""A model that is trained in a minute."""


def read_console() -> list[tuple[str, list[str]]]:
    """Reads the commands of all `console` blocks, each with the lines that it shows."""
    commands: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", TUTORIAL.read_text("utf-8"), re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                commands.append((line[2:], []))
            elif line.strip() != "...":
                commands[-1][1].append(line)
    return commands


def kind(line: str) -> str:
    """Gives the first word of a line, any number in it as #."""
    return re.sub(r"\d[\d,.:]*", "#", line).split()[0]


@pytest.mark.slow
def test_its_commands(tmp_path):
    """With a small model. Sabotage: rename an option, or a file that a later command reads."""
    (tmp_path / "data").symlink_to(ROOT / "data")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "transformer-mt"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m transformer_mt "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    run = [pair for pair in read_console() if "transformer-mt" in pair[0]]
    assert len(run) >= 10
    for command, shown in run:
        reduced = f"{command} " + " ".join(f"--set {size}" for size in SIZES)
        done = subprocess.run(
            ["bash", "-c", reduced if " train " in command else command],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}"
        kinds = {kind(line) for line in done.stdout.splitlines() if line.strip()}
        if command.startswith("echo"):
            shown = [shown[0], shown[-1]]  # between them is the translation
        missing = [line for line in shown if line.strip() and kind(line) not in kinds]
        assert not missing, f"{command} prints no line like {missing[0]!r}:\n{done.stdout}"


def test_its_pictures_are_there():
    """Every picture that the tutorial and the README show."""
    for page in (TUTORIAL, ROOT / "README.md"):
        pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", page.read_text("utf-8"))
        assert pictures
        for picture in pictures:
            assert (page.parent / picture).stat().st_size < 200_000
