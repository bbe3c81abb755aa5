"""What the guides say: the tutorial's commands, the model page, code for Python, the reference."""

import math
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import fork_server
import pytest
import torch
import typer
from conftest import write_config

import transformer_mt
from transformer_mt.checkpoints.run_directory import RESUMABLE_CHECKPOINTS
from transformer_mt.cli.figures import plot
from transformer_mt.cli.program import app
from transformer_mt.config.keys import DEFAULTS
from transformer_mt.config.loading import load_config
from transformer_mt.config.reference import list_sections
from transformer_mt.model.transformer import parameter_shapes
from transformer_mt.training.run import train

ROOT = Path(__file__).parents[1]
TUTORIAL, GUIDE = ROOT / "docs" / "tutorial.md", ROOT / "docs" / "translating.md"
SLICE = '{{src="train.de",tgt="train.en",slice="{}"}}'
SIZES = f"""model.d_model=16 model.d_ff=16 model.encoder_layers=1 model.decoder_layers=1
    train.batch_tokens=500 train.max_steps=20 train.save_every=10 valid.every=10 valid.patience=0
    data.valid={SLICE.format("[-80:-40]")} data.test={SLICE.format("[-40:]")}""".split()
"""A model that is trained in seconds, and little text to translate: it writes all that it may."""


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


# The last one counts.
TINY = """model.d_model=16 model.d_ff=16 model.encoder_layers=1 model.decoder_layers=1
    vocab.size=400 data.valid=validation[:40] data.test=test[:40] valid.every=10 train.save_every=10
    train.max_steps=10""".split()
"""A run of a few seconds."""


