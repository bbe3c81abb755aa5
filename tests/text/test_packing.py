"""Packs: every token of every pair in its place, and no block of keys too few or too many."""

import numpy as np
import pytest
import torch

from transformer_mt.text.batching import EncodedPairs, flatten
from transformer_mt.text.packing import BLOCK, cut_into_packs, pack_capacity, pack_pairs
from transformer_mt.text.vocabulary import PAD_ID

LONGEST = 41


def made_pairs(rng: np.random.Generator) -> EncodedPairs:
    """Up to 60 pairs with fewer than `LONGEST` pieces a side, some of them none."""
    count = int(rng.integers(1, 60))
    lines = [rng.integers(4, 90, rng.integers(0, LONGEST)).tolist() for _ in range(2 * count)]
    return EncodedPairs(flatten(lines[:count]), flatten(lines[count:]))


@pytest.mark.parametrize("seed", range(20))
def test_steps_are_cut_into_packs_that_hold_them(seed):
    """Each pair once, into a multiple of the workers, each pack with room for padding.

    A step that fits is one pack for each worker.
    """
    rng = np.random.default_rng(seed)
    pairs, workers = made_pairs(rng), int(rng.integers(1, 4))
    capacity = pack_capacity(int(rng.integers(50, 1500)), LONGEST)
    step = rng.permutation(len(pairs))
    packs = cut_into_packs(step, pairs.lengths, capacity, workers)
    assert sorted(np.concatenate(packs)) == list(range(len(pairs)))
    assert len(packs) % workers == 0 or len(packs) == len(step)
    assert all((pairs.lengths[:, pack].sum(axis=1) < capacity).all() for pack in packs)
    enough = pack_capacity(int(pairs.lengths.sum(axis=1).max()), 1)
    packs = cut_into_packs(step, pairs.lengths, enough, workers)
    assert len(packs) == min(workers, len(step))


def test_packs_of_a_step_are_about_equally_full():
    """Sabotage: cut a step, whose pairs are sorted by length, at places between them."""
    side = flatten([[5] * (n // 8) for n in range(320)])
    pairs = EncodedPairs(side, side)
    packs = cut_into_packs(np.arange(320), pairs.lengths, pack_capacity(1700, LONGEST), 4)
    sums = [int(pairs.lengths[0, pack].sum()) for pack in packs]
    assert len(packs) == 4 and max(sums) - min(sums) < LONGEST


@pytest.mark.parametrize("seed", range(20))
def test_a_pack_holds_the_tokens_of_a_batch(seed):
    pairs = made_pairs(np.random.default_rng(seed))
    indices = np.arange(len(pairs))
    pack, batch = pack_pairs(pairs, indices, BLOCK * 20), pairs.batch(indices)
    padded = (batch.src, batch.tgt_in, batch.tgt_out)
    for row, ids, side in zip(pack.ids, padded, (0, 1, 1), strict=True):
        is_token = ids != PAD_ID
        sentences, positions = is_token.nonzero(as_tuple=True)
        count = len(sentences)
        assert torch.equal(row[:count], ids[is_token].int()) and (row[count:] == PAD_ID).all()
        assert torch.equal(pack.segments[side, :count], sentences.int())
        assert torch.equal(pack.positions[side, :count], positions.int())
        assert (pack.segments[side, count:] == -1).all()
    assert (pack.src_tokens, pack.tgt_tokens) == (batch.src_tokens, batch.tgt_tokens)
    # Blocks of keys are those that are needed.
    src, tgt = pack.segments
    kinds = ((src, src, False), (tgt, tgt, True), (tgt, src, False))
    for key_blocks, (queries, keys, causal) in zip(pack.key_blocks, kinds, strict=True):
        may_attend = queries[:, None] == keys
        may_attend = may_attend.tril() if causal else may_attend
        blocks = key_blocks.tolist(), may_attend.split(BLOCK), queries.split(BLOCK)
        for (first, last), rows, segments in zip(*blocks, strict=True):
            listed = slice(BLOCK * first, BLOCK * (last + 1))
            assert rows[:, listed].any(1).all()  # padding, too, sees some key
            is_token = segments >= 0
            needed = rows[is_token].any(0)
            assert needed[listed].sum() == needed.sum()
            if is_token.all():
                blocks = needed.view(-1, BLOCK).any(1)
                assert blocks.sum() == last - first + 1
