"""Properties of an epoch's plan, of micro-batches and of padding."""

import hashlib

import numpy as np
import pytest
import torch
from conftest import peak_memory
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transformer_mt.text import batching
from transformer_mt.text.batching import EncodedPairs, cut_micro_batches, padded_size, plan_epoch
from transformer_mt.training.fit import most_demanding

quick = settings(max_examples=40)


@st.composite
def corpora(draw: st.DrawFn) -> np.ndarray:
    """Draws source and target lengths of a corpus, empty ones too."""
    lengths = st.integers(1, 60)
    pairs = draw(st.lists(st.tuples(lengths, lengths), max_size=120))
    return np.array(pairs, np.int64).reshape(-1, 2).T


batch_sizes = st.integers(1, 400)
numbers = st.integers(0, 2**32 - 1)


@quick
@given(corpora(), batch_sizes, numbers, numbers, st.integers(1, 100))
def test_every_pair_exactly_once_in_full_steps(corpus, batch_tokens, seed, epoch, steps_per_pool):
    """Steps reach batch_tokens, except one per pool, and would not without their last pair."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "STEPS_PER_POOL", steps_per_pool)
        steps = plan_epoch(corpus, batch_tokens, seed, epoch)
    assert all(len(step) for step in steps)
    assert sorted(index for step in steps for index in step) == list(range(len(corpus[0])))

    def tokens(step: np.ndarray) -> int:
        return int(corpus[:, step].sum(axis=1).max())

    tokens_in_all = max(1, tokens(np.arange(len(corpus[0]))))
    pool = max(1, len(corpus[0]) * steps_per_pool * batch_tokens // tokens_in_all)
    pools = -(-len(corpus[0]) // pool)
    assert sum(tokens(step) < batch_tokens for step in steps) <= pools
    assert all(tokens(step[:-1]) < batch_tokens for step in steps)


def realistic(count: int) -> np.ndarray:
    """Draws lengths like those of news sentences, the target a fifth longer or shorter."""
    rng = np.random.default_rng(0)
    src = rng.lognormal(3.1, 0.6, count)
    tgt = src * rng.lognormal(0.0, 0.2, count)
    return np.clip(np.stack((src, tgt)).round(), 1, 250).astype(np.int64)


def fewest_parts(lengths, limit: int) -> int:
    """Counts the micro-batches if each takes all that it can, which none can better in order."""
    count, rows, width = 1, 0, 0
    for length in lengths:
        rows, width = rows + 1, max(width, length)
        if rows > 1 and rows * width > limit:
            count, rows, width = count + 1, 1, length
    return count


@quick
@example(np.full((2, 20), 5), 100, 20, 3)
@example(np.array([[9, 1, 1], [9, 1, 1]]), 100, 20, 3)
@given(corpora(), batch_sizes, st.integers(1, 600), st.integers(1, 10))
def test_micro_batches_partition_a_step(corpus, batch_tokens, limit, workers):
    """They hold a step's pairs once, in order, within the limit: the fewest, for all workers alike.

    A pair that exceeds the limit is one of its own, and there are not more micro-batches than
    pairs. Sabotage: round the count down; leave out the limit, or what splits the largest.
    """
    longest = corpus.max(axis=0)
    for step in plan_epoch(corpus, batch_tokens, 1, 0):
        micro_batches = cut_micro_batches(step, corpus, limit, workers)
        assert np.concatenate(micro_batches).tolist() == step.tolist()
        for pairs in micro_batches:
            assert len(pairs) == 1 or 0 < len(pairs) * longest[pairs].max() <= limit
        multiple = -(-fewest_parts(longest[step], limit) // workers) * workers
        assert len(micro_batches) == min(multiple, len(step))


@pytest.mark.parametrize(("batch_tokens", "workers"), [(1000, 1), (25_000, 1), (25_000, 8)])
def test_little_is_padding_and_no_worker_waits(batch_tokens, workers):
    """At most 5% of positions are padding, and those who share a step wait 3% of their time.

    Sabotage: sort by the target's length and then by the source's; fill micro-batches up, so that
    the last is what is left; let `size` limit sentences times the longest side.
    """
    corpus = realistic(50_000)
    steps = plan_epoch(corpus, batch_tokens, 1, 0)
    cut = [cut_micro_batches(step, corpus, 8192, workers) for step in steps]
    sizes = [[padded_size(pairs, corpus) for pairs in parts] for parts in cut]
    padded = sum(map(sum, sizes))
    assert 1 - corpus.sum() / padded <= 0.05
    assert 1 - padded / sum(max(parts) * len(parts) for parts in sizes) <= 0.03
    largest = most_demanding(steps, corpus, 8192, workers)[0]
    assert padded_size(largest, corpus) >= 0.99 * max(map(max, sizes))


def test_the_plan_is_that_of_earlier_versions():
    """A resumed run takes the steps it would have taken, so the plan must never change.

    3,000 pairs in four pools. Sabotage: other pools, other bins, another generator; leave the seed
    or the epoch out; fill the pools, or sort, by one side alone.
    """
    numbers = np.arange(3000)
    lengths = np.stack((numbers * 7919 % 47, numbers * 104_729 % 53)) + 1
    steps = [step.tolist() for step in plan_epoch(lengths, 60, 5, 2)]
    assert steps[0] == [161, 1855] and len(steps) == 1265
    assert hashlib.sha256(repr(steps).encode()).hexdigest()[:16] == "d9f66c53297264ba"


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.integers(1, 12))
def test_micro_batches_are_distributed_once_and_evenly(sizes, world_size):
    """However many processes. Sabotage: leave out the last micro-batch; deal them in turn."""
    deal = batching.deal_micro_batches
    shares = deal(sizes, world_size)
    assert len(shares) == world_size
    assert sorted(number for share in shares for number in share) == list(range(len(sizes)))
    assert all(share == sorted(share) for share in shares)
    work = [sum(sizes[number] for number in share) for share in shares]
    assert max(work) - min(work) <= max(sizes)
    assert shares == deal(sizes, world_size)
    assert deal([100, 20, 90, 30], 2) == [[0, 1], [2, 3]]


def test_batches_are_marked_padded_and_counted():
    """Sources have an end mark; targets are shifted by one; padding is not counted."""
    sides = [[], [7, 8], [70_000]], [[5], [4], [5, 6, 7]]
    pairs = EncodedPairs(*map(batching.flatten, sides))
    chosen = np.array([1, 2])
    batch = pairs.batch(chosen).to(torch.device("cpu"))
    assert batch.src.tolist() == [[7, 8, 3], [70_000, 3, 0]]
    assert batch.tgt_in.tolist() == [[2, 4, 0, 0], [2, 5, 6, 7]]
    assert batch.tgt_out.tolist() == [[4, 3, 0, 0], [5, 6, 7, 3]]
    assert (batch.src_tokens, batch.tgt_tokens) == (5, 6)
    assert pairs.count_tokens(chosen) == batching.TokenCounts(5, 6)
    assert pairs.batch(np.array([0])).src.tolist() == [[3]]


def test_all_lines_in_another_order_take_little_memory():
    """Sabotage: take them all at once."""
    lines = batching.EncodedLines.cut(np.arange(2_000_000, dtype=np.uint16), np.full(50_000, 40))
    order = np.arange(50_000)[::-1]
    assert peak_memory(lines.take, order) < 8 * lines.ids.nbytes
    turned = lines.take(order)
    assert np.array_equal(turned.ids.reshape(-1, 40), lines.ids.reshape(-1, 40)[::-1])
    assert np.array_equal(turned.offsets, lines.offsets)
