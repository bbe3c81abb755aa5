"""The source and the packages built from it: the recorded commit, what they contain."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from transformer_mt import version


def test_the_commit_is_that_of_the_package(tmp_path):
    """Not of one around it. Sabotage: strip the output of git; leave out files, or quote names."""

    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        command = ["git", "-C", str(tmp_path), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    package, source_state = tmp_path / "package", version.source_state.__wrapped__
    package.mkdir()
    shutil.copy(version.__file__, package)
    (tmp_path / "README.md").touch()
    assert source_state(package) == ("unknown", "")
    git("init", "-q"), git("add", "README.md"), git("commit", "-qm", "surrounds")
    assert source_state(package) == ("unknown", "")
    git("add", "."), git("commit", "-qm", "holds")
    commit = git("rev-parse", "--short", "HEAD")
    (tmp_path / "README.md").write_text("changed")
    assert source_state(package) == (commit, "")
    (package / "deep").mkdir()
    (package / "deep" / "neü.py").write_text("x = 'ä'\n\n")
    assert source_state(package)[0] == f"{commit} with uncommitted changes"
    (package / "version.py").write_text("edited = True\n \n")
    told, diff = source_state(package)
    assert told == f"{commit} with uncommitted changes"
    git("clone", "-q", ".", "clone")
    (tmp_path / "source.diff").write_text(diff)
    git("-C", "clone", "apply", str(tmp_path / "source.diff"))
    for name in ("version.py", "deep/neü.py"):
        applied = tmp_path / "clone" / "package" / name
        assert applied.read_bytes() == (package / name).read_bytes()


SOURCE = '''
"""A module."""
LIMIT = 3
"""What it limits."""

def f(x: int) -> dict:
    """A function."""
    return {**{"a": x}, "b": "text"}
'''
UNCHANGED = [
    ("A module", "The same module"),
    ('"""A function."""', ""),
    ('"""What it limits."""', "# What it limits."),
    ("LIMIT = 3", "LIMIT = (\n    3  # pieces\n)"),
    ('"text"', "'text'"),
]
CHANGED = [
    ("LIMIT = 3", "LIMIT = 4"),
    ("LIMIT", "MAXIMUM"),
    ('"text"', '"Text"'),
    ("x: int", "x: int, /"),
    ("-> dict", ""),
    ('**{"a": x}, "b": "text"', '"b": {"a": x}, **"text"'),
    ("return", "yield"),
]


def test_digests_of_the_source(tmp_path, monkeypatch):
    """Of code and names of modules, however deep; not of comments, docstrings and layout.

    Sabotage: digest the bytes; keep positions; drop every constant.
    """
    monkeypatch.setattr(version, "_PACKAGE", tmp_path)
    (tmp_path / "text" / "deep").mkdir(parents=True)

    def digest(old: str = "", new: str = "", package="text", name: str = "a.py") -> str:
        assert old in SOURCE
        path = tmp_path / "text" / "deep" / name
        path.write_text(SOURCE.replace(old, new) if old else SOURCE)
        value = version.source_digest.__wrapped__(package)
        path.unlink()
        return value

    others = {digest(package=package) for package in version.SOURCE_PACKAGES if package != "text"}
    assert len(others) == 1  # none has a file
    assert {digest(*change) for change in UNCHANGED} == {digest()}
    changed = [digest(*change) for change in CHANGED]
    assert len({*others, digest(), digest(name="b.py"), *changed}) == len(CHANGED) + 3


ROOT = Path(__file__).parents[1]

OTHER_FILES = """py.typed translation/model_card.md translation/usage_ctranslate2.md
    translation/usage_transformers.md figures/report.html figures/figures.mplstyle
    text/abbreviations.toml training/fine_tuning.toml training/new_config.toml
    training/recipes.toml""".split()
BUILD = "import setuptools.build_meta as build, sys; print(build.build_{}(sys.argv[1]))"
CLIENT = """
import transformer_mt
from transformer_mt import DataError, TransformerMTError, TranslationModel, Translation


def first(path: str) -> str:
    model: TranslationModel = transformer_mt.load(path)
    best: Translation = model.n_best(["a"], n=2)[0][0]
    failures: tuple[type[TransformerMTError], ...] = (DataError, transformer_mt.ConfigError)
    number: int = best.text
    return transformer_mt.misspelt(best.text)
"""


def run(*words: object, cwd: Path, path: object = "") -> str:
    """Runs Python in a folder and gives what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(path)}
    return subprocess.check_output([sys.executable, *words], cwd=cwd, env=environment, text=True)


@pytest.mark.slow
def test_the_sdist_and_its_wheel_are_complete(tmp_path):
    """The sdist holds what git tracks, and its wheel every module; the program starts."""
    name = run("-c", BUILD.format("sdist"), tmp_path, cwd=ROOT).split()[-1]
    # Python's tarfile wants a filter since 3.12, and has none before 3.11.4.
    subprocess.run(["tar", "-xf", tmp_path / name, "-C", tmp_path], check=True)
    source = tmp_path / name.removesuffix(".tar.gz")
    tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    assert not [path for path in tracked if not (source / path).exists()]
    wheel = tmp_path / run("-c", BUILD.format("wheel"), tmp_path, cwd=source).split()[-1]
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {path for path in (ROOT / "transformer_mt").rglob("*") if path.suffix == ".py"}
    expected = {path.relative_to(ROOT).as_posix() for path in sources}
    assert packed == expected | {f"transformer_mt/{name}" for name in OTHER_FILES}
    shown = run("-m", "transformer_mt", "config", cwd=tmp_path, path=wheel)
    assert "optim.warmup_steps = 4000" in shown


@pytest.mark.slow
def test_an_editable_installation_shows_its_types(tmp_path):
    """To mypy, which runs no code to find it. Sabotage: leave `package-dir` out."""
    source = tmp_path / "source"
    shutil.copytree(ROOT / "transformer_mt", source / "transformer_mt")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    name = run("-c", BUILD.format("editable"), tmp_path, cwd=source).split()[-1]
    run("-m", "venv", "--without-pip", "new", cwd=tmp_path)
    [site_packages] = tmp_path.glob("new/lib/python3*/site-packages")
    with zipfile.ZipFile(tmp_path / name) as wheel:
        wheel.extractall(site_packages)
    (tmp_path / "client.py").write_text(CLIENT)
    python = tmp_path / "new" / "bin" / "python"
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "client.py"]
    checked = subprocess.run(mypy, cwd=tmp_path, capture_output=True, text=True)
    [mistake, *misspelt, _] = checked.stdout.splitlines()
    assert mistake.startswith("client.py:10: error: Incompatible types in assignment")
    assert any('client.py:11: error: Module has no attribute "misspelt"' in x for x in misspelt)
