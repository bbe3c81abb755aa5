"""The rules that drop pairs, a golden test of what they decide, and lines that may be wrong."""

import hashlib
import json
import re
import shlex
import subprocess
import unicodedata

import pytest

from transformer_mt.config.keys import DataConfig
from transformer_mt.text import cleaning
from transformer_mt.text.cleaning import CLEANING_VERSION, PIECE_MARKS, warn_of_held_out

PERMISSIVE = DataConfig(path="corpus", max_length=20)
DROPS = dict.fromkeys(("drop_duplicates", "drop_identical", "drop_control"), True)
STRICT = PERMISSIVE.model_copy(update={**DROPS, "max_length_ratio": 2.5, "min_letters": 0.5})

TEXTS: list[tuple[str, str, str | None, str | None]] = [
    # source, target, reason under STRICT, reason under PERMISSIVE
    ("ein Haus", "a house", None, None),
    ("ein Haus", "a house", "duplicate", None),
    ("ein Haus", "one house", None, None),
    ("das Haus", "a house", None, None),
    ("Ein Haus", "a house", None, None),
    ("ein  Haus", "a house", None, None),
    ("", "a house", "empty", "empty"),
    ("ein Haus", "", "empty", "empty"),
    ("", "", "empty", "empty"),
    ("Hotel", "Hotel", "identical sides", None),
    ("Hotel", "hotel", None, None),
    ("12", "12", "identical sides", None),
    ("Glocke \x07", "bell", "control characters", None),
    ("Glocke", "bell \x00", "control characters", None),
    ("a\x0cb", "form feed", "control characters", None),
    ("a\x0bb", "vertical tab", "control characters", None),
    ("a\x1fb", "unit separator", "control characters", None),
    ("a\x7fb", "delete", "control characters", None),
    ("a\x85b", "next line", "control characters", None),
    ("a\x9fb", "last of C1", "control characters", None),
    ("a\tb", "tab", None, None),
    ("a\rb", "carriage return", None, None),
    ("a\u2028b", "line separator", None, None),
    ("a\u200bb", "zero width", None, None),
    ("a\u00a0b", "no-break space", None, None),
    ("a\ufffdb", "replacement", None, None),
    ("ab12", "half letters", None, None),
    ("ab123", "fewer than half", "too few letters", None),
    ("viele Buchstaben", "1 2 3", "too few letters", None),
    ("a_b_c_d", "underscores are no letters", None, None),
    ("a_b__", "underscores are no letters", "too few letters", None),
    ("\u00fc\u00df \u65e5\u672c", "letters of any script", None, None),
    ("\U0001f600\U0001f600 a", "symbols", "too few letters", None),
    ("a     1", "spaces are not counted", None, None),
    ("\u0661\u0662 a", "digits of any script", "too few letters", None),
    ("e\u0301", "combining accent", None, None),
    ("မြန်မာဘာသာ စကားသည်", "vowels that are combining marks", None, None),
    ("\u0301", "a mark alone", "too few letters", None),
    ("e\u0301\u0323", "marks on one letter", None, None),
]
PIECES: list[tuple[int, int, str | None, str | None]] = [
    (1, 1, None, None),
    (0, 3, "empty", "empty"),
    (3, 0, "empty", "empty"),
    (0, 0, "empty", "empty"),
    (20, 20, None, None),
    (21, 20, "over 20 pieces", "over 20 pieces"),
    (20, 21, "over 20 pieces", "over 20 pieces"),
    (10, 4, None, None),
    (4, 10, None, None),
    (11, 4, "length ratio over 2.5", None),
    (4, 11, "length ratio over 2.5", None),
    (30, 1, "over 20 pieces", "over 20 pieces"),
]
GOLDEN = {
    1: "d6b2e95af4163b2ec9e6aad4ce25128835df814d7e2b867d058f1d3826db9743",
    2: "6b4f270136f2d0a44f113a3b626a137b3c89c4ad57dbc86b2ac2898ecfb214ee",
}
"""Digest of the cases above and of what is decided about them, for each `CLEANING_VERSION`."""


def decisions(config: DataConfig) -> list[list[str | None]]:
    seen_pairs = set[bytes]()
    return [
        [cleaning.reason_to_drop_text(config, src, tgt, seen_pairs) for src, tgt, *_ in TEXTS],
        [cleaning.reason_to_drop_pieces(config, src, tgt) for src, tgt, *_ in PIECES],
    ]


