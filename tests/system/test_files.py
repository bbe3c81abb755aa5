"""Directories appear whole or not at all; locks; manifests."""

import errno
import fcntl
import math
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from conftest import file_size_limit, refuses

from transformer_mt.checkpoints.checkpoint import RunState, write_tensors
from transformer_mt.errors import CheckpointError
from transformer_mt.system import files
from transformer_mt.system.files import atomic_directory, atomic_file, locked, new_directory
from transformer_mt.system.manifest import read_manifest


def test_a_full_disk_names_what_was_written(tmp_path, monkeypatch):
    """Or cannot be locked: the system's error has no name. Sabotage: open outside of `naming`."""
    for writing in (atomic_file, atomic_directory):
        with pytest.raises(OSError, match="No space left") as raised, writing(tmp_path / "new"):
            raise OSError(errno.ENOSPC, "No space left on device")
        assert raised.value.filename == str(tmp_path / "new")
        with pytest.raises(OSError) as raised, writing(tmp_path / "new"):
            raise OSError(errno.EACCES, "Permission denied", "other")
        assert raised.value.filename == "other"
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOSYS, "wrong")))
    with pytest.raises(OSError) as raised, locked(tmp_path / ".lock", print):
        pass
    assert raised.value.filename == str(tmp_path / ".lock")


def test_no_symbolic_link_is_followed(tmp_path):
    """As a run from elsewhere may hold one. Sabotage: open temporary files or locks as others."""
    (tmp_path / "other").write_text("text")
    for name in (".new.partial", ".lock"):
        (tmp_path / name).symlink_to("other")
    for opened in (atomic_file(tmp_path / "new"), locked(tmp_path / ".lock", print)):
        with pytest.raises(OSError, match="symbolic links"), opened:
            pass
    assert (tmp_path / "other").read_text() == "text"
    (tmp_path / ".whole.partial").symlink_to(tmp_path)
    with pytest.raises(FileExistsError), atomic_directory(tmp_path / "whole"):
        pass


def test_a_file_system_on_which_all_files_have_one_mode(tmp_path, monkeypatch):
    """Such as a USB stick mounted by root for all users. Sabotage: set a mode that is right."""
    (tmp_path / "file").touch(0o600)
    monkeypatch.setattr(os, "chmod", Mock(side_effect=PermissionError(errno.EPERM, "refused")))
    files.replace_file(tmp_path / "file", b"text")
    assert (tmp_path / "file").read_text() == "text"
    umask = os.umask(0o077)  # as safetensors writes, whatever the umask is
    try:
        write_tensors(tmp_path / "tensors", {"a": torch.zeros(1)})
    finally:
        os.umask(umask)


