"""What is translated and where it is written: files, a stream, or lines typed at a prompt.

Files and streams are translated chunk by chunk: read, translated by all processes, written.
"""

import logging
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from itertools import dropwhile, islice
from pathlib import Path

from transformer_mt.checkpoints.layout import EXPORT
from transformer_mt.errors import ConfigError, DataError, OutputError
from transformer_mt.system.console import ProgressBar, shows_progress
from transformer_mt.system.files import sha256
from transformer_mt.system.launcher import is_launched, may_have_restarted
from transformer_mt.system.outputs import (
    ChunkWriter,
    Fingerprint,
    Output,
    check_output,
    is_complete,
    open_chunk_writer,
    require_own,
    resolve_inputs,
)
from transformer_mt.system.processes import Processes, join_processes
from transformer_mt.system.signals import interrupt_on_signals
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
from transformer_mt.translation.options import Device, FileOptions, OutputOptions, TranslateOptions
from transformer_mt.translation.prompt import translate_interactively
from transformer_mt.translation.translation_model import (
    TranslationModel,
    build_translation_model,
    find_models,
)
from transformer_mt.translation.translator import (
    Translation,
    Translator,
    count_kinds,
    format_lines,
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
    """Translates the user's input with all processes that `torchrun` started.

    Args:
        paths: Each is a run or a checkpoint, and several form an ensemble; or an exported model.
        files: The files to read and write; without an input, lines typed at a terminal are read.
        options: How to translate.

    Raises:
        TransformerMTError: If a path or an option is wrong, or a file cannot be read or written.
        OSError: If a stream cannot be written.
        Interrupted: After SIGINT or SIGTERM; the finished part of a file is kept.
    """
    with (
        join_processes(device_to_join(paths, options.load.device)) as processes,
        interrupt_on_signals(),
    ):
        if not processes.is_main:
            model = build_translation_model([], options.load, processes)
            serve(model.translator(options.search, processes))
        elif not files.inputs and sys.stdin.isatty():
            _translate_prompt(paths, files.output, options)
        else:
            _translate_files(paths, files, options, processes)


def device_to_join(paths: Iterable[Path], device: Device) -> str:
    """Gives the type of device whose processes are joined; CTranslate2's exchange no tensors.

    Paths of files are those of translations, which need no device.
    """
    folders = [path for path in paths if path.is_dir()]
    if not is_launched() or (folders and all((path / EXPORT).exists() for path in folders)):
        return "cpu"
    from transformer_mt.system.device import choose_device

    return choose_device(device).type


def _translate_prompt(
    paths: Sequence[Path], output: Path | None, options: TranslateOptions
) -> None:
    if output and str(output) != "-":
        raise ConfigError(
            f"--output {output}: name a file as --input, or redirect stdin (< in.de); the prompt"
            " writes to stdout"
        )
    if is_launched():
        raise ConfigError(
            "a prompt works in one process: start it without torchrun, or name files as --input"
        )
    checkpoints = find_models(paths)
    model = build_translation_model(checkpoints, options.load)
    logger.info(f"translating with {model.name}")
    src_lang = checkpoints[0].config.data.src_lang
    translate_interactively(model.translator(options.search), src_lang, options.output)


def _translate_files(
    paths: Sequence[Path], files: FileOptions, options: TranslateOptions, processes: Processes
) -> None:
    """Translates files or stdin as the main process.

    A complete output stays marked by its state until all files are complete, so the same command,
    stopped and run again, translates only the remaining files.
    """
    checkpoints = find_models(paths)
    data = checkpoints[0].config.data
    pairs, failures = plan_files(files, data.src_lang, data.tgt_lang)
    with ExitStack() as locks:
        for pair in pairs:
            locks.enter_context(pair.output.lock())
        streams = [pair.output.name for pair in pairs if not pair.is_resumable]
        if streams and may_have_restarted():  # a lost process may have read some of its lines
            raise OutputError(
                f"{streams[0]}: several machines, and processes that were restarted, cannot"
                " translate a stream, since it cannot be read again; name files as --input and"
                " --output"
            )
        model = build_translation_model(checkpoints, options.load, processes)
        logger.info(f"translating with {model.name}")
        for message in failures:
            logger.warning("%s; translating the other files", message)
        failures += _translate_pairs(model, pairs, options, processes)
        finish(processes)
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
    except FileNotFoundError:
        folder = options.output_dir.parent
        raise OutputError(f"{options.output_dir}: there is no folder {folder}") from None
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
    """Names the translation of a file: a.de -> a.en, b.de.gz -> b.en.gz, c.txt -> c.txt.en."""
    compression = compression_suffix(path)
    base = path.name.removesuffix(compression).removesuffix(f".{src_lang}")
    return f"{base}.{tgt_lang}{compression}"


def _translate_pairs(
    model: TranslationModel, pairs: list[FilePair], options: TranslateOptions, processes: Processes
) -> list[str]:
    """Translates files one by one; returns a message for each that could not be read."""
    translator, failures = model.translator(options.search, processes), []
    for pair in pairs:
        try:
            fingerprint, require_unchanged = None, watch(pair.input)
            if pair.input and pair.is_resumable:
                fingerprint = _fingerprint(pair.input, model, translator, options)
                if is_complete(pair.output, fingerprint):
                    logger.info(f"{pair.output.name}: already complete")
                    continue
            files, is_named = (pair.input, pair.output), len(pairs) > 1
            translate_stream(
                translator, *files, options.output, fingerprint, is_named, require_unchanged
            )
        except DataError as error:
            failures.append(str(error))
            if len(pairs) > 1:
                logger.warning("%s; translating the other files", error)
    return failures


def _fingerprint(
    source: Path, model: TranslationModel, translator: Translator, options: TranslateOptions
) -> Fingerprint:
    """Lists what the bytes of an output depend on.

    Not the device and the batch size that `auto` and defaults stand for, which only decide between
    equally likely translations: a machine with more or less memory can continue.
    """
    with reading(source):
        # The whole file is hashed: even at 200 MB/s, this takes a thousandth of the time.
        digest = sha256(source)
    return {
        "input": digest,
        "checkpoint": [checkpoint.digest for checkpoint in model.checkpoints],
        **asdict(options.load),
        **asdict(options.search),
        **asdict(options.output),
        "precision": model.runtime.precision,
        "chunk_size": [translator.first_chunk_lines, translator.chunk_lines, CHUNK_BYTES],
    }


def translate_stream(
    translator: Translator,
    input_path: Path | None,
    output: Output,
    options: OutputOptions,
    fingerprint: Fingerprint | None = None,
    is_named: bool = False,
    require_unchanged: Callable[[], None] | None = None,
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
        require_unchanged: From `watch`, called before the fingerprint was computed.

    Raises:
        DataError: If the input cannot be read, is not text, or changes meanwhile.
        OutputError: If a file cannot be written.
        OSError: If a stream cannot be written.
    """
    began, require_unchanged = time.monotonic(), require_unchanged or watch(input_path)
    # At a terminal, a bar would be mixed with the lines on stdout.
    hidden = output.descriptor == 1 and sys.stdout.isatty()
    total = count_lines(input_path) if shows_progress() and not hidden else None
    with open_input(input_path) as source, open_chunk_writer(output, fingerprint) as writer:
        reader, resumed = LineReader(source, str(input_path or "stdin")), writer.state.lines
        chunk_lines = translator.chunk_lines
        name = input_path.name if input_path else "translating"
        with (
            ProgressBar(name, "lines", total, done=resumed, hidden=hidden) as progress,
            closing(_translate_rounds(translator, reader, resumed, progress.update)) as rounds,
        ):
            for translations in rounds:
                require_unchanged()  # so the lines that are kept are those of the fingerprint
                done = writer.state.lines
                texts = [
                    format_lines(translations[i : i + chunk_lines], done + i + 1, options)
                    for i in range(0, len(translations), chunk_lines)
                ]
                counts = count_kinds(best for best, *_ in translations)
                writer.write(texts, len(translations), counts)
        require_unchanged()
        if not reader.lines_read:
            writer.write([""], 0, {})  # a compressed file is valid only with a member
    prefix = f"{input_path}: " if is_named else ""
    _report(reader, writer, resumed, time.monotonic() - began, prefix)


def _translate_rounds(
    translator: Translator, reader: LineReader, resumed: int, advance: Callable[[int], object]
) -> Generator[list[list[Translation]]]:
    """Translates what follows the lines that an earlier process has finished, in whole chunks."""
    world_size, failures = translator.processes.world_size, list[DataError]()

    def read_rounds() -> Generator[list[str]]:
        chunks = reader.chunks(translator.chunk_lines, translator.first_chunk_lines)
        chunks = dropwhile(lambda _: reader.lines_read <= resumed, chunks)
        round_size = world_size if resumed else 1  # that of the first, small chunk has no other
        try:
            while lines := _read_round(islice(chunks, round_size), translator.chunk_lines):
                translator.processes.broadcast((lines, reader.lines_read - len(lines) + 1))
                yield lines
                round_size = 1 if reader.is_pipe else world_size
        except DataError as error:  # the chunks before it are still to be translated
            failures.append(error)

    if reader.is_pipe or world_size > 1:
        # The writer of a pipe may wait for an answer before it writes the next chunk.
        first_line = resumed + 1
        for lines in read_rounds():
            yield translator.n_best(lines, advance, first_line)
            first_line += len(lines)
    else:
        yield from translator.translate_chunks(read_rounds(), advance, resumed + 1)
    if failures:
        raise failures[0]


def _read_round(chunks: Iterable[list[str]], full: int) -> list[str]:
    """Joins chunks up to one that is not full, so that the lines can be cut into them again."""
    lines = list[str]()
    for chunk in chunks:
        lines += chunk
        if len(chunk) < full:
            break
    return lines


def serve(translator: Translator) -> None:
    """Takes part in the main process's translations until it finishes; called by the others."""
    while (work := translator.processes.broadcast((list[str](), 0)))[0]:
        lines, first_line = work
        translator.n_best(lines, first_line=first_line)
    translator.processes.finish()


def finish(processes: Processes) -> None:
    """Lets the other processes end; called by the main process."""
    processes.broadcast((list[str](), 0))
    processes.finish()


def _report(
    reader: LineReader, writer: ChunkWriter, resumed: int, seconds: float, prefix: str
) -> None:
    lines = reader.lines_read - resumed
    rate = lines / max(seconds, 1e-9)
    logger.info(f"{prefix}{lines_text(lines)} in {seconds:.1f} s, {rate:,.0f} per second")
    log_kinds(writer.state.counts, prefix)
    if replaced := reader.lines_replaced:
        logger.warning(
            f"{prefix}{lines_text(replaced)} not in UTF-8; invalid bytes were replaced by U+FFFD"
        )