@pytest.mark.slow
def test_from_runs_to_a_table(tmp_path):
    """The commands of the page on experiments, with tiny runs on the sample text."""
    for name in ("data", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    page = (ROOT / "docs" / "experiments.md").read_text("utf-8")
    commands = "".join(re.findall(r"```bash\n(.*?)```", page, re.DOTALL))
    script = f"""
        set -eu
        transformer-mt() {{
            if [ "$1" = train ]; then set -- "$@" {" ".join(f"--set {key}" for key in TINY)}; fi
            {shlex.quote(sys.executable)} -m transformer_mt "$@"
        }}
        {commands.replace("configs/multi30k", "configs/sample")}"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = {"stdout": subprocess.PIPE, "text": True, "check": True}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, **pipe)
    assert (tmp_path / "nll.png").exists()
    assert re.search("^0.0 .*split test.*: chrF2", done.stdout, re.MULTILINE)  # the paired test
    table = (tmp_path / "table.tex").read_text("utf-8")
    assert re.findall(r"^(0\..) &.*\\\\$", table, re.MULTILINE) == ["0.0", "0.1"]
    assert "BLEU" in table and "nrefs:1" in table


def test_training_from_python(corpus_dir, tmp_path, monkeypatch, capfd):
    """The lines of the guide, with another configuration."""
    section = GUIDE.read_text("utf-8").split("## Training from Python\n")[1].split("\n## ")[0]
    lines = [line[4:] for line in section.splitlines() if line.startswith("    ")]
    write_config(tmp_path, corpus_dir, train__max_steps=1)
    code = "\n".join(lines).replace("configs/sample", "tiny").replace("steps=100", "steps=2")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["progress"].step == 2 and (tmp_path / "checkpoints" / "sample").is_dir()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("number", [0, 1])
def test_a_loaded_model_for_a_script(exported_run, tmp_path, number):
    """It prints the translation and ends. Sabotage: read chunks of lines until they are full."""
    section = GUIDE.read_text("utf-8").split("## A loaded model for a script\n")[1]
    blocks = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 2
    program = tmp_path / "transformer-mt"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m transformer_mt "$@"\n')
    program.chmod(0o755)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "wmt16-base").symlink_to(exported_run)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    words = ["bash", "-c", blocks[number]]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == transformer_mt.load(exported_run).translate(["Ein Satz."])
    assert done.returncode == 0 and not done.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["checkpoints", "transformer-mt"]


MODEL = ROOT / "docs" / "model.md"


def test_the_code_of_the_model_page(capsys):
    """Each block in order; it prints what the comments after its `print` say."""
    blocks = re.findall(r"```python\n(.*?)```", MODEL.read_text("utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        assert 5 <= len(re.findall(r"^.", block, re.MULTILINE)) <= 15, block
        exec(compile(block, str(MODEL), "exec"), names)
        shown = re.findall(r"^ *print\(.*\)  # (.*)$", block, re.MULTILINE)
        assert capsys.readouterr().out.splitlines() == shown and shown


def test_the_pictures_and_the_table_of_the_model_page_are_current():
    """The table has the lines of each file of the core, so a change of one changes it."""
    made = runpy.run_path(str(ROOT / "docs" / "make_model.py"))["make_files"]()
    assert len(made) == 5
    for path, content in made.items():
        assert path.read_text("utf-8") == content, f"{path.name}: run `make reference`"


TRY_ROTARY = """\
import logging, sys
from pathlib import Path

for name in [name for name in sys.modules if name.startswith("transformer_mt")]:
    del sys.modules[name]  # of the package that is not changed

from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.config.loading import load_config
from transformer_mt.errors import ConfigError
from transformer_mt.training.run import train
from transformer_mt.translation.export import export

handler = logging.StreamHandler()
handler.setLevel(logging.WARNING)
logging.getLogger().addHandler(handler)
folder = Path(__file__).parent
rotary = load_config(folder / "tiny.toml", ["model.positions=rotary"])
train(rotary, folder / "rotary")
try:
    export(find_checkpoint(folder / "rotary"), folder / "exported")
except ConfigError as error:
    logging.error(error)
train(load_config(folder / "tiny.toml", ["train.max_steps=3"]), folder / "before")
"""


def apply_diff(diff: str, folder: Path) -> None:
    """Makes the changes of a diff, whose hunks each fit one place, to the files under a folder."""
    for name, hunks in re.findall(r"^--- (.+)\n((?:[^-].*\n|-[^-].*\n)+)", diff, re.MULTILINE):
        source = (folder / name).read_text("utf-8")
        for hunk in re.split(r"^@@.*\n", hunks, flags=re.MULTILINE)[1:]:
            lines = hunk.splitlines(keepends=True)
            old, new = ("".join(x[1:] for x in lines if x[0] != sign) for sign in "+-")
            assert source.count(old) == 1, old
            source = source.replace(old, new)
        (folder / name).write_text(source, "utf-8")


def try_rotary(folder: Path) -> list[str]:
    """Trains and exports with the package in a folder; gives the messages."""
    (folder / "try_rotary.py").write_text(TRY_ROTARY)
    done = fork_server.run([sys.executable, folder / "try_rotary.py"])
    assert done.returncode == 0, done.stderr.decode()
    return done.stderr.decode().splitlines()


def test_the_worked_change(corpus_dir, tmp_path):
    """In `forward` alone, validation warns and `export` refuses; elsewhere, too, a run resumes."""
    diffs = re.findall(r"```diff\n(.*?)```", MODEL.read_text("utf-8"), re.DOTALL)
    added = [line for diff in diffs for line in diff.splitlines() if re.match(r"\+ *\S", line)]
    assert len(diffs) == 2 and len(added) <= 27
    write_config(tmp_path, corpus_dir, train__max_steps=2, valid__every=1)
    train(load_config(tmp_path / "tiny.toml"), tmp_path / "before")
    shutil.copytree(ROOT / "transformer_mt", tmp_path / "transformer_mt")
    apply_diff(diffs[0], tmp_path)
    shutil.copytree(tmp_path, tmp_path / "both")
    decoding, exporting, changed = try_rotary(tmp_path)
    assert "`decode_position`" in decoding and "`forward`" in decoding
    assert "gives other scores" in exporting and "export_ctranslate2.py" in exporting
    assert not (tmp_path / "exported").exists()
    apply_diff(diffs[1], tmp_path / "both")
    both = try_rotary(tmp_path / "both")
    assert both == [f"{changed}, the source of translation/ has changed"]
    assert changed.endswith(" one: the source of model/ has changed")
    assert (tmp_path / "both" / "exported" / "model.bin").exists()


def test_the_size_of_checkpoints():
    """Of a full run, with the moments of two; weights and moments have 4 bytes each."""
    text = " ".join((ROOT / "docs" / "training.md").read_text("utf-8").split())
    for name, size in (("base", "2.5 GB in all"), ("big", "21 GB (computed)")):
        config = load_config(ROOT / "configs" / f"wmt16-{name}.toml")
        shapes = parameter_shapes(config.model, config.vocab.size, config.vocab.size)
        numbers = config.train.keep_last + 1 + 2 * RESUMABLE_CHECKPOINTS
        total = 4e-9 * numbers * sum(map(math.prod, shapes.values()))
        assert f"{total:.2g} GB" in size and size in text


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


def test_the_benchmark_of_training_compiles_anew(monkeypatch):
    """Or its first step would be a cached one. Sabotage: set the environment variable instead."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(torch.compiler.config, "force_disable_caches", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(typer.BadParameter):  # before it measures
        runpy.run_path(str(ROOT / "benchmarks" / "train.py"))["main"]()
    assert torch.compiler.config.force_disable_caches


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