def test_a_file_system_that_cannot_sync_folders(tmp_path, monkeypatch):
    """Some network file systems refuse it; a file that is refused is an error."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.EINVAL, "Invalid argument")))
    files.sync(tmp_path)
    refuses(OSError, "Invalid argument", files.sync, tmp_path / "file")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    refuses(OSError, "Input/output error", files.sync, tmp_path)


def test_a_directory_is_replaced_only_when_it_is_whole(tmp_path, monkeypatch):
    """After an error, or a kill between the two renames, the old one is there or brought back."""
    parent = tmp_path / "folder"
    path = parent / "directory"

    def write(content: str, error: BaseException | None = None) -> None:
        with atomic_directory(path) as folder:
            (folder / "file").write_text(content)
            assert not path.exists() or (path / "file").read_text() == "old"
            if error:
                raise error

    def holds(content: str) -> bool:
        return (path / "file").read_text() == content and list(parent.iterdir()) == [path]

    rename, sources, synced = Path.rename, [], []

    def killed_at_the_second(source, target):
        sources.append(source)
        if len(sources) >= 2:
            raise SystemExit("killed")
        return rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(files, "sync", lambda path: synced.append(path.name))
        write("old")
    assert synced == ["file", ".directory.partial", "folder"]
    refuses(RuntimeError, "", write, "new", RuntimeError())
    assert holds("old")
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(Path, "rename", killed_at_the_second)
        write("new")
    assert not path.exists()
    files.restore_replaced(parent)
    assert holds("old")
    replaced = parent / ".directory.replaced"
    replaced.mkdir()  # left over from a replacement that has ended
    (replaced / "file").touch()
    write("new")
    assert holds("new")
    for old in (path.symlink_to, Path.mkdir):
        with pytest.raises(FileExistsError, match="has appeared meanwhile"):
            with atomic_directory(path := parent / old.__name__, replaces=False):
                path.symlink_to("nowhere") if old is not Path.mkdir else path.mkdir()
        assert os.path.lexists(path)
        path.rmdir() if path.is_dir() else path.unlink()
    for name in ("directory", "a", "b"):
        replaced.with_name(f".{name}.replaced").mkdir()
    files.restore_replaced(parent)
    assert sorted(path.name for path in parent.iterdir()) == ["a", "b", "directory"]


def test_two_processes_that_write_one_new_directory(tmp_path):
    """The second is refused, and what the first writes is whole. Sabotage: hold no lock."""
    path = tmp_path / "directory"
    with new_directory(path) as folder:
        (folder / "file").touch()
        with pytest.raises(CheckpointError, match=f"{path}: process {os.getpid()} is writing it"):
            with new_directory(path):
                pass
    assert [*tmp_path.iterdir()] == [path] and [*path.iterdir()] == [path / "file"]


def test_a_deleted_directory_loses_its_name_first(tmp_path, monkeypatch):
    """Killed while it deletes, the program leaves nothing under the old name."""
    (tmp_path / "directory").mkdir()
    monkeypatch.setattr(files.shutil, "rmtree", Mock(side_effect=SystemExit("killed")))
    refuses(SystemExit, "killed", files.delete_directory, tmp_path / "directory")
    assert [path.name for path in tmp_path.iterdir()] == [".directory.partial"]


def test_a_lock_names_its_holder_and_ends_with_it(tmp_path):
    """Another process is told the holder's id, and gets the lock once that one is gone."""
    path = tmp_path / "lock"
    code = "import sys, pathlib\nfrom transformer_mt.system.files import locked\n"
    code += "with locked(pathlib.Path(sys.argv[1]), print): print('held', flush=True); input()"
    pipe, words = subprocess.PIPE, [sys.executable, "-c", code, path]
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "held\n"
        holders = []

        def end_it(holder):
            holders.append(int(holder))
            path.unlink()  # as some holders do when they end
            process.kill()

        with locked(path, end_it) as is_locked:
            assert holders == [process.pid] and is_locked()


def test_a_lock_that_cannot_be_written_is_named(tmp_path):
    """As on a full disk. Sabotage: write it through a buffer, which its closing writes again."""
    with file_size_limit(0), pytest.raises(OSError) as caught:
        with locked(tmp_path / "lock", print, remove=True):
            pass
    assert caught.value.filename == str(tmp_path / "lock")
    assert not any(tmp_path.iterdir())


def test_what_a_lock_file_tells(tmp_path, monkeypatch):
    """The id of its last holder, once it is written; and whether it is still there."""
    path = tmp_path / "lock"
    refuse = Mock(side_effect=InterruptedError)
    for _ in range(2):
        with locked(path, refuse) as is_locked:
            assert path.read_text() == str(os.getpid())
            for code, expected in ((errno.EACCES, True), (errno.ENOENT, False), (20, False)):
                with monkeypatch.context() as patch:
                    patch.setattr(Path, "stat", Mock(side_effect=OSError(code, "")))
                    assert is_locked() == expected
    path.write_text("")
    with path.open() as other, pytest.raises(InterruptedError):
        fcntl.flock(other, fcntl.LOCK_EX)
        with locked(path, refuse):
            pass
    refuse.assert_called_once_with("unknown")


def test_a_manifest_of_a_newer_version_is_refused_by_name(tmp_path):
    for content, message in (
        ({"files": {}, "format": 2}, "format 2, not 1; use the version of transformer-mt that"),
        ({"files": 5, "format": 1, "new": 5}, "unknown key new; use a newer transformer-mt"),
    ):
        (tmp_path / "manifest.json").write_bytes(files.signed_json(content))
        refuses(CheckpointError, f"manifest.json: {message}", read_manifest, tmp_path)


def test_what_json_cannot_express_is_refused():
    """Not written as null, which would be read as something else. Sabotage: allow NaN."""
    for value in ({"a": math.nan}, RunState(counters={"window": {"loss": math.inf}})):
        refuses(ValueError, "not JSON compliant", files.canonical_json, value)
