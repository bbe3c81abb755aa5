"""What of an input is translated, and how its translations are written: text, tables, subtitles."""

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import NamedTuple

from transformer_mt.errors import ConfigError
from transformer_mt.system.streams import compression_suffix
from transformer_mt.text.tables import Cell, DelimitedTable, JsonLines, line_end
from transformer_mt.translation.options import STRUCTURED_FORMATS, OutputOptions, TranslateOptions
from transformer_mt.translation.translator import Translation, format_lines

logger = logging.getLogger(__name__)

MAX_INCOMPLETE = 2**20
"""So many characters do not wait for the end of a row or cue: its quote is open by mistake."""
ROWS_NAMED = 5
"""Most rows that are reported by their numbers."""
_MARKUP = r"(?:<[^<>\n]*>|\{[^{}\n]*\}|[^\S\r\n])"
_TIMES = r"\d *--> *\d.*\n"
_CUE = re.compile(rf"{_TIMES}((?:(?!(?:\d+\r?\n)?.*{_TIMES}).*\S.*(?:\n|\Z))+)")
"""A line of times and the lines up to a blank one, or to the next cue."""
_LINE_END = r"\r?(?:\n|\Z)"
_CUE_LINE = re.compile(
    rf"(?=.)((?:{_MARKUP}|[-–—])*+)((?:{_MARKUP}*+(?!{_LINE_END}).)*+)({_MARKUP}*+{_LINE_END})"
)
"""Tags and the dash of a speaker; the text; tags and the line end."""


class Segment(NamedTuple):
    """A part of a file that is translated: a chunk of it, or what stands in a cell or cue.

    Attributes:
        texts: What is to be translated for it.
        write: Gives what is written, given the translations of each text, the best first.
    """

    texts: Sequence[str]
    write: Callable[[Sequence[Sequence[Translation]]], str]


Piece = str | Segment
"""A part of a file; a string is written as it is."""


class InputFormat:
    """Cuts an input into chunks; for one input alone.

    Args:
        read: Takes text from the beginning of a line, row or cue, and whether it is the last; gives
            its pieces and the text that is incomplete.

    Attributes:
        lines_replaced: Number of texts so far whose invalid UTF-8 was replaced by U+FFFD.
    """

    def __init__(self, read: Callable[[str, bool], tuple[list[Piece], str]]) -> None:
        self._read, self.lines_replaced = read, 0

    def chunks(self, lines: Iterable[list[bytes]]) -> Iterator[Segment]:
        """Yields a chunk for each list of lines, then one of what these have left incomplete."""
        rest = ""
        for raw in chain(lines, [[]]):
            text = rest + b"".join(raw).decode("utf-8", "surrogateescape")
            pieces, rest = self._read(text, not raw)
            if raw or any(pieces):
                parts = [piece for piece in pieces if isinstance(piece, Segment)]
                texts = [self._replace(text) for part in parts for text in part.texts]
                yield Segment(texts, partial(_write, pieces))

    def _replace(self, text: str) -> str:
        """Replaces surrogates, which stand for bytes that are not UTF-8."""
        replaced = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        self.lines_replaced += replaced != text
        return replaced


def _write(pieces: list[Piece], translations: Sequence[Sequence[Translation]]) -> str:
    left = iter(translations)
    return "".join(
        piece if isinstance(piece, str) else piece.write(list(islice(left, len(piece.texts))))
        for piece in pieces
    )


class PlainTextReader:
    """Text to one segment; a byte order mark at its start is dropped."""

    def __init__(self, path: Path | None, options: OutputOptions) -> None:
        name = os.fsencode(path).decode("utf-8", "replace") if path else None
        self._format, self._lines = partial(format_lines, options=options, file=name), 0

    def read(self, text: str, is_last: bool) -> tuple[list[Piece], str]:
        """Gives the segment of all lines."""
        if is_last:
            return [], ""
        texts = text.removesuffix("\n").split("\n")
        if not self._lines:
            texts[0] = texts[0].removeprefix("\ufeff")
        write = partial(self._format, first_line=self._lines + 1)
        self._lines += len(texts)
        return [Segment(texts, write)], ""


