"""Outputs named by the user: regular files are replaced once complete, streams are not.

`-` is stdout. Devices, named pipes and descriptors such as /dev/stdout or a shell's `>(...)` are
written to directly. A file may be written chunk by chunk: if the program is stopped, the chunks are
kept in `.NAME.partial`, and `.NAME.state` says how many they are and what they were made from.
"""

import errno
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from transformer_mt.errors import CheckpointError, FullDiskError, OutputError
from transformer_mt.system.console import logger
from transformer_mt.system.files import (
    atomic_file,
    beside,
    canonical_json,
    locked,
    naming,
    read_json,
    replace_file,
    sha256,
)
from transformer_mt.system.streams import compress, compression_suffix

_DESCRIPTOR = re.compile(r"(?:/dev|/proc/self)/fd/(\d+)")
_STANDARD = {"/dev/stdout": "/dev/fd/1", "/dev/stderr": "/dev/fd/2"}

Fingerprint = dict[str, Any]
"""What the bytes of an output depend on, as JSON values by name: digests and options."""


@dataclass(frozen=True)
class Output:
    """An output that has been checked; `name` is what the user typed.

    Attributes:
        target: The regular file to create or replace, with symbolic links resolved; None if the
            output is a stream.
        suffix: Compression suffix of its name, such as `.gz`, or an empty string.
        descriptor: Descriptor to write to, if the process inherited it; else None.
        overwrites: Whether it may replace an input.
        source: The absolute path of the only input that it is made from, if that is known.
    """

    name: str
    target: Path | None = None
    suffix: str = ""
    descriptor: int | None = None
    overwrites: bool = False
    source: str = ""

    @property
    def partial(self) -> Path:
        """The temporary file that becomes the target."""
        assert self.target is not None
        return beside(self.target, "partial")

    @property
    def state(self) -> Path:
        """The file that says what the partial file holds."""
        assert self.target is not None
        return beside(self.target, "state")

    def lock(self) -> AbstractContextManager[object]:
        """Holds a lock file beside the target; an OutputError names another process's lock."""

        def refuse(process: str) -> None:
            raise OutputError(
                f"{self.name}: process {process} is writing it; wait for it, or name another output"
            )

        return locked(beside(self.target, "lock"), refuse, True) if self.target else nullcontext()

    def discard(self) -> None:
        """Deletes the partial file and the state."""
        self.state.unlink(missing_ok=True)
        self.partial.unlink(missing_ok=True)


def resolve_inputs(paths: Iterable[Path | None]) -> frozenset[str]:
    """Returns the files that an output must not replace, with symbolic links resolved."""
    return frozenset(os.path.realpath(path) for path in paths if path)


def check_output(
    path: Path | None, inputs: Collection[str] = (), overwrite: bool = False
) -> Output:
    """Checks an output and decides how it will be written, before any work is done.

    Args:
        path: As the user typed it; None and `-` are stdout.
        inputs: From `resolve_inputs`.
        overwrite: Whether it may be one of them.

    Raises:
        OutputError: If it is a directory, an input or a mounted file, its folder is missing, it is
            not writable, or its name ends in .bz2.
    """
    if path is None or str(path) == "-":
        return _check_descriptor(Output("stdout", descriptor=1), inputs)
    name, suffix = str(path), compression_suffix(path)
    if path.suffix.lower() == ".bz2":
        raise OutputError(f"{path}: bzip2 is not supported; choose .gz, .xz or .zst")
    # Opening or replacing such a path would truncate the file that the shell opened.
    if match := _DESCRIPTOR.fullmatch(_STANDARD.get(name, name)):
        with naming_output(path):
            os.fstat(int(match[1]))
        return _check_descriptor(Output(name, None, suffix, int(match[1])), inputs)
    with naming_output(path):  # also of a name that is too long
        is_directory = path.is_dir()
    if is_directory:
        raise OutputError(f"{path}: is a directory; name a file")
    target = Path(os.path.realpath(path))
    if path.exists() and not target.is_file():
        return Output(name, None, suffix)
    if not target.parent.is_dir():
        raise OutputError(f"{path}: there is no folder {target.parent}")
    if not all(os.access(place, os.W_OK) for place in (target.parent, target) if place.exists()):
        raise OutputError(f"{path}: it or its folder is not writable")
    if os.path.ismount(target):  # as of a container; it could not be replaced
        raise OutputError(f"{path}: is a mounted file; mount its folder, or write to stdout")
    if str(target) in inputs and not overwrite:
        raise OutputError(f"{path}: is also an input; name another output")
    return Output(name, target, suffix, overwrites=overwrite)


def _check_descriptor(output: Output, inputs: Collection[str]) -> Output:
    """Refuses a descriptor of an input, which the shell opens for `< FILE >> FILE`."""
    opened = os.path.realpath(f"/dev/fd/{output.descriptor}")
    if opened in inputs and os.path.isfile(opened):
        raise OutputError(f"{output.name}: is also an input; name another output")
    return output


