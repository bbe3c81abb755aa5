"""The commands `plot ...`: files, messages and exit codes."""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from conftest import run_program, tiny_values, write_toml
from test_cli_errors import assert_one_error, call
from test_training_figure import write_run

from transformer_mt.figures.canvas import matplotlib_defaults


@pytest.fixture
def config(corpus_dir, tmp_path):
    return write_toml(tmp_path / "tiny.toml", tiny_values(corpus_dir))


def check_file(path) -> None:
    """Checks that a file is what its ending says."""
    content = path.read_bytes()
    if path.suffix == ".png":
        width, height = (int.from_bytes(content[i : i + 4], "big") for i in (16, 20))
        assert content.startswith(b"\x89PNG\r\n\x1a\n") and width > 600 and height > 400
    elif path.suffix == ".svg":
        assert ElementTree.fromstring(content).tag == "{http://www.w3.org/2000/svg}svg"
    else:
        assert content.startswith(b"%PDF-") and content.rstrip().endswith(b"%%EOF")


@pytest.mark.parametrize("ending", [".png", ".SVG", ".pdf"])
@pytest.mark.parametrize("name", ["training", "attention", "schedule", "positions"])
def test_every_command_writes_every_format(
    config, untrained_run, tmp_path, monkeypatch, capsys, name, ending
):
    """The path on stdout, nothing on stderr, the same bytes again.

    Sabotage: no salt, or the date, in an SVG.
    """
    run = write_run(tmp_path / "run")
    command = {
        "training": ["training", run, run],
        "attention": ["attention", untrained_run, "ab cd", "--heads", "--quiet"],
        "schedule": ["schedule", config],
        "positions": ["positions", config],
    }[name]
    path, contents = tmp_path / f"{name}{ending}", []
    for _ in range(2):
        result = call(monkeypatch, capsys, "plot", *command, "-o", path)
        assert result == (0, f"{path}\n", "")
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    check_file(path.rename(path.with_suffix(path.suffix.lower())))


def test_an_output_is_checked_before_anything_else(tmp_path, monkeypatch, capsys):
    """Before the run is read, which is missing here. Sabotage: check it when it is written."""
    for name, message in {
        "x.jpg": "name a file that ends in .png, .svg or .pdf",
        "x": "name a file that ends in .png, .svg or .pdf",
        "none/x.png": "there is no folder",
    }.items():
        for command in (["training", "none"], ["attention", "none", "a"], ["schedule", "none"]):
            result = call(monkeypatch, capsys, "plot", *command, "-o", tmp_path / name)
            assert_one_error(*result, message)
    result = call(monkeypatch, capsys, "plot", "training", "none", "-o", tmp_path / "x.png")
    assert_one_error(*result, "none: no such run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["training", "attention", "schedule", "positions"])
def test_help_of_a_plot(command, monkeypatch, capsys):
    """Plain, and no wider than a terminal."""
    code, out, err = call(monkeypatch, capsys, "plot", command, "-h")
    assert code == 0 and not err and "-o, --output FILE" in out
    assert all(len(line) <= 80 for line in out.splitlines() if "transformer-mt" not in line)


@pytest.mark.parametrize(
    ("command", "package", "message"),
    [
        ("plot schedule", "matplotlib", "error: plot needs Matplotlib: "),
        ("report", "matplotlib", "error: report needs Matplotlib: "),
        ("report", "jinja2", "error: report needs Jinja2: "),
        ("plot schedule", "jinja2", ""),
    ],
)
def test_packages_are_optional(config, tmp_path, command, package, message):
    """Without one, a line says what to install. Sabotage: import it at the top of canvas.py."""
    script = (
        "import sys, importlib.util as u; find = u.find_spec\n"
        f"sys.modules['{package}'] = None\n"
        f"u.find_spec = lambda name, *a: None if name == '{package}' else find(name, *a)\n"
        "from transformer_mt.cli.program import main; main()"
    )
    arguments = [*command.split(), str(config), "-o", str(tmp_path / "x.png")]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60
    )
    install = "pip install 'transformer-mt[plots]'\n" if message else ""
    assert (done.returncode, done.stderr) == (2 if message else 0, message + install)


def test_no_display_and_no_settings_of_the_user(tmp_path, monkeypatch, capsys):
    """A matplotlibrc changes nothing, and nothing is said of it.

    Sabotage: draw with the user's settings.
    """
    run = write_run(tmp_path / "run")
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nlines.markersize: 20\n")
    call(monkeypatch, capsys, "plot", "training", run, "-o", tmp_path / "plain.svg")
    monkeypatch.setenv("MATPLOTLIBRC", str(tmp_path))
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setenv("MPLBACKEND", "tkagg")
    done = run_program("plot", "training", run, "-o", tmp_path / "mine.svg")
    assert done.returncode == 0 and not done.stderr
    assert (tmp_path / "mine.svg").read_bytes() == (tmp_path / "plain.svg").read_bytes()


def test_settings_are_restored():
    """A library function changes no setting of the process. Sabotage: set rcParams."""
    import matplotlib

    before = dict(matplotlib.rcParams)
    with matplotlib_defaults():
        assert matplotlib.rcParams["font.size"] == 9
    assert dict(matplotlib.rcParams) == before
