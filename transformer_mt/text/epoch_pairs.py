"""The training pairs of an epoch: BPE-dropout, reversed pairs in the first epochs, joined pairs.

They are a pure function of seed, epoch and prepared corpus, so that a resumed run sees the same
ones. Pairs are segmented in blocks, each with its own random generator.
"""

import os
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch

from transformer_mt.config.keys import Config
from transformer_mt.system.launcher import cpus_of_process
from transformer_mt.text.batching import EncodedLines, EncodedPairs
from transformer_mt.text.bpe_dropout import LineSampler
from transformer_mt.text.prepared import PreparedCorpus

_PAIRS_PER_BLOCK = 20_000
"""The segmentations depend on this, so it may not change."""
_NICENESS = 19
_MAX_THREADS = 4
"""More threads would wait for Python's lock, and make the training thread wait too."""


class EpochPairs:
    """Provides the pairs of an epoch, and prepares those of the next one in background threads.

    They are a pure function of corpus, seed and epoch. With several processes, each prepares the
    same pairs for itself.

    Args:
        corpus: The prepared pairs, whose segmentations all epochs use if `vocab.sampling` is 0.
        config: How to sample segmentations, the seed, and the epochs with reversed pairs. A pair
            that would be longer than `data.max_length` keeps its segmentation.
        beside_gpu: Whether the process trains on a GPU, so that its CPUs are idle.

    Raises:
        ConfigError: If segmentations are to be sampled from a vocabulary that is not one of BPE.
    """

    def __init__(self, corpus: PreparedCorpus, config: Config, beside_gpu: bool = False) -> None:
        self._prepared, self._samplers = corpus.pairs, list[LineSampler]()
        self._max_length, self._seed = config.data.max_length, config.train.seed
        self._bidirectional_epochs = config.train.bidirectional_epochs
        self._joins = config.train.join_pairs
        if rate := config.vocab.sampling:
            src = LineSampler(corpus.vocab.src, rate)
            shared = corpus.vocab.shared
            self._samplers = [src, src if shared else LineSampler(corpus.vocab.tgt, rate)]
        # NumPy mostly runs without Python's lock.
        # For a process of torchrun, PyTorch has one thread by default, whatever the machine has.
        count = cpus_of_process() if beside_gpu else torch.get_num_threads()
        count = min(count, _MAX_THREADS)
        self._threads = ThreadPoolExecutor(count, initializer=_lower_priority)
        self._blocks: dict[int, list[Future[EncodedPairs]]] = {}  # of the epoch started last

    def start(self, epoch: int) -> None:
        """Starts to prepare the pairs of an epoch, from 0, unless all epochs use the same pairs."""
        if self._samplers:
            blocks = range(-(-len(self._prepared) // _PAIRS_PER_BLOCK))
            self._blocks = {epoch: [self._threads.submit(self._sample, epoch, i) for i in blocks]}

    def of_epoch(self, epoch: int) -> EncodedPairs:
        """Returns the pairs of an epoch, from 0: all of the corpus, some reversed or joined."""
        pairs = self._segmented(epoch)
        is_reversed = np.arange(len(pairs)) % 2 != epoch % 2
        is_reversed &= epoch < self._bidirectional_epochs
        if is_reversed.any():
            pairs = _reverse(pairs, is_reversed)
        if self._joins:
            rng = np.random.default_rng([self._seed, epoch, 0, 1])  # `_sample` has blocks from 1
            pairs = _join_half(pairs, is_reversed, self._max_length, rng)
        return pairs

    def _segmented(self, epoch: int) -> EncodedPairs:
        """Returns the pairs of an epoch in the order of the corpus."""
        if not self._samplers:
            return self._prepared
        if epoch not in self._blocks:
            self.start(epoch)
        blocks = [future.result() for future in self._blocks[epoch]]
        return EncodedPairs(
            EncodedLines.concatenate([block.src for block in blocks]),
            EncodedLines.concatenate([block.tgt for block in blocks]),
        )

    def close(self) -> None:
        """Ends the threads once they have finished their current blocks."""
        self._threads.shutdown(cancel_futures=True)

    def _sample(self, epoch: int, block: int) -> EncodedPairs:
        start = block * _PAIRS_PER_BLOCK
        rows = np.arange(start, min(start + _PAIRS_PER_BLOCK, len(self._prepared)))
        sides = [side.take(rows) for side in (self._prepared.src, self._prepared.tgt)]
        # Numbers from 1, since NumPy treats [seed, epoch] and [seed, epoch, 0, 0] as the same seed.
        src, tgt = (
            sampler.sample(lines, np.random.default_rng([self._seed, epoch, block + 1, side + 1]))
            for side, (sampler, lines) in enumerate(zip(self._samplers, sides, strict=True))
        )
        too_long = np.maximum(src.counts, tgt.counts) > self._max_length
        chosen = np.arange(len(src)) + np.where(too_long, len(src), 0)
        return EncodedPairs(
            EncodedLines.concatenate([src, sides[0]]).take(chosen),
            EncodedLines.concatenate([tgt, sides[1]]).take(chosen),
        )


def _reverse(pairs: EncodedPairs, is_reversed: npt.NDArray[np.bool_]) -> EncodedPairs:
    """Swaps the sides of some pairs; `EpochPairs` chooses every second, then the others.

    Reference:
        Ding et al. 2021, Improving Neural Machine Translation by Bidirectional Training.
    """
    count, rows = len(pairs), np.arange(len(pairs))
    both = EncodedLines.concatenate([pairs.src, pairs.tgt])
    return EncodedPairs(
        both.take(rows + np.where(is_reversed, count, 0)),
        both.take(rows + np.where(is_reversed, 0, count)),
    )


def _join_half(
    pairs: EncodedPairs,
    is_reversed: npt.NDArray[np.bool_],
    max_length: int,
    rng: np.random.Generator,
) -> EncodedPairs:
    """Joins half of the pairs in random twos of one direction, the rest stay as they are.

    Reference:
        Nguyen et al. 2021, Data Augmentation by Concatenation for Low-Resource Translation.
    """
    order = rng.permutation(len(pairs))
    order = order[np.argsort(is_reversed[order], kind="stable")]
    sides = [side.take(order) for side in (pairs.src, pairs.tgt)]
    firsts = np.arange(0, len(order) - 1, 2)  # of each two
    is_joined = rng.random(len(firsts)) < 0.5
    is_joined &= is_reversed[order[firsts]] == is_reversed[order[firsts + 1]]
    for side in sides:
        is_joined &= side.counts[firsts] + side.counts[firsts + 1] <= max_length
    ends = firsts[is_joined] + 1  # between the two
    src, tgt = (EncodedLines(side.ids, np.delete(side.offsets, ends)) for side in sides)
    return EncodedPairs(src, tgt)


def _lower_priority() -> None:
    """Gives priority on the cores to the training threads, which wait for each other."""
    if sys.platform == "linux":  # elsewhere, priority applies to the process
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
