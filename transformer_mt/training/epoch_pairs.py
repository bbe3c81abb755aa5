"""The pairs of each epoch: as they were prepared, or in segmentations drawn for the epoch."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from transformer_mt.config.keys import Config
from transformer_mt.text.encoded_pairs import EncodedPairs
from transformer_mt.text.prepared import PreparedCorpus
from transformer_mt.text.sampling import PairSampler, PendingPairs

_NICENESS = 19
_MAX_THREADS = 4
"""More would wait for Python's lock, and the thread that trains would too."""


class EpochPairs:
    """Gives the pairs of an epoch, and makes those of the next one in the meantime.

    Threads make them. Of several processes each makes the same pairs for itself.

    Args:
        corpus: The prepared pairs, which are those of all epochs if `vocab.sampling` is 0.
        config: How to draw segmentations, and the seed.

    Raises:
        ConfigError: If the vocabulary has a single segmentation of every word.
    """

    def __init__(self, corpus: PreparedCorpus, config: Config) -> None:
        self._prepared, self._sampler = corpus.pairs, None
        if rate := config.vocab.sampling:
            max_length, seed = config.data.max_length, config.train.seed
            self._sampler = PairSampler(corpus.pairs, corpus.vocab, rate, max_length, seed)
        count = min(torch.get_num_threads(), _MAX_THREADS)
        self._threads = ThreadPoolExecutor(count, initializer=_lower_priority)
        self._started: tuple[int, PendingPairs] | None = None

    def start(self, epoch: int) -> None:
        """Begins to make the pairs of an epoch, from 0, unless they are those of all epochs."""
        if self._sampler:
            self._started = epoch, self._sampler.sample_epoch(epoch, self._threads)

    def of_epoch(self, epoch: int) -> EncodedPairs:
        """Gives the pairs of an epoch, from 0, in the order of the corpus."""
        if self._started is None or self._started[0] != epoch:
            self.start(epoch)
        return self._started[1].wait() if self._started else self._prepared

    def close(self) -> None:
        """Ends the threads, after the blocks that they are making."""
        self._threads.shutdown(cancel_futures=True)


def _lower_priority() -> None:
    """Leaves the cores to training, whose threads wait for each other, as far as they need them."""
    if sys.platform == "linux":  # elsewhere priority belongs to the process
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
