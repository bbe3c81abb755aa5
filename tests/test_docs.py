"""What the guides say: the tutorial's commands, the worked example, the reference."""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import fork_server
import pytest
from conftest import losses, write_config

from transformer_mt.cli.figures import plot
from transformer_mt.cli.program import app
from transformer_mt.config.keys import DEFAULTS
from transformer_mt.config.loading import load_config
from transformer_mt.config.reference import list_sections
from transformer_mt.training.run import train

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
    """With a small model."""
    (tmp_path / "data").symlink_to(ROOT / "data")
    commands = [pair for pair in read_console() if "transformer-mt" in pair[0]]
    assert len(commands) >= 10
    for command, shown in commands:
        words, stdin = shlex.split(command), b""
        if words[0] == "echo":
            stdin, words = f"{words[1]}\n".encode(), words[3:]
            shown = [shown[0], shown[-1]]  # between them is the translation
        if words[1] == "train":
            words += [word for size in SIZES for word in ("--set", size)]
        module = [sys.executable, "-m", "transformer_mt"]
        done = fork_server.run([*module, *words[1:]], stdin, cwd=tmp_path)
        printed = (done.stdout + done.stderr).decode()
        assert done.returncode == 0, f"{command}: {printed}"
        kinds = {kind(line) for line in printed.splitlines() if line.strip()}
        missing = [line for line in shown if line.strip() and kind(line) not in kinds]
        assert not missing, f"{command} prints no line like {missing[0]!r}:\n{printed}"


def test_its_pictures_are_there():
    """Every picture that the tutorial and the README show."""
    for page in (TUTORIAL, ROOT / "README.md"):
        pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", page.read_text("utf-8"))
        assert pictures
        for picture in pictures:
            assert (page.parent / picture).stat().st_size < 200_000


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
    """GELU trains another model, ReLU the same as before; a resumed run says what changed."""
    write_config(tmp_path, corpus_dir, train__max_steps=2, valid__every=9)
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


def test_the_reference_is_current():
    script = runpy.run_path(str(ROOT / "docs" / "make_reference.py"))
    committed = script["REFERENCE"].read_text(encoding="utf-8")
    assert committed == script["render"](), "run `make reference`"
    assert all(key.meaning for _, _, keys in list_sections() for key in keys)
    assert re.findall(r"^\| `(\w+\.\w+)` \|", committed, re.MULTILINE) == list(DEFAULTS)
    commands = [command.name or command.callback.__name__ for command in app.registered_commands]
    plots = [f"plot {command.callback.__name__}" for command in plot.registered_commands]
    headings = re.findall(r"^### transformer-mt (.+)$", committed, re.MULTILINE)
    assert headings == [*commands, "plot", *plots]
    for line in committed.splitlines():
        assert not re.search(r"\| +\|", line), f"an empty cell: {line}"


def test_the_tables_and_the_plot_of_results_are_current():
    """They are what `python benchmarks/show.py` writes; links are tested below."""
    results = runpy.run_path(str(ROOT / "benchmarks" / "show.py"))
    for name, content in results["make_files"]().items():
        assert (ROOT / name).read_bytes() == content, name


def test_links_between_pages_lead_somewhere():
    """Every relative link of a page names a file, and a heading in it."""
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")):
        for link in re.findall(r"\]\(([^):]+)\)", page.read_text("utf-8")):
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            assert target.exists(), f"{page.name}: {link}"
            if anchor and target.suffix == ".md":
                titles = re.findall("^#+ (.*)", target.read_text("utf-8"), re.M)
                slugs = {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in titles}
                assert anchor in slugs, f"{page.name}: {link}"
