"""Chunks of lines and their translation, by one process or distributed over several."""

import json
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformer_mt.errors import DataError
from transformer_mt.system.console import ProgressDisplay, shows_progress
from transformer_mt.system.outputs import Output, Task, open_chunk_writer
from transformer_mt.system.processes import ALONE, Processes
from transformer_mt.system.streams import LineReader, count_lines, open_input
from transformer_mt.translation.options import OutputFormat, OutputOptions, TranslateOptions
from transformer_mt.translation.translation_model import TranslationModel
from transformer_mt.translation.translator import Translation, Translator


@dataclass(frozen=True)
class SourceChunk:
    """Consecutive lines of an input.

    Attributes:
        first_line: Number of the first line in the input, from 1.
        lines: Their text.
    """

    first_line: int
    lines: list[str]


@dataclass(frozen=True)
class TranslatedChunk:
    """The output for a chunk.

    Attributes:
        text: Lines of output, each ended by a line feed.
        lines: Number of input lines.
        lines_split: Number of them that were translated in parts.
    """

    text: str
    lines: int
    lines_split: int


class ChunkTranslator:
    """Translates chunks of lines with several processes; the result is that of one process.

    The main process reads and writes; the others `serve` it. In a round, every process translates
    its own chunk. With fewer chunks than processes, the batches of each chunk are distributed.

    Args:
        model: The model, the same in all processes.
        options: How to search, and what to write.
        processes: The processes that share the work.

    Attributes:
        chunk_lines: Lines of a full chunk.
        batch_tokens: Padded source positions of a batch times beam size.
        chunks_per_round: Chunks needed to occupy all processes.

    Raises:
        ConfigError: If the beam size exceeds half the vocabulary.
    """

    def __init__(
        self, model: TranslationModel, options: TranslateOptions, processes: Processes = ALONE
    ) -> None:
        self._alone = model.translator(options.search)
        self._together = model.translator(options.search, processes)
        self._output, self._processes = options.output, processes
        self.chunk_lines, self.batch_tokens = self._alone.chunk_lines, self._alone.batch_tokens
        self.chunks_per_round = processes.world_size

    def translate(
        self, chunks: list[SourceChunk], advance: Callable[[int], object]
    ) -> list[TranslatedChunk]:
        """Translates 1 to `chunks_per_round` chunks; called by the main process.

        Args:
            chunks: Chunks of one input, in order.
            advance: Called with the number of lines that have been translated.
        """
        return self._translate_round(self._processes.broadcast(chunks), advance)

    def serve(self) -> None:
        """Takes part in the main process's rounds until it finishes; called by the others."""
        while chunks := self._processes.broadcast(list[SourceChunk]()):
            self._translate_round(chunks, lambda lines: None)
        self._processes.finish()

    def finish(self) -> None:
        """Lets the other processes end; called by the main process."""
        self._processes.broadcast(list[SourceChunk]())
        self._processes.finish()

    def _translate_round(
        self, chunks: list[SourceChunk], advance: Callable[[int], object]
    ) -> list[TranslatedChunk]:
        if len(chunks) < self.chunks_per_round:
            return [self._translate_chunk(self._together, chunk, advance) for chunk in chunks]
        own = chunks[self._processes.rank]
        translated = self._processes.gather(self._translate_chunk(self._alone, own, advance))
        advance(sum(chunk.lines for chunk in translated) - len(own.lines))
        return translated

    def _translate_chunk(
        self, translator: Translator, chunk: SourceChunk, advance: Callable[[int], object]
    ) -> TranslatedChunk:
        split_before = translator.lines_split
        translations = translator.translate_chunk(chunk.lines, advance)
        text = format_lines(translations, chunk.first_line, self._output)
        return TranslatedChunk(text, len(chunk.lines), translator.lines_split - split_before)


def format_lines(
    translations: Sequence[Sequence[Translation]], first_line: int, options: OutputOptions
) -> str:
    """Formats the translations of consecutive lines, each ended by a line feed.

    Args:
        translations: Translations of each line, the best first.
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
