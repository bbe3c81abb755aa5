"""What is probably wrong with the lines of a text: counted and reported, never changed."""

import re
import unicodedata
from collections import Counter
from functools import cache

from transformer_mt.text.cleaning import CONTROL_CHARACTER

_ENTITY = re.compile(r"&(#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]{2,8}\d{0,2});")
_LETTER = re.compile(r"[^\W\d_]")
_LETTER_NOT_LATIN = re.compile(r"[^\W\d_A-Za-z\u00aa-\u024f\u1e00-\u1eff]")
_EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA")
"""First words of the names of characters that Chinese and Japanese text mix."""


class LineProblems:
    """Counts the lines of one language by problem; memory does not grow with the text."""

    def __init__(self) -> None:
        self._counts = Counter[str]()
        self._scripts = Counter[str]()

    def add(self, line: str) -> None:
        """Counts a line."""
        self._counts["empty"] += not line.strip()
        self._counts["with tabs"] += "\t" in line
        # Quick looks spare most lines the regular expressions.
        if "&" in line:
            self._counts["with HTML entities such as &amp;"] += bool(_ENTITY.search(line))
        if not line.isprintable():
            self._counts["with control characters"] += bool(CONTROL_CHARACTER.search(line))
        if script := _script(line):
            self._scripts[script] += 1

    def __str__(self) -> str:
        """Lists the problems with their numbers of lines; empty if there are none."""
        counts = dict(self._counts)
        for script, lines in self._scripts.most_common(1):
            counts[f"not in {script} script"] = self._scripts.total() - lines
        return ", ".join(f"{count:,} {problem}" for problem, count in counts.items() if count)


def _script(line: str) -> str:
    """Names the script of most letters of a line; empty without letters."""
    if line.isascii() or not _LETTER_NOT_LATIN.search(line):
        return "Latin" if _LETTER.search(line) else ""
    scripts = Counter(map(_script_of, _LETTER.findall(line)))
    return scripts.most_common(1)[0][0]


@cache
def _script_of(letter: str) -> str:
    script = unicodedata.name(letter, "unknown").split()[0]
    return "Chinese or Japanese" if script in _EAST_ASIAN else script.title()
