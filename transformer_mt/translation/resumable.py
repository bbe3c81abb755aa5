"""Output that is written chunk by chunk and continued where a stopped process left it.

Beside an output NAME lie, until it is complete:

    .NAME.partial    the finished chunks
    .NAME.journal    what they were made from, and how many lines and bytes of them are on disk

A chunk is on disk before the journal counts it, so whatever stops the process, the partial file
holds at least what the journal says, and a later process cuts off what it holds beyond that.
"""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from transformer_mt.errors import CheckpointError, DataError, Interrupted, OutputError
from transformer_mt.system.compression import compress
from transformer_mt.system.files import atomic_file, canonical_json, read_json, sha256
from transformer_mt.system.outputs import Output, open_output

logger = logging.getLogger(__name__)

JOURNAL_FORMAT = 1

Task = dict[str, Any]
"""What the bytes of an output depend on, as JSON values by name: digests and options."""


@dataclass(frozen=True)
class Finished:
    """What has been written.

    Attributes:
        lines: Lines of the input that are translated.
        bytes: Bytes of the output.
        lines_split: Lines that were translated in parts.
    """

    lines: int = 0
    bytes: int = 0
    lines_split: int = 0


NOTHING = Finished()


@dataclass(frozen=True)
class Journal:
    """What is known of an output that is being written, or has been.

    Attributes:
        task: What it is made from.
        finished: How much of it is on disk.
        sha256: Its digest once it is complete.
    """

    task: Task
    finished: Finished
    sha256: str | None = None


class ChunkWriter:
    """Writes finished chunks of an output, each as one compressed member if it is compressed.

    Args:
        file: What to write into, at its end.
        output: The output that it is a part of.
        task: What the output is made from; None keeps no journal.
        finished: What the file holds already.

    Attributes:
        finished: What it holds now.
    """

    def __init__(
        self, file: BinaryIO, output: Output, task: Task | None, finished: Finished = NOTHING
    ) -> None:
        self._file, self._output, self._task, self.finished = file, output, task, finished

    def write(self, text: str, lines: int, lines_split: int) -> None:
        """Writes the translation of a chunk; with a journal, it is on disk when this returns.

        Args:
            text: Lines of output.
            lines: Lines of input that were translated.
            lines_split: Those of them that were translated in parts.
        """
        data = compress(text.encode("utf-8"), self._output.suffix)
        self._file.write(data)
        self._file.flush()  # the reader of a pipe may be waiting for these lines
        self.finished = Finished(
            self.finished.lines + lines,
            self.finished.bytes + len(data),
            self.finished.lines_split + lines_split,
        )
        if self._task is not None:
            os.fsync(self._file.fileno())
            _write_journal(self._output, Journal(self._task, self.finished))

    def end(self) -> None:
        """Makes a compressed output without any chunk a valid file."""
        if not self.finished.bytes and self._output.suffix:
            self.write("", 0, 0)


@contextmanager
def open_chunk_writer(output: Output, task: Task | None) -> Iterator[ChunkWriter]:
    """Opens an output for chunks; a file appears once the block has ended without an error.

    Args:
        output: Locked by the caller.
        task: What it is made from. What an earlier process finished for the same task is kept;
            None keeps nothing, neither now nor later.

    Raises:
        OutputError: If a file cannot be written; finished chunks are kept.
    """
    if task is None or output.target is None:
        with open_output(output) as file:
            writer = ChunkWriter(file, output, None)
            yield writer
            writer.end()
        return
    finished = _resume_point(output, task)
    try:
        with output.open_partial(finished.bytes) as file:
            writer = ChunkWriter(file, output, task, finished)
            try:
                yield writer
                writer.end()
            finally:
                finished = writer.finished
        _write_journal(output, Journal(task, finished, sha256(output.partial)))
        output.commit()
    except DataError as error:  # the input cannot be read to its end
        raise DataError(f"{error}; {_keep(output, finished)}") from None
    except OSError as error:
        reason = error.strerror or error
        raise OutputError(f"{output.name}: {reason}; {_keep(output, finished)}") from None
    except Interrupted:
        logger.warning("stopped: %s", _keep(output, finished))
        raise
    except BaseException:
        _keep(output, finished)
        raise


def _keep(output: Output, finished: Finished) -> str:
    """Keeps what is finished, and says where it is and how to go on."""
    if not finished.lines:
        discard(output)
        return "no chunk of lines was finished"
    return (
        f"{finished.lines:,} finished lines are kept in {output.partial};"
        " run the same command again to go on"
    )


def _resume_point(output: Output, task: Task) -> Finished:
    """Decides how much of a partial file is used, and says why if it is not."""
    journal = _read_journal(output)
    if journal is None:
        return NOTHING
    if changes := _changed(journal.task, task):
        logger.warning(
            f"{output.name}: starting over; {journal.finished.lines:,} finished lines were made"
            f" with another {' and '.join(changes)}"
        )
        return NOTHING
    if not output.partial.is_file() or output.partial.stat().st_size < journal.finished.bytes:
        return NOTHING  # what the journal counted was moved away
    logger.info(f"{output.name}: going on after {journal.finished.lines:,} finished lines")
    return journal.finished


def is_complete(output: Output, task: Task) -> bool:
    """Tells whether an earlier process completed an output, which has not changed since."""
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


def _write_journal(output: Output, journal: Journal) -> None:
    with atomic_file(output.beside("journal")) as file:
        file.write(canonical_json({"format": JOURNAL_FORMAT, **asdict(journal)}))


def _read_journal(output: Output) -> Journal | None:
    """Reads the journal of an output; one that is damaged is as good as none."""
    if output.target is None or not output.beside("journal").exists():
        return None
    try:
        values = read_json(output.beside("journal"))
        if values.pop("format") != JOURNAL_FORMAT:
            return None
        return Journal(values["task"], Finished(**values["finished"]), values["sha256"])
    except (CheckpointError, KeyError, TypeError, AttributeError):
        return None


def normalized(task: Task) -> Task:
    """Gives the task as it is after a journal was written and read."""
    return dict(json.loads(canonical_json(task)))
