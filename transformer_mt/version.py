"""The version of the program: its number, the digests of its source files, and their commit."""

import hashlib
import subprocess
from functools import cache
from pathlib import Path

__version__ = "0.1.0"

SOURCE_PACKAGES = "model", "training", "text", "system"
"""Packages whose source decides the bits of a trained model."""
_PACKAGE = Path(__file__).parent


@cache
def source_digests() -> dict[str, str]:
    """Computes the SHA-256 of each package's source files, by a name such as `source of model/`.

    They are read once, since files that are edited later are not what runs.
    """
    return {f"source of {name}/": _digest(_PACKAGE / name) for name in SOURCE_PACKAGES}


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def describe_commit(package: Path = _PACKAGE) -> str:
    """Names the commit of the package's files, and says if they have uncommitted changes.

    Returns `unknown` unless a git repository tracks the files: one may merely surround a copy.
    """

    def git(*arguments: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "version.py")
        commit = git("rev-parse", "--short", "HEAD")
        changes = git("status", "--porcelain", "--", "*.py")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit} with uncommitted changes" if changes else commit
