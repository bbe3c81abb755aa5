"""Directories whose files are vouched for: a manifest with the SHA-256 of each and of itself."""

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from transformer_mt.errors import CheckpointError

MANIFEST = "manifest.json"
FORMAT = 1
LARGEST_JSON = 2**20
"""Bytes of a JSON file that is read at all; ours have a few thousand."""

_PLAIN = re.compile(r"\w[\w.-]*", re.ASCII)


def write_manifest(directory: Path, files: dict[str, str]) -> None:
    """Replaces the manifest at one stroke.

    Args:
        directory: What it vouches for.
        files: Names and SHA-256 digests.
    """
    body: dict[str, Any] = {"files": files, "format": FORMAT}
    body["sha256"] = hashlib.sha256(canonical(body)).hexdigest()
    beside = directory / f"{MANIFEST}.partial"
    beside.write_bytes(canonical(body))
    sync(beside)
    beside.replace(directory / MANIFEST)
    sync(directory)


def read_manifest(directory: Path) -> dict[str, str]:
    """Gives the names and digests of the files, not yet compared.

    Raises:
        CheckpointError: If the manifest is missing, damaged or names a file elsewhere.
    """
    path = directory / MANIFEST
    if path.is_symlink():
        raise CheckpointError(f"{path}: a symbolic link")
    body = read_json(path)
    try:
        genuine = path.read_bytes() == canonical(body)
        digest, files = body.pop("sha256"), body["files"]
        genuine = genuine and digest == hashlib.sha256(canonical(body)).hexdigest()
        inside = all(isinstance(d, str) and _PLAIN.fullmatch(n) for n, d in files.items())
    except (OSError, KeyError, TypeError, AttributeError, ValueError, RecursionError):
        raise CheckpointError(f"{path}: damaged (not a manifest)") from None
    if not genuine:
        raise CheckpointError(f"{path}: damaged (its SHA-256 is not its own)")
    if not inside:
        raise CheckpointError(f"{path}: names a file outside the checkpoint")
    if body["format"] != FORMAT:
        raise CheckpointError(f"{path}: format {body['format']}, of another version of the program")
    return dict(files)


def verify(directory: Path) -> frozenset[str]:
    """Compares every file with the manifest; gives their names.

    What else lies there is nobody's, and must not be read.

    Raises:
        CheckpointError: Naming the file that is missing, damaged or a link.
    """
    files = read_manifest(directory)
    for name, digest in sorted(files.items()):
        path = directory / name
        if path.is_symlink() or not path.is_file():
            what = "a symbolic link" if path.is_symlink() else "missing from the checkpoint"
            raise CheckpointError(f"{path}: {what}")
        if sha256(path) != digest:
            raise CheckpointError(f"{path}: damaged (its SHA-256 is not the manifest's)")
    return frozenset(files)


def read_json(path: Path) -> Any:
    """Reads a JSON file of ours.

    Raises:
        CheckpointError: If it cannot be read, is too large, or is not JSON.
    """
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise CheckpointError(f"{path}: damaged ({path.stat().st_size} bytes)")
        return json.loads(path.read_bytes(), parse_constant=_refuse_constant)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot read it: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path}: damaged (not JSON)") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def canonical(value: Any) -> bytes:
    """Spells a JSON value in the one way that has this digest."""
    return json.dumps(value, sort_keys=True, indent=1, allow_nan=False).encode() + b"\n"


def sha256(path: Path) -> str:
    """Digests a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Waits until a file or directory is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
