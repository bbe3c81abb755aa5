"""Raw parallel text: pairs of lines from the hub, folders and files, without any cleaning.

In text files only a line feed ends a line.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

from transformer_mt.config.keys import SLICE, DataConfig, Split, SplitFiles, Splits
from transformer_mt.config.loading import expand_path, searched_folders
from transformer_mt.errors import DataError
from transformer_mt.system.files import sha256
from transformer_mt.system.streams import (
    COMPRESSION_SUFFIXES,
    DECOMPRESSION_ERRORS,
    compression_suffix,
    open_decompressed,
    read_failure,
)
from transformer_mt.text.hub import MOVED_TEXT, load_dataset, read_pairs

Pair = tuple[str, str]

_DATA_SUFFIXES = (".parquet", ".jsonl", ".json")
"""Formats of the files that a split may name."""
_DATASET_SUFFIXES = {*_DATA_SUFFIXES, ".ndjson", ".csv", ".tsv", ".arrow"}
"""Formats from which the `datasets` library may load the splits of a folder."""
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_SLICED_NAME = re.compile(rf"(?P<name>[^\[\]]+)(?P<slice>{SLICE})?")
_LISTED_FILES = 8


@dataclass(frozen=True)
class RawPairs:
    """As many source as target lines, without white space at their ends, not cleaned."""

    src: list[str]
    tgt: list[str]

    def __len__(self) -> int:
        return len(self.src)

    def digest(self) -> str:
        """Computes a digest of the text, in hexadecimal."""
        return _digest_strings(chain(self.src, self.tgt))


@dataclass(frozen=True)
class CorpusSplit:
    """A split that can be read any number of times and is never held in memory."""

    read: Callable[[], Iterator[Pair]]
    """Yields its pairs in order, without white space at their ends."""
    digest: Callable[[], str]
    """Computes a digest that identifies the content, wherever it is stored."""


def open_split(config: DataConfig, split: Splits) -> CorpusSplit:
    """Finds a split of the configured corpus.

    Args:
        config: Where the corpus is stored and which languages to take.
        split: A split's name, a slice of it such as `train[:5000]`, its two files, or a list of
            these. In a local folder NAME stands for NAME.de and NAME.en, NAME.de-en.tsv (each also
            .gz, .xz or .zst), a path or pattern of Parquet or JSONL files, or else a split as on
            the hub.

    Raises:
        DataError: Naming the file, split, column or language that is missing or malformed; some
            errors are only found when the pairs are read.
    """
    items = split if isinstance(split, list) else [split]
    splits = [_open_one(config, item) for item in items]
    if len(splits) == 1:
        return splits[0]
    return CorpusSplit(
        lambda: chain.from_iterable(split.read() for split in splits),
        lambda: _digest_strings(split.digest() for split in splits),
    )


def load_split(config: DataConfig, split: Splits) -> RawPairs:
    """Loads a whole split into memory.

    Raises:
        DataError: As in `open_split`, or if there are no pairs.
    """
    raw = RawPairs([], [])
    for src, tgt in open_split(config, split).read():
        raw.src.append(src)
        raw.tgt.append(tgt)
    if not raw:
        raise DataError(f"{config.path}: split {split}: contains no pairs")
    return raw


def _open_one(config: DataConfig, split: Split) -> CorpusSplit:
    """Chooses the reader by what `data.path` and the split refer to."""
    if isinstance(split, SplitFiles):
        return _open_files(config, split)
    folder = Path(config.path)
    if folder.is_file():
        raise DataError(f"data.path = {config.path}: this is a file; give the folder that holds it")
    if not folder.is_dir():
        if not _HUB_ID.fullmatch(config.path):
            raise _missing_folder(config)
        return _open_dataset(config, split)
    if split.removesuffix(compression_suffix(Path(split))).endswith(_DATA_SUFFIXES):
        return _open_data_files(config, split)
    if not _has_text(folder, config):
        suffixes = {suffix.lower() for path in folder.rglob("*") for suffix in path.suffixes}
        if not suffixes & _DATASET_SUFFIXES:
            raise _unnamed_text(config, split)
        return _open_dataset(config, split)
    match = _SLICED_NAME.fullmatch(split)
    if not match:
        raise DataError(f"{split}: not a split; write a name or a slice, such as train[:5000]")
    paths, read = _find_text(folder, config, match["name"])
    return _slice(paths, read, match["slice"], str(folder / split))


def _open_files(config: DataConfig, split: SplitFiles) -> CorpusSplit:
    """Opens two files that the configuration names."""
    folder = Path(config.path)
    src, tgt = folder / expand_path(split.src), folder / expand_path(split.tgt)
    for path in (src, tgt):
        if folder in path.parents and not folder.is_dir():
            raise _missing_folder(config)
        if not path.is_file():
            raise DataError(f"{path}: no such file{_list_files(path.parent)}")
    return _slice([src, tgt], partial(_read_text, src, tgt), split.slice, f"{src} and {tgt}")


def _missing_folder(config: DataConfig) -> DataError:
    searched = searched_folders(config.path)
    return DataError(f"data.path = {config.path}: there is no such folder{searched}; {MOVED_TEXT}")


def _unnamed_text(config: DataConfig, split: str) -> DataError:
    """Explains how to name the files of a folder in which no file is named by its language."""
    folder = Path(config.path)
    src, tgt = _guess_sides(folder, config)
    slices = {"train": "[:-1000]", "valid": "[-1000:-500]", "test": "[-500:]"}
    tables = [f"{key} = {SplitFiles(src=src, tgt=tgt, slice=part)}" for key, part in slices.items()]
    return DataError(
        f"{folder}: no split {split}: no file name ends in .{config.src_lang} or"
        f" .{config.tgt_lang}{_list_files(folder)}; name two files under [data],"
        f" such as {', '.join(tables)}"
    )


def _guess_sides(folder: Path, config: DataConfig) -> tuple[str, str]:
    """Guesses which of two text files is the source; with more or fewer, returns placeholders."""
    names = [path.name for path in sorted(folder.glob("[!.]*")) if path.is_file()]
    texts = [name for name in names if ".txt" in name] or names
    if len(texts) != 2:
        return "SOURCE_FILE", "TARGET_FILE"
    first, second = texts
    swapped = first.startswith(config.tgt_lang) or second.startswith(config.src_lang)
    return (second, first) if swapped else (first, second)


def _list_files(folder: Path) -> str:
    """Says which files a folder holds; empty if there is no such folder."""
    if not folder.is_dir():
        return ""
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    more = f" and {len(names) - _LISTED_FILES} more" if names[_LISTED_FILES:] else ""
    return f"; the folder holds {', '.join(names[:_LISTED_FILES]) or 'no files'}{more}"


def _has_text(folder: Path, config: DataConfig) -> bool:
    endings = (f".{config.src_lang}", f".{config.tgt_lang}", ".tsv")
    names = (path.name.removesuffix(compression_suffix(path)) for path in folder.iterdir())
    return any(name.endswith(endings) for name in names)


def _find_text(
    folder: Path, config: DataConfig, name: str
) -> tuple[list[Path], Callable[[], Iterator[Pair]]]:
    """Finds the files of a split in a folder of text, and how to read them."""
    src, tgt = config.src_lang, config.tgt_lang
    for compression in ("", *COMPRESSION_SUFFIXES):
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
    raise DataError(
        f"{folder / name}.{src}: no such file, nor {name}.{tgt} or {name}.{src}-{tgt}.tsv"
        f"{_list_files((folder / name).parent)}"
    )


def _slice(
    paths: Sequence[Path], read: Callable[[], Iterator[Pair]], part: str | None, name: str
) -> CorpusSplit:
    """Takes a slice, such as [-1000:], of the pairs of some files; None is all of them."""

    def read_slice(match: re.Match[str]) -> Iterator[Pair]:
        start, stop = int(match["start"] or 0), int(match["stop"]) if match["stop"] else None
        if start < 0 or (stop or 0) < 0:  # relative to the end, so count the pairs
            start, stop, _ = slice(start, stop).indices(sum(1 for _ in read()))
        is_empty = True
        for pair in islice(read(), start, stop):
            is_empty = False
            yield pair
        if is_empty:
            count = sum(1 for _ in read())
            raise DataError(f"{name}: the slice {part} selects none of {count} pairs")

    match = re.fullmatch(SLICE, part or "")
    return CorpusSplit(partial(read_slice, match) if match else read, lambda: _digest_files(paths))


def _read_text(src_path: Path, tgt_path: Path) -> Iterator[Pair]:
    src_lines, tgt_lines = read_source_lines(src_path), read_lines(tgt_path)
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
    r"""Reads the lines of a text file, which may be compressed; only `\n` ends a line.

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
        reason = read_failure(error)
        raise DataError(f"{path}: cannot be read after line {number}: {reason}") from None


def read_source_lines(path: Path) -> Iterator[str]:
    """Reads lines as `translate` does, without a byte order mark at the beginning.

    References keep their byte order mark, as in sacreBLEU.
    """
    for number, line in enumerate(read_lines(path)):
        yield line if number else line.removeprefix("\ufeff")


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
        # The client stores each revision of a corpus under a different name.
        return _digest_strings(str(Path(file["filename"])) for file in load().cache_files)

    return CorpusSplit(lambda: read_pairs(load(), config), digest)


def _digest_files(paths: Iterable[Path]) -> str:
    """Computes a digest of the names and contents of files."""
    return _digest_strings(f"{path.name} {sha256(path)}" for path in paths)


def _digest_strings(strings: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(strings).encode()).hexdigest()
