"""Flat arrays of ids, and padded batches with begin and end marks."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_mt.text.batching import EncodedLines, EncodedPairs, flatten

rows = st.lists(st.lists(st.integers(4, 60_000), max_size=9), min_size=1, max_size=20)


def test_batches_are_marked_padded_and_counted():
    """Sources have an end mark; targets are shifted by one; padding is not counted."""
    pairs = EncodedPairs(flatten([[], [7, 8], [9]]), flatten([[5], [4], [5, 6, 7]]))
    batch = pairs.batch(np.array([1, 2]))
    assert batch.src.tolist() == [[7, 8, 3], [9, 3, 0]]
    assert batch.tgt_in.tolist() == [[2, 4, 0, 0], [2, 5, 6, 7]]
    assert batch.tgt_out.tolist() == [[4, 3, 0, 0], [5, 6, 7, 3]]
    assert batch.tgt_tokens == int((batch.tgt_out != 0).sum()) == 6
    assert pairs.batch(np.array([0])).src.tolist() == [[3]]


@settings(deadline=None, max_examples=100)
@given(rows, st.randoms())
def test_any_lines_in_any_order(rows, random):
    """Each row of a batch is its line and its mark, whatever the type of the ids."""
    lines = flatten(rows)
    narrow = EncodedLines(lines.ids.astype(np.uint16), lines.offsets)
    assert len(lines) == len(rows) and [lines[i].tolist() for i in range(len(rows))] == rows
    assert lines.lengths.tolist() == [len(row) + 1 for row in rows]
    order = random.sample(range(len(rows)), len(rows))
    for encoded in (lines, narrow):
        gathered = encoded.gather(np.array(order), begin=False, end=True).tolist()
        width = max(map(len, rows)) + 1
        expected = [[*rows[i], 3, *[0] * (width - 1 - len(rows[i]))] for i in order]
        assert gathered == expected
