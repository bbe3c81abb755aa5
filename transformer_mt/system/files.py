"""Atomic replacement of files and directories, locks, digests and JSON."""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Literal, TextIO

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from transformer_mt.errors import CheckpointError

_UNKNOWN_KEY = "extra_forbidden", "unexpected_keyword_argument"
"""Pydantic's names for a key that a model, and a dataclass, does not have."""
_NAME_BYTES = 255


@contextmanager
def atomic_file(
    path: Path, kept_bytes: int | None = None, suffix: str = "partial"
) -> Iterator[BinaryIO]:
    """Opens a temporary file that replaces `path`, with its mode, once it is complete and on disk.

    After an error or a kill, the previous file at `path` is unchanged.

    Args:
        path: The file to create or replace.
        kept_bytes: How much to keep of an earlier temporary file; the new one then outlives
            errors. None keeps neither.
        suffix: The temporary file is `.NAME.SUFFIX`.
    """
    temporary = beside(path, suffix)
    mode = 0o600 if path.exists() else 0o666  # the copy of a private file is never readable
    try:
        with naming(path):
            with open(open_no_link(temporary, os.O_RDWR | os.O_CREAT, mode), "r+b") as file:
                if path.exists():
                    set_mode(temporary, path.stat().st_mode)
                file.truncate(kept_bytes or 0)
                file.seek(kept_bytes or 0)
                yield file
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
    finally:
        if kept_bytes is None:
            temporary.unlink(missing_ok=True)


def set_mode(path: Path, mode: int) -> None:
    """Sets a file's mode unless it has it: file systems with one mode for all files may refuse."""
    if path.stat().st_mode != mode:
        path.chmod(mode)


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yields a directory that is deleted at the end; NFS may keep files that are still mapped."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as path:
        yield Path(path)


def read_packaged(package: str, name: str) -> str:
    """Reads a text file that is installed with the modules of a package."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def is_utf8(path: Path) -> bool:
    """Returns whether libraries that take only UTF-8 can open a path, as safetensors."""
    return str(path) == str(path).encode(errors="replace").decode()


def replace_file(path: Path, data: bytes, suffix: str = "partial") -> None:
    """Replaces a file by one with this content, as `atomic_file` does."""
    with atomic_file(path, suffix=suffix) as file:
        file.write(data)


def open_no_link(path: Path | str, flags: int, mode: int = 0o666) -> int:
    """Opens a file that only the program writes, but not through a symbolic link.

    A run or model from elsewhere may hold links to other files.
    """
    return os.open(path, flags | os.O_NOFOLLOW, mode)


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Adds the path to an OSError that names no file, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextmanager
def atomic_directory(path: Path, replaces: bool = True) -> Iterator[Path]:
    """Yields an empty directory that becomes `path` if the block ends without an error.

    Its files are on disk before it is renamed. An existing directory is first moved to
    `.NAME.replaced`; `restore_replaced` moves it back if the process was killed between the two
    renames. After an error, the previous directory is unchanged. A link to a directory is replaced,
    and the directory is not. Without `replaces`, what exists by then is an error.
    """
    temporary, replaced = beside(path, "partial"), beside(path, "replaced")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    _restore(replaced, path)
    try:
        with naming(path):
            yield temporary
            for item in (*temporary.iterdir(), temporary):
                sync(item)
        if not replaces and os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "has appeared meanwhile", str(path))
        if path.is_symlink():
            path.unlink()  # what it links to is left alone
        elif path.exists():
            path.rename(replaced)
        temporary.rename(path)
        sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        _restore(replaced, path)


def require_directory(path: Path, option: str) -> None:
    """Checks before any work is done that a directory is writable, or can be made.

    Raises:
        CheckpointError: If it is not; the message names the option that chose it.
    """
    nearest = next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        reason = "not writable" if nearest.is_dir() else "not a directory"
        raise CheckpointError(f"{nearest}: {reason}; name another {option} directory")


def require_new_directory(path: Path) -> None:
    """Checks before any work is done that `new_directory` can make a directory for safetensors.

    Raises:
        CheckpointError: If it exists, its name is not UTF-8, or its folder is not writable.
    """
    if os.path.lexists(path):
        raise CheckpointError(f"{path}: already exists; name another -o directory")
    if not is_utf8(path):
        raise CheckpointError(f"{path}: not UTF-8; name another -o directory")
    require_directory(path, "-o")


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yields what `atomic_directory` does, for a directory that only one process may create.

    Raises:
        CheckpointError: If another process is writing it.
    """

    def refuse(process: str) -> None:
        raise CheckpointError(f"{path}: process {process} is writing it; name another directory")

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = locked(beside(path, "lock"), refuse, remove=True)
    with lock, atomic_directory(path, replaces=False) as folder:
        yield folder


def restore_replaced(directory: Path) -> None:
    """Restores subdirectories that `atomic_directory` was replacing when the process was killed."""
    for replaced in directory.glob(".*.replaced"):
        _restore(replaced, directory / replaced.name.removeprefix(".").removesuffix(".replaced"))


def _restore(replaced: Path, path: Path) -> None:
    """Moves a replaced directory back, or deletes it if its replacement is in place."""
    if path.exists():
        shutil.rmtree(replaced, ignore_errors=True)
    elif replaced.exists():
        replaced.rename(path)


