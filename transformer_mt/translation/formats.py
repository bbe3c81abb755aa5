"""What of an input is translated, and how its translations are written: text, tables, subtitles."""

import html
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import NamedTuple, Protocol

from transformer_mt.errors import ConfigError, DataError
from transformer_mt.system.console import logger
from transformer_mt.system.outputs import Fingerprint
from transformer_mt.system.streams import compression_suffix
from transformer_mt.text.normalization import INVISIBLE
from transformer_mt.text.splitting import has_words
from transformer_mt.text.tables import Cell, DelimitedTable, JsonLines, line_end
from transformer_mt.translation.options import STRUCTURED_FORMATS, OutputOptions, TranslateOptions
from transformer_mt.translation.translator import Translation

MAX_INCOMPLETE = 2**20
"""So many characters do not wait for the end of a row or cue: its quote is open by mistake."""
ROWS_NAMED = 5
"""Most rows that are reported by their numbers."""
_OTHER_ENDINGS = {"ndjson": "jsonl"}
_AS_TEXT = "add --input-format text"
_BREAK = r"\\N|<[bB][rR] ?/?>"
_TAG = rf"{_BREAK}|</?[A-Za-z][^<>\n]*>|<[\d:.]+>|\{{(?:\\|[A-Za-z]:)[^{{}}\n]*\}}"
"""Those of HTML, WebVTT, SubStation Alpha (`{\\an8}`) and MicroDVD (`{y:i}`)."""
_TIMES = r"^\ufeff?[^\S\n]*[\d:.,]+[^\S\n]*-->[^\S\n]*\d.*\n"
_CUE = re.compile(rf"{_TIMES}((?:(?!\r*\n|(?:\d+[^\S\n]*\n)?{_TIMES}).+(?:\n|\Z))+)", re.MULTILINE)
"""A line of times and the lines up to an empty one, or to the next cue."""
# Also as HTML and WebVTT write it. Lines of Arabic and Hebrew often begin with a mark of direction.
_INVISIBLE = f"[{INVISIBLE}]|&lrm;|&rlm;"
_BLANK = rf"[^\S\n]|&nbsp;|{_INVISIBLE}"
_GAP = rf"(?:{_TAG}|{_BLANK})*+"
_DASH = "[-\u2010-\u2015\uff0d]"
_CUE_LINE = re.compile(rf"(?=.)((?:{_TAG}|{_BLANK}|{_DASH})*+)((?:{_GAP}.)*+)({_GAP}(?:\n|\Z))")
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


class Reader(Protocol):
    """Cuts the text of a format into pieces; `kept` counts rows that are written as they are."""

    kept: int

    def read(self, text: str, is_last: bool) -> tuple[list[Piece], str]:
        """Gives the pieces of a text, and the end of it that is incomplete.

        Args:
            text: Begins with a line, row or cue.
            is_last: Whether the input ends with it.

        Raises:
            DataError: If the input is not of the format.
        """


class InputFormat:
    """Cuts an input into chunks; for one input alone.

    Args:
        reader: Cuts text.
        fingerprint: What decides the output beside the content of the input.
    """

    def __init__(self, reader: Reader, fingerprint: Fingerprint) -> None:
        self.fingerprint, self._reader, self._replaced = fingerprint, reader, 0

    @property
    def counts(self) -> dict[str, int]:
        """Texts so far whose invalid UTF-8 was replaced by U+FFFD, and rows kept as they are."""
        return {"replaced": self._replaced, "kept": self._reader.kept}

    def chunks(self, lines: Iterable[list[bytes]]) -> Iterator[Segment]:
        """Yields a chunk for each list of lines, then one of what these have left incomplete."""
        rest = ""
        for raw in chain(lines, [[]]):
            text = rest + b"".join(raw).decode("utf-8", "surrogateescape")
            pieces, rest = self._reader.read(text, not raw)
            if raw or any(pieces):
                chunk = join_segments(pieces)
                yield Segment([self._replace(text) for text in chunk.texts], chunk.write)

    def _replace(self, text: str) -> str:
        """Replaces surrogates, which stand for bytes that are not UTF-8."""
        replaced = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        self._replaced += replaced != text
        return replaced


def join_segments(pieces: Sequence[Piece]) -> Segment:
    """Makes one segment of all pieces of a text."""
    texts = [text for piece in pieces if isinstance(piece, Segment) for text in piece.texts]
    return Segment(texts, partial(_write, pieces))


def _write(pieces: Sequence[Piece], translations: Sequence[Sequence[Translation]]) -> str:
    left = iter(translations)
    return "".join(
        piece if isinstance(piece, str) else piece.write(list(islice(left, len(piece.texts))))
        for piece in pieces
    )


