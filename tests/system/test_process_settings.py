"""Settings of the process: standard streams that are closed or lost, memory, and threads."""

import os
import subprocess

import pytest
from conftest import command

from transformer_mt.system.process_settings import configure_libraries


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_closed_stdout_is_an_error(closed):
    """One line and exit code 2. Sabotage: open the null device for writing."""
    line = " ".join(command("config", "optim.eps"))
    done = subprocess.run(["bash", "-c", f"{line} {closed}"], stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 2
    expected = "" if "2>&-" in closed else "error: output: Bad file descriptor\n"
    assert done.stderr.decode() == expected


def test_a_closed_stdin_is_empty(untrained_run):
    """No translation, and no traceback. Sabotage: leave sys.stdin None."""
    line = " ".join(command("translate", untrained_run, "-q"))
    done = subprocess.run(["bash", "-c", f"{line} <&-"], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize(
    ("name", "value", "variable", "expected"),
    [
        ("PATH", "", "GOMP_SPINCOUNT", "1000"),
        ("GOMP_SPINCOUNT", "7", "GOMP_SPINCOUNT", "7"),
        ("OMP_WAIT_POLICY", "PASSIVE", "GOMP_SPINCOUNT", None),
        ("PATH", "", "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64"),
        ("LRU_CACHE_CAPACITY", "9", "LRU_CACHE_CAPACITY", "9"),
    ],
)
def test_variables_of_the_user_are_kept(monkeypatch, name, value, variable, expected):
    """Sabotage: set a variable whatever it is."""
    monkeypatch.setattr(os, "environ", {name: value})
    configure_libraries()
    assert os.environ.get(variable) == expected


def test_variables_are_set_before_torch_is_imported():
    """As GNU OpenMP reports, which torch loads. Sabotage: set them in a command."""
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    words = command("translate", "nowhere")
    environment |= {"OMP_DISPLAY_ENV": "VERBOSE"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert "GOMP_SPINCOUNT = '1000'" in done.stderr
