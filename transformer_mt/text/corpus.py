"""Raw parallel text: pairs of lines from the hub, folders and files, without any cleaning.

In text files only a line feed ends a line.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

from transformer_mt.config import DataConfig
from transformer_mt.errors import DataError
from transformer_mt.system.compression import (
    COMPRESSION_SUFFIXES,
    DECOMPRESSION_ERRORS,
    open_decompressed,
)
from transformer_mt.system.files import sha256
from transformer_mt.text.hub import load_dataset, read_pairs

Pair = tuple[str, str]

_COMPRESSIONS = ("", *COMPRESSION_SUFFIXES)
_COMPRESSION_SUFFIX = re.compile(r"\.(gz|xz|zst)$")
_DATA_FILES = re.compile(r".*\.(parquet|jsonl|json)(\.gz|\.zst)?")
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_SLICE = re.compile(r"(?P<split>[^\[\]]+)(?:\[(?P<start>-?\d*):(?P<stop>-?\d*)\])?")


@dataclass(frozen=True)
class RawPairs:
    """Line-aligned raw text, without white space at the ends of lines, not cleaned.

    Attributes:
        src: Source lines.
        tgt: Target lines, the same number.
    """

    src: list[str]
    tgt: list[str]

    def __len__(self) -> int:
        return len(self.src)

    def digest(self) -> str:
        """Computes a digest of the text, in hexadecimal."""
        return _digest_strings(chain(self.src, self.tgt))


@dataclass(frozen=True)
class CorpusSplit:
    """A split that can be read any number of times and is never held in memory.

    Attributes:
        read: Yields its pairs in order, without white space at their ends.
        digest: Computes a digest that identifies the content, wherever it is stored.
    """

    read: Callable[[], Iterator[Pair]]
    digest: Callable[[], str]


def open_split(config: DataConfig, split: str | list[str]) -> CorpusSplit:
    """Finds a split of the configured corpus.

    Args:
        config: Where the corpus is stored and which languages to take.
        split: A split's name, a slice of it such as `train[:5000]`, or a list of them. In a local
            folder NAME is NAME.de and NAME.en, NAME.de-en.tsv (each also .gz, .xz or .zst), a
            path or pattern of Parquet or JSONL files, or else a split as on the hub.

    Raises:
        DataError: Naming the file, split, column or language that is missing or malformed; some
            errors are only found when the pairs are read.
    """
    names = [split] if isinstance(split, str) else split
    splits = [_open_one(config, name) for name in names]
    if len(splits) == 1:
        return splits[0]
    return CorpusSplit(
        lambda: chain.from_iterable(split.read() for split in splits),
        lambda: _digest_strings(split.digest() for split in splits),
    )


def load_split(config: DataConfig, split: str | list[str]) -> RawPairs:
    """Loads a whole split into memory.

    Raises:
        DataError: As `open_split`, and if there is no pair.
    """
    return _collect(open_split(config, split).read(), f"{config.path}: split {split}")


def _collect(pairs: Iterator[Pair], name: str) -> RawPairs:
    raw = RawPairs([], [])
    for src, tgt in pairs:
        raw.src.append(src)
        raw.tgt.append(tgt)
    if not raw:
        raise DataError(f"{name}: contains no pairs")
    return raw


def _open_one(config: DataConfig, split: str) -> CorpusSplit:
    """Chooses the reader by what `data.path` and the split's name refer to."""
    folder = Path(config.path)
    if folder.is_file():
        raise DataError(f"data.path = {config.path}: this is a file; give the folder that holds it")
    if not folder.is_dir():
        if not _HUB_ID.fullmatch(config.path):
            raise DataError(f"data.path = {config.path}: there is no such folder")
        return _open_dataset(config, split)
    if _DATA_FILES.fullmatch(split):
        return _open_data_files(config, split)
    if not _has_text(folder, config):
        return _open_dataset(config, split)
    match = _SLICE.fullmatch(split)
    if not match:
        raise DataError(f"{split}: not a split; write a name or a slice, such as train[:5000]")
    paths, read = _find_text(folder, config, match["split"])
    return CorpusSplit(
        lambda: _slice(read, match["start"], match["stop"]), lambda: _digest_files(paths)
    )


def _has_text(folder: Path, config: DataConfig) -> bool:
    endings = (f".{config.src_lang}", f".{config.tgt_lang}", ".tsv")
    names = (_COMPRESSION_SUFFIX.sub("", path.name) for path in folder.iterdir())
    return any(name.endswith(endings) for name in names)