def format_lines(
    translations: Sequence[Sequence[Translation]],
    first_line: int,
    options: OutputOptions,
    file: str | None = None,
) -> str:
    """Formats the translations of consecutive lines, each ended by a line feed.

    Those of each line are the best first; lines are numbered from 1. JSON names the file.
    """
    rows = []
    for line, ranked in enumerate(translations, start=first_line):
        for rank, translation in enumerate(ranked, start=1):
            if options.format == "jsonl":
                score = None if math.isnan(translation.score) else translation.score
                row = {"file": file, "line": line, "rank": rank, "score": score}
                row |= {"text": translation.text, "parts": translation.parts}
                row["status"] = translation.status
                rows.append(json.dumps(row, ensure_ascii=False, allow_nan=False))
            elif options.with_scores:
                rows.append(f"{translation.score:.4f}\t{translation.text}")
            else:
                rows.append(translation.text)
    return "".join(f"{row}\n" for row in rows)


class _PlainText:
    """One segment; a byte order mark at its start is dropped."""

    def __init__(self, options: OutputOptions, name: str | None) -> None:
        self._format, self._lines = partial(format_lines, options=options, file=name), 0
        self.kept = 0

    def read(self, text: str, is_last: bool) -> tuple[list[Piece], str]:
        if is_last:
            return [], ""
        texts = text.removesuffix("\n").split("\n")
        if not self._lines:
            texts[0] = texts[0].removeprefix("\ufeff")
        write = partial(self._format, first_line=self._lines + 1)
        self._lines += len(texts)
        return [Segment(texts, write)], ""


class _Table:
    """Rows; those without a text to translate are kept and reported.

    Args:
        name: The file's name, for messages.
        table: Finds the texts of rows.
    """

    def __init__(self, name: str, table: DelimitedTable | JsonLines) -> None:
        self._name, self._table, self._lines, self._found = name, table, 0, 0
        self.kept, self._named = 0, list[str]()

    def read(self, text: str, is_last: bool) -> tuple[list[Piece], str]:
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
                self.kept += 1
                if self.kept <= ROWS_NAMED:
                    self._named.append(f"{self._lines + 1:,}")
            else:
                end = cell.row_end
                pieces += [text[place : cell.begin], _cell(cell), text[cell.end : end]]
                self._found += bool(cell.text)
            self._lines += text.count("\n", place, end)
            place = end
        if is_last and self.kept:
            self._report()
        return pieces, text[place:]

    def _report(self) -> None:
        """Reports rows that were kept; if there is no other row, this is another format."""
        lines = ", ".join([*self._named, *(["..."] if self.kept > ROWS_NAMED else [])])
        message = (
            f"{self._name}: rows not translated (not parsed, another number of cells, or no text"
            f" in the column): {self.kept:,}, in line {lines}"
        )
        if not self._found:
            raise DataError(message)
        logger.warning(message)


def _cell(cell: Cell) -> Segment:
    """Makes a segment of a text that is translated by lines; an empty one has none."""
    parts = re.split(r"(\r\n|\r|\n)", cell.text) if cell.text else []

    def write(translations: Sequence[Sequence[Translation]]) -> str:
        lines = (best.text for best, *_ in translations)
        return cell.encode("".join(chain(*zip_longest(lines, parts[1::2], fillvalue=""))))

    return Segment(parts[::2], write)


class _Subtitles:
    """Cues, of which numbers, times and settings are kept, and so is all between them."""

    def __init__(self, name: str) -> None:
        self._name, self._found, self._is_vtt, self.kept = name, False, False, 0

    def read(self, text: str, is_last: bool) -> tuple[list[Piece], str]:
        end, place = len(text), 0
        if not is_last:
            empty_lines = re.finditer(r"^\r*\n", text, re.MULTILINE)
            complete = max((match.end() for match in empty_lines), default=0)
            end = complete if end - complete < MAX_INCOMPLETE else end
        pieces = list[Piece]()
        self._is_vtt |= text.lstrip("\ufeff").startswith("WEBVTT")
        for match in _CUE.finditer(text, 0, end):
            pieces += [text[place : match.start(1)], _cue(match[1], self._is_vtt)]
            place = match.end()
        pieces.append(text[place:end])
        self._found |= place > 0
        lines = (x for each in pieces if isinstance(each, str) for x in each.splitlines())
        self.kept += sum(map(self._is_kept, lines))
        if is_last and self.kept and not self._found:
            raise DataError(f"{self._name}: has no cues; to translate its lines, {_AS_TEXT}")
        if is_last and self.kept:
            logger.warning(f"{self._name}: lines outside of cues, not translated: {self.kept:,}")
        return pieces, text[end:]

    def _is_kept(self, line: str) -> bool:
        """Returns whether a line outside of cues may be text, or times that were not understood."""
        if self._is_vtt:  # it may have notes, styles and names of cues there
            return bool(re.search("(?<!-)->", line))
        return "-->" not in line and has_words(line)


