"""What lines to lines needs of a runtime: its interface, and the search that all runtimes share."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from transformer_mt.translation.options import SearchOptions

EXTRA_LENGTH = 50
"""Output has at most this many pieces more than the source (section 6.1 of the paper)."""


@dataclass(frozen=True)
class Hypothesis:
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
    """

    device_type: str
    precision: str
    batch_tokens: int

    def describe(self) -> str:
        """Says in a few words what it is, for people."""

    def decode(
        self, batches: Sequence[Sequence[Sequence[int]]], options: SearchOptions
    ) -> Generator[list[list[Hypothesis]]]:
        """Finds the `beam_size` best hypotheses of each source of every batch, the best first.

        Args:
            batches: Source ids without EOS, none empty; batches may be decoded at once.
            options: How to search.

        Yields:
            The hypotheses of each source of a batch, in the order of the batches. Closing the
            generator stops the search.
        """

    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[float]:
        """Computes the log-probability of each target and EOS, given its source, in nats."""
