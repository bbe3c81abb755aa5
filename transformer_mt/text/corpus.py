"""Raw parallel text: from the hub, folders and files to pairs of lines, nothing filtered.

Lines end at a line feed alone, on every path.
"""

import gzip
import hashlib
import io
import lzma
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import IO, Any

from transformer_mt.config import DataConfig
from transformer_mt.errors import DataError
from transformer_mt.text.hub import _load_dataset, _rows

Pair = tuple[str, str]

_PACKED = ("", ".gz", ".xz", ".zst")
_TABLES = re.compile(r".*\.(parquet|jsonl|json)(\.gz|\.zst)?")
_SLICE = re.compile(r"(?P<split>[^\[\]]+)(?:\[(?P<start>-?\d*):(?P<stop>-?\d*)\])?")


@dataclass(frozen=True)
class RawPairs:
    """Line-aligned raw text, trimmed, nothing filtered.

    Attributes:
        src: Source lines.
        tgt: Target lines, as many.
    """

    src: list[str]
    tgt: list[str]

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True)
class Source:
    """A split that can be read any number of times without being held in memory.

    Attributes:
        read: Gives its pairs, trimmed, in order.
        identity: Names its content: equal for equal text, another when a file has changed.
    """

    read: Callable[[], Iterator[Pair]]
    identity: Callable[[], str]


def open_split(config: DataConfig, split: str | list[str]) -> Source:
    """Finds a split of the configured corpus.

    Args:
        config: Where the corpus lies and which languages to take.
        split: A split's name, a slice of it such as `train[:5000]`, or several of them. In a local
            folder NAME is NAME.de and NAME.en, NAME.de-en.tsv (each also .gz, .xz or .zst), a
            path or pattern of parquet or JSONL files, or else a split as on the hub.

    Raises:
        DataError: Naming the file, split, column or language that is missing or malformed; some
            of it only when the pairs are read.
    """
    names = [split] if isinstance(split, str) else split
    sources = [_open(config, name) for name in names]
    if len(sources) == 1:
        return sources[0]
    return Source(
        lambda: chain.from_iterable(source.read() for source in sources),
        lambda: _digest_of(source.identity() for source in sources),
    )


def load_split(config: DataConfig, split: str | list[str]) -> RawPairs:
    """Loads a whole split into memory.

    Raises:
        DataError: Like `open_split`, and if there is no pair.
    """
    return _gather(open_split(config, split).read(), f"{config.path}: split {split}")


def load_text(src_path: Path, tgt_path: Path) -> RawPairs:
    """Reads two line-aligned files.

    Raises:
        DataError: If one cannot be read, is not UTF-8, or has more lines than the other.
    """
    return _gather(_read_text(src_path, tgt_path), str(src_path))


def _gather(pairs: Iterator[Pair], what: str) -> RawPairs:
    raw = RawPairs([], [])
    for src, tgt in pairs:
        raw.src.append(src)
        raw.tgt.append(tgt)
    if not raw:
        raise DataError(f"{what}: holds no pairs")
    return raw


def _open(config: DataConfig, split: str) -> Source:
    folder = Path(config.path)
    if folder.is_file():
        raise DataError(f"data.path = {config.path}: this is a file; name the folder it lies in")
    if not folder.is_dir():
        if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", config.path):
            raise DataError(f"data.path = {config.path}: there is no such folder")
        return _open_dataset(config, split)
    if _TABLES.fullmatch(split):
        return _open_tables(config, split)
    if not _has_text(folder, config):
        return _open_dataset(config, split)
    match = _SLICE.fullmatch(split)
    if not match:
        raise DataError(f"{split}: not a split; write a name or a slice, such as train[:5000]")
    paths, read = _find_text(folder, config, match["split"])
    return Source(lambda: _cut(read, match["start"], match["stop"]), lambda: _digest(paths))


def _has_text(folder: Path, config: DataConfig) -> bool:
    ends = (f".{config.src_lang}", f".{config.tgt_lang}", ".tsv")
    packed = re.compile(r"\.(gz|xz|zst)$")
    return any(packed.sub("", path.name).endswith(ends) for path in folder.iterdir())


