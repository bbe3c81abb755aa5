"""What of an input is translated, and how its translations are written: text, tables, subtitles."""

import logging
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import NamedTuple, cast

from transformer_mt.errors import ConfigError
from transformer_mt.system.streams import compression_suffix
from transformer_mt.text.tables import Cell, DelimitedTable, JsonLines, line_end
from transformer_mt.translation.options import (
    STRUCTURED_FORMATS,
    InputFormat,
    InputOptions,
    OutputOptions,
)
from transformer_mt.translation.translator import Translation, format_lines

logger = logging.getLogger(__name__)

MAX_INCOMPLETE = 2**20
"""So many characters do not wait for the end of a row or cue: its quote is open by mistake."""
ROWS_NAMED = 5
"""Most rows that are reported by their numbers."""
_MARKUP = r"<[^>\n]*>|\{[^}\n]*\}|[^\S\n]"
_TIMES = r"\d *--> *\d.*\n"
_CUE = re.compile(rf"{_TIMES}((?:(?!(?:\d+\r?\n)?.*{_TIMES}).*\S.*(?:\n|\Z))+)")
"""A line of times and the lines up to a blank one, or to the next cue."""
_CUE_LINE = re.compile(rf"(?=.)((?:{_MARKUP}|[-–—])*)(.*?)((?:{_MARKUP})*(?:\n|\Z))")
"""Tags and the dash of a speaker; the text; tags and the line end."""


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

    def __init__(self, options: OutputOptions) -> None:
        self._options, self.lines_replaced = options, 0

    def chunks(self, lines: Iterable[list[bytes]]) -> Iterator[Chunk]:
        """Yields a chunk for each list of lines."""
        first_line, mark = 1, BOM_UTF8
        for raw in lines:
            texts = self._decode([raw[0].removeprefix(mark), *raw[1:]])
            yield Chunk(texts, partial(format_lines, first_line=first_line, options=self._options))
            first_line, mark = first_line + len(texts), b""

    def _decode(self, lines: list[bytes]) -> list[str]:
        lines = [line.removesuffix(b"\n") for line in lines]
        try:
            return [line.decode("utf-8") for line in lines]
        except UnicodeDecodeError:
            texts = [line.decode("utf-8", errors="replace") for line in lines]
            pairs = zip(lines, texts, strict=True)
            self.lines_replaced += sum(line != text.encode("utf-8") for line, text in pairs)
            return texts


class StructuredText:
    """A table or subtitles: texts among other text, which is written as it is.

    Args:
        read: Takes text from the beginning of a row or cue, and whether it is the last; gives its
            pieces and the text that is incomplete.

    Attributes:
        lines_replaced: Number of texts so far whose invalid UTF-8 was replaced by U+FFFD.
    """

    def __init__(self, read: Callable[[str, bool], tuple[list[Piece], str]]) -> None:
        self._read, self.lines_replaced = read, 0

    def chunks(self, lines: Iterable[list[bytes]]) -> Iterator[Chunk]:
        """Yields a chunk for each list of lines, then one of what these have left incomplete."""
        rest = ""
        for raw in chain(lines, [[]]):
            text = rest + b"".join(raw).decode("utf-8", "surrogateescape")
            pieces, rest = self._read(text, not raw)
            if raw or any(pieces):
                fields = [piece for piece in pieces if isinstance(piece, Field)]
                texts = list(map(self._replace, chain.from_iterable(f.texts for f in fields)))
                yield Chunk(texts, partial(_write, pieces))

    def _replace(self, text: str) -> str:
        """Replaces surrogates, which stand for invalid UTF-8 or come from JSON."""
        replaced = re.sub("[\ud800-\udfff]", "\ufffd", text)
        self.lines_replaced += replaced != text
        return replaced


def _write(pieces: list[Piece], translations: Sequence[Sequence[Translation]]) -> str:
    best = iter([ranked[0].text for ranked in translations])
    return "".join(
        piece if isinstance(piece, str) else piece.encode(list(islice(best, len(piece.texts))))
        for piece in pieces
    )


