"""Rules that drop training pairs."""

import hashlib
import re

from transformer_mt.config import DataConfig
from transformer_mt.text.corpus import Pair

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_NO_LETTER = re.compile(r"[\W\d_]")
_KEPT = ""


def describe_dropped(dropped: dict[str, int]) -> str:
    """Lists counts by reason."""
    return ", ".join(f"{count} {why}" for why, count in sorted(dropped.items())) or "none"


def _text_reason(config: DataConfig, pair: Pair, seen: set[bytes]) -> str:
    """Says why a pair is dropped as text; nothing if it is kept."""
    src, tgt = pair
    if not src or not tgt:
        return "empty"
    if config.drop_identical and src == tgt:
        return "identical sides"
    if config.drop_control and (_CONTROL.search(src) or _CONTROL.search(tgt)):
        return "control characters"
    if config.min_letters and min(map(_letters, pair)) < config.min_letters:
        return "too few letters"
    if config.drop_duplicates:
        digest = hashlib.blake2b(f"{src}\n{tgt}".encode(), digest_size=8).digest()
        if digest in seen:
            return "duplicate"
        seen.add(digest)
    return _KEPT


def _letters(text: str) -> float:
    return len(_NO_LETTER.sub("", text)) / len("".join(text.split()))


def _length_reason(config: DataConfig, src: int, tgt: int) -> str:
    """Says why a pair is dropped for its pieces; nothing if it is kept."""
    longer, shorter = max(src, tgt), min(src, tgt)
    if not shorter:
        return "empty"
    if longer > config.max_length:
        return f"over {config.max_length} pieces"
    if config.max_length_ratio and longer > config.max_length_ratio * shorter:
        return f"length ratio over {config.max_length_ratio:g}"
    return _KEPT
