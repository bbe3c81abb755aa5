"""When training stops, how long that will take, and the progress shown on stderr until then."""

import math
import sys
import time
from dataclasses import dataclass

from tqdm import tqdm

from transformer_mt.checkpoints.checkpoint import Progress
from transformer_mt.config.keys import Config, flat_values
from transformer_mt.system.console import SECONDS_BETWEEN_LINES, shows_bars, shows_progress
from transformer_mt.training.run_log import TrainingMetrics


def limits_left(config: Config, progress: Progress, seconds: float) -> dict[str, float]:
    """Computes how much is left of each limit that is set, after `seconds` of training.

    Returns steps, epochs, seconds or validations by key, in the order in which they are reported;
    a limit is reached at 0 or below.
    """
    train, patience = config.train, config.valid.patience
    left: dict[str, float] = {"train.max_steps": train.max_steps - progress.step}
    if train.max_epochs:
        left["train.max_epochs"] = train.max_epochs - progress.epoch
    if train.max_minutes:
        left["train.max_minutes"] = 60 * train.max_minutes - seconds
    if patience:
        left["valid.patience"] = patience - progress.validations_since_best
    return left


def reached_limit(config: Config, progress: Progress, seconds: float) -> str | None:
    """Returns the limit that ends training, such as `train.max_steps = 100000`; None if none."""
    limits = limits_left(config, progress, seconds)
    return next((_with_value(config, key) for key, left in limits.items() if left <= 0), None)


def _with_value(config: Config, key: str) -> str:
    value = flat_values(config)[key]
    return f"{key} = {value:g}" if isinstance(value, float) else f"{key} = {value}"


@dataclass(frozen=True)
class TimeLeft:
    """Steps and seconds, validations included, until training reaches the first limit."""

    limit: str
    steps: int
    seconds: float


class TimeEstimate:
    """Measures steps and validations, and estimates when training reaches the first limit.

    Attributes:
        steps_per_epoch: Steps of the current epoch.
        step_seconds: Mean seconds per step, saving and logging included; 0 while it is unknown.
        validation_seconds: Seconds of the latest validation; 0 while it is unknown.
    """

    def __init__(self, config: Config, step_seconds: float = 0.0) -> None:
        self._config = config
        self.steps_per_epoch = 0
        self.step_seconds, self.validation_seconds = step_seconds, 0.0
        self._began, self._steps = 0.0, -1

    def start(self, now: float) -> None:
        """Starts to measure steps, at a time in seconds by any clock."""
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

    def left(self, progress: Progress, seconds: float) -> TimeLeft:
        """Estimates what remains after `seconds` of training; patience cannot be predicted."""
        limits = limits_left(self._config, progress, seconds)
        limits.pop("valid.patience", None)
        remaining = {key: self._until(key, left, progress) for key, left in limits.items()}
        key = min(remaining, key=lambda key: remaining[key][1])
        return TimeLeft(_with_value(self._config, key), *remaining[key])

    def _until(self, key: str, left: float, progress: Progress) -> tuple[int, float]:
        """Estimates steps and seconds until one limit, of which so much is left."""
        if key == "train.max_minutes":
            # This limit counts validations too; only the last validation comes after it.
            seconds = max(left, 0.0)
            share = self.validation_seconds / self._config.valid.every
            steps = int(seconds / max(self.step_seconds + share, 1e-9))
            last = 1 if seconds else self._count_validations(progress, 0)
            return steps, seconds + last * self.validation_seconds
        steps = int(left)
        if key == "train.max_epochs":
            steps = steps * self.steps_per_epoch - progress.epoch_step
        steps = max(steps, 0)
        validations = self._count_validations(progress, steps)
        return steps, steps * self.step_seconds + validations * self.validation_seconds

    def _count_validations(self, progress: Progress, steps: int) -> int:
        """Counts the validations of the last steps of training, the one at the end included."""
        every, is_validated = self._config.valid.every, progress.valid_step == progress.step
        if steps == 0:
            return 0 if is_validated else 1
        done = progress.step // every
        if progress.step % every == 0 and not is_validated:
            done -= 1  # the current step's is still to come
        return math.ceil((progress.step + steps) / every) - done


class StepDisplay:
    """Progress of training on stderr: a bar on a terminal, otherwise a line at intervals."""

    def __init__(self, step: int, max_steps: int) -> None:
        self._shows_progress, self._displayed_at = shows_progress(), -math.inf
        self._time_left = self._metrics = ""
        self._bar = tqdm(
            total=max_steps,
            initial=step,
            unit="step",
            dynamic_ncols=True,
            # Four columns stay free: an echoed ^C must not wrap the line.
            bar_format="{n_fmt}/{total_fmt} {bar:-4} {desc}",
            miniters=1,
            file=sys.stderr,
            disable=not shows_bars(),
        )

    def close(self) -> None:
        """Ends the bar."""
        self._bar.close()

    def advance(self, step: int, left: TimeLeft) -> None:
        """Moves the bar to the last step taken."""
        self._time_left = f"{tqdm.format_interval(left.seconds)} left"
        if not self._bar.disable:
            self._bar.total = step + left.steps
            self._describe_bar()
            self._bar.update(step - self._bar.n)

    def is_due(self) -> bool:
        """Tells whether metrics are to be shown even though no log line is due yet."""
        waited = time.monotonic() - self._displayed_at
        return self._shows_progress and waited >= SECONDS_BETWEEN_LINES

    def show(self, step: int, metrics: TrainingMetrics) -> None:
        """Shows the metrics up to a step beside the bar, or as a line where one is due."""
        if self._bar.disable and not self.is_due():
            return
        self._displayed_at = time.monotonic()
        loss, speed = _format_loss(metrics.loss), f"{metrics.tokens_per_second:,.0f} tokens/s"
        skipped = f", {metrics.skipped} skipped" if metrics.skipped else ""
        self._metrics = f", {loss}, {speed}{skipped}"
        if not self._bar.disable:
            self._describe_bar()
            self._bar.refresh()
            return
        line = (
            f"step {step}: {loss}, {speed}, {metrics.mfu:.0%} of peak, lr {metrics.lr:.1e}"
            f"{skipped}, {self._time_left}"
        )
        print(line, file=sys.stderr, flush=True)

    def _describe_bar(self) -> None:
        self._bar.set_description_str(self._time_left + self._metrics, refresh=False)


def _format_loss(loss: float | None) -> str:
    if loss is None:
        return "loss not finite"
    return f"loss {loss:.3f}" if loss < 1000 else f"loss {loss:.1e}"
