"""The rules that drop training pairs, and what may be wrong with lines, which `init` only counts.

Pairs are dropped first by their text, then by their number of pieces.

If the decision of a rule changes for any pair, raise `CLEANING_VERSION`, so that corpora prepared
under the old rules are not reused. tests/text/test_cleaning.py checks this.
"""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

from transformer_mt.config.keys import DataConfig, NormalForm
from transformer_mt.system.console import logger
from transformer_mt.text.normalization import is_blank, normalize_text

CLEANING_VERSION = 2
"""Version of the rules; part of the fingerprint of a prepared corpus."""

PIECE_MARKS = {
    "@@ ": "cut into pieces with @@ (undo it: sed -E 's/@@( |$)//g')",
    "\u2581": "cut into pieces with U+2581 (undo it: sed 's/ //g; s/\u2581/ /g; s/^ //')",
}
"""Marks that other programs leave in text, of which a line may end in the first, as problems."""
CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""A C0 or C1 control character other than tab, LF and CR."""
_ENTITY = re.compile(r"&(#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]{2,8}\d{0,2});")
_LETTER = re.compile(r"[^\W\d_]")
_LETTER_NOT_LATIN = re.compile(r"[^\W\d_A-Za-z\u00aa-\u024f\u1e00-\u1eff]")
_MANY_CHANGED = 0.01
"""Share of references above which there is a warning if normalisation would change them."""
_EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA")
"""First words of the names of characters that Chinese and Japanese text mix."""
EAST_ASIAN = "Chinese or Japanese"
WITHOUT_SPACES = (EAST_ASIAN, "Thai", "Lao", "Khmer", "Myanmar", "Tibetan", "Tai", "Yi")
"""Scripts, as `script_of` names them, that hardly separate words."""


def reason_to_drop_text(
    config: DataConfig, src: str, tgt: str, seen_pairs: set[bytes]
) -> str | None:
    """Applies the rules about text.

    Args:
        config: Which rules are on, and their limits.
        src: Source text, without white space at its ends.
        tgt: Target text, likewise.
        seen_pairs: Digests of the pairs kept so far; a pair that is kept is added.

    Returns:
        Why the pair is dropped, or None to keep it.
    """
    if not src or not tgt:
        return "empty"
    if config.drop_identical and src == tgt:
        return "identical sides"
    if config.drop_control and CONTROL_CHARACTER.search(src + tgt):
        return "control characters"
    if config.min_letters and min(letter_share(src), letter_share(tgt)) < config.min_letters:
        return "too few letters"
    if config.drop_duplicates:
        # Of eight bytes, since all pairs would not fit into memory.
        digest = hashlib.blake2b(f"{src}\n{tgt}".encode(), digest_size=8).digest()
        if digest in seen_pairs:
            return "duplicate"
        seen_pairs.add(digest)
    return None


def reason_to_drop_pieces(config: DataConfig, src_pieces: int, tgt_pieces: int) -> str | None:
    """Applies the rules about length to numbers of pieces, without BOS and EOS.

    Returns:
        Why the pair is dropped, or None to keep it.
    """
    longer, shorter = max(src_pieces, tgt_pieces), min(src_pieces, tgt_pieces)
    if shorter == 0:
        return "empty"
    if longer > config.max_length:
        return f"over {config.max_length} pieces"
    if config.max_length_ratio and longer > config.max_length_ratio * shorter:
        return f"length ratio over {config.max_length_ratio:g}"
    return None


def letter_share(text: str) -> float:
    """Computes the share of letters among characters other than white space and combining marks."""
    kinds = [unicodedata.category(character)[0] for character in "".join(text.split())]
    # Many vowels are marks on letters; so are accents, if they are not composed.
    return kinds.count("L") / max(len(kinds) - kinds.count("M"), 1)


def describe_dropped(counts: Mapping[str, int]) -> str:
    """Formats the numbers of dropped pairs by reason as text."""
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.items())) or "none"


def warn_of_held_out(name: str, *sides: Sequence[str], form: NormalForm) -> None:
    """Warns of pairs with an empty side, and of references that no composed text can match.

    Args:
        name: What the text is, for people.
        sides: The sources, if there are any, and the references; all are scored as they are.
        form: How the model reads and writes text.
    """
    if empty := sum(any(map(is_blank, pair)) for pair in zip(*sides, strict=True)):
        logger.warning(
            f"{name}: {empty:,} of {len(sides[0]):,} pairs have an empty side and count in the"
            " scores; remove them, or read the two files with skip_empty = true"
        )
    changed = _count_changed(sides[-1], form)
    if changed > _MANY_CHANGED * len(sides[-1]):
        logger.warning(
            f"{name}: {changed:,} references have decomposed letters, ligatures or invisible"
            " characters, which a model with data.normalize = nfc never writes; normalise them, or"
            " scores are too low"
        )


def warn_of_other_form(name: str, hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Warns of a translation whose letters are composed otherwise than the references'."""
    changed, expected = (_count_changed(lines, "nfc") for lines in (hypotheses, references))
    if abs(changed - expected) > _MANY_CHANGED * len(references):
        logger.warning(
            f"{name}: {changed:,} lines have decomposed letters, ligatures or invisible characters,"
            f" but {expected:,} references; normalise both, or scores are too low"
        )


def _count_changed(lines: Sequence[str], form: NormalForm) -> int:
    return sum(normalize_text(line, form) != line for line in lines)


class LineProblems:
    """Counts the lines of one language by problem; memory does not grow with the text."""

    def __init__(self) -> None:
        self._counts = Counter[str]()
        self._scripts = Counter[str]()

    def add(self, line: str) -> None:
        """Counts a line."""
        self._counts["empty"] += is_blank(line)
        self._counts["with tabs"] += "\t" in line
        self._counts["with a space before the full stop (tokenised)"] += line.endswith(" .")
        for mark, problem in PIECE_MARKS.items():
            self._counts[problem] += mark in f"{line} "
        # Quick looks spare most lines the regular expressions.
        if "&" in line:
            self._counts["with HTML entities such as &amp;"] += bool(_ENTITY.search(line))
        if not line.isprintable():
            self._counts["with control characters"] += bool(CONTROL_CHARACTER.search(line))
        if script := script_of(line):
            self._scripts[script] += 1

    def __str__(self) -> str:
        """Lists the problems with their numbers of lines; empty if there are none."""
        counts = dict(self._counts)
        for script, lines in self._scripts.most_common(1):
            counts[f"not in {script} script"] = self._scripts.total() - lines
        return ", ".join(f"{count:,} {problem}" for problem, count in counts.items() if count)


def script_of(line: str) -> str:
    """Names the script of most letters of a line; empty without letters."""
    if line.isascii() or not _LETTER_NOT_LATIN.search(line):
        return "Latin" if _LETTER.search(line) else ""
    return Counter(map(_script_of_letter, _LETTER.findall(line))).most_common(1)[0][0]


def usual_script(lines: Sequence[str]) -> str:
    """Names the script of most lines that have letters; empty if none has."""
    scripts = Counter(filter(None, map(script_of, lines)))
    return max(scripts, key=scripts.__getitem__, default="")


def has_script(line: str, script: str) -> bool:
    """Returns whether a line has a letter of a script that `script_of` names."""
    return any(_script_of_letter(letter) == script for letter in _LETTER.findall(line))


@cache
def _script_of_letter(letter: str) -> str:
    script = unicodedata.name(letter, "unknown").split()[0]
    return EAST_ASIAN if script in _EAST_ASIAN else script.title()
