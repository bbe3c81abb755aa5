"""Fonts for text of any script, among those that are installed."""

import logging
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache

from matplotlib import font_manager

logger = logging.getLogger(__name__)

DEFAULT_FAMILY = "DejaVu Sans"
"""Comes with Matplotlib; Latin, Greek, Cyrillic, Arabic and more."""
_MAX_NAME = 48
_PLACEHOLDERS = "Last Resort"
"""Placeholder fonts, which draw every character as a box naming its script; Matplotlib has one."""
UNDRAWABLE = "\N{WHITE SQUARE}"
"""What is drawn for a character that no font has."""


def choose_fonts(texts: Iterable[str]) -> tuple[list[str], set[str]]:
    """Chooses installed fonts that together cover the characters of the texts.

    Args:
        texts: The texts to draw.

    Returns:
        Families in the order in which Matplotlib is to look for a character, and the characters
        that none of them has.
    """
    wanted = {character for text in texts for character in text if not character.isspace()}
    families = [DEFAULT_FAMILY]
    missing = {c for c in wanted if _is_control(c) or ord(c) not in _characters(_default_path())}
    candidates = {
        entry.name: entry.fname
        for entry in font_manager.fontManager.ttflist
        if not entry.name.startswith(_PLACEHOLDERS)
    }
    for family, path in sorted(candidates.items()):
        if has := {c for c in missing if not _is_control(c) and ord(c) in _characters(path)}:
            families.append(family)
            missing -= has
    return families, missing


def drawable(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Makes texts drawable: finds fonts, and replaces the characters that no font has.

    A warning names those characters.

    Args:
        texts: The texts to draw.

    Returns:
        The texts, and the families to draw them in.
    """
    families, missing = choose_fonts(texts)
    if shown := sorted(c for c in missing if not _is_control(c)):
        logger.warning(
            "no installed font has %s; drawn as %s: install a font for this script",
            " ".join(f"{c} (U+{ord(c):04X})" for c in shown[:10])
            + (f" and {len(shown) - 10} more characters" if len(shown) > 10 else ""),
            UNDRAWABLE,
        )
    replacements = str.maketrans(dict.fromkeys(missing, UNDRAWABLE))
    return [" ".join(text.split()).translate(replacements) for text in texts], families


def drawable_names(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Makes names of runs or files drawable; only the end of a long name is kept.

    Args:
        names: The names.

    Returns:
        The names, and the families to draw them in.
    """
    return drawable(
        [name if len(name) <= _MAX_NAME else f"…{name[1 - _MAX_NAME :]}" for name in names]
    )


def _is_control(character: str) -> bool:
    """Tells whether a character is a control or format character, a surrogate or unassigned."""
    return unicodedata.category(character).startswith("C")


def _default_path() -> str:
    return font_manager.findfont(DEFAULT_FAMILY)


@cache
def _characters(path: str) -> frozenset[int]:
    """Returns the code points of a font; none if it cannot be read, such as a bitmap font."""
    try:
        return frozenset(font_manager.get_font(path).get_charmap())
    except (RuntimeError, OSError):
        return frozenset()