def _find_text(
    folder: Path, config: DataConfig, name: str
) -> tuple[list[Path], Callable[[], Iterator[Pair]]]:
    """Finds the files of a split in a folder of text, and how to read them."""
    src, tgt = config.src_lang, config.tgt_lang
    for compression in _COMPRESSIONS:
        paths = [folder / f"{name}.{language}{compression}" for language in (src, tgt)]
        if any(path.is_file() for path in paths):
            for path in paths:
                if not path.is_file():
                    raise DataError(f"{path}: no such file, although the other language has one")
            return paths, partial(_read_text, *paths)
        for first, second in ((src, tgt), (tgt, src)):
            path = folder / f"{name}.{first}-{second}.tsv{compression}"
            if path.is_file():
                return [path], partial(_read_tsv, path, swapped=first != src)
    files = sorted(path.name for path in folder.iterdir() if path.is_file())
    raise DataError(
        f"{folder / name}.{src}: no such file, nor {name}.{tgt} or {name}.{src}-{tgt}.tsv;"
        f" the folder holds {', '.join(files[:8])}"
    )


def _slice(
    read: Callable[[], Iterator[Pair]], start: str | None, stop: str | None
) -> Iterator[Pair]:
    """Reads the pairs from `start` to `stop`, which mean what they mean in a Python slice."""
    first, last = int(start or 0), int(stop) if stop else None
    if first < 0 or (last or 0) < 0:  # relative to the end, so count the pairs
        first, last, _ = slice(first, last).indices(sum(1 for _ in read()))
    return islice(read(), first, last)


def _read_text(src_path: Path, tgt_path: Path) -> Iterator[Pair]:
    src_lines, tgt_lines = read_lines(src_path), read_lines(tgt_path)
    for count, (src, tgt) in enumerate(zip_longest(src_lines, tgt_lines)):
        if src is None or tgt is None:
            longer = count + 1 + sum(1 for _ in (tgt_lines if src is None else src_lines))
            src_count, tgt_count = (count, longer) if src is None else (longer, count)
            raise DataError(
                f"{src_path} has {src_count} lines and {tgt_path} has {tgt_count}:"
                " they must be line-aligned"
            )
        yield src.strip(), tgt.strip()


def _read_tsv(path: Path, swapped: bool) -> Iterator[Pair]:
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")  # quotes are text: a tab always ends a column
        if len(columns) < 2:
            raise DataError(f"{path}, line {number}: no tab between the two languages")
        first, second = columns[0].strip(), columns[1].strip()
        yield (second, first) if swapped else (first, second)


def read_lines(path: Path) -> Iterator[str]:
    r"""Reads the lines, ended by `\n` alone, of a text file that may be compressed.

    Args:
        path: The file; .gz, .xz and .zst are decompressed.

    Raises:
        DataError: If it cannot be read or is not UTF-8.
    """
    number = 0
    try:
        with open_decompressed(path) as raw:  # in text mode a carriage return would end a line too
            for line in raw:
                number += 1
                yield line.removesuffix(b"\n").decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path}, line {number}: not UTF-8; convert the file with iconv") from None
    except DECOMPRESSION_ERRORS as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be read after line {number}: {reason}") from None


def _open_data_files(config: DataConfig, pattern: str) -> CorpusSplit:
    """Opens Parquet or JSONL files of a local folder."""
    folder = Path(config.path)
    absolute = Path(pattern).is_absolute()
    root, relative = (Path("/"), pattern[1:]) if absolute else (folder, pattern)
    paths = sorted(root.glob(relative))
    if not paths:
        raise DataError(f"{folder / pattern}: no such file")
    file_format = "parquet" if ".parquet" in pattern else "json"
    files = [str(path) for path in paths]

    def read() -> Iterator[Pair]:
        dataset = load_dataset(config, file_format, pattern, data_files=files, split="train")
        return read_pairs(dataset, config)

    return CorpusSplit(read, lambda: _digest_files(paths))


def _open_dataset(config: DataConfig, split: str) -> CorpusSplit:
    """Opens a split on the hub, or of a local folder with the layout of a hub repository."""
    folder = Path(config.path)

    def load() -> Any:
        return load_dataset(config, config.path, split, name=config.name, split=split)

    def digest() -> str:
        if folder.is_dir():
            return _digest_files(path for path in sorted(folder.rglob("*")) if path.is_file())
        # The client stores each revision of a corpus under another name.
        return _digest_strings(str(Path(file["filename"])) for file in load().cache_files)

    return CorpusSplit(lambda: read_pairs(load(), config), digest)


def _digest_files(paths: Iterable[Path]) -> str:
    """Computes a digest of the names and contents of files."""
    return _digest_strings(f"{path.name} {sha256(path)}" for path in paths)


def _digest_strings(strings: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(strings).encode()).hexdigest()
