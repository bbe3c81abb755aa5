"""Chunks of lines and their translation, by one process or distributed over several."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transformer_mt.system.processes import ALONE, Processes
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
