"""The log of one run: metrics.jsonl for programs, train.log for people, the progress bar."""

import json
import logging
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from tqdm import tqdm

from transformer_mt.checkpoints.state import Progress
from transformer_mt.errors import CheckpointError
from transformer_mt.system.console import (
    PACKAGE_LOGGER,
    SECONDS_BETWEEN_LINES,
    MessageFormatter,
    shows_bars,
    shows_progress,
)
from transformer_mt.system.files import atomic_file

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingFigures:
    """What one line of metrics.jsonl says about the steps since the line before.

    Attributes:
        loss: Label-smoothed loss, in nats per target token.
        lr: Learning rate of the last step.
        tokens_per_second: Target tokens per second.
        mfu: Model FLOPs utilisation, a share of the device's measured peak.
        grad_norm: Gradient norm of the last step before clipping; may be non-finite.
        skipped: Steps of the whole run that were skipped because they were not finite.
    """

    loss: float
    lr: float
    tokens_per_second: float
    mfu: float
    grad_norm: float
    skipped: int


class RunLog(logging.Handler):
    """The log files of one run directory and the progress bar on stderr.

    While it is open, every message of the package is also kept in train.log.

    Args:
        run_dir: The run directory, which exists.
        progress: Where the run stands; metrics that an interrupted process wrote after that, and
            that this one will write again, are removed.
        max_steps: Largest number of steps the run will have, for the bar.
    """

    def __init__(self, run_dir: Path, progress: Progress, max_steps: int) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(MessageFormatter())
        self._last_line, self._disk_is_full = 0.0, False
        self._metrics_path = run_dir / "metrics.jsonl"
        _remove_later_metrics(self._metrics_path, progress)
        self._metrics = self._metrics_path.open("a", encoding="utf-8")
        self._text = (run_dir / "train.log").open("a", encoding="utf-8")
        self._bar = tqdm(
            total=max_steps,
            initial=progress.step,
            unit="step",
            dynamic_ncols=True,
            bar_format="{n_fmt}/{total_fmt} {bar} {elapsed}<{remaining}{postfix}",
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
        for file in (self._metrics, self._text):
            try:
                file.close()
            except OSError as failure:
                if error is None:
                    raise CheckpointError(f"{file.name}: {failure.strerror}") from None

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps a message of the package in train.log."""
        self.note(self.format(record))

    def note(self, text: str) -> None:
        """Adds a line to train.log alone."""
        self._write(self._text, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def record_training(self, progress: Progress, seconds: float, figures: TrainingFigures) -> None:
        """Adds a line of kind `train` to metrics.jsonl, and shows its figures.

        Args:
            progress: Where the run stands.
            seconds: Training time so far.
            figures: What the line says.
        """
        norm = figures.grad_norm
        values = {
            "loss": round(figures.loss, 6),
            "lr": figures.lr,
            "tokens_per_second": round(figures.tokens_per_second, 1),
            "mfu": round(figures.mfu, 4),
            "grad_norm": round(norm, 6) if math.isfinite(norm) else None,
            "skipped": figures.skipped,
        }
        self._record("train", progress, seconds, values)
        self._show(progress.step, figures)

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
        values = {name: round(value, digits.get(name, 4)) for name, value in figures.items()}
        self._record("valid", progress, seconds, values)

    def _record(
        self, kind: str, progress: Progress, seconds: float, values: Mapping[str, float | None]
    ) -> None:
        position = {"kind": kind, "step": progress.step, "epoch": progress.epoch}
        line = {**position, "seconds": round(seconds, 3), **values}
        self._write(self._metrics, json.dumps(line) + "\n")

    def _write(self, file: TextIO, text: str) -> None:
        """Writes what it can: the rest waits in memory until the disk has room again."""
        try:
            file.write(text)
            file.flush()
        except OSError as error:
            if not self._disk_is_full:
                self._disk_is_full = True
                logger.warning("%s: %s; training continues", file.name, error.strerror)

    def advance(self) -> None:
        """Moves the bar by one step."""
        self._bar.update()

    def _show(self, step: int, figures: TrainingFigures) -> None:
        """Shows figures behind the bar, or from time to time as a line where there is no bar."""
        speed = f"{figures.tokens_per_second:,.0f} tokens/s, {figures.mfu:.0%} of peak"
        text = f"loss {figures.loss:.3f}, {speed}"
        if not self._bar.disable:
            self._bar.set_postfix_str(text)
        elif shows_progress() and time.monotonic() - self._last_line > SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            print(f"step {step}: {text}, lr {figures.lr:.1e}", file=sys.stderr)


def _remove_later_metrics(path: Path, progress: Progress) -> None:
    """Removes lines that were written after a checkpoint, and one that was only half written."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
            # A checkpoint saved on a signal comes before the validation of its step.
            last_step = progress.valid_step if record["kind"] == "valid" else progress.step
            if record["step"] <= last_step:
                kept.append(line + "\n")
        except (ValueError, TypeError, KeyError):
            continue
    with atomic_file(path) as file:
        file.write("".join(kept).encode())