def _cue(cue: str, is_vtt: bool) -> Segment:
    """Makes a segment of a cue: one text for each speaker, who begins a line with a dash.

    Tags within the text would make nonsense of its translation: they are dropped. WebVTT writes
    characters such as & and < as those of HTML.
    """
    lines = _CUE_LINE.findall(cue)
    if any(re.search(_TAG, text) for _, text, _ in lines):
        lines = [[re.sub(_TAG, "", re.sub(_BREAK, " ", part)) for part in line] for line in lines]
    starts, texts, ends = zip(*lines, strict=True)
    # A translation into another script would be shown in the wrong direction.
    starts, ends = (tuple(re.sub(_INVISIBLE, "", x) for x in y) for y in (starts, ends))
    spoken, is_new = list[list[str]](), True  # by each speaker
    for start, text in zip(starts, texts, strict=True):
        is_new |= bool(re.search(_DASH, re.sub(_TAG, "", start)))  # perhaps alone in its line
        if text:
            if is_new:
                spoken.append([])
            spoken[-1].append(html.unescape(text) if is_vtt else text)
            is_new = False

    def write(translations: Sequence[Sequence[Translation]]) -> str:
        best = (each.text for each, *_ in translations)
        said = (html.escape(text, quote=False) if is_vtt else text for text in best)
        left = chain.from_iterable(map(_break_lines, said, map(len, spoken)))
        new = [next(left) if text else "" for text in texts]
        written = map("".join, zip(starts, new, ends, strict=True))
        return "".join(line for line in written if line.strip("\r\n"))  # others end the cue

    return Segment([" ".join(lines) for lines in spoken], write)


def _break_lines(text: str, count: int) -> list[str]:
    """Breaks a text at spaces into lines of similar length: a word is where its middle falls."""
    lines, place = [list[str]() for _ in range(count)], 0
    length = len(" ".join(text.split()))
    for word in text.split():
        middle = place + len(word) / 2
        lines[int(count * middle / length)].append(word)
        place += len(word) + 1
    filled = [" ".join(words) for words in lines if words]  # a single word is the first line
    return filled + [""] * (count - len(filled))


def format_suffix(path: Path) -> str:
    """Returns the ending of a file's name that tells a table or subtitles; empty for others."""
    suffix = Path(path.name.removesuffix(compression_suffix(path))).suffix
    return suffix if suffix[1:].lower() in (*STRUCTURED_FORMATS, *_OTHER_ENDINGS) else ""


def name_without_format(path: Path) -> str:
    """Returns the name of a file without the endings of its format and compression."""
    return path.name.removesuffix(format_suffix(path) + compression_suffix(path))


def choose_format(path: Path | None, options: TranslateOptions) -> InputFormat:
    """Chooses the format of an input; None is stdin. Text and subtitles have no columns.

    Raises:
        ConfigError: If the options do not fit it.
    """
    name, column = str(path or "stdin"), options.input.column
    kind: str = options.input.format
    if kind == "auto":
        ending = format_suffix(path)[1:].lower() if path else ""
        kind = _OTHER_ENDINGS.get(ending, ending) or "text"
    fingerprint: Fingerprint = {"input_format": kind}
    if kind == "text":
        file = os.fsencode(path).decode("utf-8", "replace") if path else None
        if options.output.format == "jsonl":
            fingerprint["file"] = file
        return InputFormat(_PlainText(options.output, file), fingerprint)
    if options.search.n_best > 1 or options.output != OutputOptions():
        raise ConfigError(
            f"{name}: --n-best, --scores and --format are not supported for {kind}; to translate"
            f" its lines, {_AS_TEXT}"
        )
    if kind in ("srt", "vtt"):
        return InputFormat(_Subtitles(name), fingerprint)
    if not column:
        raise ConfigError(
            f"{name}: is a table ({kind}): add --column NAME, or --column NUMBER if its first row"
            f" has no names; to translate its lines, {_AS_TEXT}"
        )
    columns = [column, options.input.output_column or column]  # as JSON gives it back
    table: DelimitedTable | JsonLines = JsonLines(*columns)
    if kind != "jsonl":
        table = DelimitedTable(name, kind == "csv", *columns)
    return InputFormat(_Table(name, table), {**fingerprint, "columns": columns})