@contextmanager
def open_output(output: Output, kept_bytes: int | None = None) -> Iterator[BinaryIO]:
    """Opens an output for writing bytes; a file appears only if the block ends without an error.

    `kept_bytes` is that of `atomic_file`.

    Raises:
        OutputError: If a file cannot be written; an existing file is unchanged.
        OSError: If a stream cannot be written.
    """
    if output.target is None:
        with naming(output.name):
            descriptor = output.descriptor
            if descriptor is None:
                descriptor = os.open(output.name, os.O_WRONLY)  # neither created nor truncated
            with open(descriptor, "wb", closefd=output.descriptor is None) as stream:
                yield stream
        return
    if kept_bytes is None:
        output.discard()  # an earlier state would describe another partial file
    with naming_output(output.name), atomic_file(output.target, kept_bytes) as file:
        yield file


@contextmanager
def naming_output(name: object) -> Iterator[None]:
    """Raises OutputError, naming the output, if it cannot be written."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        kind = FullDiskError if is_full else OutputError  # a full disk concerns all outputs
        raise kind(f"{name}: {error.strerror or error}") from None


def write_lines(lines: Iterable[str], output: Output) -> None:
    """Writes all lines at once, compressed if the output's name has a compression suffix."""
    data = "".join(f"{line}\n" for line in lines).encode("utf-8")
    with open_output(output) as file:
        file.write(compress(data, output.suffix))


Announce = Callable[[Output, str, Fingerprint], object]
"""Takes an output that is to appear, its SHA-256 and its fingerprint."""


@dataclass
class OutputState:
    """What `.NAME.state` holds: the finished chunks of the partial file.

    Attributes:
        fingerprint: What the output depends on.
        chunks: Number of the finished chunks.
        bytes: Their size.
        lines: The lines of text that were translated for them.
        counts: Those of them that are reported, by kind.
    """

    fingerprint: Fingerprint
    chunks: int  # without a default, so that the states of older versions are not resumed
    bytes: int = 0
    lines: int = 0
    counts: dict[str, int] = field(default_factory=dict)


class ChunkWriter:
    """Writes finished chunks of an output, each as one compressed member if it is compressed.

    Attributes:
        state: The chunks that have been written; recorded on disk only if they can be resumed.
    """

    def __init__(self, output: Output, file: BinaryIO, state: OutputState | None = None) -> None:
        self._output, self._file, self._keeps_state = output, file, state is not None
        self.state = state or OutputState({}, 0)

    def write(self, text: str, lines: int, counts: Mapping[str, int]) -> None:
        """Writes the text of a translated chunk; that of a file then outlives the process.

        It has the translations of so many lines of text, and so many of each kind. Surrogates stand
        for bytes that were not UTF-8.
        """
        data = compress(text.encode("utf-8", "surrogateescape"), self._output.suffix)
        self._file.write(data)
        self._file.flush()  # the reader of a pipe may be waiting for these lines
        self.state.chunks += 1
        self.state.bytes += len(data)
        self.state.lines += lines
        self.state.counts = dict(Counter(self.state.counts) + Counter(counts))
        if self._keeps_state:
            os.fsync(self._file.fileno())  # first, since the state says that these bytes are there
            replace_file(self._output.state, canonical_json(self.state))


@contextmanager
def open_chunk_writer(
    output: Output, fingerprint: Fingerprint | None, announce: Announce | None = None
) -> Iterator[ChunkWriter]:
    """Opens an output for chunks; a file appears once the block ends without an error.

    Args:
        output: Locked by the caller.
        fingerprint: What it depends on. Chunks that an earlier process finished with the same
            fingerprint are kept; None keeps neither earlier chunks nor the new ones.
        announce: Called before the complete file appears.

    After an error, finished chunks are kept, and a warning says so.

    Raises:
        OutputError: If a file cannot be written.
    """
    if fingerprint is None or output.target is None:
        with open_output(output) as file:
            yield ChunkWriter(output, file)
        return
    state = _usable_state(output, fingerprint)
    try:
        with open_output(output, state.bytes) as file:
            yield ChunkWriter(output, file, state)
            if announce:
                announce(output, sha256(output.partial), fingerprint)
    except BaseException:
        written = _read_state(output)  # `state` may count a chunk that could not be recorded
        if written and written.lines:
            logger.warning(
                f"stopped: {written.lines:,} finished lines are kept in {output.partial};"
                " run the same command again to continue"
            )
        else:
            output.discard()
        raise
    output.discard()


def _usable_state(output: Output, fingerprint: Fingerprint) -> OutputState:
    """Reads how far an earlier process came; says why if that cannot be used."""
    state = _read_state(output)
    if state and (changes := _changes(state, fingerprint)):
        logger.warning(
            f"{output.name}: starting over; {state.lines:,} finished lines cannot be used;"
            f" changed since: {', '.join(changes)}"
        )
    elif state and output.partial.is_file() and output.partial.stat().st_size >= state.bytes:
        logger.info(f"{output.name}: continuing after {state.lines:,} finished lines")
        return state
    elif not state and output.state.exists():
        logger.warning(f"{output.name}: starting over; {output.state} is damaged")
    output.discard()  # before other bytes are written to the file that the state describes
    return OutputState(fingerprint, 0)


def _changes(state: OutputState, fingerprint: Fingerprint) -> list[str]:
    old = state.fingerprint
    names = sorted(old.keys() | fingerprint.keys())
    return [name.replace("_", " ") for name in names if old.get(name) != fingerprint.get(name)]


def _read_state(output: Output) -> OutputState | None:
    """Reads the state of an output; None if there is none, or another version wrote it."""
    try:
        return cast(OutputState, read_json(output.state, OutputState))
    except CheckpointError:
        return None
