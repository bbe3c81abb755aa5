"""Directories appear whole or not at all; locks; manifests."""

import errno
import subprocess
import sys

import pytest

from transformer_mt.errors import CheckpointError
from transformer_mt.system import files
from transformer_mt.system.files import (
    atomic_directory,
    atomic_file,
    delete_directory,
    locked,
    read_manifest,
    restore_replaced,
    write_manifest,
)


def test_a_full_disk_names_what_was_written(tmp_path):
    """The system's error has no name. Sabotage: name the temporary file."""
    for writing in (atomic_file, atomic_directory):
        with pytest.raises(OSError, match="No space left") as raised, writing(tmp_path / "new"):
            raise OSError(errno.ENOSPC, "No space left on device")
        assert raised.value.filename == str(tmp_path / "new")
        with pytest.raises(OSError) as raised, writing(tmp_path / "new"):
            raise OSError(errno.EACCES, "Permission denied", "other")
        assert raised.value.filename == "other"


def test_a_directory_is_replaced_only_when_it_is_whole(tmp_path):
    """After an error the old directory is there; afterwards only the new one."""
    path = tmp_path / "directory"
    for content in ("old", "new"):
        with atomic_directory(path) as folder:
            (folder / "file").write_text(content)
            assert not path.exists() or (path / "file").read_text() == "old"
        assert (path / "file").read_text() == content and list(tmp_path.iterdir()) == [path]
    with pytest.raises(RuntimeError), atomic_directory(path) as folder:
        raise RuntimeError
    assert (path / "file").read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path, monkeypatch):
    """The replaced directory is brought back; a leftover of a finished replacement is deleted.

    Sabotage: delete the old directory before the new one has its name.
    """
    path = tmp_path / "directory"
    with atomic_directory(path) as folder:
        (folder / "file").write_text("old")
    renames = []

    def killed_at_the_second(source, target):
        renames.append(source)
        if len(renames) >= 2:
            raise SystemExit("killed")
        return rename(source, target)

    rename = type(path).rename
    with monkeypatch.context() as patch:
        patch.setattr(type(path), "rename", killed_at_the_second)
        with pytest.raises(SystemExit), atomic_directory(path) as folder:
            (folder / "file").write_text("new")
    assert not path.exists()
    restore_replaced(tmp_path)
    assert (path / "file").read_text() == "old" and list(tmp_path.iterdir()) == [path]
    (tmp_path / ".directory.replaced").mkdir()
    restore_replaced(tmp_path)
    assert (path / "file").read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_deleted_directory_loses_its_name_first(tmp_path, monkeypatch):
    """Killed while it deletes, the program leaves nothing under the old name."""
    path = tmp_path / "directory"
    path.mkdir()

    def killed(doomed, **options):
        raise SystemExit("killed")

    monkeypatch.setattr(files.shutil, "rmtree", killed)
    with pytest.raises(SystemExit):
        delete_directory(path)
    assert not path.exists()


def test_a_lock_names_its_holder_and_ends_with_it(tmp_path):
    """Another process is told the holder's id, and gets the lock once that one is gone."""
    path = tmp_path / "lock"
    code = (
        "import sys, pathlib\n"
        "from transformer_mt.system.files import locked\n"
        "with locked(pathlib.Path(sys.argv[1]), print):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=pipe, stdout=pipe, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        holders = []

        def end_it(holder):
            holders.append(int(holder))
            process.kill()

        with locked(path, end_it):
            assert holders == [process.pid]


def test_a_manifest_of_a_newer_format_is_refused_by_name(tmp_path, monkeypatch):
    """With what to do."""
    monkeypatch.setattr(files, "MANIFEST_FORMAT", 2)
    write_manifest(tmp_path, {})
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="format 2 is unknown; use a newer transformer-mt"):
        read_manifest(tmp_path)