@pytest.mark.parametrize(("config", "column"), [(STRICT, 2), (PERMISSIVE, 3)])
def test_reasons(config, column):
    """Every rule drops what it names, and nothing if it is off."""
    texts, pieces = decisions(config)
    for case, reason in zip([*TEXTS, *PIECES], [*texts, *pieces], strict=True):
        assert reason == case[column], case[:2]
    dropped = {"over 9 pieces": 1, "empty": 2000}
    assert cleaning.describe_dropped(dropped) == "2,000 empty, 1 over 9 pieces"


def test_a_changed_rule_needs_a_new_version():
    """If a rule decides differently, raise `CLEANING_VERSION` and add the digest to `GOLDEN`.

    Replace the digest of the current version only if nothing but a case was added.
    """
    raw = json.dumps([TEXTS, PIECES, decisions(STRICT), decisions(PERMISSIVE)]).encode()
    assert GOLDEN[CLEANING_VERSION] == hashlib.sha256(raw).hexdigest()
    assert len(set(GOLDEN.values())) == len(GOLDEN) == CLEANING_VERSION


GERMAN = ["Das ist gut.", "Größe 2", "a & b; c&d", "3.14", "naïve Œuvre ſ ﬁ", "..."]
RUSSIAN = ["Это город.", "Москва 2", "в IBM работают", "Ёлка"]
JAPANESE = ["東京", "きれいなスーパー", "中文字"]


@pytest.mark.parametrize(
    ("lines", "problems"),
    [
        (GERMAN, ""),
        (RUSSIAN, ""),
        (JAPANESE, ""),
        ([*GERMAN, "", " \u3000"], "2 empty"),
        ([*GERMAN, "a\tb\tc"], "1 with tabs"),
        (["می\u200cخواهم", "\u200fخواهم"], ""),
        (["Das ist gut .", "Das ist 1 ."], "2 with a space before the full stop (tokenised)"),
        (["AT&amp;T", "&#39;", "&#x27;", "&frac12;"], "4 with HTML entities such as &amp;"),
        (["a\x00b", "a\x85b", "a\u200bb", "a\u061cb"], "2 with control characters"),
        ([*GERMAN, *RUSSIAN[:2], "Москва Bonn город"], "3 not in Latin script"),
        ([*RUSSIAN, "Bonn", "12"], "1 not in Cyrillic script"),
        ([*JAPANESE, "서울", "Bonn"], "2 not in Chinese or Japanese script"),
        (["", "a\tb", "a\tb"], "1 empty, 2 with tabs"),
        (["Männ@@ er", "Mann", "Ki@@", "a@b @@c"], f"2 {PIECE_MARKS['@@ ']}"),
        (["▁Männ er ▁da", "Mann"], f"1 {PIECE_MARKS['▁']}"),
    ],
)
def test_lines_by_problem(lines, problems):
    """Each line once for each problem; one script is that of most lines."""
    counted = cleaning.LineProblems()
    for line in lines:
        counted.add(line)
    assert str(counted) == problems


def test_the_command_that_undoes_cut_text():
    """It is part of the message, and gives the words again."""
    for mark, text in ("@@ ", "Männ@@ er da@@\na@b @@c\n"), ("▁", "▁Männ er ▁da\n▁a@b ▁@ @c\n"):
        command = re.search(r"undo it: (sed .*)\)$", PIECE_MARKS[mark])[1]
        undone = subprocess.run(shlex.split(command), input=text, capture_output=True, text=True)
        assert undone.stdout == "Männer da\na@b @@c\n"


def test_what_is_wrong_with_held_out_text(caplog):
    """Empty sides, blank and invisible ones too, and references that no composed text matches."""
    good = [f"Größe {i}" for i in range(100)]
    warn_of_held_out("it", good, good, form="nfc")
    assert not caplog.messages
    warn_of_held_out("it", ["", *good[1:]], [*good[:98], " ", "\u200b"], form="nfc")
    decomposed = [unicodedata.normalize("NFD", line) for line in good]
    warn_of_held_out("it", decomposed, [decomposed[0], *good[1:]], form="nfc")  # a hundredth
    warn_of_held_out("it", decomposed, form="none")  # what such a model can write
    warn_of_held_out("it", [*good[:98], *decomposed[98:]], form="nfc")  # references alone
    empty, composed = caplog.messages
    assert empty.startswith("it: 3 of 100 pairs have an empty") and "skip_empty = true" in empty
    assert composed.startswith("it: 2 references have decomposed letters, ligatures")
