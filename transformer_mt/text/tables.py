"""Rows of tables as they are written: where a text stands, so that all else stays as it is."""

import json
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from transformer_mt.errors import DataError

_dump = partial(json.dumps, ensure_ascii=False)
_OBJECT = re.compile(r"\s*\{")
_KEY = re.compile(r'[\s,]*("(?:[^"\\]++|\\.)*+")\s*:\s*')


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


def line_end(text: str, place: int) -> int:
    """Gives where the line that a place belongs to ends, after its line feed."""
    return text.find("\n", place) + 1 or len(text)


class DelimitedTable:
    """Rows of TSV, where quotes are text and a tab always ends a cell, or of CSV.

    Commas or semicolons delimit CSV: which of them is more frequent outside quotes in the first
    line. Python's `csv` tells neither where a cell stands nor how it is quoted.

    Args:
        name: The file's name, for messages.
        is_csv: Whether it is CSV.
        column: The column to translate: a name in the first row, or a number if there are no names.
        output_column: That of the translation, a new one if the table does not have it.
    """

    def __init__(self, name: str, is_csv: bool, column: str, output_column: str) -> None:
        self._name, self._is_csv, self._delimiter = name, is_csv, "" if is_csv else "\t"
        self._names, self._width = (column, output_column), 0
        self._source, self._target = (
            int(name) - 1 if name.isdecimal() else sys.maxsize for name in self._names
        )

    def row_end(self, text: str, place: int) -> int:
        """Gives where the row that begins at a place ends; 0 if a quote is open at the end."""
        if not self._is_csv:
            return line_end(text, place)
        if not self._delimiter:
            unquoted = re.sub(r'"[^"]*(?:"|\Z)', "", text[: line_end(text, place)])
            self._delimiter = max(",;", key=unquoted.count)
        cell = rf'(?:"(?:[^"]++|"")*+"?|(?!")[^{self._delimiter}\r\n]*+)'
        cells = re.compile(f"(?:{cell}{self._delimiter}?)*+").match(text, place)
        end = cells.end() if cells else place
        # Only an open quote takes a line feed at the end.
        return 0 if text.endswith("\n", place, end) else line_end(text, end)

    def find(self, row: str) -> Cell | str:
        """Finds the text of a row without its line end; of one with names, gives the new names.

        Raises:
            DataError: If the row should name the column and does not.
            ValueError: If it cannot be parsed, or has another number of cells than the first row.
            IndexError: If it has no such column.
        """
        delimiter, cells = self._delimiter, self._split(row)
        if not self._width and not self._names[0].isdecimal():
            return self._read_names(row, cells)
        if self._width not in (0, len(cells)):
            raise ValueError("has another number of cells than the first row")
        source, begin, end, before = cells[self._source], len(row), len(row), delimiter
        if self._target < len(cells):
            begin = sum(len(cell) + 1 for cell in cells[: self._target])
            end, before = begin + len(cells[self._target]), ""
        is_quoted = self._is_csv and source.startswith('"')
        text = source[1:-1].replace('""', '"') if is_quoted else source
        return Cell(text, begin, end, lambda new: before + self._encode(new, is_quoted))

    def _split(self, row: str) -> list[str]:
        """Splits a row into cells with their quotes."""
        delimiter = self._delimiter
        if not self._is_csv:
            return row.split(delimiter)
        cell = rf'"(?:[^"]++|"")*+"|(?!")[^{delimiter}\r\n]*+'
        cells: list[str] = re.findall(f"(?:^|{delimiter})({cell})", row)
        if delimiter.join(cells) != row:
            raise ValueError("has an open quote, or text after a closing quote")
        return cells

    def _read_names(self, row: str, cells: list[str]) -> str:
        names = [cell.strip('" ') for cell in cells]
        column, output_column = self._names
        if names.count(column) != 1:
            raise DataError(f"{self._name}: has not one column {column}, but {', '.join(names)}")
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
        self._path, self._output_path = key.split("."), output_key.split(".")
        self.row_end = line_end

    def find(self, row: str) -> Cell | str:
        """Finds the text of a row.

        Raises:
            ValueError: If it is not an object, or the value is not a text.
            KeyError: If an object that the path of a key leads through is missing.
            RecursionError: If it is too deep.
        """
        json.loads(row)
        begin, end, _ = _find_value(row, 0, self._path)
        text = json.loads(row[begin:end])  # nothing, if the key is missing
        if not isinstance(text, str):
            raise ValueError("is not a text")
        begin, end, before = _find_value(row, 0, self._output_path)
        return Cell(text, begin, end, lambda new: before + _dump(new))


def _find_value(row: str, begin: int, path: list[str]) -> tuple[int, int, str]:
    """Finds a value in the object that begins at a place of valid JSON.

    Returns:
        Where the value begins and ends; of a new key, where it can be written, after which text.
    """
    if not (brace := _OBJECT.match(row, begin)):
        raise ValueError("is not an object")
    members, place = dict[str, tuple[int, int]](), brace.end()
    while match := _KEY.match(row, place):
        _, place = json.JSONDecoder().raw_decode(row, match.end())
        members[json.loads(match[1])] = match.end(), place
    name, *rest = path
    if rest:
        return _find_value(row, members[name][0], rest)
    if name in members:
        return *members[name], ""
    return place, place, f"{', ' if members else ''}{_dump(name)}: "
