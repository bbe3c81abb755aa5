"""What is translated and where it is written: files, a stream, or lines typed at a prompt."""

import logging
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from transformer_mt.checkpoints.exported import is_exported
from transformer_mt.errors import ConfigError, DataError, OutputError
from transformer_mt.system.files import sha256
from transformer_mt.system.launcher import is_launched, may_have_restarted
from transformer_mt.system.outputs import Fingerprint, Output, check_output, is_complete
from transformer_mt.system.process_settings import interrupt_on_signals
from transformer_mt.system.processes import Processes, join_processes
from transformer_mt.system.streams import compression_suffix, require_input
from transformer_mt.translation.chunks import finish, serve, translate_stream
from transformer_mt.translation.options import Device, FileOptions, TranslateOptions
from transformer_mt.translation.prompt import translate_interactively
from transformer_mt.translation.translation_model import (
    TranslationModel,
    build_translation_model,
    find_models,
    share_models,
)
from transformer_mt.translation.translator import Translator

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
        join_processes(_device_to_join(paths, options.load.device)) as processes,
        interrupt_on_signals(),
    ):
        if not processes.is_main:
            model = build_translation_model(share_models([], processes), options.load)
            processes.watch_peers()
            serve(model.translator(options.search, processes))
        elif not files.inputs and sys.stdin.isatty():
            _translate_prompt(paths, files.output, options)
        else:
            _translate_files(paths, files, options, processes)


def _device_to_join(paths: Sequence[Path], device: Device) -> str:
    """Gives the type of device whose processes are joined; CTranslate2's exchange no tensors."""
    if any(map(is_exported, paths)) or not is_launched():
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
        share_models(checkpoints, processes)
        model = build_translation_model(checkpoints, options.load)
        logger.info(f"translating with {model.name}")
        processes.watch_peers()
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
        OutputError: If an output cannot be written, is also an input, or belongs to two inputs.
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
    if not options.output_dir:
        return [FilePair(readable[0], check_output(options.output, readable))], []
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
        pair = FilePair(path, check_output(name, readable))
        other = pairs.setdefault(pair.output.target or name, pair)
        if other is not pair:
            raise OutputError(
                f"{name}: would be the output of both {other.input} and {path};"
                " rename one, or choose another --output-dir for it"
            )
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
            fingerprint = None
            if pair.input and pair.is_resumable:
                fingerprint = _fingerprint(pair.input, model, translator, options)
                if is_complete(pair.output, fingerprint):
                    logger.info(f"{pair.output.name}: already complete")
                    continue
            translate_stream(
                translator, pair.input, pair.output, options.output, fingerprint, len(pairs) > 1
            )
        except DataError as error:
            failures.append(str(error))
            if len(pairs) > 1:
                logger.warning("%s; translating the other files", error)
    return failures


def _fingerprint(
    source: Path, model: TranslationModel, translator: Translator, options: TranslateOptions
) -> Fingerprint:
    """Lists what the bytes of an output depend on, with what `auto` and defaults stand for."""
    try:
        # The whole file is hashed: even at 200 MB/s, this takes a thousandth of the time.
        digest = sha256(source)
    except OSError as error:
        raise DataError(f"{source}: cannot be read: {error.strerror}") from None
    return {
        "input": digest,
        "checkpoint": [checkpoint.digest for checkpoint in model.checkpoints],
        **asdict(options.load),
        **asdict(options.search),
        **asdict(options.output),
        "precision": model.runtime.precision,
        "device": model.runtime.device_type,
        "chunk_lines": [translator.first_chunk_lines, translator.chunk_lines],
        "batch_tokens": translator.batch_tokens,
    }
