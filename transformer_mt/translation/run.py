"""Translation of files, a stream or lines typed at a prompt, with one model."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from transformer_mt.errors import ConfigError, DataError, OutputError
from transformer_mt.system.device import choose_device
from transformer_mt.system.files import sha256
from transformer_mt.system.outputs import (
    Output,
    Task,
    check_output,
    discard,
    is_complete,
    normalized,
)
from transformer_mt.system.process_settings import exit_on_closed_stdout, interrupt_on_signals
from transformer_mt.system.processes import (
    ALONE,
    Processes,
    is_launched,
    join_processes,
    may_have_restarted,
)
from transformer_mt.system.streams import COMPRESSION_SUFFIXES, require_input
from transformer_mt.translation.chunks import ChunkTranslator, translate_stream
from transformer_mt.translation.options import FileOptions, TranslateOptions
from transformer_mt.translation.prompt import reads_from_prompt, translate_interactively
from transformer_mt.translation.translation_model import (
    TranslationModel,
    build_translation_model,
    find_checkpoints,
    share_checkpoints,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FilePair:
    """An input and the output of its translation.

    Attributes:
        input: A file or named pipe; None is stdin.
        output: Where its translation is written.
    """

    input: Path | None
    output: Output

    @property
    def is_resumable(self) -> bool:
        """Whether its translation can be resumed: neither input nor output is a stream."""
        return bool(self.input and self.input.is_file() and self.output.target)


@dataclass(frozen=True)
class FilePlan:
    """The files to translate.

    Attributes:
        pairs: Inputs that can be read, and their outputs.
        unreadable: A message for each of the other inputs.
    """

    pairs: list[FilePair]
    unreadable: list[str]


@contextmanager
def plan_files(options: FileOptions, src_lang: str, tgt_lang: str) -> Iterator[FilePlan]:
    """Checks all inputs and outputs, and holds a lock on every output.

    Args:
        options: The files.
        src_lang: Language code that the name of an input may end in.
        tgt_lang: Language code that the name of its output ends in.

    Raises:
        DataError: If no input can be read.
        OutputError: If an output cannot be written, is in use, is also an input, or belongs to
            two inputs.
    """
    readable, unreadable = _readable_inputs(options)
    if options.output_dir:
        _require_output_dir(options.output_dir)
        outputs = [
            options.output_dir / output_name(path.name, src_lang, tgt_lang) for path in readable
        ]
        pairs = [
            FilePair(path, check_output(output, readable))
            for path, output in zip(readable, outputs, strict=True)
        ]
    else:
        source = None if options.reads_stdin else readable[0]
        pairs = [FilePair(source, check_output(options.output, readable))]
    _refuse_shared_outputs(pairs)
    with ExitStack() as locks:
        for pair in pairs:
            locks.enter_context(pair.output.lock())
        yield FilePlan(pairs, unreadable)


def _readable_inputs(options: FileOptions) -> tuple[list[Path], list[str]]:
    readable, unreadable = [], []
    for path in options.inputs if not options.reads_stdin else ():
        try:
            require_input(path)
            readable.append(path)
        except DataError as error:
            unreadable.append(str(error))
    if unreadable and not readable:
        raise DataError("; ".join(unreadable))
    return readable, unreadable


def _require_output_dir(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except FileNotFoundError:
        raise OutputError(f"{folder}: there is no folder {folder.parent}") from None
    except OSError as error:
        raise OutputError(f"{folder}: {error.strerror}") from None


def output_name(name: str, src_lang: str, tgt_lang: str) -> str:
    """Names the translation of a file: a.de -> a.en, b.de.gz -> b.en.gz, c.txt -> c.txt.en."""
    path = Path(name)
    compression = path.suffix if path.suffix in COMPRESSION_SUFFIXES else ""
    base = name.removesuffix(compression).removesuffix(f".{src_lang}")
    return f"{base}.{tgt_lang}{compression}"


def _refuse_shared_outputs(pairs: list[FilePair]) -> None:
    first: dict[Path, FilePair] = {}
    for pair in pairs:
        if pair.output.target is None:
            continue
        other = first.setdefault(pair.output.target, pair)
        if other is not pair:
            raise OutputError(
                f"{pair.output.name}: would be the output of both {other.input} and {pair.input};"
                " rename one, or choose another --output-dir for it"
            )


def translate_files(
    model: TranslationModel,
    plan: FilePlan,
    options: TranslateOptions,
    processes: Processes = ALONE,
) -> None:
    """Translates the files one by one; one that cannot be read does not stop the others.

    A complete output stays marked by a journal beside it until all files are complete, so the same
    command, stopped and run again, translates only the remaining files.

    Args:
        model: The model to translate with.
        plan: The files to translate.
        options: How to translate.
        processes: The processes that translate; this is the main one.

    Raises:
        DataError: At the end, naming the files that could not be read.
        OutputError: If an output cannot be written.
        OSError: If a stream cannot be written.
    """
    translator = ChunkTranslator(model, options, processes)
    failures = list(plan.unreadable)
    for message in failures:
        logger.warning("%s; translating the other files", message)
    for pair in plan.pairs:
        try:
            _translate_file(translator, model, pair, options)
        except DataError as error:
            failures.append(str(error))
            if len(plan.pairs) > 1:
                logger.warning("%s; translating the other files", error)
    translator.finish()
    if not failures:
        for pair in plan.pairs:
            discard(pair.output)
        return
    files = len(plan.pairs) + len(plan.unreadable)
    prefix = f"{len(failures)} of {files} files not translated: " if files > 1 else ""
    raise DataError(prefix + "; ".join(failures))


def _translate_file(
    translator: ChunkTranslator, model: TranslationModel, pair: FilePair, options: TranslateOptions
) -> None:
    task = None
    if pair.input and pair.is_resumable:
        task = _task(pair.input, translator, model, options)
        if is_complete(pair.output, task):
            logger.info(f"{pair.output.name}: already complete")
            return
    translate_stream(translator, pair.input, pair.output, task)


def _task(
    source: Path, translator: ChunkTranslator, model: TranslationModel, options: TranslateOptions
) -> Task:
    """Lists everything that the bytes of an output depend on."""
    try:
        # The whole file is hashed: even at 200 MB/s, this takes a thousandth of the time.
        digest = sha256(source)
    except OSError as error:
        raise DataError(f"{source}: cannot be read: {error.strerror}") from None
    return normalized(
        {
            "input": digest,
            "checkpoint": [checkpoint.digest for checkpoint in model.checkpoints],
            "chunk_lines": translator.chunk_lines,
            **asdict(options.load),
            **asdict(options.search),
            **asdict(options.output),
            # The values that `auto` and the defaults currently stand for.
            "device": model.model.device.type,
            "max_length": model.max_length,
            "batch_tokens": translator.batch_tokens,
        }
    )


def translate(paths: Sequence[Path], files: FileOptions, options: TranslateOptions) -> None:
    """Translates the user's input with all processes that `torchrun` started.

    Args:
        paths: Each is a run or a checkpoint; several form an ensemble.
        files: The files to read and write; without an input, lines typed at a terminal are read.
        options: How to translate.

    Raises:
        TransformerMTError: If a path or an option is wrong, or a file cannot be read or written.
        OSError: If a stream cannot be written.
        Interrupted: After SIGINT or SIGTERM; the finished part of a file is kept.
    """
    with (
        join_processes(choose_device(options.load.device).type) as processes,
        interrupt_on_signals(),
    ):
        if not processes.is_main:
            _translate_beside(options, processes)
        elif reads_from_prompt(files):
            _translate_prompt(paths, options)
        else:
            _translate_main(paths, files, options, processes)


def _translate_prompt(paths: Sequence[Path], options: TranslateOptions) -> None:
    if is_launched():
        raise ConfigError(
            "a prompt works in one process: start it without torchrun, or name files as --input"
        )
    exit_on_closed_stdout()
    checkpoints = find_checkpoints(paths)
    model = build_translation_model(checkpoints, options.load)
    logger.info(f"translating with {model.name}")
    src_lang = checkpoints[0].config.data.src_lang
    translate_interactively(model.translator(options.search), src_lang, options.output)


def _translate_main(
    paths: Sequence[Path],
    files: FileOptions,
    options: TranslateOptions,
    processes: Processes,
) -> None:
    """Translates as the process that reads and writes."""
    checkpoints = find_checkpoints(paths)
    data = checkpoints[0].config.data
    with plan_files(files, data.src_lang, data.tgt_lang) as plan:
        if any(pair.output.target is None for pair in plan.pairs):
            exit_on_closed_stdout()
        if may_have_restarted():
            _require_resumable(plan)
        share_checkpoints(checkpoints, processes)
        model = build_translation_model(checkpoints, options.load)
        logger.info(f"translating with {model.name}")
        processes.watch_peers()
        translate_files(model, plan, options, processes)


def _require_resumable(plan: FilePlan) -> None:
    """Refuses to continue a stream from which a lost process may have read lines."""
    for pair in plan.pairs:
        if not pair.is_resumable:
            raise OutputError(
                f"{pair.output.name}: several machines, and processes that were restarted, cannot"
                " translate a stream, since it cannot be read again; name files as --input and"
                " --output"
            )


def _translate_beside(options: TranslateOptions, processes: Processes) -> None:
    """Translates as one of the other processes, which read and write nothing."""
    model = build_translation_model(share_checkpoints([], processes), options.load)
    processes.watch_peers()
    ChunkTranslator(model, options, processes).serve()
