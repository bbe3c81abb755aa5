"""Translation of one input line by line, with a report."""

import logging
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from transformer_mt.errors import DataError
from transformer_mt.system.console import ProgressDisplay, shows_progress
from transformer_mt.system.outputs import Output
from transformer_mt.system.streams import LineReader, count_lines, open_input
from transformer_mt.translation.chunks import ChunkTranslator, SourceChunk
from transformer_mt.translation.resumable import Task, open_chunk_writer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StreamCounts:
    """Counts from the translation of a stream.

    Attributes:
        lines: Lines read.
        lines_resumed: Lines that an earlier process had translated.
        lines_split: Lines that were translated in parts.
        lines_replaced: Lines that were not valid UTF-8.
        bom_dropped: Whether a byte order mark was dropped.
        seconds: Time from the first to the last line.
    """

    lines: int
    lines_resumed: int
    lines_split: int
    lines_replaced: int
    bom_dropped: bool
    seconds: float


def translate_stream(
    translator: ChunkTranslator, input_path: Path | None, output: Output, task: Task | None = None
) -> StreamCounts:
    """Translates line by line, chunk by chunk, and reports counts and speed.

    Args:
        translator: Its beam size is at least the number of translations it writes per line.
        input_path: A file or named pipe; None is stdin.
        output: A file, which appears once it is complete, or a stream.
        task: What the output depends on, so that a stopped translation is resumed; only for
            a regular file as input.

    Raises:
        DataError: If the input cannot be read.
        OutputError: If a file cannot be written.
        OSError: If a stream cannot be written.
    """
    began = time.monotonic()
    # At a terminal, a bar would be mixed with the lines on stdout.
    hidden = output.descriptor == 1 and sys.stdout.isatty()
    total = count_lines(input_path) if shows_progress() and not hidden else None
    with open_input(input_path) as source, open_chunk_writer(output, task) as writer:
        reader, resumed = LineReader(source, str(input_path or "stdin")), writer.lines
        # The writer of a pipe may wait for an answer before it writes the next chunk.
        size = 1 if reader.is_pipe else translator.chunks_per_round
        rounds = _read_rounds(reader.chunks(translator.chunk_lines), size, resumed)
        name = input_path.name if input_path else "translating"
        with ProgressDisplay(name, "lines", total, resumed, hidden) as progress:
            for chunks in rounds:
                for chunk in translator.translate(chunks, progress.update):
                    writer.write(chunk.text, chunk.lines, chunk.lines_split)
    counts = StreamCounts(
        reader.lines_read,
        resumed,
        writer.lines_split,
        reader.lines_replaced,
        reader.bom_dropped,
        time.monotonic() - began,
    )
    _report(counts)
    return counts


def _read_rounds(
    chunks: Iterator[list[str]], size: int, resumed: int
) -> Iterator[list[SourceChunk]]:
    """Groups chunks by `size`, skipping the first `resumed` lines, which are whole chunks.

    Lines read before an error are not lost.
    """
    chunks_of_round, first_line = list[SourceChunk](), 1
    try:
        for lines in chunks:
            if first_line > resumed:
                chunks_of_round.append(SourceChunk(first_line, lines))
            first_line += len(lines)
            if len(chunks_of_round) == size:
                yield chunks_of_round
                chunks_of_round = []
    except DataError:
        if chunks_of_round:
            yield chunks_of_round
        raise
    if chunks_of_round:
        yield chunks_of_round


def _report(counts: StreamCounts) -> None:
    seconds, lines = counts.seconds, counts.lines - counts.lines_resumed
    rate = lines / max(seconds, 1e-9)
    logger.info(f"{_count(lines)} in {seconds:.1f} s, {rate:,.0f} per second")
    if counts.lines_split:
        logger.info(f"{_count(counts.lines_split)} over the maximum length, split into parts")
    if counts.bom_dropped:
        logger.info("the byte order mark at the start of the input was dropped")
    if counts.lines_replaced:
        logger.warning(
            f"{_count(counts.lines_replaced)} not in UTF-8; invalid bytes were replaced by U+FFFD"
        )


def _count(lines: int) -> str:
    return f"{lines} {'line' if lines == 1 else 'lines'}"
