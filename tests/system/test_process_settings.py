"""Settings of the process: standard streams that are closed, as daemons have them, and threads."""

import os
import subprocess

import pytest
from conftest import command


@pytest.mark.parametrize("closed", [">&-", "<&- >&-", ">&- 2>&-"])
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
    ("variables", "count"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "0")],
)
def test_waiting_threads_sleep_soon(untrained_run, variables, count):
    """As GNU OpenMP reports when torch loads it. Sabotage: set it after torch is imported."""
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"OMP_DISPLAY_ENV": "VERBOSE", **variables}
    words = command("translate", untrained_run)
    done = subprocess.run(
        words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert f"GOMP_SPINCOUNT = '{count}'" in done.stderr
