"""When training stops: the limits of a configuration, and how much is left of each."""

from dataclasses import dataclass
from typing import Literal

from transformer_mt.checkpoints.checkpoint import Progress
from transformer_mt.config.keys import Config


@dataclass(frozen=True)
class StopLimit:
    """One limit that is set.

    Attributes:
        key: Its key and value, such as `train.max_steps = 100000`.
        left: How much is left; the limit is reached at 0 or below.
        unit: What `left` counts.
    """

    key: str
    left: float
    unit: Literal["steps", "epochs", "seconds", "validations"]


def stop_limits(config: Config, progress: Progress, seconds: float) -> list[StopLimit]:
    """Lists the limits that are set, in the order in which they are reported.

    Args:
        config: The whole configuration.
        progress: Where the run stands.
        seconds: Training time so far.
    """
    train, patience = config.train, config.valid.patience
    limits = [
        StopLimit(f"train.max_steps = {train.max_steps}", train.max_steps - progress.step, "steps")
    ]
    if train.max_epochs:
        left = train.max_epochs - progress.epoch
        limits.append(StopLimit(f"train.max_epochs = {train.max_epochs}", left, "epochs"))
    if train.max_minutes:
        remaining = 60 * train.max_minutes - seconds
        limits.append(StopLimit(f"train.max_minutes = {train.max_minutes:g}", remaining, "seconds"))
    if patience:
        left = patience - progress.validations_since_best
        limits.append(StopLimit(f"valid.patience = {patience}", left, "validations"))
    return limits
