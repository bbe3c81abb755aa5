"""Raw parallel text: pairs of lines from the hub, folders and files, without any cleaning.

In text files only a line feed ends a line.
"""

import hashlib
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from glob import glob
from itertools import chain, islice, zip_longest
from pathlib import Path

from transformer_mt.config.keys import DataConfig
from transformer_mt.config.loading import expand_path, searched_folders
from transformer_mt.config.splits import SLICE, Columns, NamedSplit, Split, SplitFiles, Splits
from transformer_mt.errors import DataError
from transformer_mt.system.console import logger
from transformer_mt.system.files import sha256
from transformer_mt.system.streams import (
    COMPRESSION_SUFFIXES,
    compression_suffix,
    open_input,
    reading,
    split_lines,
    watch,
)
from transformer_mt.text.data_files import DATA_SUFFIXES, data_suffix, pair_columns, read_data_file
from transformer_mt.text.hub import MOVED_TEXT, load_dataset, read_pairs
from transformer_mt.text.normalization import is_blank
from transformer_mt.text.tmx import is_tmx, read_tmx

Pair = tuple[str, str]
PairReader = Callable[[], Iterator[Pair]]

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
"""A name without an owner might be taken for a format by the `datasets` library."""
_SLICE_AT_END = re.compile(rf"{SLICE}\Z")
_LISTED_FILES = 8
_MOST_HELD = 10_000
"""Last pairs of a text that may be held in memory instead of counting all pairs first."""


@dataclass(frozen=True)
class RawPairs:
    """As many source as target lines, without white space at their ends, not cleaned."""

    src: list[str]
    tgt: list[str]

    def __len__(self) -> int:
        return len(self.src)

    def digest(self) -> str:
        """Computes a digest of the text, in hexadecimal."""
        return digest_strings(chain(self.src, self.tgt))


@dataclass(frozen=True)
class CorpusPart:
    """One entry of a split, read anew each time.

    Attributes:
        read: Yields its pairs in order, without white space at their ends.
        digest: Computes a digest that identifies the content, wherever it is stored.
        weight: How often an epoch of training has each pair.
        files: The local files that hold it.
    """

    read: PairReader
    digest: Callable[[], str]
    weight: int = 1
    files: Sequence[Path] = ()


@dataclass(frozen=True)
class CorpusSplit:
    """A split that can be read any number of times and is never held in memory."""

    parts: list[CorpusPart]

    def read(self) -> Iterator[Pair]:
        """Yields the pairs of all parts in order, each once."""
        return chain.from_iterable(part.read() for part in self.parts)

    def read_weighted(self) -> Iterator[tuple[Pair, int]]:
        """Yields each pair with its weight."""
        return ((pair, part.weight) for part in self.parts for pair in part.read())

    def digest(self) -> str:
        """Computes a digest that identifies the content, but not the weights."""
        digests = [part.digest() for part in self.parts]
        return digests[0] if len(digests) == 1 else digest_strings(digests)


def open_split(config: DataConfig, split: Splits) -> CorpusSplit:
    """Finds a split of the configured corpus.

    Args:
        config: Where the corpus is stored and which languages to take.
        split: A split's name, a slice of it such as `train[:5000]`, its two files, or a list of
            these. In a local folder NAME stands for NAME.de and NAME.en, NAME.de-en.tsv or NAME.tmx
            (each also .gz, .xz or .zst); or it is a path or pattern of Parquet, JSON, CSV or
            TSV files.

    Raises:
        DataError: Naming the file, split, column or language that is missing or malformed; some
            errors are only found when the pairs are read.
    """
    items = split if isinstance(split, list) else [split]
    return CorpusSplit([_open_one(config, item) for item in items])


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


def _open_one(config: DataConfig, split: Split) -> CorpusPart:
    """Chooses the reader by what `data.path` and the split refer to."""
    folder = Path(config.path)
    if isinstance(split, NamedSplit):
        return replace(_open_one(config, split.name + (split.slice or "")), weight=split.weight)
    if isinstance(split, str):
        return _open_name(config, folder, expand_path(split))
    columns: Columns = {}
    if isinstance(split, SplitFiles):
        paths = [folder / expand_path(side) for side in (split.src, split.tgt)]
        read = partial(_read_text, *paths)
    else:
        paths = _find_files(folder, expand_path(split.file))
        columns = {"src": split.src, "tgt": split.tgt}
        read = partial(_read_data_files, paths, columns)
    warn_of_direction(config, str(split), str(split.src), str(split.tgt))
    read = partial(_skip_empty, read) if split.skip_empty else read
    part = _open_files(config, paths, read, split.slice)
    return replace(part, digest=partial(_digest_files, paths, columns), weight=split.weight)


