"""The loop over chunks of lines: read, translate with one or several processes, write, report."""

import json
import logging
import math
import sys
import time
from collections.abc import Sequence
from itertools import chain, dropwhile, islice
from pathlib import Path

from transformer_mt.system.console import ProgressBar, shows_progress
from transformer_mt.system.outputs import ChunkWriter, Fingerprint, Output, open_chunk_writer
from transformer_mt.system.processes import Processes
from transformer_mt.system.streams import LineReader, count_lines, open_input
from transformer_mt.translation.options import OutputOptions
from transformer_mt.translation.translator import (
    Translation,
    Translator,
    count_kinds,
    lines_text,
    log_kinds,
)

logger = logging.getLogger(__name__)


def translate_stream(
    translator: Translator,
    input_path: Path | None,
    output: Output,
    options: OutputOptions,
    fingerprint: Fingerprint | None = None,
    is_named: bool = False,
) -> None:
    """Translates line by line, and reports counts and speed; called by the main process.

    The chunks that are written do not depend on the number of processes, so another number can
    resume a stopped translation.

    Args:
        translator: Its beam size is at least the number of translations to write per line; the
            other processes `serve` it.
        input_path: A file or named pipe; None is stdin.
        output: A file, which appears once it is complete, or a stream.
        options: What to write for each line.
        fingerprint: What the output depends on, so that a stopped translation is resumed; only for
            a regular file as input.
        is_named: Whether each line of the report names the input.

    Raises:
        DataError: If the input cannot be read.
        OutputError: If a file cannot be written.
        OSError: If a stream cannot be written.
    """
    began = time.monotonic()
    # At a terminal, a bar would be mixed with the lines on stdout.
    hidden = output.descriptor == 1 and sys.stdout.isatty()
    total = count_lines(input_path) if shows_progress() and not hidden else None
    with open_input(input_path) as source, open_chunk_writer(output, fingerprint) as writer:
        reader, resumed = LineReader(source, str(input_path or "stdin")), writer.state.lines
        chunk_lines = translator.chunk_lines
        chunks = reader.chunks(chunk_lines, translator.first_chunk_lines)
        # What an earlier process has finished is whole chunks.
        chunks = dropwhile(lambda _: reader.lines_read <= resumed, chunks)
        name = input_path.name if input_path else "translating"
        # A round has a chunk for each process; that of the first, small chunk has no other. The
        # writer of a pipe may wait for an answer before it writes the next chunk.
        round_size = translator.processes.world_size if resumed else 1
        with ProgressBar(name, "lines", total, done=resumed, hidden=hidden) as progress:
            while lines := list(chain.from_iterable(islice(chunks, round_size))):
                translator.processes.broadcast(lines)
                done = writer.state.lines
                translations = translator.n_best(lines, progress.update)
                texts = [
                    format_lines(translations[i : i + chunk_lines], done + i + 1, options)
                    for i in range(0, len(lines), chunk_lines)
                ]
                writer.write(texts, len(lines), count_kinds(best for best, *_ in translations))
                round_size = 1 if reader.is_pipe else translator.processes.world_size
        if not reader.lines_read:
            writer.write([""], 0, {})  # a compressed file is valid only with a member
    prefix = f"{input_path}: " if is_named else ""
    _report(reader, writer, resumed, time.monotonic() - began, prefix)


def serve(translator: Translator) -> None:
    """Takes part in the main process's translations until it finishes; called by the others."""
    while lines := translator.processes.broadcast(list[str]()):
        translator.n_best(lines)
    translator.processes.finish()


def finish(processes: Processes) -> None:
    """Lets the other processes end; called by the main process."""
    processes.broadcast(list[str]())
    processes.finish()


def format_lines(
    translations: Sequence[Sequence[Translation]], first_line: int, options: OutputOptions
) -> str:
    """Formats the translations of consecutive lines, each ended by a line feed.

    Those of each line are the best first; lines are numbered from 1.
    """
    rows = []
    for line, ranked in enumerate(translations, start=first_line):
        for rank, translation in enumerate(ranked[: options.n_best], start=1):
            if options.format == "jsonl":
                score = None if math.isnan(translation.score) else translation.score
                row = {"line": line, "rank": rank, "score": score, "text": translation.text}
                row |= {"parts": translation.parts, "status": translation.status}
                rows.append(json.dumps(row, ensure_ascii=False, allow_nan=False))
            elif options.with_scores:
                rows.append(f"{translation.score:.4f}\t{translation.text}")
            else:
                rows.append(translation.text)
    return "".join(f"{row}\n" for row in rows)


def _report(
    reader: LineReader, writer: ChunkWriter, resumed: int, seconds: float, prefix: str
) -> None:
    lines = reader.lines_read - resumed
    rate = lines / max(seconds, 1e-9)
    logger.info(f"{prefix}{lines_text(lines)} in {seconds:.1f} s, {rate:,.0f} per second")
    log_kinds(writer.state.counts, prefix)
    if reader.bom_dropped:
        logger.info(f"{prefix}the byte order mark at the start of the input was dropped")
    if replaced := reader.lines_replaced:
        logger.warning(
            f"{prefix}{lines_text(replaced)} not in UTF-8; invalid bytes were replaced by U+FFFD"
        )
