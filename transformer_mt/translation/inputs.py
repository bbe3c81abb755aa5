"""The files of a job: those that are named, listed or in a folder, and where each is written."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from transformer_mt.errors import DataError, OutputError
from transformer_mt.system.files import sha256
from transformer_mt.system.output_record import OutputRecord
from transformer_mt.system.outputs import (
    Fingerprint,
    Output,
    check_output,
    naming_output,
    resolve_inputs,
)
from transformer_mt.system.streams import open_input, reading, require_input, watch
from transformer_mt.translation.formats import name_without_format
from transformer_mt.translation.options import FileOptions
from transformer_mt.translation.summary import Summary


@dataclass(frozen=True)
class FilePair:
    """An input, None for stdin, and the output of its translation.

    Attributes:
        skips_binary: Whether the input is passed over if it is not text: nobody named it.
    """

    input: Path | None
    output: Output
    skips_binary: bool = False

    @property
    def name(self) -> str:
        """The input's name, for messages."""
        return str(self.input or "stdin")

    @property
    def is_resumable(self) -> bool:
        """Whether its translation can be resumed: neither input nor output is a stream."""
        return bool(self.input and self.input.is_file() and self.output.target)

    def watch_and_hash(
        self, made_from: Fingerprint
    ) -> tuple[Callable[[], None], Fingerprint | None]:
        """Returns a function that raises DataError once the input has changed, and a fingerprint.

        This says what the output depends on: the input and `made_from`; None if its translation
        cannot be resumed.
        """
        require_unchanged = watch(self.input)
        if not self.input or not self.is_resumable:
            return require_unchanged, None
        with reading(self.input):
            # The whole file is hashed: even at 200 MB/s, this takes a thousandth of the time.
            digest = sha256(self.input)
        return require_unchanged, {"input": digest, **made_from}


class _NamedInput(NamedTuple):
    """A file to translate; `name` is that of its translation, but for the endings."""

    path: Path
    name: Path
    skips_binary: bool = False


def plan_single(options: FileOptions) -> FilePair:
    """Checks the one input and output of a command without a folder of outputs.

    Raises:
        DataError: If the input cannot be read.
        OutputError: If the output cannot be written, or is the input.
    """
    path = next(iter(options.inputs), None)
    if path is None or str(path) == "-":
        return FilePair(None, check_output(options.output, resolve_inputs([Path("/dev/stdin")])))
    if os.path.isdir(path):
        raise DataError(f"{path}: is a directory; add --output-dir to translate the text in it")
    require_input(path)
    return FilePair(path, check_output(options.output, resolve_inputs([path])))


def plan_folder(
    options: FileOptions, record: OutputRecord, languages: tuple[str, str], summary: Summary
) -> list[FilePair]:
    """Finds the inputs of a job and checks their outputs; those that cannot be used are failures.

    Args:
        options: Has a folder of outputs.
        record: That of the folder; files which it names are no inputs that a folder contains.
        languages: Source and target, which names of files end in.
        summary: Takes failures, and what folders contain beside text.

    Raises:
        DataError: If a list of files cannot be read.
    """
    assert options.output_dir
    files = list(_find_files(options, record, languages[1], summary))
    inputs, pairs = resolve_inputs(each.path for each in files), dict[str, FilePair]()
    summary_file = options.summary and os.path.realpath(options.summary)
    for each in files:
        source = os.path.realpath(each.path)
        if source == summary_file:
            continue
        with summary.one_file(str(each.path)):
            require_input(each.path)
            if not each.path.is_file():  # nobody may ever write into a named pipe
                raise DataError(f"{each.path}: is not a regular file")
            name = options.output_dir / each.name.parent / output_name(each.name, *languages)
            with naming_output(name.parent):
                name.parent.mkdir(parents=True, exist_ok=True)
            # As it was named, since a link may lead to newer text tomorrow; but what precedes ".."
            # may be a link, too.
            named = source if ".." in each.path.parts else os.path.abspath(each.path)
            output = replace(check_output(name, inputs), source=named)
            pair = FilePair(each.path, output, each.skips_binary)
            other = pairs.setdefault(str(pair.output.target or name), pair)
            if other is not pair and os.path.realpath(other.name) != source:
                raise OutputError(f"{name}: is already the output of {other.name}; rename one")
    return list(pairs.values())


def _find_files(
    options: FileOptions, record: OutputRecord, tgt_lang: str, summary: Summary
) -> Iterator[_NamedInput]:
    for path in options.inputs:
        if os.path.isdir(path):
            yield from _walk(path, record, tgt_lang, summary)
        else:
            yield _NamedInput(path, Path(path.name))
    if options.files_from:
        for path in _read_list(options.files_from):
            relative = Path(os.path.normpath(path)).relative_to(path.anchor)
            with summary.one_file(str(path)):
                if ".." in relative.parts:
                    raise DataError(f"{path}: is outside the current folder; run the command there")
                yield _NamedInput(path, relative)


def _walk(
    root: Path, record: OutputRecord, tgt_lang: str, summary: Summary
) -> Iterator[_NamedInput]:
    """Finds the files of a folder and of those in it, in a fixed order, without hidden ones."""

    def report(error: OSError) -> None:
        summary.fail(error.filename, DataError(f"{error.filename}: {error.strerror}"))

    for folder, folders, files in os.walk(root, onerror=report):
        for name in sorted(folders + files):
            path = Path(folder, name)
            if name.startswith("."):
                summary.hidden += 1
            elif path.is_symlink() and not os.path.isfile(path):  # to a folder, or to nothing
                summary.links += 1
            elif os.path.isdir(path) or record.names(path):
                continue
            elif not os.path.isfile(path):  # a named pipe
                summary.not_text += 1
            elif name_without_format(path).endswith(f".{tgt_lang}"):
                summary.in_target_language += 1
            else:
                yield _NamedInput(path, path.relative_to(root), skips_binary=True)
        visible = (name for name in folders if not name.startswith("."))
        folders[:] = sorted(name for name in visible if not record.is_folder(Path(folder, name)))


def _read_list(path: Path) -> list[Path]:
    """Reads names of files that end in a zero byte, as `find -print0` writes them, or a line."""
    source = None if str(path) == "-" else path
    require_input(source)
    with open_input(source) as file, reading(source or "stdin"):
        data = file.read()
    names = data.split(b"\0") if b"\0" in data else re.split(b"\r?\n", data)
    return [Path(os.fsdecode(name)) for name in names if name]


def output_name(path: Path, src_lang: str, tgt_lang: str) -> str:
    """Names the translation of a file: a.de -> a.en, b.de.srt.gz -> b.en.srt.gz, c -> c.en."""
    base = name_without_format(path)
    return f"{base.removesuffix(f'.{src_lang}')}.{tgt_lang}{path.name[len(base) :]}"
