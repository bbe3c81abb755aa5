"""Translation memories in TMX files: pairs of segments in two languages, read as a stream.

Reference:
    TMX 1.4b Specification, LISA OSCAR recommendation, 2005.
"""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree.ElementTree import ParseError, XMLParser

from transformer_mt.errors import DataError
from transformer_mt.system.streams import (
    BLOCK_BYTES,
    compression_suffix,
    open_decompressed,
    reading,
)

logger = logging.getLogger(__name__)

_CODE = {"bpt", "ept", "it", "ph", "ut"}
"""Inline elements that hold codes of the original document. A `sub` in them is text from elsewhere,
such as a footnote, which would interrupt the sentence."""
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_LISTED_LANGUAGES = 8


def is_tmx(path: Path) -> bool:
    """Tells by its name whether a file is in TMX, compressed or not."""
    return path.name.removesuffix(compression_suffix(path)).lower().endswith(".tmx")


class TmxFile:
    """The pairs of a file. Units without one of the languages are skipped; one warning counts them.

    Args:
        path: The file; also .gz, .xz or .zst.
        src_lang: Code of the source language: `de` also takes segments of `de-DE`.
        tgt_lang: Code of the target language, likewise.
    """

    def __init__(self, path: Path, src_lang: str, tgt_lang: str) -> None:
        self._path, self._src_lang, self._tgt_lang = path, src_lang, tgt_lang
        self._has_warned = False

    def read(self) -> Iterator[tuple[str, str]]:
        """Reads pairs of segments, each as one line; only one unit is in memory.

        Raises:
            DataError: If the file cannot be read, is not XML, or has no pair of these languages.
        """
        pairs, skipped, languages = 0, 0, dict[str, None]()
        for segments in self._read_units():
            src, tgt = _choose(segments, self._src_lang), _choose(segments, self._tgt_lang)
            if src is not None and tgt is not None:
                pairs += 1
                yield src, tgt
            else:
                skipped += 1
                if len(languages) < _LISTED_LANGUAGES:
                    languages.update(dict.fromkeys(segments))
        wanted = f"{self._src_lang} and {self._tgt_lang}"
        if not pairs:
            others = f"; its languages are {', '.join(languages)}" if languages else ""
            raise DataError(f"{self._path}: no unit has segments in {wanted}{others}")
        if skipped and not self._has_warned:
            self._has_warned = True
            of_all = f"{skipped:,} of {pairs + skipped:,} units"
            logger.warning(f"{self._path}: skipped {of_all}, without segments in {wanted}")

    def _read_units(self) -> Iterator[dict[str, str]]:
        """Yields the segments of each unit by language."""
        events, line = _Events(), 1
        parser = XMLParser(target=events)
        try:
            with reading(self._path), open_decompressed(self._path) as file:
                while block := file.read(BLOCK_BYTES):
                    parser.feed(block)
                    line += block.count(b"\n")
                    yield from events.take_units()
            parser.close()
        except ParseError as error:
            text, _, _ = str(error).rpartition(": line ")
            raise DataError(f"{self._path}, line {error.position[0]}: not XML ({text})") from None
        except (LookupError, ValueError) as error:  # of the encoding that the file declares
            raise DataError(f"{self._path}, line {line}: not XML ({error})") from None
        yield from events.take_units()


class _Events:
    """Collects the segments of units from the events of an XML parser."""

    def __init__(self) -> None:
        self._units = list[dict[str, str]]()
        self._segments = dict[str, str]()
        self._language = ""
        self._text = list[str]()
        self._code_depth = 0  # elements that are open, from one of `_CODE` on

    def take_units(self) -> list[dict[str, str]]:
        """Returns the units that ended since the last call."""
        units, self._units = self._units, []
        return units

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Takes the beginning of an element."""
        name = tag.rpartition("}")[2]
        if self._code_depth or name in _CODE:
            self._code_depth += 1
        elif name == "tu":
            self._segments = {}
        elif name == "tuv":
            self._language = attributes.get(_LANGUAGE) or attributes.get("lang", "")
        elif name == "seg":
            self._text = []

    def data(self, text: str) -> None:
        """Takes text, which is that of a segment if the end of one follows."""
        if not self._code_depth:
            self._text.append(text)

    def end(self, tag: str) -> None:
        """Takes the end of an element."""
        name = tag.rpartition("}")[2]
        if self._code_depth:
            self._code_depth -= 1
        elif name == "seg":
            self._segments.setdefault(self._language, " ".join("".join(self._text).split()))
            self._text = []
        elif name == "tu":
            self._units.append(self._segments)


def _choose(segments: Mapping[str, str], language: str) -> str | None:
    """Returns the segment of a language, rather than of a regional variety; None without either."""
    wanted = f"{language.lower().replace('_', '-')}-"
    codes = [code for code in segments if f"{code.lower().replace('_', '-')}-".startswith(wanted)]
    return segments[min(codes, key=len)] if codes else None