def _find_text(
    folder: Path, config: DataConfig, name: str
) -> tuple[list[Path], Callable[[], Iterator[Pair]]]:
    src, tgt = config.src_lang, config.tgt_lang
    for packed in _PACKED:
        paths = [folder / f"{name}.{language}{packed}" for language in (src, tgt)]
        if any(path.is_file() for path in paths):
            for path in paths:
                if not path.is_file():
                    raise DataError(f"{path}: no such file, though the other language has one")
            return paths, partial(_read_text, *paths)
        for left, right in ((src, tgt), (tgt, src)):
            path = folder / f"{name}.{left}-{right}.tsv{packed}"
            if path.is_file():
                return [path], partial(_read_tsv, path, swapped=left != src)
    there = sorted(path.name for path in folder.iterdir() if path.is_file())
    raise DataError(
        f"{folder / name}.{src}: no such file, nor {name}.{tgt} or {name}.{src}-{tgt}.tsv;"
        f" the folder holds {', '.join(there[:8])}"
    )


def _cut(read: Callable[[], Iterator[Pair]], start: str | None, stop: str | None) -> Iterator[Pair]:
    first, last = int(start or 0), int(stop) if stop else None
    if first < 0 or (last or 0) < 0:  # counted from the end, so the end must be known
        first, last, _ = slice(first, last).indices(sum(1 for _ in read()))
    return islice(read(), first, last)


def _read_text(src_path: Path, tgt_path: Path) -> Iterator[Pair]:
    src_lines, tgt_lines = read_lines(src_path), read_lines(tgt_path)
    for count, (src, tgt) in enumerate(zip_longest(src_lines, tgt_lines)):
        if src is None or tgt is None:
            more = count + 1 + sum(1 for _ in (tgt_lines if src is None else src_lines))
            counts = (count, more) if src is None else (more, count)
            raise DataError(
                f"{src_path} has {counts[0]} lines and {tgt_path} has {counts[1]}:"
                " they must be line-aligned"
            )
        yield src.strip(), tgt.strip()


def _read_tsv(path: Path, swapped: bool) -> Iterator[Pair]:
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")  # quotes are text: a tab always ends a column
        if len(columns) < 2:
            raise DataError(f"{path}, line {number}: no tab between the two languages")
        left, right = columns[0].strip(), columns[1].strip()
        yield (right, left) if swapped else (left, right)


def read_lines(path: Path) -> Iterator[str]:
    r"""Reads the lines of a text file, which may be packed (.gz, .xz, .zst), split at `\n` alone.

    Raises:
        DataError: If it cannot be read or is not UTF-8.
    """
    number = 0
    try:
        with _unpack(path) as raw:  # binary: a text file would also split at carriage returns
            for line in raw:
                number += 1
                yield line.removesuffix(b"\n").decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path}, line {number}: not UTF-8; convert it with iconv") from None
    except (OSError, EOFError, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot read it after line {number}: {reason}") from None


def _unpack(path: Path) -> IO[bytes] | gzip.GzipFile:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".xz":
        return lzma.open(path)
    if path.suffix == ".zst":
        import pyarrow

        return io.BufferedReader(pyarrow.CompressedInputStream(str(path), "zstd"))
    return path.open("rb")


def _open_tables(config: DataConfig, pattern: str) -> Source:
    """Opens parquet or JSONL files of a local folder."""
    folder = Path(config.path)
    absolute = Path(pattern).is_absolute()
    root, relative = (Path("/"), pattern[1:]) if absolute else (folder, pattern)
    paths = sorted(root.glob(relative))
    if not paths:
        raise DataError(f"{folder / pattern}: no such file")
    kind = "parquet" if ".parquet" in pattern else "json"
    files = [str(path) for path in paths]

    def read() -> Iterator[Pair]:
        options = {"data_files": files, "split": "train"}
        return _rows(_load_dataset(config, kind, pattern, **options), config)

    return Source(read, lambda: _digest(paths))


def _open_dataset(config: DataConfig, split: str) -> Source:
    """Opens a split on the hub, or of a local folder laid out like it."""
    folder = Path(config.path)

    def load() -> Any:
        return _load_dataset(config, config.path, split, name=config.name, split=split)

    def identity() -> str:
        if folder.is_dir():
            return _digest(path for path in sorted(folder.rglob("*")) if path.is_file())
        # The client keeps each revision of a corpus under a name of its own.
        return _digest_of(str(Path(file["filename"])) for file in load().cache_files)

    return Source(lambda: _rows(load(), config), identity)


def _digest(paths: Iterable[Path]) -> str:
    """Names the content of files."""
    found = []
    for path in paths:
        with path.open("rb") as file:
            found.append(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}")
    return _digest_of(found)


def _digest_of(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