def warn_of_direction(config: DataConfig, place: str, src: str, tgt: str) -> None:
    """Warns of a source file or column that ends in the target language, and the other way round.

    By the first two letters, so that `deu` is `de`.
    """
    names = [name.removesuffix(compression_suffix(Path(name))) for name in (src, tgt)]
    endings = [name.rpartition(".")[2][:2] for name in names]
    if endings == [config.tgt_lang[:2], config.src_lang[:2]] != endings[::-1]:
        logger.warning(
            f"{place}: source and target look swapped; data.src_lang is {config.src_lang} and"
            f" data.tgt_lang is {config.tgt_lang}"
        )


def _open_name(config: DataConfig, folder: Path, split: str) -> CorpusPart:
    """Chooses between files, the hub, and text in a folder."""
    name = _SLICE_AT_END.sub("", split)
    part = split.removeprefix(name)
    if is_tmx(path := folder / name):
        read = partial(read_tmx, path, config.src_lang, config.tgt_lang)
        return _open_files(config, [path], read, part)
    if not folder.is_dir():
        if folder.is_file() or not _HUB_ID.fullmatch(config.path):
            raise _missing_folder(config)
        return _open_hub(config, split)
    if data_suffix(name):
        paths = _find_files(folder, name)
        read = partial(_read_data_files, paths, pair_columns(config))
        return _open_files(config, paths, read, part)
    return _open_text(config, name, part)


def _open_text(config: DataConfig, name: str, part: str) -> CorpusPart:
    """Opens text in a folder, or a slice of it."""
    src, tgt, path = config.src_lang, config.tgt_lang, Path(config.path, name)
    for files, read in _text_formats(path, config):
        if any(file.is_file() for file in files):
            return _open_files(config, files, read, part)
    if "[" in name:
        raise DataError(f"{name}: not a split; write a name or a slice, such as train[:5000]")
    table = SplitFiles(src="SOURCE_FILE", tgt="TARGET_FILE", slice="[:-1000]")
    raise DataError(
        f"{path}.{src}: no such file, nor {name}.{tgt}, {name}.{src}-{tgt}.tsv or {name}.tmx"
        f"{_list_files(path.parent)}; name other files under [data], such as train = {table}, or"
        f" one of a format with several columns: .tmx, {', '.join(DATA_SUFFIXES)}"
    )


def _text_formats(path: Path, config: DataConfig) -> Iterator[tuple[list[Path], PairReader]]:
    """Yields what a name may stand for: the files of each format and the reader of their pairs."""
    src, tgt = config.src_lang, config.tgt_lang
    for compression in ("", *COMPRESSION_SUFFIXES):
        sides = [Path(f"{path}.{side}{compression}") for side in (src, tgt)]
        yield sides, partial(_read_text, *sides)
        for first, second in ((src, tgt), (tgt, src)):
            table = Path(f"{path}.{first}-{second}.tsv{compression}")
            yield [table], partial(_read_data_files, [table], pair_columns(config))
        memory = Path(f"{path}.tmx{compression}")
        yield [memory], partial(read_tmx, memory, src, tgt)


def _open_files(
    config: DataConfig, paths: Sequence[Path], read: PairReader, part: str | None
) -> CorpusPart:
    """Opens the pairs of some files, or a slice of them such as [-1000:], once they all exist."""
    folder = Path(config.path)
    for path in paths:
        if not path.is_file():
            if folder in path.parents and not folder.is_dir():
                raise _missing_folder(config)
            if path.exists():  # a folder or a pipe
                raise DataError(f"{path}: is not a regular file; training reads text repeatedly")
            raise DataError(f"{path}: no such file{_list_files(path.parent)}")
    read_part = partial(_read_slice, read, part, paths) if part else read
    return CorpusPart(read_part, partial(_digest_files, paths, {}), files=paths)


def _read_slice(read: PairReader, part: str, paths: Sequence[Path]) -> Iterator[Pair]:
    start, stop = (int(end) if end else None for end in part.strip("[]").split(":"))
    if start and -_MOST_HELD <= start < 0 and (stop or -1) < 0:
        pairs = iter([*deque(read(), -start)][:stop])
    else:
        if min(start or 0, stop or 0) < 0:  # relative to the end, so count the pairs
            start, stop, _ = slice(start, stop).indices(sum(1 for _ in read()))
        pairs = islice(read(), start, stop)
    if (first := next(pairs, None)) is None:
        names, count = " and ".join(map(str, paths)), sum(1 for _ in read())
        raise DataError(f"{names}: the slice {part} selects none of {count:,} pairs")
    yield first
    yield from pairs


