"""What of an input is translated, and how its translations are written: text, tables, subtitles."""

import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import NamedTuple

from transformer_mt.errors import ConfigError
from transformer_mt.system.streams import compression_suffix
from transformer_mt.text.tables import DelimitedTable, JsonLines, OpenQuoteError
from transformer_mt.translation.options import InputFormat, InputOptions, OutputOptions
from transformer_mt.translation.translator import Translation, format_lines

MAX_ROW_LINES = 1000
"""A row of CSV with more lines has a quote that nothing closes."""
_ROWS_NAMED = 5
_FORMATS: dict[str, InputFormat] = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".srt": "srt",
    ".vtt": "vtt",
}
"""By the ending of a file's name."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_LINE_BREAK = re.compile(r"(\r\n|\r|\n)")
_TIME_CODE = re.compile(r"\d\s*-->\s*\d")
_MARKUP = r"<[^>]*>|\{[^}]*\}|\s"
_CUE_LINE = re.compile(rf"((?:{_MARKUP}|[-–—](?![-–—]))*)(.*?)((?:{_MARKUP})*)", re.DOTALL)
"""Tags, spaces and the dash of a speaker; the text; tags, spaces and the line end."""


class Chunk(NamedTuple):
    """A part of the output.

    Attributes:
        texts: What is to be translated for it.
        write: Gives what is written, given the translations of each text, the best first.
    """

    texts: list[str]
    write: Callable[[Sequence[Sequence[Translation]]], str]


class Field(NamedTuple):
    """A part of a file that is translated.

    Attributes:
        texts: What is to be translated for it.
        encode: Gives what is written, given the best translations.
    """

    texts: list[str]
    encode: Callable[[Sequence[str]], str]


Piece = str | Field
"""A part of a file; a string is written as it is."""


class PlainText:
    """Text, one sentence per line; a byte order mark at its start is dropped.

    Attributes:
        lines_replaced: Number of texts so far whose invalid UTF-8 was replaced by U+FFFD.
    """

    name: InputFormat = "text"

    def __init__(self, options: OutputOptions) -> None:
        self._options, self.lines_replaced = options, 0

    def chunks(self, lines: Iterable[list[bytes]]) -> Iterator[Chunk]:
        """Yields a chunk for each list of lines."""
        first_line = 1
        for raw in lines:
            if first_line == 1:
                raw = [raw[0].removeprefix(BOM_UTF8), *raw[1:]]
            texts = self._decode([line.removesuffix(b"\n") for line in raw])
            yield Chunk(texts, partial(format_lines, first_line=first_line, options=self._options))
            first_line += len(texts)

    def warnings(self) -> list[str]:
        """Gives no warnings: any line is text."""
        return []

    def _decode(self, lines: list[bytes]) -> list[str]:
        try:
            return [line.decode("utf-8") for line in lines]
        except UnicodeDecodeError:
            texts = [line.decode("utf-8", errors="replace") for line in lines]
            pairs = zip(lines, texts, strict=True)
            self.lines_replaced += sum(line != text.encode("utf-8") for line, text in pairs)
            return texts


class StructuredText:
    """A table or subtitles: texts among other text, which is written as it is.

    Attributes:
        name: Name of the format.
        lines_replaced: Number of texts so far whose invalid UTF-8 was replaced by U+FFFD.
    """

    def __init__(self, name: InputFormat, reader: "TableReader | SubtitleReader") -> None:
        self.name, self._reader, self.lines_replaced = name, reader, 0
        self.warnings = reader.warnings

    def chunks(self, lines: Iterable[list[bytes]]) -> Iterator[Chunk]:
        """Yields a chunk for each list of lines, then one of what these have left incomplete."""
        for raw in lines:
            text = (line.decode("utf-8", "surrogateescape") for line in raw)
            yield self._chunk(chain.from_iterable(map(self._reader.take, text)))
        if rest := list(self._reader.finish()):
            yield self._chunk(rest)

    def _chunk(self, pieces: Iterable[Piece]) -> Chunk:
        pieces, texts = list(pieces), list[str]()
        for text in chain.from_iterable(piece.texts for piece in pieces if type(piece) is Field):
            texts.append(_SURROGATE.sub("\ufffd", text))
            self.lines_replaced += texts[-1] != text
        return Chunk(texts, partial(_write, pieces))


def _write(pieces: list[Piece], translations: Sequence[Sequence[Translation]]) -> str:
    best = iter([ranked[0].text for ranked in translations])
    return "".join(
        piece if isinstance(piece, str) else piece.encode(list(islice(best, len(piece.texts))))
        for piece in pieces
    )


class TableReader:
    """Lines to the rows of a table; a row that has no text to translate is kept as it is.

    Args:
        table: Finds the text of a row.
    """

    def __init__(self, table: DelimitedTable | JsonLines) -> None:
        self._table, self._lines, self._lines_before = table, list[str](), 0
        self._kept, self._first_kept = 0, list[int]()

    def take(self, line: str) -> Iterator[Piece]:
        """Takes a line; gives the pieces of the row that it ends."""
        if not self._lines_before and not self._lines and line.startswith("\ufeff"):
            yield line[0]
            line = line[1:]
        self._lines.append(line)
        is_long = len(self._lines) >= MAX_ROW_LINES
        if len(self._lines) == 1 or '"' in line or is_long:
            yield from self._read_row(is_long)

    def finish(self) -> Iterator[Piece]:
        """Gives the pieces of what is left, in which a quote is open."""
        while self._lines:
            yield from self._read_row(True)

    def warnings(self) -> list[str]:
        """Reports the rows that were kept, by the numbers of their lines."""
        if not self._kept:
            return []
        more = ", ..." if self._kept > _ROWS_NAMED else ""
        return [
            f"{self._kept:,} {'row' if self._kept == 1 else 'rows'} kept as they are, since they"
            " cannot be parsed or have no text in the column: line"
            f" {', '.join(f'{number:,}' for number in self._first_kept)}{more}"
        ]

    def _read_row(self, is_complete: bool) -> Iterator[Piece]:
        """Reads a row; if it is bad, its first line alone is, since an open quote may be the fault.

        A row that must be complete is bad if a quote is open at its end.
        """
        lines = self._lines
        row = "".join(lines)
        content = row.rstrip("\r\n")
        try:
            cell = self._table.find(content)
        except (ValueError, LookupError, RecursionError) as error:
            if isinstance(error, OpenQuoteError) and not is_complete:
                return
            self._lines, self._lines_before = [], self._lines_before + 1
            self._kept += 1
            self._first_kept += [self._lines_before][: self._kept <= _ROWS_NAMED]
            yield lines[0]
            for line in lines[1:]:
                yield from self.take(line)
            return
        self._lines, self._lines_before = [], self._lines_before + len(lines)
        if isinstance(cell, str):
            yield cell + row[len(content) :]
        else:
            yield row[: cell.begin]
            yield _field(cell.text, cell.encode)
            yield row[cell.end :]


def _field(text: str, encode: Callable[[str], str]) -> Field:
    """Makes a field of a text that is translated by lines."""
    parts = _LINE_BREAK.split(text)
    breaks = parts[1::2]
    return Field(
        parts[::2],
        lambda lines: encode("".join(chain(*zip_longest(lines, breaks, fillvalue="")))),
    )


class SubtitleReader:
    """Lines to cues: the text that follows a line of time codes, up to a blank line."""

    def __init__(self) -> None:
        self._in_cue, self._cue = False, list[str]()

    def take(self, line: str) -> Iterator[Piece]:
        """Takes a line; gives the pieces of what it ends."""
        if _TIME_CODE.search(line):
            # The number of this cue, if no blank line precedes it.
            number = self._cue.pop() if self._cue and self._cue[-1].strip().isdecimal() else ""
            yield from self.finish()
            yield number + line
            self._in_cue = True
        elif self._in_cue and line.strip():
            self._cue.append(line)
        else:
            yield from self.finish()
            yield line
            self._in_cue = False

    def finish(self) -> Iterator[Piece]:
        """Gives the cue that has been taken, if there is one."""
        if self._cue:
            yield _cue_field(self._cue)
        self._cue = []

    def warnings(self) -> list[str]:
        """Gives no warnings: what is no cue is kept."""
        return []


def _cue_field(lines: list[str]) -> Field:
    """Makes a field of a cue: one text, or one per line if each begins with a speaker's dash."""
    matches = [match for line in lines if (match := _CUE_LINE.fullmatch(line))]
    starts, texts, ends = (list(group) for group in zip(*(m.groups() for m in matches), strict=True))
    by_lines = all(re.search("[-–—]", start) for start in starts)

    def encode(translations: Sequence[str]) -> str:
        new = translations if by_lines else _break_lines(translations[0], len(lines))
        rows = (start + text + end for start, text, end in zip(starts, new, ends, strict=True))
        return "".join(row for row in rows if row.strip())  # a blank line would end the cue

    return Field(texts if by_lines else [" ".join(filter(None, texts))], encode)


