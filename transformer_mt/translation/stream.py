"""Translation of a file, of a stream, or of lines typed at a prompt, with its report."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from transformer_mt.system.console import progress_bar, shows_bars
from transformer_mt.system.streams import LineReader, count_lines, write_lines
from transformer_mt.translation.translator import CHUNK_LINES, Translator

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StreamCounts:
    """What happened while a stream was translated.

    Attributes:
        lines: Lines read.
        lines_split: Those that were translated in parts.
        lines_replaced: Those that were not valid UTF-8.
        seconds: Time from the first to the last line.
    """

    lines: int
    lines_split: int
    lines_replaced: int
    seconds: float


def translate_stream(
    translator: Translator,
    input_path: Path | None,
    output_path: Path | None,
    n_best: int = 1,
    with_scores: bool = False,
) -> StreamCounts:
    """Translates line by line, chunk by chunk, and reports counts and speed.

    Args:
        translator: Its beam size is at least `n_best`.
        input_path: A file or named pipe; None is stdin.
        output_path: A file, which appears once it is complete; None is stdout.
        n_best: Translations written for each line, the best first.
        with_scores: Whether to write score and tab before each translation.

    Raises:
        OSError: If the input cannot be read or the output cannot be written.
    """
    split_before, began = translator.lines_split, time.monotonic()
    # At a terminal, a bar would be mixed with the lines on stdout.
    bar_is_hidden = output_path is None and sys.stdout.isatty()
    counts_lines = input_path is not None and input_path.is_file() and shows_bars()
    total = count_lines(input_path) if input_path and counts_lines and not bar_is_hidden else None
    with (
        _open_input(input_path) as source,
        progress_bar("translating", "lines", total, hidden=bar_is_hidden) as bar,
    ):
        reader = LineReader(source)

        def output_chunks() -> Iterator[list[str]]:
            for chunk in reader.chunks(CHUNK_LINES):
                translations = translator.translate_chunk(chunk, bar.update)
                yield [t.format(with_scores) for line in translations for t in line[:n_best]]

        lines = write_lines(output_chunks(), output_path) // n_best
    seconds = time.monotonic() - began
    lines_split = translator.lines_split - split_before
    counts = StreamCounts(lines, lines_split, reader.lines_replaced, seconds)
    _report(counts)
    return counts


def _open_input(path: Path | None) -> AbstractContextManager[BinaryIO]:
    return path.open("rb") if path else nullcontext(sys.stdin.buffer)


def _report(counts: StreamCounts) -> None:
    lines, seconds = counts.lines, counts.seconds
    logger.info(f"{lines} lines in {seconds:.1f} s, {lines / max(seconds, 1e-9):,.0f} per second")
    if counts.lines_split:
        logger.info(f"{counts.lines_split} lines exceeded the maximum length and were split")
    if counts.lines_replaced:
        logger.warning(
            f"{counts.lines_replaced} lines were not valid UTF-8; invalid bytes were replaced by"
            " U+FFFD"
        )


def translate_interactively(translator: Translator, src_lang: str) -> None:
    """Translates lines typed at a terminal until the end of input or `quit`.

    Args:
        translator: Translates each line as soon as it is typed.
        src_lang: Shown as the prompt.
    """
    print("Type a sentence. Ctrl-D or quit ends.", file=sys.stderr)
    while True:
        try:
            line = input(f"{src_lang}> ")
        except EOFError:
            print(file=sys.stderr)
            return
        if line.strip() == "quit":
            return
        print(next(translator.translate([line])))
