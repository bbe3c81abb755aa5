"""What is translated and where it is written: files, a stream, or lines typed at a prompt.

Files and streams are translated chunk by chunk: read, translated, written.
"""

import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from transformer_mt.errors import ConfigError, DataError, OutputError
from transformer_mt.system.console import ProgressBar, shows_progress
from transformer_mt.system.files import sha256
from transformer_mt.system.launcher import require_single_process
from transformer_mt.system.outputs import (
    ChunkWriter,
    Fingerprint,
    Output,
    OutputState,
    check_output,
    is_complete,
    open_chunk_writer,
    require_own,
    resolve_inputs,
)
from transformer_mt.system.streams import (
    CHUNK_BYTES,
    LineReader,
    compression_suffix,
    count_lines,
    open_input,
    reading,
    require_input,
    watch,
)
from transformer_mt.translation.formats import Chunk, InputFormat, choose_format, format_suffix
from transformer_mt.translation.options import FileOptions, TranslateOptions
from transformer_mt.translation.prompt import translate_interactively
from transformer_mt.translation.sharing import LoadModels, require_first_attempt, share_work
from transformer_mt.translation.translation_model import TranslationModel, find_models
from transformer_mt.translation.translator import (
    Translation,
    Translator,
    count_kinds,
    lines_text,
    log_kinds,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FilePair:
    """An input, None for stdin, and the output of its translation."""

    input: Path | None
    output: Output

    @property
    def is_resumable(self) -> bool:
        """Whether its translation can be resumed: neither input nor output is a stream."""
        return bool(self.input and self.input.is_file() and self.output.target)


def translate(paths: Sequence[Path], files: FileOptions, options: TranslateOptions) -> None:
    """Translates the user's input, with all processes that `torchrun` started.

    Args:
        paths: Each is a run or a checkpoint, and several form an ensemble; or an exported model.
        files: The files to read and write; without an input, lines typed at a terminal are read.
        options: How to translate.

    Raises:
        TransformerMTError: If a path or an option is wrong, or a file cannot be read or written.
        OSError: If a stream cannot be written.
    """
    with share_work(paths, options.load.device) as load:
        if load and not files.inputs and sys.stdin.isatty():
            _translate_prompt(paths, files.output, options, load)
        elif load:
            _translate_files(paths, files, options, load)


def _translate_prompt(
    paths: Sequence[Path], output: Path | None, options: TranslateOptions, load: LoadModels
) -> None:
    if output and str(output) != "-":
        raise ConfigError(
            f"--output {output}: name a file as --input, or redirect stdin (< in.de); the prompt"
            " writes to stdout"
        )
    require_single_process("a prompt")
    checkpoints = find_models(paths)
    model = load(checkpoints, options.load)
    logger.info(f"translating with {model.name}")
    src_lang = checkpoints[0].config.data.src_lang
    translate_interactively(model.translator(options.search), src_lang, options.output)


def _translate_files(
    paths: Sequence[Path], files: FileOptions, options: TranslateOptions, load: LoadModels
) -> None:
    """Translates files or stdin.

    A complete output stays marked by its state until all files are complete, so the same command,
    stopped and run again, translates only the remaining files.
    """
    checkpoints = find_models(paths)
    data = checkpoints[0].config.data
    pairs, failures = plan_files(files, data.src_lang, data.tgt_lang)
    with ExitStack() as locks:
        for pair in pairs:
            locks.enter_context(pair.output.lock())
            if not pair.is_resumable:
                require_first_attempt(pair.output.name)
        model = load(checkpoints, options.load)
        logger.info(f"translating with {model.name}")
        for message in failures:
            logger.warning("%s; translating the other files", message)
        failures += _translate_pairs(model, pairs, options)
        if not failures:
            for pair in pairs:
                pair.output.discard()
            return
    count = len(files.inputs)
    prefix = f"{len(failures)} of {count} files not translated: " if count > 1 else ""
    raise DataError(prefix + "; ".join(failures))


def plan_files(
    options: FileOptions, src_lang: str, tgt_lang: str
) -> tuple[list[FilePair], list[str]]:
    """Checks all inputs and outputs before any work is done.

    The languages are those that names of files end in.

    Returns:
        The inputs that can be read with their outputs, and a message for each of the others.

    Raises:
        DataError: If no input can be read.
        OutputError: If an output cannot be written, is also an input, or belongs to two inputs, or
            a file in the folder of outputs would be replaced that this program did not write.
    """
    if not options.inputs or Path("-") in options.inputs:
        return [FilePair(None, check_output(options.output))], []
    readable, unreadable = [], []
    for path in options.inputs:
        try:
            require_input(path)
            readable.append(path)
        except DataError as error:
            unreadable.append(str(error))
    if not readable:
        raise DataError("; ".join(unreadable))
    inputs = resolve_inputs(readable)
    if not options.output_dir:
        return [FilePair(readable[0], check_output(options.output, inputs))], []
    try:
        options.output_dir.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"{options.output_dir}: {error.strerror}") from None
    pairs: dict[Path, FilePair] = {}
    for path in readable:
        name = options.output_dir / output_name(path, src_lang, tgt_lang)
        pair = FilePair(path, check_output(name, inputs))
        other = pairs.setdefault(pair.output.target or name, pair)
        if other is not pair:
            raise OutputError(
                f"{name}: would be the output of both {other.input} and {path};"
                " rename one, or choose another --output-dir for it"
            )
    require_own(pair.output for pair in pairs.values() if not options.overwrite)
    return list(pairs.values()), unreadable


