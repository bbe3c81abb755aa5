"""The rules that drop training pairs: first by their text, then by their number of pieces.

If the decision of a rule changes for any pair, raise `CLEANING_VERSION`, so that corpora prepared
under the old rules are not reused. tests/text/test_cleaning.py checks this.
"""

import hashlib
import re
from collections.abc import Mapping

from transformer_mt.config.keys import DataConfig

CLEANING_VERSION = 1
"""Version of the rules; part of the fingerprint of a prepared corpus."""

CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""A C0 or C1 control character other than tab, LF and CR."""
_NOT_A_LETTER = re.compile(r"[\W\d_]")


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
    """Computes the share of letters among the characters of text that are not white space."""
    return len(_NOT_A_LETTER.sub("", text)) / len("".join(text.split()))


def describe_dropped(counts: Mapping[str, int]) -> str:
    """Formats the numbers of dropped pairs by reason as text."""
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.items())) or "none"
