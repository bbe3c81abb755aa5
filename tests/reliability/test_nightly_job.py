"""The script for a nightly job that docs/translating.md gives, with bad files in it, and killed."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import copy_lines
from launch import FAULTY

ROOT = Path(__file__).parents[2]
CHUNK, SMALL, LARGE = 512, 800, 1_500
"""Lines of a chunk, of small files, which are two groups, and of a large one: three chunks."""


def make_texts(folder: Path) -> None:
    lines = copy_lines(SMALL + LARGE, 51)
    for number in range(SMALL // 20):
        path = folder / f"{number % 7}" / f"{number}.de"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines[20 * number :][:20]))
    (folder / f"{'n' * 252}.de").write_text("x\n")
    (folder / "large.de").write_text("".join(f"{line}\n" for line in lines[SMALL:]))


def spoil(folder: Path, out: Path) -> set[str]:
    """Adds ten bad files; gives their names."""
    before = set(folder.iterdir())
    for name in ("target.de", "own.de"):
        (folder / name).write_text("x\n")
    (out / "target.en").mkdir(parents=True)
    (out / "own.en").write_text("mine\n")
    (folder / "bzip2.de").write_bytes(b"BZh91AY&SY")
    (folder / "cut.de").write_bytes(gzip.compress(b"a\n" * 99)[:-9])
    (folder / "utf16.de").write_bytes("\ufeffab\n".encode("utf-16-le"))
    (folder / "line.de").write_bytes(b"x" * (2**26 + 1))
    (folder / "folder.de").mkdir()
    (folder / "nowhere.de").symlink_to("nothing")
    (folder / "loop.de").symlink_to("loop.de")
    os.mkfifo(folder / "pipe.de")
    return {path.name for path in set(folder.iterdir()) - before}


def start(folder: Path, run: Path, out: Path) -> subprocess.Popen[str]:
    page = (ROOT / "docs" / "translating.md").read_text("utf-8")
    script = re.findall(r"```bash\n(cd .*?)```", page, re.DOTALL)[0]
    program = folder.parent / "transformer-mt"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {FAULTY} chunks 0 {CHUNK} "$@"\n')
    program.chmod(0o755)
    paths = {"TEXTS": folder, "RUN": run, "OUT": out, "PYTHONPATH": ROOT}
    path = os.pathsep.join([str(folder.parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, **{key: str(value) for key, value in paths.items()}}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(["bash", "-c", script], env=env, start_new_session=True, **pipes)


def results(out: Path) -> dict[str, bytes]:
    files = (path for path in out.rglob("*.en") if path.is_file())
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


@pytest.mark.slow
def test_a_nightly_job(copy_run, tmp_path):
    """Sabotage: let an error of one file end the job."""
    texts, out, expected = tmp_path / "texts", tmp_path / "out", tmp_path / "expected"
    make_texts(texts)
    job = start(texts, copy_run, expected)
    assert job.communicate()[0] == "" and job.returncode == 0
    bad = spoil(texts, out)
    record, state = out / ".transformer-mt.jsonl", out / ".large.en.state"
    sizes = set[int]()
    for place in (record, record, state):
        job = start(texts, copy_run, out)
        while job.poll() is None:
            size = place.stat().st_size if place.exists() else 0
            if size and (place == state or size not in sizes):
                sizes.add(size)
                os.killpg(job.pid, signal.SIGKILL)
                break
            time.sleep(0.01)
        job.communicate()
        assert job.returncode == -signal.SIGKILL
    for _ in range(2):
        job = start(texts, copy_run, out)
        printed, errors = job.communicate()
        assert job.returncode == 3 and "Traceback" not in errors, errors
        summary = json.loads((out / "summary.json").read_text())
        assert {Path(name).name for name in summary["failed"]} == bad
        assert len(bad) == 10 and printed.count("\n") == 1 + len(bad)
    assert summary["skipped"] == SMALL // 20 + 2 and summary["done"] == 0
    written = results(out)
    assert written.pop("own.en") == b"mine\n"
    assert written == results(expected)
