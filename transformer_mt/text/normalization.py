"""Text as models read it, as `data.normalize` says: letters composed, nothing invisible."""

import re
import unicodedata

from transformer_mt.config.keys import NormalForm

INVISIBLE = "\u00ad\u061c\u200b\u2060\ufeff\u200e\u200f" + "".join(
    map(chr, [*range(0x202A, 0x202F), *range(0x2066, 0x206A)])
)
"""Soft hyphen, zero-width space, word joiner, byte order mark, marks of writing direction; some
scripts need the joiners."""
LIGATURES = dict(zip("ﬀﬁﬂﬃﬄﬅﬆ", "ff fi fl ffi ffl st st".split(), strict=True))
"""Text from PDF files has them where other text has letters."""
_REPLACED = re.compile(f"[{INVISIBLE}{''.join(LIGATURES)}]")


def normalize_text(text: str, form: NormalForm) -> str:
    """Applies a value of `data.normalize`; text that is normalised stays as it is."""
    if form == "none" or text.isascii():
        return text
    text = _REPLACED.sub(lambda match: LIGATURES.get(match[0], ""), text)
    # Last, since an invisible character may stand between a letter and its accent.
    return unicodedata.normalize("NFC", text)


def is_blank(text: str) -> bool:
    """Returns whether a text has only white space and invisible characters."""
    return not normalize_text(text, "nfc").strip()
