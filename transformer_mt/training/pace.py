"""The remaining training time, from the limits and the measured cost of steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from transformer_mt.checkpoints.checkpoint import Progress
from transformer_mt.training.limits import StopLimit


@dataclass(frozen=True)
class Schedule:
    """How the steps of a run are divided.

    Attributes:
        steps_per_epoch: Steps of the current epoch.
        steps_per_validation: Steps from one validation to the next.
    """

    steps_per_epoch: int
    steps_per_validation: int

    def count_validations(self, progress: Progress, steps: int) -> int:
        """Counts the validations until the end of training, including the one at the end.

        Args:
            progress: Where the run stands.
            steps: Steps until the end.
        """
        every, is_validated = self.steps_per_validation, progress.valid_step == progress.step
        if steps == 0:
            return 0 if is_validated else 1
        done = progress.step // every
        if progress.step % every == 0 and not is_validated:
            done -= 1  # the current step's is still to come
        return math.ceil((progress.step + steps) / every) - done


class Pace:
    """The measured cost of the steps and validations of this process.

    Attributes:
        step_seconds: Mean seconds per step, saving and logging included; 0 while it is unknown.
        validation_seconds: Seconds of the latest validation; 0 while it is unknown.
    """

    def __init__(self, step_seconds: float = 0.0) -> None:
        self.step_seconds, self.validation_seconds = step_seconds, 0.0
        self._began, self._steps = 0.0, 0

    def start(self, now: float) -> None:
        """Starts to measure steps.

        Args:
            now: The time in seconds, by any clock.
        """
        self._began, self._steps = now, -1

    def count_step(self, now: float) -> None:
        """Counts a step that has just ended."""
        self._steps += 1
        self.step_seconds = (now - self._began) / max(self._steps, 1)
        if self._steps == 0:
            self._began = now  # the first step is a warm-up and counts only until the second

    def add_validation(self, seconds: float) -> None:
        """Records the time a validation took; it does not count as part of a step."""
        self.validation_seconds = seconds
        self._began += seconds


@dataclass(frozen=True)
class TimeLeft:
    """What remains of a training run.

    Attributes:
        key: The limit that is reached first, such as `train.max_steps = 100000`.
        steps: Steps until then.
        seconds: Seconds until then, validations included.
    """

    key: str
    steps: int
    seconds: float


def estimate_time_left(
    limits: Sequence[StopLimit], progress: Progress, schedule: Schedule, pace: Pace
) -> TimeLeft:
    """Estimates when training reaches the first of its limits; patience cannot be predicted.

    Args:
        limits: The limits that are set; the one in steps always is.
        progress: Where the run stands.
        schedule: How its steps are divided.
        pace: The cost of steps and validations.
    """
    estimates = [
        _estimate(limit, progress, schedule, pace)
        for limit in limits
        if limit.unit != "validations"
    ]
    return min(estimates, key=lambda estimate: estimate.seconds)


def _estimate(limit: StopLimit, progress: Progress, schedule: Schedule, pace: Pace) -> TimeLeft:
    """Estimates when training would reach one limit."""
    if limit.unit == "seconds":
        # This limit counts validations too; only the last validation comes after it.
        seconds = max(limit.left, 0.0)
        share = pace.validation_seconds / schedule.steps_per_validation
        steps = int(seconds / max(pace.step_seconds + share, 1e-9))
        last = 1 if seconds else schedule.count_validations(progress, 0)
        return TimeLeft(limit.key, steps, seconds + last * pace.validation_seconds)
    steps = int(limit.left)
    if limit.unit == "epochs":
        steps = steps * schedule.steps_per_epoch - progress.epoch_step
    steps = max(steps, 0)
    validations = schedule.count_validations(progress, steps)
    seconds = steps * pace.step_seconds + validations * pace.validation_seconds
    return TimeLeft(limit.key, steps, seconds)