def _break_lines(text: str, count: int) -> list[str]:
    """Breaks a text into so many lines of similar length, at spaces."""
    lines = []
    for left in range(count, 1, -1):
        spaces = (match.start() for match in re.finditer(" ", text))
        place = min(spaces, key=lambda space: abs(space - len(text) / left), default=len(text))
        lines.append(text[:place])
        text = text[place + 1 :]
    return [*lines, text]


Format = PlainText | StructuredText
"""Reads one input: it knows what it has read so far."""


def format_suffix(path: Path) -> str:
    """Returns the ending of a file's name that tells a table or subtitles; empty for others."""
    suffix = Path(path.name.removesuffix(compression_suffix(path))).suffix
    return suffix if suffix.lower() in _FORMATS else ""


def choose_format(
    path: Path | None, options: InputOptions, output: OutputOptions, n_best: int = 1
) -> Format:
    """Chooses the format of an input; None is stdin.

    Raises:
        ConfigError: If the options do not fit it.
    """
    name, kind, place = str(path or "stdin"), options.format, ""
    if kind == "auto":
        place = format_suffix(path) if path else ""
        kind = _FORMATS.get(place.lower(), "text")
    if kind == "text":
        if options.column:
            raise ConfigError(
                f"{name}: is read as text, which has no columns: leave out --column, or add"
                " --input-format tsv, csv or jsonl"
            )
        return PlainText(output)
    whole_lines = "to translate it as lines of text, add --input-format text"
    if n_best > 1 or output != OutputOptions():
        raise ConfigError(
            f"{name}: {kind} has one translation per text, without --n-best, --scores and --format"
            f" jsonl; {whole_lines}"
        )
    if kind in ("srt", "vtt"):
        return StructuredText(kind, SubtitleReader())
    column = options.column
    if not column:
        raise ConfigError(
            f"{name}: is a table ({kind}): add --column NAME, or --column NUMBER if its first row"
            f" has no names; {whole_lines}"
        )
    target = options.output_column or column
    if kind == "jsonl":
        return StructuredText(kind, TableReader(JsonLines(column, target)))
    return StructuredText(kind, TableReader(DelimitedTable(name, kind == "csv", column, target)))
