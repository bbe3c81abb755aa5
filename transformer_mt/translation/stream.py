"""Translation of one input line by line, with its report."""

import json
import logging
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformer_mt.system.console import ProgressDisplay, shows_progress
from transformer_mt.system.outputs import Output
from transformer_mt.system.streams import LineReader, count_lines, open_input
from transformer_mt.translation.options import DEFAULT_OUTPUT, OutputFormat, OutputOptions
from transformer_mt.translation.resumable import Task, open_chunk_writer
from transformer_mt.translation.translator import Translation, Translator

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StreamCounts:
    """What happened while a stream was translated.

    Attributes:
        lines: Lines read.
        lines_resumed: Those that an earlier process had translated.
        lines_split: Those that were translated in parts.
        lines_replaced: Those that were not valid UTF-8.
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
    translator: Translator,
    input_path: Path | None,
    output: Output,
    options: OutputOptions = DEFAULT_OUTPUT,
    task: Task | None = None,
) -> StreamCounts:
    """Translates line by line, chunk by chunk, and reports counts and speed.

    Args:
        translator: Its beam size is at least `options.n_best`.
        input_path: A file or named pipe; None is stdin.
        output: A file, which appears once it is complete, or a stream.
        options: What to write for each line.
        task: What the output is made from, so that a stopped translation is continued; only for
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
        reader = LineReader(source, str(input_path or "stdin"))
        resumed, position = writer.lines, 0
        name = input_path.name if input_path else "translating"
        with ProgressDisplay(name, "lines", total, resumed, hidden) as progress:
            for chunk in reader.chunks(translator.chunk_lines):
                position += len(chunk)
                if position > resumed:
                    split_before = translator.lines_split
                    translations = translator.translate_chunk(chunk, progress.update)
                    text = format_lines(translations, position - len(chunk) + 1, options)
                    lines_split = translator.lines_split - split_before
                    writer.write(text, len(chunk), lines_split)
    counts = StreamCounts(
        position,
        resumed,
        writer.lines_split,
        reader.lines_replaced,
        reader.bom_dropped,
        time.monotonic() - began,
    )
    _report(counts)
    return counts


def format_lines(
    translations: Sequence[Sequence[Translation]], first_line: int, options: OutputOptions
) -> str:
    """Formats the translations of consecutive lines, each ended by a line feed.

    Args:
        translations: Those of each line, the best first.
        first_line: Number of the first line, from 1.
        options: What to write for each line.
    """
    rows = []
    for line, ranked in enumerate(translations, start=first_line):
        for rank, translation in enumerate(ranked[: options.n_best], start=1):
            if options.format is OutputFormat.JSONL:
                score = None if math.isnan(translation.score) else translation.score
                row = {"line": line, "rank": rank, "score": score, "text": translation.text}
                rows.append(json.dumps(row, ensure_ascii=False, allow_nan=False))
            else:
                rows.append(translation.format(options.with_scores))
    return "".join(f"{row}\n" for row in rows)


def _report(counts: StreamCounts) -> None:
    seconds, lines = counts.seconds, counts.lines - counts.lines_resumed
    logger.info(f"{lines} lines in {seconds:.1f} s, {lines / max(seconds, 1e-9):,.0f} per second")
    if counts.lines_split:
        logger.info(f"{counts.lines_split} lines exceeded the maximum length and were split")
    if counts.bom_dropped:
        logger.info("the byte order mark at the start of the input was dropped")
    if counts.lines_replaced:
        logger.warning(
            f"{counts.lines_replaced} lines were not valid UTF-8; invalid bytes were replaced by"
            " U+FFFD"
        )
