"""Output that is written chunk by chunk and resumed where a stopped process left off.

Two files lie beside an output NAME, the first until it is complete, the second until all outputs
of the command are:

    .NAME.partial    the finished chunks
    .NAME.journal    JSON lines: what the output depends on, then size and digest of each chunk

A chunk is written before the journal names it, so a killed process leaves at most one chunk that
the journal does not list, and a later process cuts it off. Neither file is forced to disk after
each chunk, which would cost up to a few percent of the time on a fast GPU: after a power failure,
the digests show which chunks reached the disk.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from transformer_mt.errors import DataError, Interrupted, OutputError
from transformer_mt.system.compression import compress
from transformer_mt.system.files import atomic_file, canonical_json, sha256
from transformer_mt.system.outputs import Output, open_output

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
