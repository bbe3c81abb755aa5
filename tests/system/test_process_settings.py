"""Settings of the process: standard streams that are closed or lost, memory, and threads."""

import os
import subprocess

import pytest
from conftest import command

from transformer_mt.system.process_settings import configure_libraries


@pytest.mark.parametrize(
    ("words", "closed", "code", "message"),
    [
        (("config", "optim.eps"), ">&-", 2, "error: output: Bad file descriptor\n"),
        (("config", "optim.eps"), "<&- >&- 2>&-", 2, ""),
        (("translate", "RUN", "-q"), "<&-", 0, ""),
    ],
)
def test_a_closed_stream(untrained_run, words, closed, code, message):
    """A closed stdout is an error of one line; a closed stdin is empty.

    Sabotage: open the null device for writing; leave sys.stdin None.
    """
    line = " ".join(command(*words)).replace("RUN", str(untrained_run))
    done = subprocess.run(["bash", "-c", f"{line} {closed}"], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.decode()) == (code, b"", message)


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
