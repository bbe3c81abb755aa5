"""What is counted of a text before sizes are chosen."""

import pytest

from transformer_mt.training.sizes import Lengths, measure_text

PAIRS = [("ein Haus", "a house"), ("", "no source"), ("Grüße an Ögedei Ä", "a b"), ("a", "a")]


def test_counts():
    """A word is what white space separates; a pair has the bytes of its longer side.

    Sabotage: count characters instead of bytes, or the words of one side.
    """
    text = measure_text(PAIRS)
    assert (text.pairs, text.empty) == (4, 1)
    assert text.src_words.counts == {2: 1, 0: 1, 4: 1, 1: 1}
    assert text.tgt_words.counts == {2: 3, 1: 1}
    assert text.longer_bytes.counts == {8: 1, 9: 1, len("Grüße an Ögedei Ä".encode()): 1, 1: 1}
    assert text.src_words.total == 7 and text.src_words.mean == 7 / 4
    assert text.distinct_words == len({w for pair in PAIRS for side in pair for w in side.split()})
    assert text.characters == len(set("".join(map("".join, PAIRS))) - {" "})


def test_rare_characters_are_not_counted():
    """As SentencePiece writes them as bytes. Sabotage: a coverage of 1."""
    assert measure_text([("a" * 9_000 + "b" * 1_000, "€")]).characters == 2
    assert measure_text([("a" * 5_000, "€")]).characters == 2


def test_no_pairs():
    text = measure_text([])
    assert (text.pairs, text.characters, text.src_words.mean) == (0, 0, 0)
    assert text.longer_bytes.quantile(0.5) == 0


@pytest.mark.parametrize(("share", "length"), [(0, 1), (0.5, 1), (0.51, 3), (0.9, 3), (1, 50)])
def test_quantile(share, length):
    """At least that share is as short. Sabotage: `<` instead of `<=`."""
    lengths = Lengths()
    lengths.counts.update({50: 1, 1: 5, 3: 4})
    assert lengths.quantile(share) == length
