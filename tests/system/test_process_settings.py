"""Standard streams that are closed when the program starts, as daemons have them."""

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