class TableReader:
    """Text to the pieces of a table; rows without a text to translate are kept and reported.

    Args:
        name: The file's name, for messages.
        table: Finds the text of a row.
    """

    def __init__(self, name: str, table: DelimitedTable | JsonLines) -> None:
        self._name, self._table, self._lines, self._kept = name, table, 0, list[int]()

    def read(self, text: str, is_last: bool) -> tuple[list[Piece], str]:
        """Gives the pieces of the rows, and the text of one that is incomplete."""
        place = int(not self._lines and text.startswith("\ufeff"))
        pieces: list[Piece] = [text[:place]]
        while place < len(text):
            end = self._table.row_end(text, place)
            if not end and not is_last and len(text) - place < MAX_INCOMPLETE:
                break
            row = text[place : end or line_end(text, place)]
            content = row.rstrip("\r\n")
            try:
                cell = self._table.find(content) if content else ""
            except (ValueError, LookupError, RecursionError):
                cell, row = "", row[: line_end(row, 0)]  # the fault may be a quote in this line
                content = ""
                self._kept.append(self._lines + 1)
            if isinstance(cell, str):
                pieces.append(cell + row[len(content) :])
            else:
                pieces += [row[: cell.begin], _field(cell), row[cell.end :]]
            place += len(row)
            self._lines += row.count("\n")
        if is_last and self._kept:
            numbers = ", ".join(f"{line:,}" for line in self._kept[:ROWS_NAMED])
            logger.warning(
                f"{self._name}: {len(self._kept):,} rows kept as they are, which cannot be parsed"
                f" or have no text in the column, first in line {numbers}"
            )
        return pieces, text[place:]


def _field(cell: Cell) -> Field:
    """Makes a field of a text that is translated by lines."""
    parts = re.split(r"(\r\n|\r|\n)", cell.text)

    def encode(lines: Sequence[str]) -> str:
        return cell.encode("".join(chain(*zip_longest(lines, parts[1::2], fillvalue=""))))

    return Field(parts[::2], encode)


def read_subtitles(text: str, is_last: bool) -> tuple[list[Piece], str]:
    """Gives the pieces of the blocks between blank lines, and the text of an incomplete one."""
    end, place = len(text), 0
    if not is_last and end < MAX_INCOMPLETE:
        blank_lines = re.finditer(r"^[^\S\n]*\n", text, re.MULTILINE)
        end = max((match.end() for match in blank_lines), default=0)
    pieces = list[Piece]()
    for match in _CUE.finditer(text, 0, end):
        pieces += [text[place : match.start(1)], _cue_field(match[1])]
        place = match.end()
    return [*pieces, text[place:end]], text[end:]


def _cue_field(cue: str) -> Field:
    """Makes a field of a cue: one text, or one per line if each begins with a speaker's dash."""
    starts, texts, ends = zip(*_CUE_LINE.findall(cue), strict=True)
    by_lines = all(re.search("[-–—]", start) for start in starts)

    def encode(translations: Sequence[str]) -> str:
        new = translations if by_lines else _break_lines(translations[0], len(texts))
        lines = map("".join, zip(starts, new, ends, strict=True))
        return "".join(line for line in lines if line.strip())  # a blank one would end the cue

    return Field(list(texts) if by_lines else [" ".join(filter(None, texts))], encode)


def _break_lines(text: str, count: int) -> list[str]:
    """Breaks a text at spaces into lines of similar length."""
    lines = []
    for left in range(count, 1, -1):
        spaces = (match.start() for match in re.finditer(" ", text))
        place = min(spaces, key=lambda space: abs(space - len(text) / left), default=len(text))
        lines.append(text[:place])
        text = text[place + 1 :]
    return [*lines, text]


def format_suffix(path: Path) -> str:
    """Returns the ending of a file's name that tells a table or subtitles; empty for others."""
    suffix = Path(path.name.removesuffix(compression_suffix(path))).suffix
    return suffix if suffix[1:].lower() in STRUCTURED_FORMATS else ""


def choose_format(
    path: Path | None, options: InputOptions, output: OutputOptions, n_best: int = 1
) -> PlainText | StructuredText:
    """Chooses the format of an input; None is stdin.

    Raises:
        ConfigError: If the options do not fit it.
    """
    name, kind, column = str(path or "stdin"), options.format, options.column
    if kind == "auto":
        kind = cast(InputFormat, path and format_suffix(path)[1:].lower()) or "text"
    if kind == "text":
        if column:
            raise ConfigError(
                f"{name}: --column needs a table: add --input-format tsv, csv or jsonl"
            )
        return PlainText(output)
    as_text = "to translate whole lines, add --input-format text"
    if n_best > 1 or output != OutputOptions():
        raise ConfigError(
            f"{name}: --n-best, --scores and --format jsonl are not for {kind}; {as_text}"
        )
    if kind in ("srt", "vtt"):
        return StructuredText(read_subtitles)
    if not column:
        raise ConfigError(
            f"{name}: add --column NAME for a table ({kind}), or --column NUMBER if its first row"
            f" has no names; {as_text}"
        )
    names = column, options.output_column or column
    table = JsonLines(*names) if kind == "jsonl" else DelimitedTable(name, kind == "csv", *names)
    return StructuredText(TableReader(name, table).read)
