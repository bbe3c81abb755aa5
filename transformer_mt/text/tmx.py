"""Translation memories in TMX files: pairs of segments in two languages, read as a stream.

Reference:
    TMX 1.4b Specification, LISA OSCAR recommendation, 2005.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from xml.etree.ElementTree import Element, ParseError, iterparse

from transformer_mt.errors import DataError
from transformer_mt.system.console import logger
from transformer_mt.system.streams import compression_suffix, open_input, read_blocks

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
        if src and tgt and src != tgt:  # pt and pt-BR may both choose pt-BR
            pairs += 1
            yield segments[src], segments[tgt]
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
    body = Element("body")
    try:
        with open_input(path) as stream:
            blocks = read_blocks(stream, path)
            source = SimpleNamespace(read=lambda _: next(blocks, b""))
            for event, element in iterparse(source, ("start", "end")):
                if event == "start" and _name(element) == "body":
                    body = element
                elif event == "end" and _name(element) == "tu":
                    yield _segments(element)
                    body.clear()  # else the tree would fill the memory
    except ParseError as error:
        text, _, _ = str(error).rpartition(": line ")
        raise DataError(f"{path}, line {error.position[0]}: not XML ({text})") from None
    # Of the encoding that the file declares, or of too many elements within each other.
    except (LookupError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not XML ({error})") from None


def _segments(unit: Element) -> dict[str, str]:
    """Returns the segments of a unit, on one line each, by language; the first of a language."""
    segments = dict[str, str]()
    for variant in unit:
        language = variant.get(_LANGUAGE) or variant.get("lang") or ""
        for segment in variant:
            if _name(segment) == "seg":
                segments.setdefault(language, " ".join(_text(segment).split()))
    return segments


def _text(element: Element) -> str:
    """Joins the text in an element, but for that of codes."""
    inner = (
        ("" if _name(child) in _CODE else _text(child)) + (child.tail or "") for child in element
    )
    return (element.text or "") + "".join(inner)


def _name(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def _choose(segments: Mapping[str, str], language: str) -> str | None:
    """Returns the code of a language, rather than of a regional variety; None without either."""
    wanted = f"{language.lower().replace('_', '-')}-"
    codes = [code for code in segments if f"{code.lower().replace('_', '-')}-".startswith(wanted)]
    return min(codes, key=len, default=None)
