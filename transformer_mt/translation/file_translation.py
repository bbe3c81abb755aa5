"""The translation of a file or stream, chunk by chunk: read, translated, written."""

import sys
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from itertools import islice

from transformer_mt.errors import DataError
from transformer_mt.system.console import ProgressBar, logger, shows_progress
from transformer_mt.system.output_record import OutputRecord
from transformer_mt.system.outputs import Fingerprint, OutputState, open_chunk_writer
from transformer_mt.system.streams import LineReader, count_lines, open_input
from transformer_mt.translation.formats import InputFormat, Segment, choose_format
from transformer_mt.translation.inputs import FilePair
from transformer_mt.translation.options import TranslateOptions
from transformer_mt.translation.summary import count_kinds, lines_text, log_kinds
from transformer_mt.translation.translator import Translation, Translator


def translate_file(
    translator: Translator,
    pair: FilePair,
    options: TranslateOptions,
    made_from: Fingerprint,
    record: OutputRecord | None = None,
) -> dict[str, int] | None:
    """Translates a file or stream, and reports counts and speed.

    Args:
        translator: Its beam size is at least the number of translations to write per line.
        pair: A file appears once it is complete.
        options: What to translate, and what to write.
        made_from: What the output depends on beside the input; a file resumes if this is unchanged.
        record: That of the folder of outputs, if there is one; the report names the file then.

    Returns:
        The number of lines of the file, earlier ones included, and of those that were split,
        copied and so on; None if another job has translated it.

    Raises:
        DataError: If the input cannot be read, is not text, or changes meanwhile.
        OutputError, OSError: If a file, or a stream, cannot be written.
    """
    input_format = choose_format(pair.input, options)
    require_unchanged, fingerprint = pair.watch_and_hash({**made_from, **input_format.fingerprint})
    if record and record.is_complete(pair.output, fingerprint):
        return None
    began = time.monotonic()
    with (
        open_input(pair.input) as source,
        open_chunk_writer(pair.output, fingerprint, record.announce if record else None) as writer,
    ):
        state = writer.state
        resumed, reader = state.lines, LineReader(source, pair.name)
        with (
            _progress_bar(pair, resumed, input_format.fingerprint["input_format"]) as bar,
            closing(_translate_chunks(translator, reader, input_format, state, bar)) as chunks,
        ):
            for chunk, translations in chunks:
                require_unchanged()  # so the lines that are kept are those of the fingerprint
                counts = count_kinds(best for best, *_ in translations)
                writer.write(chunk.write(translations), len(translations), counts)
        require_unchanged()
        if not state.chunks:
            writer.write("", 0, {})  # a compressed file is valid only with a member
    counts = {**state.counts, **input_format.counts}
    prefix = f"{pair.name}: " if record else ""
    _report(state.lines - resumed, time.monotonic() - began, counts, prefix)
    return {"lines": state.lines, **counts}


def _report(lines: int, seconds: float, counts: Mapping[str, int], prefix: str) -> None:
    rate = lines / max(seconds, 1e-9)
    logger.info(f"{prefix}{lines_text(lines)} in {seconds:.1f} s, {rate:,.0f} per second")
    log_kinds(counts, prefix)


def _progress_bar(pair: FilePair, done: int, kind: str) -> ProgressBar:
    # At a terminal, a bar would be mixed with the lines on stdout.
    hidden = pair.output.descriptor == 1 and sys.stdout.isatty()
    # Of subtitles, cues are counted, and most lines are not those of cues.
    has_total = shows_progress() and not hidden and kind not in ("srt", "vtt")
    total = count_lines(pair.input) if has_total else None
    name = pair.input.name if pair.input else "translating"
    return ProgressBar(name, "lines", total, done=done, hidden=hidden)


def _translate_chunks(
    translator: Translator,
    reader: LineReader,
    input_format: InputFormat,
    state: OutputState,
    progress: ProgressBar,
) -> Generator[tuple[Segment, list[list[Translation]]]]:
    """Translates what follows the chunks that an earlier process has finished."""
    failures, taken = list[DataError](), deque[Segment]()
    finished, first_line = state.chunks, state.lines + 1

    def read_texts() -> Generator[Sequence[str]]:
        lines = reader.chunks(translator.chunk_lines, translator.first_chunk_lines)
        try:
            # Finished chunks are read, too: the next one may begin within a row or cue.
            for chunk in islice(input_format.chunks(lines), finished, None):
                taken.append(chunk)
                yield chunk.texts
        except DataError as error:  # the chunks before it are still to be translated
            failures.append(error)

    if reader.is_pipe:
        # Its writer may wait for an answer before it writes the next chunk.
        for texts in read_texts():
            [translations] = translator.translate_chunks([texts], progress.update, first_line)
            yield taken.popleft(), translations
            first_line += len(texts)
    else:
        for translations in translator.translate_chunks(read_texts(), progress.update, first_line):
            yield taken.popleft(), translations
    if failures:
        raise failures[0]
