"""Rows of tables as they are written: where a text stands, so that all else stays as it is."""

import json
import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from transformer_mt.errors import ConfigError, DataError

_SURROGATE = re.compile("[\ud800-\udfff]")
_decode_at = json.JSONDecoder().raw_decode
_dump = partial(json.dumps, ensure_ascii=False)
_NUMBER = re.compile("[1-9][0-9]*")
LINES_WITH_DELIMITER = 100
"""More than a first row has, although its cells may have line breaks."""
_OBJECT = re.compile(r"\s*\{")
_KEY = re.compile(r'[\s,]*("(?:[^"\\]++|\\.)*+")\s*:\s*')


class Cell(NamedTuple):
    """The text of a row that is translated, and where the translation goes.

    Attributes:
        text: The text, without quotes and escapes.
        begin: Where what the translation replaces begins.
        end: Where it ends.
        row_end: Where the row ends, after its line feed.
        encode: Gives what is written for a translation.
    """

    text: str
    begin: int
    end: int
    row_end: int
    encode: Callable[[str], str]


def find_delimiter(text: str) -> str:
    """Chooses comma or semicolon for CSV: what all lines have, or else the first has more of.

    What stands between quotes does not count.

    Args:
        text: Its first `LINES_WITH_DELIMITER` lines.
    """
    lines = re.sub(r'"[^"]*(?:"|\Z)', "", text).split("\n")
    counts = {each: [line.count(each) for line in lines if line.strip()] for each in ",;"}
    return max(",;", key=lambda each: (min(counts[each], default=0), counts[each][:1]))


def line_end(text: str, place: int) -> int:
    """Returns where the line that a place belongs to ends, after its line feed."""
    return text.find("\n", place) + 1 or len(text)


class DelimitedTable:
    """Rows of TSV, where quotes are text and a tab always ends a cell, or of CSV.

    Python's `csv` tells neither where a cell stands nor how it is quoted.

    Args:
        name: The file's name, for messages.
        is_csv: Whether it is CSV.
        column: The column to translate: a name in the first row, or a number if there are no names.
        output_column: That of the translation, a new one if the table does not have it.

    Raises:
        ConfigError: If `column` is a number and `output_column` is not.
    """

    def __init__(self, name: str, is_csv: bool, column: str, output_column: str) -> None:
        self._name, self._is_csv, self._delimiter = name, is_csv, "" if is_csv else "\t"
        self._columns, self._width, self._source, self._target = (column, output_column), 0, 0, 0
        self._has_names = not _NUMBER.fullmatch(column)
        if not self._has_names:
            if not _NUMBER.fullmatch(output_column):
                raise ConfigError(
                    f"{name}: --column {column} is a number, so --output-column must be one from 1,"
                    f" not {output_column}"
                )
            self._source, self._target = int(column) - 1, int(output_column) - 1

    def find(self, text: str, place: int) -> Cell:
        """Finds the cell of the row that begins at a place; that of names or no cells is empty.

        Raises:
            DataError: If the row should name the column and does not.
            EOFError: If a quote is open at the end of the text.
            ValueError: If the row cannot be parsed, or has another number of cells than the first.
            IndexError: If it has no such column.
        """
        spans, row_end = self._split(text, place)
        cells = [text[begin:end] for begin, end in spans]
        end = spans[-1][1]
        if cells == [""]:
            return Cell("", end, end, row_end, str)
        if self._has_names and not self._width:
            new_name = self._read_names(cells)
            return Cell("", end, end, row_end, lambda _: new_name)
        self._width = self._width or len(cells)
        is_in_place = not self._has_names and self._source == self._target
        if not is_in_place and len(cells) != self._width:
            raise ValueError("has another number of cells than the first row")
        if self._target > len(cells):
            raise IndexError("has no column before that of the translation")
        source, begin, before = cells[self._source], end, self._delimiter
        if self._target < len(cells):
            (begin, end), before = spans[self._target], ""
        is_quoted = self._is_csv and source.startswith('"')
        value = source[1:-1].replace('""', '"') if is_quoted else source
        return Cell(value, begin, end, row_end, lambda new: before + self._encode(new, is_quoted))

    def _split(self, text: str, place: int) -> tuple[list[tuple[int, int]], int]:
        """Gives where the cells of a row begin and end, quotes included, and where the row ends."""
        if not self._delimiter:
            head = text[place:].split("\n", LINES_WITH_DELIMITER)[:LINES_WITH_DELIMITER]
            self._delimiter = find_delimiter("\n".join(head))
        cell = rf'"(?:[^"]++|"")*+(?:"|\Z)|(?!")[^{self._delimiter}\r\n]*+'
        cell = cell if self._is_csv else r"[^\t\n]*?"
        spaces = '(?: +(?="))?' if self._is_csv else ""
        pattern = re.compile(rf"{spaces}({cell})({self._delimiter}|\r*(?:\n|\Z))")
        spans = list[tuple[int, int]]()
        while match := pattern.match(text, place):
            spans.append(match.span(1))
            place = match.end()
            if match[2] != self._delimiter:
                if self._is_csv and match[1].startswith('"') and match[1].count('"') % 2:
                    raise EOFError("has an open quote")
                return spans, place
        raise ValueError("has text after a closing quote")

    def _read_names(self, cells: list[str]) -> str:
        """Finds the columns in the first row; gives what is added to it."""
        names = [cell.strip('" ') for cell in cells]
        column, output_column = self._columns
        if (count := names.count(column)) != 1:
            problem = f"{count} columns are named {column}" if count else f"no column {column!r}"
            raise DataError(f"{self._name}: {problem}; columns: {', '.join(names)}")
        self._width, self._source = len(names), names.index(column)
        self._target = [*names, output_column].index(output_column)
        if self._target < len(names):
            return ""
        return self._delimiter + self._encode(output_column, cells[0].startswith('"'))

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

    def find(self, text: str, place: int) -> Cell:
        """Finds the value of the row that begins at a place; that of a blank one is empty.

        Raises:
            ValueError: If it is not an object, or the value is not a text.
            RecursionError: If it is too deep.
        """
        row_end = line_end(text, place)
        if not text[place:row_end].strip():
            return Cell("", place, place, row_end, str)
        json.loads(text[place:row_end])
        begin, end, *_ = _find_value(text, place, self._path)
        value = json.loads(text[begin:end])  # of nothing, if the key is missing
        if not isinstance(value, str):
            raise ValueError("is not a text")
        value = _SURROGATE.sub("\udcff", value)  # half of a pair is as wrong as an invalid byte
        begin, end, before, after = _find_value(text, place, self._output_path)
        return Cell(value, begin, end, row_end, lambda new: before + _dump(new) + after)


def _find_value(text: str, place: int, path: list[str]) -> tuple[int, int, str, str]:
    """Finds a value in the object that begins at a place of valid JSON.

    Returns:
        Where the value begins and ends; of a new key, where it can be written, between which texts.
    """
    if not (brace := _OBJECT.match(text, place)):
        raise ValueError("is not an object")
    members, place = dict[str, tuple[int, int]](), brace.end()
    while match := _KEY.match(text, place):
        _, place = _decode_at(text, match.end())
        members[json.loads(match[1])] = match.end(), place
    name, *rest = path
    if name not in members:
        opened = ": {".join(map(_dump, path))
        return place, place, f"{', ' if members else ''}{opened}: ", "}" * len(rest)
    return _find_value(text, members[name][0], rest) if rest else (*members[name], "", "")
