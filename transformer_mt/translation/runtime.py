"""The interface of a runtime, which decodes and scores ids, and what it takes and gives.

The modules that decode implement it; the translator knows nothing else of them.
"""

from collections.abc import Generator, Iterable, Sequence
from typing import NamedTuple, Protocol

from transformer_mt.translation.options import SearchOptions

EXTRA_LENGTH = 50
"""Output has at most this many pieces more than the source (section 6.1 of the paper)."""


class Source(NamedTuple):
    """A line or a part of it.

    Attributes:
        ids: Its ids without EOS; none if it is copied.
        line: Number of the line for sampling, which depends on it; otherwise 0, so that equal texts
            are decoded once.
        part: Number of the part, likewise.
        copied: Text that is its own translation.
    """

    ids: tuple[int, ...]
    line: int = 0
    part: int = 0
    copied: str = ""


class Hypothesis(NamedTuple):
    """One translation of a sentence.

    Attributes:
        ids: Token ids without BOS and EOS.
        score: Log-probability in nats, summed over its tokens and EOS if it has one, divided by
            the length penalty; NaN from greedy search.
    """

    ids: list[int]
    score: float


def length_penalty(tokens: int, alpha: float) -> float:
    """Computes the divisor of the log-probability of a hypothesis.

    Args:
        tokens: Its length, including EOS if it has one.
        alpha: Exponent; 0 gives 1.

    Reference:
        Wu et al. 2016, Google's Neural Machine Translation System, equation 14.
    """
    return float(((5 + tokens) / 6) ** alpha)


class Runtime(Protocol):
    """A model, or an ensemble, on a device.

    Attributes:
        device_type: `cpu` or `cuda`.
        precision: Type of the weights, after the name of the runtime if it is not PyTorch.
        batch_tokens: Default of `SearchOptions.batch_tokens`.
        chunk_lines: Lines of the first chunk of a text, which is small so that translations appear
            soon, and of each later one. The lines of a chunk are sorted by length and cut into
            batches. A chunk takes seconds to minutes; an unfinished one is lost on interruption.
    """

    device_type: str
    precision: str
    batch_tokens: int
    chunk_lines: tuple[int, int]

    def decode(
        self, batches: Iterable[Sequence[Source]], options: SearchOptions
    ) -> Generator[list[list[Hypothesis]]]:
        """Finds the `n_best` best hypotheses of each source of every batch, the best first.

        Args:
            batches: Sources, none of them without ids; a batch may be empty. Several batches may be
                decoded at once, and some be taken before they are needed.
            options: How to search.

        Yields:
            The hypotheses of each source of a batch, in the order of the batches. Closing the
            generator stops the search.
        """

    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[float]:
        """Computes the log-probability of each target and EOS, given its source, in nats."""
