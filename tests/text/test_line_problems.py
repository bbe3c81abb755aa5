"""Lines of a text that may be wrong."""

import pytest

from transformer_mt.text.line_problems import LineProblems

GERMAN = ["Das ist gut.", "Größe 2", "a & b; c&d", "3.14", "naïve Œuvre ſ ﬁ"]
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
        (["AT&amp;T", "&#39;", "&#x27;", "&frac12;"], "4 with HTML entities such as &amp;"),
        (["a\x00b", "a\x85b", "a\u200bb"], "2 with control characters"),
        ([*GERMAN, *RUSSIAN[:2], "Москва Bonn город"], "3 not in Latin script"),
        ([*RUSSIAN, "Bonn", "12"], "1 not in Cyrillic script"),
        ([*JAPANESE, "서울", "Bonn"], "2 not in Chinese or Japanese script"),
        (["", "a\tb", "a\tb"], "1 empty, 2 with tabs"),
    ],
)
def test_lines_by_problem(lines, problems):
    """Each line once for each problem; one script is that of most lines.

    Sabotage: count tabs, not lines; let any foreign letter decide; take Kana for another script.
    """
    counted = LineProblems()
    for line in lines:
        counted.add(line)
    assert str(counted) == problems
