"""Rows of tables as they are written: where a text stands, so that all else stays as it is."""

import json
import re
import sys
from collections.abc import Callable
from functools import partial
from json.decoder import JSONDecoder, scanstring
from typing import NamedTuple

from transformer_mt.errors import DataError

_dump = partial(json.dumps, ensure_ascii=False)
_decode_at = JSONDecoder().raw_decode


class Cell(NamedTuple):
    """The text of a row that is translated, and where the translation goes.

    Attributes:
        text: The text, without quotes and escapes.
        begin: Where in the row what the translation replaces begins.
        end: Where it ends.
        encode: Gives what is written there for a translation.
    """

    text: str
    begin: int
    end: int
    encode: Callable[[str], str]


class OpenQuoteError(ValueError):
    """A row that ends within quotes, so the next line belongs to it."""


def split_csv(row: str, delimiter: str) -> list[str]:
    """Splits a row of CSV, without its line end, into cells with their quotes.

    A quote within a cell that does not begin with one is text, as for Python's strict `csv`, which
    tells neither where a cell stands nor how it is quoted.

    Raises:
        OpenQuoteError: If a quote is open at its end.
        ValueError: If text follows a closing quote, or a line break is not quoted.
    """
    quoted, unquoted = r'"(?:[^"]++|"")*+(?:"|\Z)', rf'(?!")[^{delimiter}\r\n]*+'
    cells: list[str] = re.findall(rf"(?:^|{delimiter})({quoted}|{unquoted})", row)
    if delimiter.join(cells) != row:
        raise ValueError("is not CSV")
    if cells[-1].startswith('"') and cells[-1].count('"') % 2:
        raise OpenQuoteError("ends within quotes")
    return cells


class DelimitedTable:
    """Rows of TSV, where quotes are text and a tab always ends a cell, or of CSV.

    Commas or semicolons delimit CSV: which of them is more frequent outside quotes in the first
    row.

    Args:
        name: The file's name, for messages.
        is_csv: Whether it is CSV.
        column: The column to translate: a name in the first row, or a number if there are no names.
        output_column: That of the translation, a new one if the table does not have it.
    """

    def __init__(self, name: str, is_csv: bool, column: str, output_column: str) -> None:
        self._name, self._is_csv = name, is_csv
        self._names = column, output_column
        self._delimiter = "" if is_csv else "\t"
        self._has_header, self._width = not column.isdecimal(), 0
        self._source, self._target = (
            int(name) - 1 if name.isdecimal() else sys.maxsize for name in self._names
        )

    def find(self, row: str) -> Cell | str:
        """Finds the text of a row without its line end; gives the whole row if it has none.

        Raises:
            DataError: If the row should name the column and does not.
            ValueError: If it cannot be parsed, or has another number of cells than the first row.
            IndexError: If it has no such column.
        """
        if not row:
            return row
        if not self._delimiter:
            unquoted = re.sub(r'"[^"]*(?:"|\Z)', "", row)
            self._delimiter = max(",;", key=unquoted.count)
        cells = split_csv(row, self._delimiter) if self._is_csv else row.split(self._delimiter)
        if self._has_header and not self._width:
            return self._read_header(row, cells)
        if self._width not in (0, len(cells)):
            raise ValueError("has another number of cells than the first row")
        source, begin, end, before = cells[self._source], len(row), len(row), self._delimiter
        if self._target < len(cells):
            begin = sum(len(cell) + 1 for cell in cells[: self._target])
            end, before = begin + len(cells[self._target]), ""
        is_quoted = self._is_csv and source.startswith('"')
        text = source[1:-1].replace('""', '"') if is_quoted else source
        return Cell(text, begin, end, lambda new: before + self._encode(new, is_quoted))

    def _read_header(self, row: str, cells: list[str]) -> str:
        names = [cell.strip('" ') for cell in cells]
        column, output_column = self._names
        if names.count(column) != 1:
            how_often = "more than one column" if column in names else "no column"
            raise DataError(f"{self._name}: has {how_often} {column}, but {', '.join(names)}")
        self._width, self._source = len(names), names.index(column)
        if output_column in names:
            self._target = names.index(output_column)
            return row
        return row + self._delimiter + self._encode(output_column, cells[0].startswith('"'))

    def _encode(self, text: str, is_quoted: bool) -> str:
        if is_quoted or (self._is_csv and re.search(rf'["\r\n{self._delimiter}]', text)):
            return '"' + text.replace('"', '""') + '"'
        return text


class JsonLines:
    """Rows that are JSON objects.

    Args:
        key: That of the text; the dots of `translation.de` lead into objects.
        output_key: That of the translation, a new one if the object does not have it.
    """

    def __init__(self, key: str, output_key: str) -> None:
        self._key, self._output_key = key, output_key

    def find(self, row: str) -> Cell | str:
        """Finds the text of a row; gives the whole row if it is blank.

        Raises:
            ValueError: If it is not an object, or the value is not a text.
            KeyError: If it does not have the key, or no object that could have the output key.
            RecursionError: If it is too deep.
        """
        if not row.strip():
            return row
        json.loads(row)
        begin, end, _ = _find_value(row, self._key)
        text = json.loads(row[begin:end])
        if not isinstance(text, str):
            raise ValueError("is not a text")
        begin, end, before = _find_value(row, self._output_key)
        return Cell(text, begin, end, lambda new: before + _dump(new))


def _find_value(row: str, key: str) -> tuple[int, int, str]:
    """Gives where a value begins and ends; for a new key, where it can be, and what precedes it."""
    begin = _skip(row, 0)
    *path, last = key.split(".")
    for name in path:
        begin, _ = _members(row, begin)[name]
    members = _members(row, begin)
    if last in members:
        return *members[last], ""
    place = max((end for _, end in members.values()), default=begin + 1)
    return place, place, f"{', ' if members else ''}{_dump(last)}: "


def _members(row: str, begin: int) -> dict[str, tuple[int, int]]:
    """Gives where the values of the object that begins at a place of valid JSON begin and end."""
    if row[begin] != "{":
        raise ValueError("is not an object")
    members, place = dict[str, tuple[int, int]](), _skip(row, begin + 1)
    while row[place] == '"':
        key, place = scanstring(row, place + 1)
        begin = _skip(row, place)
        _, place = _decode_at(row, begin)
        members[key] = begin, place
        place = _skip(row, place)
    return members


def _skip(row: str, place: int) -> int:
    """Gives the place of the next token, after spaces, colons and commas."""
    while row[place] in " \t\r\n:,":
        place += 1
    return place
