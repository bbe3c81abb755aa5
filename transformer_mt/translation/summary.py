"""What became of lines, and of the files of a job: for people at its end, for programs as JSON."""

import json
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from transformer_mt.errors import (
    ConfigError,
    DataError,
    FailedFilesError,
    FullDiskError,
    Interrupted,
    NotTextError,
    OutputError,
    TransformerMTError,
)
from transformer_mt.system.console import logger
from transformer_mt.system.files import parse_json
from transformer_mt.system.outputs import (
    Output,
    check_output,
    naming_output,
    resolve_inputs,
    write_lines,
)
from transformer_mt.system.streams import open_input, read_blocks
from transformer_mt.translation.options import FileOptions
from transformer_mt.translation.translator import Translation

_KINDS = {
    "split": (logging.INFO, "translated in parts"),
    "copied": (logging.INFO, "without words copied"),
    "cut": (logging.WARNING, "cut at the length limit; such text usually repeats itself"),
    "empty": (logging.WARNING, "with words translated into nothing"),
    "replaced": (logging.WARNING, "not in UTF-8; invalid bytes were replaced by U+FFFD"),
}
"""Kinds of lines that are counted, each with the level and text of its message."""
_COUNTS = "lines", "split", "copied", "cut", "empty", "replaced", "kept"


def count_kinds(translations: Iterable[Translation]) -> dict[str, int]:
    """Counts the lines that were split, copied, or gone wrong, given their best translations."""
    counts = dict.fromkeys(("split", "copied", "cut", "empty"), 0)
    for translation in translations:
        counts["split"] += translation.parts > 1
        if translation.status != "ok":
            counts[translation.status] += 1
    return counts


def log_kinds(counts: Mapping[str, int], prefix: str = "") -> None:
    """Logs a message for each kind of lines that occurred."""
    for kind, (level, text) in _KINDS.items():
        if count := counts.get(kind, 0):
            logger.log(level, "%s%s %s", prefix, lines_text(count), text)


def lines_text(lines: int) -> str:
    """Formats a number of lines, as in "2 lines"."""
    return f"{lines:,} {'line' if lines == 1 else 'lines'}"


@dataclass
class Summary:
    """What became of the files of a job; what is written as JSON has these keys.

    Attributes:
        done: Files that were translated.
        skipped: Files whose translation was complete, and unchanged since.
        not_text: Files in a folder that hold something else.
        in_target_language: Files in a folder that have its ending.
        hidden: Files and folders in a folder whose names begin with a dot.
        links: Links in a folder to folders, or to nothing.
        failed: Reasons by file.
        counts: The `lines` of the files that were translated, and those that were `split`,
            `copied`, `cut`, `empty`, or not in UTF-8 (`replaced`), and rows `kept` as they are; as
            JSON, keys of their own.
        models: Digests of the checkpoints.
        seconds: All the time that the job took.
        exit_code: That of the main process; `torchrun` has its own.
    """

    done: int = 0
    skipped: int = 0
    not_text: int = 0
    in_target_language: int = 0
    hidden: int = 0
    links: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(_COUNTS, 0)))
    models: list[str] = field(default_factory=list)
    seconds: float = 0.0
    exit_code: int = 1

    @contextmanager
    def one_file(self, name: str, skips_binary: bool = False) -> Iterator[None]:
        """Makes an error that concerns one file a failure of that file alone."""
        try:
            try:
                yield
            except OSError as error:
                with naming_output(error.filename or name):
                    raise
        except FullDiskError:
            raise
        except (ConfigError, DataError, OutputError) as error:
            if skips_binary and isinstance(error, NotTextError):
                self.not_text += 1
            else:
                self.fail(name, error)

    def add_file(self, counts: Mapping[str, int] | None) -> None:
        """Counts a file that was translated, and its lines; without them, one that was complete."""
        self.done += counts is not None
        self.skipped += counts is None
        self.counts.update(counts or {})

    def fail(self, name: str, error: TransformerMTError) -> None:
        """Counts a file that could not be translated, and reports it at once."""
        self.add_failure(name, error)
        logger.warning("%s; translating the other files", error)

    def add_failure(self, name: str, error: TransformerMTError) -> None:
        """Counts a file that could not be translated."""
        # A name need not be UTF-8, as JSON is.
        name, reason = (
            os.fsencode(text).decode("utf-8", "backslashreplace") for text in (name, str(error))
        )
        self.failed[name] = reason.removeprefix(f"{name}: ")

    def report(self) -> None:
        """Logs it for people.

        Raises:
            FailedFilesError: If there are failures.
        """
        log_kinds(self.counts)
        kinds = {"translated": self.done, "already complete": self.skipped}
        kinds |= {"not text": self.not_text, "in the target language": self.in_target_language}
        kinds |= {"hidden": self.hidden, "links": self.links}
        named = [f"{count:,} {kind}" for kind, count in kinds.items() if count]
        logger.info(f"files: {', '.join(named) or 'none'}; {lines_text(self.counts['lines'])}")
        if self.failed:
            failures, total = len(self.failed), len(self.failed) + self.done + self.skipped
            raise FailedFilesError(f"{failures:,} of {total:,} files not translated; see above")

    def write(self, output: Output) -> None:
        """Writes it as JSON."""
        values = vars(self) | self.counts
        write_lines([json.dumps({k: v for k, v in values.items() if k != "counts"})], output)


@contextmanager
def written_summary(output: Output | None) -> Iterator[Summary]:
    """Gives a summary to fill, and writes it when the block ends, by an error or a signal, too.

    An unfinished one comes first, so that a kill does not leave that of an earlier job.
    """
    summary, began = Summary(), time.monotonic()
    if output and output.target:  # a stream has one object
        summary.write(output)
    try:
        yield summary
        summary.exit_code = 0
    except BrokenPipeError:
        summary.exit_code = 128 + signal.SIGPIPE  # which then ends the process
        raise
    except (TransformerMTError, Interrupted, OSError) as error:
        summary.exit_code = getattr(error, "exit_code", TransformerMTError.exit_code)
        raise
    finally:
        summary.seconds = round(time.monotonic() - began, 3)
        if output:
            summary.write(output)


def check_summary(files: FileOptions) -> Output | None:
    """Checks where the summary is to be written: it replaces only an earlier one, or an empty file.

    Raises:
        OutputError: If it cannot be written there, or would replace something else.
    """
    if not files.summary:
        return None
    output = check_output(files.summary, resolve_inputs([*files.inputs, files.files_from]))
    place = output.target, output.descriptor
    if any(place) and not files.output_dir:
        translation = check_output(files.output)
        if place == (translation.target, translation.descriptor):
            raise OutputError(f"{output.name}: is also the --output; name another --summary")
    if output.target and output.target.is_file() and output.target.stat().st_size:
        with suppress(OSError, ValueError, TypeError, DataError):
            with open_input(output.target) as file:  # which may be compressed
                content = b"".join(read_blocks(file, output.name))
            if "exit_code" in parse_json(content):
                return output
        raise OutputError(f"{output.name}: exists and is not a summary; name another --summary")
    return output
