"""The version of the program: its number, the digests of its source files, and their commit."""

import ast
import hashlib
import os
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path

__version__ = "0.1.0"

SOURCE_PACKAGES = "model", "training", "text", "system", "translation", "evaluation"
"""Packages whose source decides the bits of a trained model; the last two by validation, which
tells the best checkpoint and when patience ends."""
_PACKAGE = Path(__file__).parent


@cache
def source_digest(package: str) -> str:
    """Computes a digest of what a package's source files say, without comments and docstrings.

    It has 32 digits; those of earlier versions, of all bytes of the files, have 64. The files are
    read once, since files that are edited later are not what runs.
    """
    folder, digest = _PACKAGE / package, hashlib.blake2b(digest_size=16)
    for path in sorted(folder.rglob("*.py")):
        code = ast.unparse(_WithoutDocstrings().visit(ast.parse(path.read_bytes())))
        digest.update(f"{path.relative_to(folder)} {code}\n".encode())
    return digest.hexdigest()


class _WithoutDocstrings(ast.NodeTransformer):
    """Drops statements that are only a constant."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node


@cache
def source_state(package: Path = _PACKAGE) -> tuple[str, str]:
    """Names the commit of the package's files, and gives their uncommitted changes as a diff.

    New files are part of it; `git apply` takes it. The commit is `unknown` unless a git repository
    tracks the package: one may merely surround a copy. A run records both in several places, so git
    is asked once.
    """

    def git(*arguments: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(package.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, errors="replace").stdout

    files, diff = f"{package.name}/*.py", ("diff", "--no-ext-diff", "--no-color")
    if not shutil.which("git") or not git("ls-files", f"{package.name}/version.py"):
        return "unknown", ""
    new = git("ls-files", "-z", "--others", "--exclude-standard", files).split("\0")[:-1]
    changes = git(*diff, "HEAD", "--", files)
    changes += "".join(git(*diff, "--no-index", os.devnull, name) for name in new)
    commit = git("rev-parse", "--short", "HEAD").strip() or "unknown"
    return f"{commit} with uncommitted changes" if changes else commit, changes


def describe_software() -> str:
    """Names the program's commit, if it is known, and Python."""
    commit, _ = source_state()
    return f"transformer-mt {__version__}, commit {commit}, python {platform.python_version()}"
