"""Sums over the steps of a log line."""

from dataclasses import dataclass


@dataclass
class LogWindow:
    """Sums since the last log line.

    Attributes:
        loss: Label-smoothed loss of the steps where it was finite, in nats; `Engine.read_window`
            updates it.
        tokens: Target tokens.
        flops: Floating-point operations that training on them needed.
        seconds: Time spent in steps, including building their batches.
        nonfinite_tokens: Target tokens of the steps whose loss was not finite; `Engine.read_window`
            updates it.
    """

    loss: float = 0.0
    tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0
    nonfinite_tokens: int = 0

    @property
    def mean_loss(self) -> float | None:
        """Loss in nats per target token; None if no step had a finite loss."""
        tokens = self.tokens - self.nonfinite_tokens
        return self.loss / tokens if tokens else None
