"""Directories appear whole or not at all; locks; manifests."""

import errno
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

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


def test_a_directory_is_replaced_only_when_it_is_whole(tmp_path, monkeypatch):
    """After an error, or a kill between the two renames, the old one is there or brought back.

    Sabotage: delete the old directory before the new one has its name.
    """
    path = tmp_path / "directory"

    def write(content: str, error: BaseException | None = None) -> None:
        with atomic_directory(path) as folder:
            (folder / "file").write_text(content)
            assert not path.exists() or (path / "file").read_text() == "old"
            if error:
                raise error

    def holds(content: str) -> bool:
        return (path / "file").read_text() == content and list(tmp_path.iterdir()) == [path]

    rename, sources = Path.rename, []

    def killed_at_the_second(source, target):
        sources.append(source)
        if len(sources) >= 2:
            raise SystemExit("killed")
        return rename(source, target)

    write("old")
    with pytest.raises(RuntimeError):
        write("new", RuntimeError())
    assert holds("old")
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(Path, "rename", killed_at_the_second)
        write("new")
    assert not path.exists()
    restore_replaced(tmp_path)
    assert holds("old")
    write("new")
    (tmp_path / ".directory.replaced").mkdir()  # left over from a replacement that has ended
    restore_replaced(tmp_path)
    assert holds("new")


def test_a_deleted_directory_loses_its_name_first(tmp_path, monkeypatch):
    """Killed while it deletes, the program leaves nothing under the old name."""
    (tmp_path / "directory").mkdir()
    monkeypatch.setattr(files.shutil, "rmtree", Mock(side_effect=SystemExit("killed")))
    with pytest.raises(SystemExit):
        delete_directory(tmp_path / "directory")
    assert [path.name for path in tmp_path.iterdir()] == [".directory.partial"]


def test_a_lock_names_its_holder_and_ends_with_it(tmp_path):
    """Another process is told the holder's id, and gets the lock once that one is gone.

    Sabotage: keep the lock of a file that its holder has removed.
    """
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
            path.unlink()  # as some holders do when they end
            process.kill()

        with locked(path, end_it) as is_locked:
            assert holders == [process.pid] and is_locked()


def test_a_manifest_of_a_newer_version_is_refused_by_name(tmp_path, monkeypatch):
    """With what to do."""
    monkeypatch.setattr(files, "MANIFEST_FORMAT", 2)
    write_manifest(tmp_path, {})
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="format 2 is unknown; use a newer transformer-mt"):
        read_manifest(tmp_path)
    write_manifest(tmp_path, {})
    path = tmp_path / files.MANIFEST
    path.write_text(path.read_text().replace("{", '{"signature":"x",', 1))
    with pytest.raises(CheckpointError, match="unknown key signature; use a newer"):
        read_manifest(tmp_path)
