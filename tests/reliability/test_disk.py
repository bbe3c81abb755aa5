"""Full disks and folders that become read-only, on a small file system of their own."""

import shlex
import subprocess
from pathlib import Path

import pytest
from conftest import command, records, write_config, write_copy_corpus

from transformer_mt.checkpoints.run_directory import load_newest

pytestmark = pytest.mark.slow

NAMESPACE = ["unshare", "--map-root-user", "--mount", "sh", "-ec"]


@pytest.fixture
def config(tmp_path) -> Path:
    """Gives a configuration; skips where a process may not mount anything."""
    (tmp_path / "disk").mkdir()
    probe = [*NAMESPACE, f"mount -t tmpfs -o size=1m tmpfs {shlex.quote(str(tmp_path / 'disk'))}"]
    if subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("this machine does not let a user mount a file system")
    write_copy_corpus(tmp_path / "corpus", {"train": 600, "validation": 12})
    sizes = {"model__d_model": 64, "model__d_ff": 128}
    steps = {"train__max_steps": 60, "train__save_every": 5, "valid__every": 60}
    return write_config(tmp_path, tmp_path / "corpus", **sizes, **steps)


def run_on_disk(config: Path, size: str, script: str) -> subprocess.CompletedProcess[str]:
    """Runs a script with DISK, a file system of that size, and TRAIN; copies the run to kept."""
    folder = config.parent
    disk = shlex.quote(str(folder / "disk"))
    train = shlex.join(command("train", config, "--run", folder / "disk" / "run"))
    whole = (
        f"mount -t tmpfs -o size={size} tmpfs {disk}; DISK={disk}\n{script}\n"
        f"cp -r {disk}/run {shlex.quote(str(folder / 'kept'))}; exit $CODE"
    ).replace("TRAIN", train)
    return subprocess.run([*NAMESPACE, whole], capture_output=True, text=True, timeout=120)


def test_a_full_disk(config):
    """Only the last save fails, with exit code 2; once there is room, the same command goes on."""
    # A checkpoint has about 900 kB: two fit, and the third does not.
    script = (
        "CODE=0; TRAIN || CODE=$?; [ $CODE = 2 ]; ls -A $DISK/run; echo END >&2\n"
        "mount -o remount,size=6m $DISK; CODE=0; TRAIN || CODE=$?"
    )
    done = run_on_disk(config, "2500k", script)
    assert done.returncode == 0, done.stderr
    assert "step-" in done.stdout and ".step-" not in done.stdout
    full, _ = done.stderr.split("END\n")
    assert "training continues" in full and "Traceback" not in full
    last = full.splitlines()[-1]
    assert last.startswith("error: ") and "cannot save step 60" in last
    assert load_newest(config.parent / "kept").progress.step == 60
    steps = [record["step"] for record in records(config.parent / "kept")]
    assert steps == [*range(1, 61), 60]


def test_a_folder_that_becomes_read_only(config):
    """In the middle: saves warn; the end is one line and exit code 2; nothing good is lost."""
    script = (
        "CODE=0; TRAIN & PID=$!\n"
        "until [ -e $DISK/run/step-00000005 ]; do sleep 0.05; done\n"
        "mount --bind $DISK/run $DISK/run && mount -o remount,bind,ro $DISK/run\n"
        "wait $PID || CODE=$?"
    )
    done = run_on_disk(config, "40m", script)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr and "Read-only file system" in done.stderr
    assert "training continues" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert load_newest(config.parent / "kept").progress.step >= 5
