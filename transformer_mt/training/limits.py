"""When training stops, how many steps are left, and the progress shown on stderr until then."""

import math
import sys
import time
from collections.abc import Mapping

from tqdm import tqdm

from transformer_mt.checkpoints.checkpoint import Progress
from transformer_mt.config.keys import Config, flat_values
from transformer_mt.system.console import SECONDS_BETWEEN_LINES, shows_bars, shows_progress


def reached_limit(config: Config, progress: Progress, seconds: float) -> str | None:
    """Returns the limit that ends training, such as `train.max_steps = 100000`; None if none.

    `seconds` is the training time so far; 0 is no limit, except for the number of steps.
    """
    train, patience = config.train, config.valid.patience
    reached = {
        "train.max_steps": train.max_steps <= progress.step,
        "train.max_epochs": 0 < train.max_epochs <= progress.epoch,
        "train.max_minutes": 0 < 60 * train.max_minutes <= seconds,
        "valid.patience": 0 < patience <= progress.validations_since_best,
    }
    return next((describe_limit(config, key) for key in reached if reached[key]), None)


def describe_limit(config: Config, key: str) -> str:
    """Returns a limit with its value, such as `train.max_steps = 100000`."""
    value = flat_values(config)[key]
    return f"{key} = {value:g}" if isinstance(value, float) else f"{key} = {value}"


def steps_left(
    config: Config, progress: Progress, seconds: float, step_seconds: float, steps_per_epoch: int
) -> dict[str, int]:
    """Estimates the steps until each limit that is set; patience cannot be predicted.

    The run stands at `progress` after `seconds` of training, with `step_seconds` per step on
    average and `steps_per_epoch` in the current epoch.
    """
    train = config.train
    left = {"train.max_steps": train.max_steps - progress.step}
    if train.max_epochs:
        epochs = train.max_epochs - progress.epoch
        left["train.max_epochs"] = epochs * steps_per_epoch - progress.epoch_step
    if train.max_minutes:
        seconds_left = 60 * train.max_minutes - seconds
        steps = seconds_left / max(step_seconds, 1e-9)
        left["train.max_minutes"] = math.ceil(min(steps, 1e15))  # infinity is no integer
    return {key: max(steps, 0) for key, steps in left.items()}


class StepDisplay(tqdm):  # type: ignore[misc]
    """Progress of training on stderr: a bar on a terminal, otherwise lines.

    This process begins at `progress`, after `seconds` of training.
    """

    def __init__(self, config: Config, progress: Progress, seconds: float) -> None:
        self._config, self._first_step, self._began = config, progress.step, seconds
        self._shows_progress, self._last_shown = shows_progress(), -math.inf
        super().__init__(
            total=config.train.max_steps,
            initial=progress.step,
            dynamic_ncols=True,
            # Four columns stay free: an echoed ^C must not wrap the line.
            bar_format="{n_fmt}/{total_fmt} {bar:-4} {desc}{postfix}",
            miniters=1,
            disable=not shows_bars(),
        )

    def advance(self, progress: Progress, seconds: float, steps_per_epoch: int) -> None:
        """Moves the bar to the last step taken, and estimates the time left.

        The mean time per step in this process includes validating and saving.
        """
        step_seconds = (seconds - self._began) / (progress.step - self._first_step)
        left = steps_left(self._config, progress, seconds, step_seconds, steps_per_epoch)
        steps = min(left.values())
        self.total = progress.step + steps
        self.set_description_str(f"{self.format_interval(steps * step_seconds)} left", False)
        self.update(progress.step - self.n)

    def is_due(self) -> bool:
        """Returns whether metrics are to be shown even though no log line is due yet."""
        passed = time.monotonic() - self._last_shown
        return self._shows_progress and passed >= SECONDS_BETWEEN_LINES

    def show(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shows the metrics up to a step beside the bar, or as a line where one is due."""
        if self.disable and not self.is_due():
            return
        self._last_shown = time.monotonic()
        loss, speed = _format_loss(metrics["loss"]), f"{metrics['tokens_per_second']:,.0f} tokens/s"
        skipped = f", {metrics['skipped']} skipped" if metrics["skipped"] else ""
        if not self.disable:
            self.set_postfix_str(f"{loss}, {speed}{skipped}")
            return
        line = (
            f"step {step}: {loss}, {speed}, {metrics['mfu']:.0%} of peak, lr {metrics['lr']:.1e}"
            f"{skipped}, {self.desc}"
        )
        print(line, file=sys.stderr, flush=True)


def _format_loss(loss: float) -> str:
    if not math.isfinite(loss):
        return "loss not finite"
    return f"loss {loss:.3f}" if loss < 1000 else f"loss {loss:.1e}"
