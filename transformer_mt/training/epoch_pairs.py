"""The pairs of each epoch: as prepared, or with segmentations sampled for the epoch."""

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
"""More threads would wait for Python's lock, and make the training thread wait too."""


class EpochPairs:
    """Provides the pairs of an epoch, and prepares those of the next one in background threads.

    With several processes, each prepares the same pairs for itself.

    Args:
        corpus: The prepared pairs, which all epochs use if `vocab.sampling` is 0.
        config: How to sample segmentations, and the seed.

    Raises:
        ConfigError: If the vocabulary has only one segmentation of every word.
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
        """Starts to prepare the pairs of an epoch, from 0, unless all epochs use the same pairs."""
        if self._sampler:
            self._started = epoch, self._sampler.sample_epoch(epoch, self._threads)

    def of_epoch(self, epoch: int) -> EncodedPairs:
        """Returns the pairs of an epoch, from 0, in the order of the corpus."""
        if self._started is None or self._started[0] != epoch:
            self.start(epoch)
        return self._started[1].wait() if self._started else self._prepared

    def close(self) -> None:
        """Ends the threads once they have finished their current blocks."""
        self._threads.shutdown(cancel_futures=True)


def _lower_priority() -> None:
    """Gives priority on the cores to the training threads, which wait for each other."""
    if sys.platform == "linux":  # elsewhere, priority applies to the process
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
