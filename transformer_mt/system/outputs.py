"""Outputs named by the user: regular files are replaced once complete, streams are not.

`-` is stdout. Devices, named pipes and descriptors such as /dev/stdout or a shell's `>(...)` are
written to directly.
"""

import hashlib
import json
import logging
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from transformer_mt.errors import DataError, Interrupted, OutputError
from transformer_mt.system.files import atomic_file, canonical_json, locked, sha256, sync
from transformer_mt.system.streams import COMPRESSION_SUFFIXES, compress

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


logger = logging.getLogger(__name__)

JOURNAL_FORMAT = 1

Task = dict[str, Any]
"""What the bytes of an output depend on, as JSON values by name: digests and options."""


@dataclass(frozen=True)
class Chunk:
    """A finished chunk of lines.

    Attributes:
        lines: Number of input lines.
        lines_split: Number of them that were translated in parts.
        bytes: Number of bytes of output.
        sha256: Digest of the output.
    """

    lines: int
    lines_split: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Journal:
    """The record of an output that is being written or is complete.

    Attributes:
        task: What it depends on.
        chunks: Its finished chunks, in order.
        sha256: Its digest once it is complete.
    """

    task: Task
    chunks: list[Chunk]
    sha256: str | None = None


class ChunkWriter:
    """Writes finished chunks of an output, each as one compressed member if it is compressed.

    Args:
        file: The file to append to.
        suffix: Suffix of the output's name, which determines the compression.
        chunks: Chunks that the file already holds.
        journal: File to which a line is added for each chunk, if any.

    Attributes:
        lines: Number of finished input lines.
        lines_split: Number of them that were translated in parts.
    """

    def __init__(
        self,
        file: BinaryIO,
        suffix: str,
        chunks: Sequence[Chunk] = (),
        journal: BinaryIO | None = None,
    ) -> None:
        self._file, self._suffix, self._journal = file, suffix, journal
        self._is_empty = not chunks
        self.lines = sum(chunk.lines for chunk in chunks)
        self.lines_split = sum(chunk.lines_split for chunk in chunks)

    def write(self, text: str, lines: int, lines_split: int) -> None:
        """Writes the translation of a chunk; once this returns, it outlives the process.

        Args:
            text: Lines of output.
            lines: Number of input lines that were translated.
            lines_split: Number of them that were translated in parts.
        """
        data = compress(text.encode("utf-8"), self._suffix)
        self._is_empty = False
        self._file.write(data)
        self._file.flush()  # the reader of a pipe may be waiting for these lines
        if self._journal is not None:
            digest = hashlib.sha256(data).hexdigest()
            _add_line(self._journal, asdict(Chunk(lines, lines_split, len(data), digest)))
        self.lines, self.lines_split = self.lines + lines, self.lines_split + lines_split

    def end(self) -> None:
        """Makes a compressed output without chunks a valid file."""
        if self._is_empty and self._suffix:
            self.write("", 0, 0)


@contextmanager
def open_chunk_writer(output: Output, task: Task | None) -> Iterator[ChunkWriter]:
    """Opens an output for chunks; a file appears once the block ends without an error.

    Args:
        output: Locked by the caller.
        task: What it depends on. Chunks that an earlier process finished for the same task are
            kept; None keeps neither earlier chunks nor the new ones.

    Raises:
        OutputError: If a file cannot be written; finished chunks are kept.
    """
    if task is None or output.target is None:
        with open_output(output) as file:
            writer = ChunkWriter(file, output.suffix)
            yield writer
            writer.end()
        return
    chunks = _finished_chunks(output, task)
    lines = sum(chunk.lines for chunk in chunks)
    try:
        with (
            output.open_partial(sum(chunk.bytes for chunk in chunks)) as file,
            _open_journal(output, Journal(task, chunks)) as journal,
        ):
            writer = ChunkWriter(file, output.suffix, chunks, journal)
            try:
                yield writer
                writer.end()
            finally:
                lines = writer.lines
            _add_line(journal, {"sha256": sha256(output.partial)})
        output.commit()
    except DataError as error:  # the input cannot be read to its end
        raise DataError(f"{error}; {_keep(output, lines)}") from None
    except OSError as error:
        reason = error.strerror or error
        raise OutputError(f"{output.name}: {reason}; {_keep(output, lines)}") from None
    except Interrupted:
        logger.warning("stopped: %s", _keep(output, lines))
        raise
    except BaseException:
        _keep(output, lines)
        raise


