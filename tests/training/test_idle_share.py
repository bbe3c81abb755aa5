"""The time that processes are idle."""

import numpy as np
import pytest

from transformer_mt.training.idle_share import describe_idle_share, idle_share

PAIRS = 64
LENGTHS = (np.full(PAIRS, 10), np.full(PAIRS, 10))
STEPS = [np.arange(start, start + 8) for start in range(0, PAIRS, 8)]


def test_the_idle_share_of_known_steps():
    """Eight equal pairs in two, three or one micro-batch, over two processes.

    Sabotage: divide by the work of one process; deal each micro-batch to all.
    """
    assert idle_share(STEPS, LENGTHS, 40, 2) == 0
    assert idle_share(STEPS, LENGTHS, 30, 2) == pytest.approx(0.2)  # 3 + 2 and 3 pairs
    assert idle_share(STEPS, LENGTHS, 80, 2) == 0.5
    assert idle_share(STEPS, LENGTHS, 80, 1) == 0


def test_what_would_keep_all_busy_is_named():
    """And nothing if they are busy, or if pairs are too long to cut further."""
    text = describe_idle_share(STEPS, LENGTHS, 80, 2)
    assert text == (
        "2 processes, idle 50% of the time for lack of micro-batches; 0% with"
        " train.micro_batch_tokens = 42"
    )
    assert describe_idle_share(STEPS, LENGTHS, 42, 2).endswith("lack of micro-batches")
    assert describe_idle_share(STEPS[:1], LENGTHS, 10, 16).endswith(
        "idle 50% of the time for lack of micro-batches"
    )
