"""The record of a folder of outputs: what a job wrote there, and what each file was made from.

It decides which files need not be made again, and which may be replaced. A record that is lost or
damaged makes files unknown, never one known that another program wrote.
"""

import json
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes

from pydantic import TypeAdapter, ValidationError

from transformer_mt.errors import OutputError
from transformer_mt.system.files import json_digest, locked, open_no_link, sha256
from transformer_mt.system.outputs import Fingerprint, Output, naming_output

RECORD = ".transformer-mt.jsonl"


@dataclass(frozen=True)
class _Entry:
    """A file that was written: its name, its digest, that of its fingerprint, and its input."""

    name: str
    sha256: str
    made_from: str
    source: str = ""


_ENTRY = TypeAdapter(_Entry)


class OutputRecord:
    """What this program wrote into a folder and those in it.

    Each file adds a line before it appears; earlier lines of the same name tell that an older
    version is the work of this program, too.

    Args:
        folder: The folder of outputs.
        overwrite: Whether anything in it may be replaced, and nothing counts as complete.

    Raises:
        OutputError: If the record cannot be read.
    """

    def __init__(self, folder: Path, overwrite: bool = False) -> None:
        self._folder, self._path = os.path.realpath(folder), folder / RECORD
        self._overwrite = overwrite
        self._versions: dict[str, dict[str, _Entry]] = {}
        self._bytes_read = 0
        self._read_new()

    def _read_new(self) -> None:
        """Reads the lines that this or another process has added since the last call."""
        data = b""
        with naming_output(self._path), suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._bytes_read)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self._bytes_read += len(data)
        for line in data.splitlines():
            with suppress(ValidationError):  # cut by a full disk, or damaged: its file is unknown
                entry = _ENTRY.validate_json(line, strict=True, extra="forbid")
                self._versions.setdefault(entry.name, {})[entry.sha256] = entry

    def _name(self, target: str | Path) -> str:
        """Returns the name of a file whose symbolic links are resolved."""
        # It need not be UTF-8, as JSON is.
        return quote(os.fsencode(os.path.relpath(target, self._folder)))

    def is_folder(self, path: Path) -> bool:
        """Returns whether a path is the folder of outputs."""
        return os.path.realpath(path) == self._folder

    def names(self, path: Path) -> bool:
        """Returns whether this program wrote a file of this name."""
        return self._name(os.path.realpath(path)) in self._versions

    def require_own(self, output: Output) -> None:
        """Requires that an output would replace nothing but an earlier translation of its input.

        Raises:
            OutputError: If what it would replace was edited, is the work of another program, or is
                the translation of another input.
        """
        self.is_complete(output, None)

    def is_complete(self, output: Output, fingerprint: Fingerprint | None) -> bool:
        """Returns whether an output was made from this, and is unchanged since.

        Raises:
            OutputError: As in `require_own`, if it is not complete.
        """
        if self._overwrite or not output.target or not output.target.exists():
            return False
        self._read_new()  # another job may have written it meanwhile
        present = self._versions.get(self._name(output.target), {}).get(sha256(output.target))
        if not present:
            raise OutputError(
                f"{output.name}: exists, and was edited or written by another program;"
                " add --overwrite to replace it"
            )
        if fingerprint is not None and present.made_from == json_digest(fingerprint):
            return True
        other = os.path.join(self._folder, os.fsdecode(unquote_to_bytes(present.source)))
        is_known = present.source and output.source
        if is_known and os.path.exists(other) and not os.path.samefile(other, output.source):
            raise OutputError(
                f"{output.name}: is the translation of {os.path.normpath(other)}; name another"
                " --output-dir, or add --overwrite to replace it"
            )
        return False

    def require_writable(self) -> None:
        """Raises OutputError if nothing can be added, before any work is done."""
        self.append([])

    def announce(self, output: Output, digest: str, fingerprint: Fingerprint) -> None:
        """Records an output that is to appear, unless it would replace the work of others."""
        self.require_own(output)
        self.append([(output, digest, fingerprint)])

    def append(self, files: Iterable[tuple[Output, str, Fingerprint]]) -> None:
        """Records outputs that are to appear: each with its SHA-256 and fingerprint.

        Raises:
            OutputError: If the record cannot be written.
        """
        entries = [
            _Entry(
                self._name(output.target),
                digest,
                json_digest(fingerprint),
                self._name(output.source) if output.source else "",
            )
            for output, digest, fingerprint in files
            if output.target
        ]
        # The empty line ends one that an earlier process could not write whole.
        lines = ["", *(json.dumps(asdict(entry)) for entry in entries), ""]
        with naming_output(self._path), open(self._path, "ab", opener=open_no_link) as file:
            file.write("\n".join(lines).encode())
            file.flush()
            os.fsync(file.fileno())

    def lock(self) -> AbstractContextManager[object]:
        """Waits until no other process writes small files into the folder."""
        return locked(self._path.with_suffix(".lock"), lambda process: None, remove=True)