def _keep(output: Output, lines: int) -> str:
    """Keeps the finished chunks, and says where they are and how to continue."""
    if not lines:
        discard(output)
        return "no chunk of lines was finished, so the same command starts over"
    return (
        f"{lines:,} finished lines are kept in {output.partial};"
        " run the same command again to continue"
    )


def _finished_chunks(output: Output, task: Task) -> list[Chunk]:
    """Lists the chunks of the partial file that can be used, and says why if none can."""
    journal = _read_journal(output)
    if journal is None:
        return []
    lines = sum(chunk.lines for chunk in journal.chunks)
    if changes := _changed(journal.task, task):
        logger.warning(
            f"{output.name}: starting over; {lines:,} finished lines were made"
            f" with another {' and '.join(changes)}"
        )
        return []
    chunks = _intact_chunks(output, journal.chunks)
    if chunks:
        lines = sum(chunk.lines for chunk in chunks)
        logger.info(f"{output.name}: continuing after {lines:,} finished lines")
    return chunks


def _intact_chunks(output: Output, chunks: list[Chunk]) -> list[Chunk]:
    """Lists the chunks before the first one whose bytes are not in the partial file."""
    if not output.partial.is_file():
        return []
    with output.partial.open("rb") as file:
        for number, chunk in enumerate(chunks):
            if hashlib.sha256(file.read(chunk.bytes)).hexdigest() != chunk.sha256:
                return chunks[:number]
    return chunks


def is_complete(output: Output, task: Task) -> bool:
    """Tells whether an earlier process completed an output that has not changed since."""
    journal = _read_journal(output)
    return (
        journal is not None
        and not _changed(journal.task, task)
        and output.target is not None
        and output.target.is_file()
        and sha256(output.target) == journal.sha256
    )


def discard(output: Output) -> None:
    """Deletes the partial file and the journal of an output."""
    if output.target is not None:
        output.beside("journal").unlink(missing_ok=True)
        output.partial.unlink(missing_ok=True)


def _changed(old: Task, new: Task) -> list[str]:
    names = sorted(old.keys() | new.keys())
    return [name.replace("_", " ") for name in names if old.get(name) != new.get(name)]


def _add_line(journal: BinaryIO, value: dict[str, Any]) -> None:
    journal.write(json.dumps(value).encode() + b"\n")
    journal.flush()


def _open_journal(output: Output, journal: Journal) -> BinaryIO:
    """Replaces the journal of an output and opens it for more lines."""
    path = output.beside("journal")
    with atomic_file(path) as file:
        _add_line(file, {"format": JOURNAL_FORMAT, "task": journal.task})
        for chunk in journal.chunks:
            _add_line(file, asdict(chunk))
    return path.open("ab")


def _read_journal(output: Output) -> Journal | None:
    """Reads the journal of an output up to the first line that is damaged or half-written."""
    if output.target is None or not output.beside("journal").exists():
        return None
    header, *rows = output.beside("journal").read_bytes().split(b"\n")
    chunks: list[Chunk] = []
    try:
        values = json.loads(header)
        if values["format"] != JOURNAL_FORMAT:
            return None
        task = dict(values["task"])
    except (ValueError, KeyError, TypeError):
        return None
    for row in rows:
        try:
            values = json.loads(row)
            if values.keys() == {"sha256"}:
                return Journal(task, chunks, values["sha256"])
            chunks.append(Chunk(**values))
        except (ValueError, TypeError, AttributeError):
            break
    return Journal(task, chunks)


def normalized(task: Task) -> Task:
    """Returns the task as it would be read back from a journal."""
    return dict(json.loads(canonical_json(task)))
