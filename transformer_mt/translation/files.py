"""Translation of one or more files by one model, with outputs checked, locked and resumed."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from transformer_mt.errors import DataError, OutputError
from transformer_mt.system.compression import COMPRESSION_SUFFIXES
from transformer_mt.system.files import sha256
from transformer_mt.system.outputs import Output, check_output
from transformer_mt.system.processes import ALONE, Processes
from transformer_mt.system.streams import require_input
from transformer_mt.translation.chunks import ChunkTranslator
from transformer_mt.translation.options import FileOptions, TranslateOptions
from transformer_mt.translation.resumable import Task, discard, is_complete, normalized
from transformer_mt.translation.stream import translate_stream
from transformer_mt.translation.translation_model import TranslationModel

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
