"""Outputs named by the user: regular files are replaced once complete, streams are not.

`-` is stdout. Devices, named pipes and descriptors such as /dev/stdout or a shell's `>(...)` are
written to directly.
"""

import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from transformer_mt.errors import OutputError
from transformer_mt.system.compression import COMPRESSION_SUFFIXES, compress
from transformer_mt.system.files import locked, sync

_DESCRIPTOR = re.compile(r"(?:/dev/fd|/proc/self/fd)/(\d+)")
_MAX_LINKS = 40
"""Number of symbolic links that Linux follows."""


@dataclass(frozen=True)
class Output:
    """An output that has been checked.

    Attributes:
        name: As the user typed it, for messages.
        target: The regular file to create or replace, with symbolic links resolved; None if the
            output is a stream.
        suffix: Compression suffix of its name, such as `.gz`, or an empty string.
        descriptor: Descriptor to write to, if the process inherited it; else None.
    """

    name: str
    target: Path | None = None
    suffix: str = ""
    descriptor: int | None = None

    def beside(self, suffix: str) -> Path:
        """Gives the path of a hidden file beside the target."""
        assert self.target is not None
        return self.target.with_name(f".{self.target.name}.{suffix}")

    @property
    def partial(self) -> Path:
        """The temporary file that becomes the target."""
        return self.beside("partial")

    def open_partial(self, size: int = 0) -> BinaryIO:
        """Opens the partial file for appending, with the mode and owner of the file it replaces.

        Args:
            size: Number of its bytes to keep.
        """
        assert self.target is not None
        # Mode first: the partial file of a private file is never readable by others.
        existing = self.target.stat() if self.target.exists() else None
        mode = 0o600 if existing else 0o666
        file = open(os.open(self.partial, os.O_RDWR | os.O_CREAT, mode), "r+b")
        if existing:
            _copy_owner(existing, file.fileno())
            os.fchmod(file.fileno(), stat.S_IMODE(existing.st_mode))
        file.truncate(size)
        file.seek(size)
        return file

    def commit(self) -> None:
        """Replaces the target with the partial file, once the latter is on disk."""
        assert self.target is not None
        sync(self.partial)
        self.partial.replace(self.target)
        sync(self.target.parent)

    def lock(self) -> AbstractContextManager[None]:
        """Holds a lock file beside the target; a stream needs none.

        Raises:
            OutputError: If another process holds it, or the folder is not writable.
        """
        return nullcontext() if self.target is None else self._lock()

    @contextmanager
    def _lock(self) -> Iterator[None]:
        def refuse(process: str) -> None:
            raise OutputError(
                f"{self.name}: process {process} is writing it; wait for it, or name another output"
            )

        lock = locked(self.beside("lock"), refuse, remove=True)
        try:
            lock.__enter__()
        except OSError as error:
            raise OutputError(f"{self.name}: cannot be written: {error.strerror}") from None
        try:
            yield
        finally:
            lock.__exit__(None, None, None)


def check_output(path: Path | None, inputs: Sequence[Path | None] = ()) -> Output:
    """Checks an output and decides how it will be written, before any work is done.

    Args:
        path: As the user typed it; None and `-` are stdout.
        inputs: Files that are read and must not be replaced.

    Raises:
        OutputError: If it is a directory or an input, its folder is missing, or it is not writable.
    """
    if path is None or str(path) == "-":
        return Output("stdout", descriptor=1)
    suffix = path.suffix if path.suffix in COMPRESSION_SUFFIXES else ""
    descriptor = _inherited_descriptor(path)
    if descriptor is not None:
        _check_descriptor(path, descriptor)
        return Output(str(path), None, suffix, descriptor)
    target = Path(os.path.realpath(path))
    if path.is_dir():
        raise OutputError(f"{path}: is a directory; name a file")
    if path.exists() and not os.access(path, os.W_OK):
        raise OutputError(f"{path}: not writable")
    if path.exists() and not target.is_file():
        return Output(str(path), None, suffix)
    if not target.parent.is_dir():
        folder = path.parent if target.name == path.name else target.parent
        raise OutputError(f"{path}: there is no folder {folder}")
    if not os.access(target.parent, os.W_OK):
        raise OutputError(f"{path}: its folder is not writable")
    if any(source and os.path.realpath(source) == str(target) for source in inputs):
        raise OutputError(f"{path}: is also an input; name another output")
    return Output(str(path), target, suffix)


def _inherited_descriptor(path: Path) -> int | None:
    """Finds the descriptor that a path names; reopening the path could truncate its file."""
    for _ in range(_MAX_LINKS):
        absolute = os.path.abspath(path)
        if absolute in ("/dev/stdout", "/dev/stderr"):
            return 1 if absolute == "/dev/stdout" else 2
        if match := _DESCRIPTOR.fullmatch(absolute):
            return int(match[1])
        if not path.is_symlink():
            return None
        path = path.parent / os.readlink(path)
    raise OutputError(f"{path}: too many symbolic links")


def _check_descriptor(path: Path, descriptor: int) -> None:
    try:
        os.fstat(descriptor)
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from None


def _copy_owner(existing: os.stat_result, descriptor: int) -> None:
    new = os.fstat(descriptor)
    if (new.st_uid, new.st_gid) == (existing.st_uid, existing.st_gid):
        return
    try:
        os.fchown(descriptor, existing.st_uid, existing.st_gid)
    except PermissionError:
        pass  # only root may change owners; the new file keeps the current user


@contextmanager
def open_output(output: Output) -> Iterator[BinaryIO]:
    """Opens an output for writing bytes; a file appears only if the block ends without an error.

    Raises:
        OutputError: If a file cannot be written; an existing file is unchanged.
        OSError: If a stream cannot be written.
    """
    if output.target is None:
        with _open_stream(output) as stream:
            yield stream
        return
    output.beside("journal").unlink(missing_ok=True)  # it belongs to another partial file
    try:
        with output.open_partial() as file:
            yield file
        output.commit()
    except OSError as error:
        raise OutputError(f"{output.name}: {error.strerror or error}") from None
    finally:
        output.partial.unlink(missing_ok=True)


def _open_stream(output: Output) -> AbstractContextManager[BinaryIO]:
    if output.descriptor == 1:
        return nullcontext(sys.stdout.buffer)
    if output.descriptor is not None:
        return open(os.dup(output.descriptor), "wb")
    return open(os.open(output.name, os.O_WRONLY), "wb")  # neither created nor truncated


def write_lines(lines: Iterable[str], output: Output) -> None:
    """Writes all lines at once, compressed if the output's name has a compression suffix."""
    data = "".join(f"{line}\n" for line in lines).encode("utf-8")
    with open_output(output) as file:
        file.write(compress(data, output.suffix))
        file.flush()
