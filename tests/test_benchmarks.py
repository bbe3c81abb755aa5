"""What the benchmarks share: busy neighbours, and the share of the cores that others take."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    """Gives benchmarks/load.py, which the scripts import from their own folder."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import load

    return load


@pytest.mark.parametrize("end", ["raise KeyboardInterrupt", "os.kill(os.getpid(), 9)"])
def test_neighbours_end_with_the_benchmark(end):
    """However it ends. Sabotage: let a neighbour not read its stdin."""
    script = f"import load, os\nwith load.neighbours(2):\n    {end}\n"
    # Neighbours inherit stdout: the pipe closes when the last of them has ended.
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, timeout=20)
    assert done.returncode < 0
    assert done.stderr.count(b"KeyboardInterrupt") <= 1


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs /proc")
def test_a_neighbour_counts_as_another_process(load):
    """Sabotage: subtract the idle time instead of the benchmark's."""
    with load.neighbours(1):
        measured = load.Load()
        with measured.watch():
            time.sleep(0.5)
    # Half of what it takes on an idle machine; other programs only add to it.
    assert measured.share is not None
    assert 0.5 / (os.cpu_count() or 1) < measured.share < 1.1


def test_only_a_large_share_is_told(load, tmp_path, monkeypatch):
    """Nothing is said where the share is unknown. Sabotage: take the share as 0 without /proc."""
    assert load.describe_share(0.1) == load.describe_share(None) == ""
    assert load.describe_share(0.484) == "other processes took 48% of the cores"
    monkeypatch.setattr(load, "STAT", tmp_path / "missing")
    measured = load.Load()
    with measured.watch():
        pass
    assert measured.share is None