def delete_directory(path: Path) -> None:
    """Renames a directory, then deletes it, so that a kill never leaves `path` half deleted."""
    renamed = beside(path, "partial")
    path.rename(renamed)
    shutil.rmtree(renamed)


def beside(path: Path, suffix: str) -> Path:
    """Returns the path of a hidden file that belongs to another: `.NAME.SUFFIX`.

    The digest of a long name stands for it, since a name has at most 255 bytes.
    """
    hidden = f".{path.name}.{suffix}"
    if len(os.fsencode(hidden)) > _NAME_BYTES:
        hidden = f".{hashlib.sha256(os.fsencode(path.name)).hexdigest()}.{suffix}"
    return path.with_name(hidden)


def sync(path: Path) -> None:
    """Waits until a file or directory is on disk; a directory, if the file system can do that."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


@contextmanager
def locked(
    path: Path, when_busy: Callable[[str], None], remove: bool = False
) -> Iterator[Callable[[], bool]]:
    """Holds a lock file, waiting while another process holds it; the lock ends with the process.

    Yields a function that tells whether `path` still is this file: another process could lock a new
    one.

    Args:
        path: The lock file.
        when_busy: Called before waiting, with the id of the process that holds the lock; may raise
            to avoid waiting.
        remove: Whether to remove the file at the end; otherwise it is left in place.
    """
    while True:
        with open(path, "a+", opener=open_no_link) as file:
            with naming(path):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    file.seek(0)
                    when_busy(file.read().strip() or "unknown")
                    fcntl.flock(file, fcntl.LOCK_EX)
                if not is_at(path, file):  # its holder has removed the file in between
                    continue
            try:
                with naming(path):
                    file.truncate(0)
                    os.write(file.fileno(), str(os.getpid()).encode())  # no buffer fails once more
                yield partial(is_at, path, file)
            finally:
                if remove:
                    path.unlink(missing_ok=True)
            return


def is_at(path: Path, file: TextIO) -> bool:
    """Returns whether an open file is at a path; also true while the path cannot be read."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENOTDIR)


def sha256(path: Path) -> str:
    """Computes the SHA-256 digest of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def canonical_json(value: Any) -> bytes:
    """Encodes a value as JSON so that equal values give equal bytes."""
    text = json.dumps(value, sort_keys=True, indent=1, allow_nan=False, default=_as_dict)
    return text.encode() + b"\n"


def _as_dict(record: Any) -> Any:
    """Returns the fields of a dataclass or a section that are to be stored."""
    return _adapter(record.__class__).dump_python(record)


@cache  # making one takes milliseconds
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def json_digest(value: Any) -> str:
    """Computes the SHA-256 digest of a value as canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def signed_json(value: Any) -> bytes:
    """Encodes a dataclass or a dictionary as canonical JSON with its own digest as `sha256`."""
    body = {key: item for key, item in _as_dict(value).items() if key != "sha256"}
    return canonical_json({**body, "sha256": json_digest(body)})


def parse_json(text: str | bytes) -> Any:
    """Parses JSON that this program wrote.

    Raises:
        ValueError: If it is not JSON, nested too deeply, or has NaN or Infinity.
    """
    return from_json(text, allow_inf_nan=False)


def read_json(
    path: Path,
    kind: Any = Any,
    version: int | None = None,
    unknown: Literal["forbid"] | None = "forbid",
    signed: bool = False,
) -> Any:
    """Reads a JSON file that this program wrote.

    Args:
        path: A regular file; reading anything else, such as a named pipe, could wait for ever.
        kind: The type that the content must have.
        version: What its key `format` must be, if it has one.
        unknown: Whether keys that a type does not have are wrong; None leaves it to the types.
        signed: Whether it is from `signed_json`; then a file that was changed is damaged.

    Returns:
        A value of this type.

    Raises:
        CheckpointError: Naming the file, and the key that is wrong or unknown.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise CheckpointError(f"{path}: not a regular file")
        content = path.read_bytes()
        values = parse_json(content)
        written = values.get("format") if isinstance(values, dict) else version
        if version not in (None, written):
            raise CheckpointError(
                f"{path}: format {written!r:.20}, not {version}; use the version of transformer-mt"
                " that wrote it, or make it again"
            )
        if signed and (not isinstance(values, dict) or content != signed_json(values)):
            raise CheckpointError(f"{path}: damaged (its own SHA-256 does not match)")
        return _adapter(kind).validate_json(content, strict=True, extra=unknown)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise CheckpointError(f"{path}: {_describe_mistake(error)}") from None
    except ValueError:
        raise CheckpointError(f"{path}: damaged (not JSON)") from None


def _describe_mistake(error: ValidationError) -> str:
    """Describes a key that only a newer version knows, or else the first mistake."""
    mistakes = error.errors(include_input=False)
    mistake = next((m for m in mistakes if m["type"] in _UNKNOWN_KEY), mistakes[0])
    key = ".".join(map(str, mistake["loc"]))
    if mistake["type"] in _UNKNOWN_KEY:
        return f"unknown key {key}; use a newer transformer-mt"
    if mistake["type"] == "missing":
        return f"damaged, or written by an earlier transformer-mt ({key} is missing); make it again"
    return f"damaged ({key or 'content'}: {mistake['msg']})"