class TableReader:
    """Text to the pieces of a table; rows without a text to translate are kept and reported.

    Args:
        name: The file's name, for messages.
        table: Finds the texts of rows.
    """

    def __init__(self, name: str, table: DelimitedTable | JsonLines) -> None:
        self._name, self._table, self._lines, self._kept = name, table, 0, list[int]()

    def read(self, text: str, is_last: bool) -> tuple[list[Piece], str]:
        """Gives the pieces of the rows, and the text of one that is incomplete."""
        place = int(not self._lines and text.startswith("\ufeff"))
        pieces: list[Piece] = [text[:place]]
        while place < len(text):
            try:
                cell = self._table.find(text, place)
            except (EOFError, ValueError, LookupError, RecursionError) as error:
                is_cut = isinstance(error, EOFError) and not is_last
                if is_cut and len(text) - place < MAX_INCOMPLETE:
                    break
                end = line_end(text, place)  # the fault may be a quote in its first line
                pieces.append(text[place:end])
                self._kept.append(self._lines + 1)
            else:
                end = cell.row_end
                pieces += [text[place : cell.begin], _cell(cell), text[cell.end : end]]
            self._lines += text.count("\n", place, end)
            place = end
        if is_last and self._kept:
            lines = ", ".join(map(str, self._kept[:ROWS_NAMED]))
            logger.warning(
                f"{self._name}: rows kept as they are, without a text in the column or not in the"
                f" format: {len(self._kept):,}, in line {lines}"
            )
        return pieces, text[place:]


def _cell(cell: Cell) -> Segment:
    """Makes a segment of a text that is translated by lines."""
    parts = re.split(r"(\r\n|\r|\n)", cell.text)

    def write(translations: Sequence[Sequence[Translation]]) -> str:
        lines = (best.text for best, *_ in translations)
        return cell.encode("".join(chain(*zip_longest(lines, parts[1::2], fillvalue=""))))

    return Segment(parts[::2], write)


def read_subtitles(text: str, is_last: bool) -> tuple[list[Piece], str]:
    """Gives the pieces of the blocks between blank lines, and the text of an incomplete one."""
    end, place = len(text), 0
    if not is_last and end < MAX_INCOMPLETE:
        blank_lines = re.finditer(r"^[^\S\n]*\n", text, re.MULTILINE)
        end = max((match.end() for match in blank_lines), default=0)
    pieces = list[Piece]()
    for match in _CUE.finditer(text, 0, end):
        pieces += [text[place : match.start(1)], _cue(match[1])]
        place = match.end()
    return [*pieces, text[place:end]], text[end:]


def _cue(cue: str) -> Segment:
    """Makes a segment of a cue: one text, or one per line if each begins with a speaker's dash."""
    starts, texts, ends = zip(*_CUE_LINE.findall(cue), strict=True)
    by_lines = all(re.search("[-–—]", start) for start in starts)

    def write(translations: Sequence[Sequence[Translation]]) -> str:
        new = [best.text for best, *_ in translations]
        if not by_lines:
            new = _break_lines(new[0], len(texts))
        lines = map("".join, zip(starts, new, ends, strict=True))
        return "".join(line for line in lines if line.strip())  # a blank one would end the cue

    return Segment(texts if by_lines else [" ".join(filter(None, texts))], write)


def _break_lines(text: str, count: int) -> list[str]:
    """Breaks a text at spaces into lines of similar length: a word is where its middle falls."""
    lines, place = [list[str]() for _ in range(count)], 0
    for word in text.split(" "):
        middle = place + len(word) / 2
        lines[int(count * middle / max(len(text), 1))].append(word)
        place += len(word) + 1
    return [" ".join(words) for words in lines]


def format_suffix(path: Path) -> str:
    """Returns the ending of a file's name that tells a table or subtitles; empty for others."""
    suffix = Path(path.name.removesuffix(compression_suffix(path))).suffix
    return suffix if suffix[1:].lower() in STRUCTURED_FORMATS else ""


def choose_format(path: Path | None, options: TranslateOptions) -> InputFormat:
    """Chooses the format of an input; None is stdin.

    Raises:
        ConfigError: If the options do not fit it.
    """
    name, column = str(path or "stdin"), options.input.column
    kind: str = options.input.format
    if kind == "auto":
        kind = (format_suffix(path)[1:].lower() if path else "") or "text"
    names = column or "", options.input.output_column or column or ""
    if kind == "text":
        if any(names):
            raise ConfigError(f"{name}: columns need --input-format tsv, csv or jsonl")
        return InputFormat(PlainTextReader(path, options.output).read)
    as_text = "to translate its lines as text, add --input-format text"
    if options.search.n_best > 1 or options.output != OutputOptions():
        raise ConfigError(f"{name}: {kind} allows no --n-best, --scores or --format; {as_text}")
    if kind in ("srt", "vtt"):
        return InputFormat(read_subtitles)
    if not column:
        message = "add --column NAME, or --column NUMBER if its first row has no names"
        raise ConfigError(f"{name}: is a table ({kind}): {message}; {as_text}")
    table = JsonLines(*names) if kind == "jsonl" else DelimitedTable(name, kind == "csv", *names)
    return InputFormat(TableReader(name, table).read)
