"""The record of a folder of outputs: what a job wrote there, and what each file was made from.

It decides which files need not be made again, and which may be replaced. A record that is lost or
damaged makes files unknown, never one known that another program wrote.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from pydantic import ConfigDict, TypeAdapter, ValidationError

from transformer_mt.errors import FullDiskError, OutputError
from transformer_mt.system.files import (
    beside,
    json_digest,
    locked,
    open_no_link,
    open_temporary,
    sha256,
    sync,
)
from transformer_mt.system.outputs import Fingerprint, Output, is_complete, naming_output

RECORD = ".transformer-mt.jsonl"
_SYNC_THREADS = 8
"""Files that are written to the disk at once; one after the other, each would wait for it."""


@dataclass(frozen=True)
class CompleteFile:
    """The content of an output, which is a file, and what it depends on."""

    output: Output
    data: bytes
    fingerprint: Fingerprint

    @property
    def target(self) -> Path:
        """The file to create or replace."""
        assert self.output.target
        return self.output.target


@dataclass(frozen=True)
class _Entry:
    """A file that was written: its name, its digest, and that of its fingerprint."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    name: str
    sha256: str
    made_from: str


_ENTRY = TypeAdapter(_Entry)


class OutputRecord:
    """What this program wrote into a folder and those in it.

    Each file that is written adds a line; earlier ones of the same name tell that an older version
    is the work of this program, too.

    Args:
        folder: The folder of outputs.

    Raises:
        OutputError: If the record cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = os.path.realpath(folder), folder / RECORD
        self._versions: dict[str, dict[str, str]] = {}
        with naming_output(self._path):
            lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        for line in lines:
            try:
                self._add(_ENTRY.validate_json(line))
            except ValidationError:  # cut by a full disk, or damaged: its file is unknown
                continue

    def _add(self, entry: _Entry) -> None:
        self._versions.setdefault(entry.name, {})[entry.sha256] = entry.made_from

    def _name(self, path: Path) -> str:
        # A name need not be UTF-8, as JSON is.
        return quote(os.fsencode(os.path.relpath(os.path.realpath(path), self._folder)))

    def is_folder(self, path: Path) -> bool:
        """Tells whether a path is the folder of outputs."""
        return os.path.realpath(path) == self._folder

    def names(self, path: Path) -> bool:
        """Tells whether this program wrote a file of this name."""
        return self._name(path) in self._versions

    def is_own(self, output: Output) -> bool:
        """Tells whether what is at an output is the unchanged work of this program, or nothing."""
        if not output.target or not output.target.exists():
            return True
        versions = self._versions.get(self._name(output.target))
        return bool(versions and sha256(output.target) in versions) or is_complete(output)

    def is_complete(self, output: Output, fingerprint: Fingerprint) -> bool:
        """Tells whether an output was made from this, and is unchanged since.

        What a killed process has recorded, but not yet renamed, is renamed.
        """
        assert output.target
        versions = self._versions.get(self._name(output.target), {})
        made_from = json_digest(fingerprint)
        if made_from not in versions.values():
            return False
        if output.target.is_file() and versions.get(sha256(output.target)) == made_from:
            return True
        is_partial = output.partial.is_file() and not output.state.exists()
        if is_partial and versions.get(sha256(output.partial)) == made_from:
            output.partial.replace(output.target)
            return True
        return False

    def publish(self, files: Sequence[CompleteFile]) -> dict[str, OutputError]:
        """Writes files; all are on the disk and recorded before the first of them appears.

        So whatever a kill leaves is complete, and known to be the work of this program.

        Returns:
            Errors that concern one file alone, by the name of its output.

        Raises:
            OutputError: If no file can be written.
        """
        written, errors = list[CompleteFile](), dict[str, OutputError]()
        with naming_output(self._path), self._lock():
            try:
                for file in files:
                    with _noting(errors, file.output):
                        with open_temporary(file.target) as partial:
                            partial.write(file.data)
                        written.append(file)
                with ThreadPoolExecutor(_SYNC_THREADS) as pool:
                    list(pool.map(sync, [file.output.partial for file in written]))
                self.append(
                    (file.output, hashlib.sha256(file.data).hexdigest(), file.fingerprint)
                    for file in written
                )
                for file in written:
                    with _noting(errors, file.output):
                        file.output.partial.replace(file.target)
                for folder in {file.target.parent for file in written}:
                    sync(folder)
            finally:
                for file in files:
                    file.output.partial.unlink(missing_ok=True)
        return errors

    def append(self, files: Iterable[tuple[Output, str, Fingerprint]]) -> None:
        """Records outputs that are complete, or in their partial files, with their SHA-256."""
        entries = [
            _Entry(self._name(output.target), digest, json_digest(fingerprint))
            for output, digest, fingerprint in files
            if output.target
        ]
        # The empty line ends one that an earlier process could not write whole.
        lines = ["", *(json.dumps(asdict(entry)) for entry in entries), ""]
        with naming_output(self._path), open(self._path, "ab", opener=open_no_link) as file:
            file.write("\n".join(lines).encode())
            file.flush()
            os.fsync(file.fileno())
        for entry in entries:
            self._add(entry)

    def _lock(self) -> AbstractContextManager[object]:
        """Waits until no other process publishes files in the folder."""
        return locked(beside(self._path, "lock"), lambda process: None, remove=True)


@contextmanager
def _noting(errors: dict[str, OutputError], output: Output) -> Iterator[None]:
    """Notes an error that concerns one output alone."""
    try:
        with naming_output(output.name):
            yield
    except FullDiskError:
        raise
    except OutputError as error:
        errors[output.name] = error
