"""Local files of rows with named columns, read as a stream: Parquet, JSON, CSV and TSV.

Not by the `datasets` library: its cache knows files by name and time, not by content, and its
reader of CSV takes words such as "null" for missing values.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_mt.config.keys import DataConfig
from transformer_mt.errors import DataError
from transformer_mt.system.streams import compression_suffix

Rows = Iterable[tuple[int, Any]]
"""Rows, or None for a line without one, with the numbers of their last lines."""

DATA_SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".json", ".csv", ".tsv")
_ROWS_PER_BATCH = 10_000


def data_suffix(name: str) -> str:
    """Returns the end of a data file's name, without that of a compression; empty for others."""
    suffix = Path(name.removesuffix(compression_suffix(Path(name)))).suffix.lower()
    return suffix if suffix in DATA_SUFFIXES else ""


def read_data_file(
    path: Path, lines: Iterator[str], config: DataConfig
) -> Iterator[tuple[str, str]]:
    """Reads the pairs of a file; its lines are not used if it is Parquet.

    Raises:
        DataError: As in `pairs_of_rows`.
    """
    suffix = data_suffix(path.name)
    unit = "row" if suffix in (".parquet", ".json") else "line"
    if suffix == ".parquet":
        rows = _read_parquet(path, config)
    elif suffix == ".tsv":  # quotes are text: a tab always ends a cell
        cells = enumerate((line.removesuffix("\r").split("\t") for line in lines), start=1)
        rows = _name_columns(cells, path, config)
    elif suffix == ".csv":
        table = csv.reader((f"{line}\n" for line in lines), strict=True)
        rows = _name_columns(((table.line_num, row) for row in table), path, config)
    else:
        rows = _read_json(lines)
    return pairs_of_rows(rows, config, f"{path}, {unit}")


def pairs_of_rows(rows: Rows, config: DataConfig, place: str) -> Iterator[tuple[str, str]]:
    """Takes pairs from a `translation` column, or from one column per language.

    A missing value becomes an empty text.

    Raises:
        DataError: Naming the place and number of a row that cannot be read, lacks a language, or
            has something else than text.
    """
    number = 0
    try:
        for number, row in rows:
            if row is not None:
                yield _to_pair(row, config, f"{place} {number:,}")
    except (ValueError, RecursionError, csv.Error) as error:
        line, reason = number + getattr(error, "lineno", 1), getattr(error, "msg", error)
        raise DataError(f"{place} {line:,}: cannot be read: {reason}") from None


def _to_pair(row: Any, config: DataConfig, place: str) -> tuple[str, str]:
    columns = row.get("translation", row) if isinstance(row, Mapping) else row
    if columns is None:
        return "", ""
    if not isinstance(columns, Mapping):
        raise DataError(f"{place}: {columns!r} has no named columns")
    for key, language in (("src_lang", config.src_lang), ("tgt_lang", config.tgt_lang)):
        if language not in columns:
            raise DataError(f"data.{key} = {language}: {place} has {', '.join(columns)}")
        if not isinstance(columns[language], str | None):
            text = columns[language]
            raise DataError(f"{place}: {text!r} in the column {language} is not text")
    src, tgt = columns[config.src_lang] or "", columns[config.tgt_lang] or ""
    return src.strip(), tgt.strip()


def columns_of_pairs(names: Sequence[str], config: DataConfig) -> Sequence[str]:
    """Returns the columns that pairs are taken from, if they exist; others may be images."""
    wanted = ["translation"] if "translation" in names else [config.src_lang, config.tgt_lang]
    return wanted if set(wanted) <= set(names) else names


def _read_parquet(path: Path, config: DataConfig) -> Rows:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            columns = columns_of_pairs(file.schema_arrow.names, config)
            batches = file.iter_batches(_ROWS_PER_BATCH, columns=columns)
            yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _read_json(lines: Iterator[str]) -> Rows:
    """Reads an object per line, or an array of objects."""
    for number, line in enumerate(lines, start=1):
        if number == 1 and line.lstrip().startswith("["):
            yield from enumerate(_parse_json("\n".join((line, *lines))), start=1)
        else:
            yield number, _parse_json(line) if line.strip() else None


def _parse_json(text: str) -> Any:
    value = json.loads(text)
    if "\\u" in text:  # half of a surrogate pair is not text
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _name_columns(cells: Rows, path: Path, config: DataConfig) -> Rows:
    """Names the columns by the first row, or the first two by a file's name such as x.de-en.tsv."""
    src, tgt = config.src_lang, config.tgt_lang
    stem = path.name.removesuffix(compression_suffix(path))
    pairs = [src, tgt], [tgt, src]
    names = next((pair for pair in pairs if stem.endswith(f".{'-'.join(pair)}.tsv")), [])
    width = len(names) or None
    for number, row in cells:
        row = [cell.strip() for cell in row[:width]]
        is_header, names = not names or (number == 1 and row == names), names or row
        if names.count(src) != 1 or names.count(tgt) != 1:
            raise ValueError(
                f"it must name the columns {src} and {tgt}, unless the name of the file ends in"
                f" .{src}-{tgt}.tsv"
            )
        if row and len(row) != len(names):
            raise ValueError(f"the number of columns is {len(row):,}, not {len(names):,}")
        yield number, dict(zip(names, row, strict=True)) if row and not is_header else None
