"""The translation of a file or stream, chunk by chunk: read, translated, written."""

import logging
import sys
import time
from collections.abc import Callable, Generator
from contextlib import closing
from itertools import dropwhile

from transformer_mt.errors import DataError
from transformer_mt.system.console import ProgressBar, shows_progress
from transformer_mt.system.files import sha256
from transformer_mt.system.outputs import Fingerprint, is_complete, open_chunk_writer
from transformer_mt.system.streams import LineReader, count_lines, open_input, reading, watch
from transformer_mt.translation.inputs import FilePair
from transformer_mt.translation.options import OutputOptions
from transformer_mt.translation.translator import (
    Translation,
    Translator,
    count_kinds,
    format_lines,
    lines_text,
    log_kinds,
)

logger = logging.getLogger(__name__)


def translate_file(
    translator: Translator,
    pair: FilePair,
    options: OutputOptions,
    made_from: Fingerprint,
    prefix: str = "",
) -> dict[str, int]:
    """Translates line by line, and reports counts and speed, unless it is already complete.

    Args:
        translator: Its beam size is at least the number of translations to write per line.
        pair: A file appears once it is complete.
        options: What to write for each line.
        made_from: What the output depends on beside the input; a stopped translation is resumed if
            both are the same.
        prefix: Precedes each line of the report.

    Returns:
        The number of lines that were translated now, and of those of the file that were split,
        copied and so on.

    Raises:
        DataError: If the input cannot be read, is not text, or changes meanwhile.
        OutputError: If a file cannot be written.
        OSError: If a stream cannot be written.
    """
    require_unchanged, fingerprint, output = watch(pair.input), None, pair.output
    if pair.input and pair.is_resumable:
        with reading(pair.input):
            # The whole file is hashed: even at 200 MB/s, this takes a thousandth of the time.
            fingerprint = {"input": sha256(pair.input), **made_from}
        if is_complete(output, fingerprint):
            logger.info(f"{output.name}: already complete")
            return {}
    began = time.monotonic()
    # At a terminal, a bar would be mixed with the lines on stdout.
    hidden = output.descriptor == 1 and sys.stdout.isatty()
    total = count_lines(pair.input) if shows_progress() and not hidden else None
    name = pair.input.name if pair.input else "translating"
    with open_input(pair.input) as source, open_chunk_writer(output, fingerprint) as writer:
        reader, resumed = LineReader(source, str(pair.input or "stdin")), writer.state.lines
        with (
            ProgressBar(name, "lines", total, done=resumed, hidden=hidden) as progress,
            closing(_translate_chunks(translator, reader, resumed, progress.update)) as chunks,
        ):
            for translations in chunks:
                require_unchanged()  # so the lines that are kept are those of the fingerprint
                text = format_lines(translations, writer.state.lines + 1, options)
                counts = count_kinds(best for best, *_ in translations)
                writer.write(text, len(translations), counts)
        require_unchanged()
        if not reader.lines_read:
            writer.write("", 0, {})  # a compressed file is valid only with a member
    lines, seconds = reader.lines_read - resumed, time.monotonic() - began
    rate = lines / max(seconds, 1e-9)
    logger.info(f"{prefix}{lines_text(lines)} in {seconds:.1f} s, {rate:,.0f} per second")
    counts = {**writer.state.counts, "replaced": reader.lines_replaced}
    log_kinds(counts, prefix)
    return {"lines": lines, **counts}


def _translate_chunks(
    translator: Translator, reader: LineReader, resumed: int, advance: Callable[[int], object]
) -> Generator[list[list[Translation]]]:
    """Translates what follows the lines that an earlier process has finished, in whole chunks."""
    failures, first_line = list[DataError](), resumed + 1

    def read_chunks() -> Generator[list[str]]:
        chunks = reader.chunks(translator.chunk_lines, translator.first_chunk_lines)
        try:
            yield from dropwhile(lambda _: reader.lines_read <= resumed, chunks)
        except DataError as error:  # the chunks before it are still to be translated
            failures.append(error)

    if reader.is_pipe:
        # Its writer may wait for an answer before it writes the next chunk.
        for lines in read_chunks():
            yield translator.n_best(lines, advance, first_line)
            first_line += len(lines)
    else:
        yield from translator.translate_chunks(read_chunks(), advance, first_line)
    if failures:
        raise failures[0]
