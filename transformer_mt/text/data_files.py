"""Local files of rows with named columns, read as a stream: Parquet, JSON, CSV and TSV.

Not by the `datasets` library: its cache knows files by name and time, not by content, and its
reader of CSV takes words such as "null" for missing values.
"""

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, permutations
from pathlib import Path
from typing import Any

from transformer_mt.config.keys import DataConfig
from transformer_mt.config.loading import shorten
from transformer_mt.config.splits import Column, Columns
from transformer_mt.errors import DataError
from transformer_mt.system.streams import compression_suffix
from transformer_mt.text.tables import LINES_WITH_DELIMITER, find_delimiter

Rows = Iterable[tuple[int, Any]]
"""Rows, or None for a line without one, with the numbers of their last lines."""

DATA_SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".json", ".csv", ".tsv")
BATCH_ROWS = 10_000
_PAIR = "translation"
"""The column of data sets on the hub whose objects have a text per language."""


def data_suffix(name: str) -> str:
    """Returns the end of a data file's name, without that of a compression; empty for others."""
    suffix = Path(name.removesuffix(compression_suffix(Path(name)))).suffix.lower()
    return suffix if suffix in DATA_SUFFIXES else ""


def pair_columns(config: DataConfig) -> Columns:
    """Returns the columns of a pair that are named by its languages."""
    return {"data.src_lang": config.src_lang, "data.tgt_lang": config.tgt_lang}


def read_data_file(path: Path, lines: Iterator[str], columns: Columns) -> Iterator[tuple[Any, ...]]:
    """Reads some columns of a file; its lines are not used if it is Parquet.

    The first row of a table names its columns, unless those wanted are numbered, or they are the
    first two by the name of the file, such as x.de-en.tsv.

    Raises:
        DataError: If its name is of no format with such columns; else as in `texts_of_rows`.
    """
    suffix, wanted = data_suffix(path.name), list(columns.values())
    numbers = [column for column in wanted if isinstance(column, int)]
    if not suffix or (numbers and suffix not in (".csv", ".tsv")):
        raise DataError(f"{path}: columns need {', '.join(DATA_SUFFIXES)}, numbers .csv or .tsv")
    stem = path.name.removesuffix(compression_suffix(path))
    pairs = (pair for pair in permutations(wanted, 2) if stem.endswith(".{}-{}.tsv".format(*pair)))
    names = next(map(list, pairs), range(1, max(numbers, default=0) + 1))
    unit = "row" if suffix in (".parquet", ".json") else "line"
    if suffix == ".parquet":
        rows = _read_parquet(path, columns)
    elif suffix == ".tsv":  # quotes are text: a tab always ends a cell
        cells = enumerate((line.removesuffix("\r").split("\t") for line in lines), start=1)
        rows = _name_columns(cells, wanted, names)
    elif suffix == ".csv":
        rows = _name_columns(_read_csv(lines), wanted, names)
    else:
        rows = _read_json(lines)
    return texts_of_rows(rows, columns, f"{path}, {unit}")


def texts_of_rows(rows: Rows, columns: Columns, place: str) -> Iterator[tuple[Any, ...]]:
    """Takes texts from rows, or from the objects of a column `translation`.

    A missing value becomes an empty text.

    Raises:
        DataError: Naming the place and number of a row that cannot be read, lacks a column, or
            has something else than text.
    """
    number, named = 0, columns.items()
    try:
        for number, row in rows:
            if row is not None:
                at = f"{place} {number:,}"
                yield tuple(_text(row, column, f"{key} = {column}: {at}") for key, column in named)
    except (ValueError, RecursionError, csv.Error) as error:
        line, reason = number + getattr(error, "lineno", 1), getattr(error, "msg", error)
        if "new-line character" in str(reason):  # with advice for programmers
            reason = r"an unquoted carriage return; quote it, or run tr '\r' '\n' < OLD > NEW"
        raise DataError(f"{place} {line:,}: cannot be read: {reason}") from None


def _text(row: Any, column: Column, place: str) -> str:
    """Takes the text of a column, or else from objects: a.b is b in those of column a."""
    if row is None:
        return ""
    if not isinstance(row, Mapping):
        raise DataError(f"{place}: {shorten(row)} has no named columns")
    if column in row:
        if not isinstance(row[column], str | None):
            raise DataError(f"{place}: {shorten(row[column])} in the column {column} is not text")
        return (row[column] or "").strip()
    head, _, rest = str(column).partition(".")
    holder, name = (head, rest) if rest and head in row else (_PAIR, column)
    if holder in row:
        return _text(row[holder], name, place)
    raise DataError(f"{place} has {', '.join(map(str, row))}")


def wanted_columns(names: Sequence[str], columns: Columns) -> Sequence[Any]:
    """Returns the columns that texts are taken from, if they exist; others may be images."""
    holders = [(column, str(column).partition(".")[0], _PAIR) for column in columns.values()]
    wanted = {next((name for name in each if name in names), None) for each in holders}
    return names if None in wanted else list(wanted)


def _read_parquet(path: Path, columns: Columns) -> Rows:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            present = file.schema_arrow.names
            names = wanted_columns(present, columns)
            if twice := [name for name in names if present.count(name) > 1]:
                raise DataError(f"{path}: has several columns named {twice[0]}")
            batches = file.iter_batches(BATCH_ROWS, columns=names)
            yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _read_csv(lines: Iterator[str]) -> Rows:
    """Reads cells between commas or semicolons; quotes may follow spaces."""
    head = list(islice(lines, LINES_WITH_DELIMITER))
    delimiter = find_delimiter("\n".join(head))
    ended = (f"{line}\n" for line in chain(head, lines))
    csv.field_size_limit(sys.maxsize)  # of all readers; 131,072 characters by default
    table = csv.reader(ended, delimiter=delimiter, skipinitialspace=True, strict=True)
    return ((table.line_num, row) for row in table)


def _read_json(lines: Iterator[str]) -> Rows:
    """Reads an object per line, or an array of objects."""
    is_first = True
    for number, line in enumerate(lines, start=1):
        if is_first and line.lstrip().startswith("["):
            yield from enumerate(_parse_json("\n".join((line, *lines))), start=1)
        else:
            yield number, _parse_json(line) if line.strip() else None
        is_first = is_first and not line.strip()


def _parse_json(text: str) -> Any:
    value = json.loads(text)
    if "\\u" in text:  # half of a surrogate pair is not text
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _name_columns(cells: Rows, wanted: Sequence[Column], names: Sequence[Column]) -> Rows:
    """Names the columns by the first row, or the first ones as given if it names none of them."""
    width = len(names) or None
    for number, row in cells:
        row = [cell.strip() for cell in row]
        is_header = not names or (number == 1 and set(wanted) <= set(row))
        if is_header and row[:width] != names:
            names, width = row, None
        row = row[:width]
        if any(names.count(column) != 1 for column in wanted):
            columns = " and ".join(map(str, wanted))
            raise ValueError(
                f"it must name the columns {columns}, unless all are numbers; it has"
                f" {shorten(', '.join(map(str, row)))}"
            )
        if row and len(row) != len(names):
            raise ValueError(f"the number of columns is {len(row):,}, not {len(names):,}")
        yield number, dict(zip(names, row, strict=True)) if row and not is_header else None
