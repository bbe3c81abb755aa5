"""The manifest of a directory: the digests of its files, and its own."""

import re
from dataclasses import dataclass
from pathlib import Path

from transformer_mt.errors import CheckpointError
from transformer_mt.system.files import read_json, replace_file, sha256, signed_json

MANIFEST = "manifest.json"
MANIFEST_FORMAT = 1
_PLAIN_NAME = re.compile(r"\w[\w.-]*", re.ASCII)


@dataclass(frozen=True)
class _Manifest:
    files: dict[str, str]
    format: int
    sha256: str


def write_manifest(directory: Path, files: dict[str, str]) -> None:
    """Writes or replaces the manifest of a directory: SHA-256 digests by file name, and its own."""
    replace_file(directory / MANIFEST, signed_json({"files": files, "format": MANIFEST_FORMAT}))


def read_manifest(directory: Path) -> dict[str, str]:
    """Reads the file names and digests of a manifest, without checking the files.

    Raises:
        CheckpointError: If the manifest is missing, damaged, of another format, or names a
            file outside the directory.
    """
    path = directory / MANIFEST
    files: dict[str, str] = read_json(path, _Manifest, MANIFEST_FORMAT, signed=True).files
    if not all(map(_PLAIN_NAME.fullmatch, files)):
        raise CheckpointError(f"{path}: names a file outside its directory")
    return files


def verify_manifest(directory: Path) -> dict[str, str]:
    """Compares every file with its digest; returns what was compared: no others must be read.

    Raises:
        CheckpointError: Naming the file that is missing or damaged.
    """
    files = read_manifest(directory)
    for name, digest in sorted(files.items()):
        path = directory / name
        if not path.is_file():
            raise CheckpointError(f"{path}: missing")
        try:
            is_same = sha256(path) == digest
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
        if not is_same:
            raise CheckpointError(f"{path}: damaged (its SHA-256 is not the manifest's)")
    return files
