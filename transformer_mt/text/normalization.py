"""Text as models read it: composed, and without invisible characters, as `data.normalize` says."""

import unicodedata

from transformer_mt.config.keys import NormalForm

INVISIBLE = "\u00ad\u200b\u2060\ufeff"
"""Soft hyphen, zero-width space, word joiner, byte order mark; some scripts need the joiners."""
_WITHOUT_INVISIBLE = str.maketrans("", "", INVISIBLE)


def normalize_text(text: str, form: NormalForm) -> str:
    """Applies a value of `data.normalize`; text that is normalised stays as it is."""
    if form == "none" or text.isascii():
        return text
    if not text.isprintable():  # true of most lines, and invisible characters are not printable
        text = text.translate(_WITHOUT_INVISIBLE)
    # Last, since an invisible character may stand between a letter and its accent.
    return unicodedata.normalize("NFC", text)


def is_blank(text: str) -> bool:
    """Tells whether a text has only white space and invisible characters."""
    return not normalize_text(text, "nfc").strip()
