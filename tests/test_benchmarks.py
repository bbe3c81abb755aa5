"""What the benchmarks share: busy neighbours, and the share of the cores that others take."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize("end", ["raise KeyboardInterrupt", "os.kill(os.getpid(), 9)"])
def test_neighbours_end_with_the_benchmark(end):
    """However it ends. Sabotage: let a neighbour not read its stdin."""
    script = f"import load, os\nwith load.neighbours(2):\n    {end}\n"
    # Neighbours inherit stdout: the pipe closes when the last of them has ended.
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, timeout=20)
    assert done.returncode < 0
    assert done.stderr.count(b"KeyboardInterrupt") <= 1


def test_the_share_of_others(monkeypatch, tmp_path):
    """A neighbour counts, the benchmark itself does not; nothing is said of a share unknown.

    Sabotage: subtract the idle time instead of the benchmark's; take the share as 0 without /proc.
    """
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import load

    with load.neighbours(1):
        measured = load.Load()
        with measured.watch():
            time.sleep(0.5)
    # Half of what it takes on an idle machine; other programs only add to it.
    assert measured.share is None or 0.5 / (os.cpu_count() or 1) < measured.share < 1.1
    assert (measured.share is None) != Path("/proc/stat").exists()
    assert load.describe_share(0.1) == load.describe_share(None) == ""
    assert load.describe_share(0.484) == "other processes took 48% of the cores"
    monkeypatch.setattr(load, "STAT", tmp_path / "missing")
    measured = load.Load()
    with measured.watch():
        pass
    assert measured.share is None