def _missing_folder(config: DataConfig) -> DataError:
    if Path(config.path).is_file():
        return DataError(
            f"data.path = {config.path}: this is a file; give the folder that holds it"
        )
    searched = searched_folders(config.path)
    hint = "" if "/" in config.path else "; a data set of the hub has an owner, such as wmt/wmt16"
    return DataError(
        f"data.path = {config.path}: there is no such folder{searched}; {MOVED_TEXT}{hint}"
    )


def _list_files(folder: Path) -> str:
    """Says which files a folder holds; empty if there is no such folder."""
    if not folder.is_dir():
        return ""
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    more = ", ..." if names[_LISTED_FILES:] else ""
    return f"; the folder holds {', '.join(names[:_LISTED_FILES]) or 'no files'}{more}"


def _read_text(src_path: Path, tgt_path: Path) -> Iterator[Pair]:
    """Reads two line-aligned files."""
    src_lines, tgt_lines = read_source_lines(src_path), read_lines(tgt_path)
    for src, tgt in zip_longest(src_lines, tgt_lines):
        if src is None or tgt is None:
            counts = [sum(1 for _ in read_lines(path)) for path in (src_path, tgt_path)]
            raise DataError(
                f"{src_path} has {counts[0]:,} lines and {tgt_path} has {counts[1]:,}:"
                " they must be line-aligned"
            )
        yield src.strip(), tgt.strip()


def _skip_empty(read: PairReader) -> Iterator[Pair]:
    return (pair for pair in read() if not any(map(is_blank, pair)))


def read_lines(path: Path) -> Iterator[str]:
    r"""Reads lines of text, decompressed if it is compressed; only `\n` ends a line.

    Raises:
        DataError: If it cannot be read, is not text in UTF-8, is a TMX file, or changes meanwhile.
    """
    if is_tmx(path):
        raise DataError(
            f"{path}: a TMX file holds both languages; name it alone, such as"
            f" train = {json.dumps(path.name)} under [data] or --split {path.name}"
        )
    number, require_unchanged = 0, watch(path)
    try:
        with open_input(path) as stream:
            for line in chain.from_iterable(split_lines(stream, path)):
                number += 1
                yield line.decode("utf-8").removesuffix("\n")
        require_unchanged()
    except UnicodeDecodeError:
        raise DataError(
            f"{path}, line {number}: not UTF-8; convert it with iconv -f WINDOWS-1252 -t UTF-8 (or"
            " from another encoding), or drop the bad bytes with iconv -c -f UTF-8 -t UTF-8"
        ) from None


def read_source_lines(path: Path) -> Iterator[str]:
    """Reads lines as `translate` does, without a byte order mark at the beginning.

    References keep their byte order mark, as in sacreBLEU.
    """
    for number, line in enumerate(read_lines(path)):
        yield line if number else line.removeprefix("\ufeff")


def _find_files(folder: Path, name: str) -> list[Path]:
    """Finds the file of this name, or else all that match it below the folders that it names.

    A file that links give several names, such as latest/x.csv and v2/x.csv, has the shortest, so
    that its text is not read twice.
    """
    if (folder / name).is_file():
        return [folder / name]
    root, parts = folder, list(Path(name).parts)
    while parts[1:] and (root / parts[0]).is_dir():
        root /= parts.pop(0)
    names = glob(str(Path(*parts)), root_dir=root, recursive=True, include_hidden=True)
    paths = {root / name for name in names if (root / name).is_file()}
    longest_first = sorted(paths, key=lambda path: (len(path.parts), path), reverse=True)
    return sorted({path.resolve(): path for path in longest_first}.values()) or [folder / name]


def _read_data_files(paths: Sequence[Path], columns: Columns) -> Iterator[Pair]:
    for path in paths:
        yield from read_data_file(path, read_source_lines(path), columns)


def _open_hub(config: DataConfig, split: str) -> CorpusPart:
    """Opens a split of a corpus on the hub."""
    load = partial(load_dataset, config, split)
    return CorpusPart(
        lambda: read_pairs(load(), config),
        # The client stores each revision of a corpus under a different name.
        lambda: digest_strings(file["filename"] for file in load().cache_files),
    )


def _digest_files(paths: Iterable[Path], columns: Columns) -> str:
    """Computes a digest of the names and contents of files, and of the columns that are read."""
    return digest_strings(chain(map(_digest_file, paths), map(repr, columns.items())))


def _digest_file(path: Path) -> str:
    with reading(path):
        return f"{path.name} {sha256(path)}"


def digest_strings(strings: Iterable[str]) -> str:
    """Computes the SHA-256 digest of strings joined by newlines, in hexadecimal."""
    # A name of a file need not be UTF-8.
    return hashlib.sha256("\n".join(strings).encode("utf-8", "surrogateescape")).hexdigest()
