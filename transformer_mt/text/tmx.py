"""Translation memories in TMX files: pairs of segments in two languages, read as a stream.

Reference:
    TMX 1.4b Specification, LISA OSCAR recommendation, 2005.
"""

import logging
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from xml.etree.ElementTree import ParseError, XMLParser

from transformer_mt.errors import DataError
from transformer_mt.system.streams import compression_suffix, open_input, read_blocks

logger = logging.getLogger(__name__)

_CODE = {"bpt", "ept", "it", "ph", "ut"}
"""Inline elements that hold codes of the original document. A `sub` in them is text from elsewhere,
such as a footnote, which would interrupt the sentence."""
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_LISTED_LANGUAGES = 8


def is_tmx(path: Path) -> bool:
    """Tells by its name whether a file is in TMX, compressed or not."""
    return path.name.removesuffix(compression_suffix(path)).lower().endswith(".tmx")


def read_tmx(path: Path, src_lang: str, tgt_lang: str) -> Iterator[tuple[str, str]]:
    """Reads pairs of segments, each as one line; only a block of the file is in memory.

    Units without one of the languages are skipped; one warning counts them.

    Args:
        path: The file; also .gz, .xz or .zst.
        src_lang: Code of the source language: `de` also takes segments of `de-DE`.
        tgt_lang: Code of the target language, likewise.

    Raises:
        DataError: If the file cannot be read, is not XML, or has no pair of these languages.
    """
    pairs, skipped, languages = 0, 0, dict[str, None]()
    for segments in _read_units(path):
        src, tgt = _choose(segments, src_lang), _choose(segments, tgt_lang)
        if src is not None and tgt is not None:
            pairs += 1
            yield src, tgt
        else:
            skipped += 1
            if len(languages) < _LISTED_LANGUAGES:
                languages.update(dict.fromkeys(segments))
    wanted = f"{src_lang} and {tgt_lang}"
    if not pairs:
        others = f"; its languages are {', '.join(languages)}" if languages else ""
        raise DataError(f"{path}: no unit has segments in {wanted}{others}")
    if skipped:
        of_all = f"{skipped:,} of {pairs + skipped:,} units"
        _warn_once(f"{path}: skipped {of_all}, without segments in {wanted}")


@cache  # text is read twice to be prepared
def _warn_once(message: str) -> None:
    logger.warning(message)


def _read_units(path: Path) -> Iterator[dict[str, str]]:
    """Yields the segments of each unit by language."""
    events, line = _Events(), 1
    parser = XMLParser(target=events)
    try:
        with open_input(path) as stream:
            for block in read_blocks(stream, path):
                parser.feed(block)
                line += block.count(b"\n")
                yield from events.take_units()
        parser.close()
    except ParseError as error:
        text, _, _ = str(error).rpartition(": line ")
        raise DataError(f"{path}, line {error.position[0]}: not XML ({text})") from None
    except (LookupError, ValueError) as error:  # of the encoding that the file declares
        raise DataError(f"{path}, line {line}: not XML ({error})") from None
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
