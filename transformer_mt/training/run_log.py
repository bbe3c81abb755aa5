"""The log of one run: metrics.jsonl for programs, train.log for people, the progress bar."""

import json
import logging
import math
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from tqdm import tqdm

from transformer_mt.checkpoints.checkpoint import Progress
from transformer_mt.checkpoints.run_directory import METRICS
from transformer_mt.errors import CheckpointError
from transformer_mt.system.console import (
    PACKAGE_LOGGER,
    SECONDS_BETWEEN_LINES,
    MessageFormatter,
    shows_bars,
    shows_progress,
)
from transformer_mt.system.files import atomic_file
from transformer_mt.training.pace import TimeLeft
from transformer_mt.training.tensorboard import Board

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingFigures:
    """The figures in one line of metrics.jsonl, for the steps since the previous line.

    Attributes:
        loss: Label-smoothed loss, in nats per target token; None if no step had a finite one.
        lr: Learning rate of the last step.
        tokens_per_second: Target tokens per second.
        mfu: Model FLOPs utilisation, a share of the device's measured peak.
        grad_norm: Gradient norm of the last step before clipping; may be non-finite.
        skipped: Steps of the whole run that were skipped because they were not finite.
    """

    loss: float | None
    lr: float
    tokens_per_second: float
    mfu: float
    grad_norm: float
    skipped: int