def output_name(path: Path, src_lang: str, tgt_lang: str) -> str:
    """Names the translation of a file: a.de -> a.en, b.de.srt.gz -> b.en.srt.gz, c -> c.en."""
    suffix = format_suffix(path) + compression_suffix(path)
    base = path.name.removesuffix(suffix).removesuffix(f".{src_lang}")
    return f"{base}.{tgt_lang}{suffix}"


def _translate_pairs(
    model: TranslationModel, pairs: list[FilePair], options: TranslateOptions
) -> list[str]:
    """Translates files one by one; returns a message for each that could not be read."""
    translator, failures = model.translator(options.search), []
    made_from = _fingerprint(model, translator, options)
    for pair in pairs:
        prefix = f"{pair.input}: " if len(pairs) > 1 else ""
        ending = format_suffix(pair.input) if pair.input else ""
        try:
            format_ = choose_format(pair.input, options)
            translate_file(translator, pair, format_, {**made_from, "ending": ending}, prefix)
        except DataError as error:
            failures.append(str(error))
            if len(pairs) > 1:
                logger.warning("%s; translating the other files", error)
    return failures


def _fingerprint(
    model: TranslationModel, translator: Translator, options: TranslateOptions
) -> Fingerprint:
    """Lists what the bytes of an output depend on beside its input.

    Not the device and the batch size that `auto` and defaults stand for, which only decide between
    equally likely translations: a machine with more or less memory can continue.
    """
    return {
        "checkpoint": [checkpoint.digest for checkpoint in model.checkpoints],
        **asdict(options.load),
        **asdict(options.search),
        **asdict(options.output),
        "input_options": asdict(options.input),
        "precision": model.runtime.precision,
        "chunk_size": [translator.first_chunk_lines, translator.chunk_lines, CHUNK_BYTES],
    }


def translate_file(
    translator: Translator,
    pair: FilePair,
    format_: InputFormat,
    made_from: Fingerprint,
    prefix: str = "",
) -> None:
    """Translates line by line, and reports counts and speed, unless it is already complete.

    Args:
        translator: Its beam size is at least the number of translations to write per line.
        pair: A file appears once it is complete.
        format_: What of it to translate, and what to write.
        made_from: What the output depends on beside the input; a stopped translation is resumed if
            both are the same.
        prefix: Precedes each line of the report.

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
            return
    began = time.monotonic()
    # At a terminal, a bar would be mixed with the lines on stdout.
    hidden = output.descriptor == 1 and sys.stdout.isatty()
    total = count_lines(pair.input) if shows_progress() and not hidden else None
    name = pair.input.name if pair.input else "translating"
    with open_input(pair.input) as source, open_chunk_writer(output, fingerprint) as writer:
        reader, state = LineReader(source, str(pair.input or "stdin")), writer.state
        resumed = state.lines
        with (
            ProgressBar(name, "lines", total, done=resumed, hidden=hidden) as bar,
            closing(_translate_chunks(translator, reader, format_, state, bar.update)) as chunks,
        ):
            for chunk, translations in chunks:
                require_unchanged()  # so the lines that are kept are those of the fingerprint
                counts = count_kinds(best for best, *_ in translations)
                writer.write(chunk.write(translations), len(translations), counts)
        require_unchanged()
        if not state.chunks:
            writer.write("", 0, {})  # a compressed file is valid only with a member
    _report(writer, resumed, format_.lines_replaced, time.monotonic() - began, prefix)


def _translate_chunks(
    translator: Translator,
    reader: LineReader,
    format_: InputFormat,
    state: OutputState,
    advance: Callable[[int], object],
) -> Generator[tuple[Chunk, list[list[Translation]]]]:
    """Translates what follows the chunks that an earlier process has finished."""
    failures, taken = list[DataError](), deque[Chunk]()
    finished, first_line = state.chunks, state.lines + 1

    def read_texts() -> Generator[list[str]]:
        lines = reader.chunks(translator.chunk_lines, translator.first_chunk_lines)
        try:
            # Finished chunks are read, too: the next one may begin within a row or cue.
            for chunk in islice(format_.chunks(lines), finished, None):
                taken.append(chunk)
                yield chunk.texts
        except DataError as error:  # the chunks before it are still to be translated
            failures.append(error)

    if reader.is_pipe:
        # Its writer may wait for an answer before it writes the next chunk.
        for texts in read_texts():
            yield taken.popleft(), translator.n_best(texts, advance, first_line)
            first_line += len(texts)
    else:
        for translations in translator.translate_chunks(read_texts(), advance, first_line):
            yield taken.popleft(), translations
    if failures:
        raise failures[0]


def _report(writer: ChunkWriter, resumed: int, replaced: int, seconds: float, prefix: str) -> None:
    lines = writer.state.lines - resumed
    rate = lines / max(seconds, 1e-9)
    logger.info(f"{prefix}{lines_text(lines)} in {seconds:.1f} s, {rate:,.0f} per second")
    log_kinds(writer.state.counts, prefix)
    if replaced:
        logger.warning(
            f"{prefix}{lines_text(replaced)} not in UTF-8; invalid bytes were replaced by U+FFFD"
        )