class RunLog(logging.Handler):
    """The log files of one run directory and the progress bar on stderr.

    While it is open, every message of the package is also written to train.log.

    Args:
        run_dir: The run directory, which exists.
        progress: Where the run stands; metrics that an interrupted process wrote after that, and
            that this one will write again, are removed.
        max_steps: Largest number of steps the run will have, for the bar.
        tensorboard: Whether to write the figures for TensorBoard too.
    """

    def __init__(
        self, run_dir: Path, progress: Progress, max_steps: int, tensorboard: bool = False
    ) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(MessageFormatter())
        self._disk_is_full = False
        self._displayed_at = -math.inf
        self._time_left = self._figures = ""
        self._metrics_path = run_dir / METRICS
        _remove_later_metrics(self._metrics_path, progress)
        self._metrics = self._metrics_path.open("a", encoding="utf-8")
        self._board = Board(run_dir, progress) if tensorboard else None
        self._text = (run_dir / "train.log").open("a", encoding="utf-8")
        self._bar = tqdm(
            total=max_steps,
            initial=progress.step,
            unit="step",
            dynamic_ncols=True,
            # Four columns stay free: an echoed ^C must not wrap the line.
            bar_format="{n_fmt}/{total_fmt} {bar:-4} {desc}",
            miniters=1,
            file=sys.stderr,
            disable=not shows_bars(),
        )

    def __enter__(self) -> Self:
        self._level_before = PACKAGE_LOGGER.level
        PACKAGE_LOGGER.setLevel(logging.INFO)
        PACKAGE_LOGGER.addHandler(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        PACKAGE_LOGGER.removeHandler(self)
        PACKAGE_LOGGER.setLevel(self._level_before)
        self._bar.close()
        if self._board:
            with suppress(OSError):  # its figures are in metrics.jsonl too
                self._board.close()
        for file in (self._metrics, self._text):
            try:
                file.close()
            except OSError as failure:
                if error is None:
                    raise CheckpointError(f"{file.name}: {failure.strerror}") from None

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a message of the package to train.log."""
        self.note(self.format(record))

    def note(self, text: str) -> None:
        """Adds a line to train.log only."""
        self._write(self._text, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def record_training(self, progress: Progress, seconds: float, figures: TrainingFigures) -> None:
        """Adds a line of kind `train` to metrics.jsonl, and shows its figures.

        Args:
            progress: Where the run stands.
            seconds: Training time so far.
            figures: The figures of the line.
        """
        values = {
            "loss": _round(figures.loss, 6),
            "lr": _round(figures.lr),
            "tokens_per_second": _round(figures.tokens_per_second, 1),
            "mfu": _round(figures.mfu, 4),
            "grad_norm": _round(figures.grad_norm, 6),
            "skipped": figures.skipped,
        }
        self._record("train", progress, seconds, values)
        if not self._bar.disable or self.is_display_due():
            self.display(progress.step, figures)

    def record_validation(
        self, progress: Progress, seconds: float, figures: Mapping[str, float]
    ) -> None:
        """Adds a line of kind `valid` to metrics.jsonl.

        Args:
            progress: Where the run stands.
            seconds: Training time so far.
            figures: `nll` in nats per target token, `perplexity`, `bleu`, and `ema_bleu` if there
                is a moving average.
        """
        digits = {"nll": 6}
        values = {name: _round(value, digits.get(name, 4)) for name, value in figures.items()}
        self._record("valid", progress, seconds, values)

    def _record(
        self, kind: str, progress: Progress, seconds: float, values: Mapping[str, float | None]
    ) -> None:
        position = {"kind": kind, "step": progress.step, "epoch": progress.epoch}
        line = {**position, "seconds": round(seconds, 3), **values}
        self._write(self._metrics, json.dumps(line, allow_nan=False) + "\n")
        if self._board:
            try:
                self._board.add(kind, progress.step, values)
            except OSError as error:
                self._board = None
                logger.warning("TensorBoard's figures end here: %s", error.strerror or error)

    def _write(self, file: TextIO, text: str) -> None:
        """Writes what it can: the rest waits in memory until the disk has room again."""
        try:
            file.write(text)
            file.flush()
        except OSError as error:
            if not self._disk_is_full:
                self._disk_is_full = True
                logger.warning("%s: %s; training continues", file.name, error.strerror)

    def advance(self, step: int, time_left: TimeLeft) -> None:
        """Moves the bar to a step.

        Args:
            step: The last step taken.
            time_left: What remains after it.
        """
        self._time_left = f"{tqdm.format_interval(time_left.seconds)} left"
        if not self._bar.disable:
            self._bar.total = step + time_left.steps
            self._describe_bar()
            self._bar.update(step - self._bar.n)

    def is_display_due(self) -> bool:
        """Tells whether figures are to be displayed even though no log line is due yet."""
        waited = time.monotonic() - self._displayed_at
        return shows_progress() and waited >= SECONDS_BETWEEN_LINES

    def display(self, step: int, figures: TrainingFigures) -> None:
        """Shows figures beside the bar, or as a line where there is no bar.

        Args:
            step: The last step that they include.
            figures: What to show; nothing is recorded.
        """
        self._displayed_at = time.monotonic()
        speed = f"{figures.tokens_per_second:,.0f} tokens/s"
        skipped = f", {figures.skipped} skipped" if figures.skipped else ""
        text = f"{_format_loss(figures.loss)}, {speed}"
        self._figures = f", {text}{skipped}"
        if not self._bar.disable:
            self._describe_bar()
            self._bar.refresh()
        else:
            line = (
                f"step {step}: {text}, {figures.mfu:.0%} of peak, lr {figures.lr:.1e}{skipped},"
                f" {self._time_left}"
            )
            print(line, file=sys.stderr, flush=True)

    def _describe_bar(self) -> None:
        self._bar.set_description_str(self._time_left + self._figures, refresh=False)


class SilentLog:
    """The log of a process that is not the main one: nothing is recorded or shown."""

    def record_training(self, progress: Progress, seconds: float, figures: TrainingFigures) -> None:
        """Does nothing."""

    def record_validation(
        self, progress: Progress, seconds: float, figures: Mapping[str, float]
    ) -> None:
        """Does nothing."""

    def advance(self, step: int, time_left: TimeLeft) -> None:
        """Does nothing."""

    def is_display_due(self) -> bool:
        """Tells that nothing is to be displayed."""
        return False

    def display(self, step: int, figures: TrainingFigures) -> None:
        """Does nothing."""


def _format_loss(loss: float | None) -> str:
    if loss is None:
        return "loss not finite"
    return f"loss {loss:.3f}" if loss < 1000 else f"loss {loss:.1e}"


def _round(value: float | None, digits: int | None = None) -> float | None:
    """Rounds a value; returns None for values that JSON cannot express."""
    if value is None or not math.isfinite(value):
        return None
    return value if digits is None else round(value, digits)


def _remove_later_metrics(path: Path, progress: Progress) -> None:
    """Removes lines that were written after a checkpoint, and an incomplete last line.

    NaN and Infinity, which earlier versions wrote, become null.
    """
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line, parse_constant=lambda name: None)
            # A checkpoint saved on a signal comes before the validation of its step.
            last_step = progress.valid_step if record["kind"] == "valid" else progress.step
            if record["step"] <= last_step:
                kept.append(json.dumps(record) + "\n")
        except (ValueError, TypeError, KeyError):
            continue
    with atomic_file(path) as file:
        file.write("".join(kept).encode())
