"""The log of one run: metrics.jsonl for programs, train.log for people, TensorBoard's files."""

import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TextIO

from transformer_mt.checkpoints.checkpoint import Progress
from transformer_mt.checkpoints.layout import METRICS
from transformer_mt.errors import CheckpointError
from transformer_mt.system.console import MessageFormatter, escape_controls, logger
from transformer_mt.system.files import is_at, open_no_link, parse_json, replace_file

_WAITING_BYTES = 2**24
"""How much of a log waits in memory while its disk is full."""


class RunLog(logging.Handler):
    """The log files of one run directory.

    While it is open, every message of the package is also written to train.log.

    Args:
        run_dir: The run directory, which exists.
        progress: Where the run stands; metrics that an interrupted process wrote after that, and
            that this one will write again, are removed.
        tensorboard: Whether to write the metrics for TensorBoard too.
        is_own: Tells whether the directory is still that of this run.
    """

    def __init__(
        self,
        run_dir: Path,
        progress: Progress,
        tensorboard: bool = False,
        is_own: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(logging.INFO)
        self.is_own = is_own
        self.setFormatter(MessageFormatter())
        self._disk_is_full, self._level_before = False, logger.level
        path = run_dir / METRICS
        _remove_later_metrics(path, progress)
        self._metrics = self._open(path)
        self._boards: dict[str, Any] = {}
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            for kind, step in _last_steps(progress).items():
                folder = run_dir / "tensorboard" / kind
                self._boards[kind] = SummaryWriter(folder, purge_step=step + 1)
        self._text = self._open(run_dir / "train.log")

    @staticmethod
    def _open(path: Path) -> TextIO:
        return open(path, "a", _WAITING_BYTES, "utf-8", "backslashreplace", opener=open_no_link)

    def __enter__(self) -> Self:
        logger.setLevel(logging.INFO)
        logger.addHandler(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        logger.removeHandler(self)
        logger.setLevel(self._level_before)
        for board in self._boards.values():
            with suppress(OSError):  # its values are in metrics.jsonl too
                board.close()
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
        line = escape_controls(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}")
        self._write(self._text, f"{line}\n")

    def record(
        self, kind: str, progress: Progress, seconds: float, metrics: Mapping[str, float]
    ) -> None:
        """Adds a line of kind `train` or `valid` to metrics.jsonl, after `seconds` of training.

        The names are in docs/training.md; values that JSON cannot express become null.
        """
        position = {"kind": kind, "step": progress.step, "epoch": progress.epoch}
        values = {name: x if math.isfinite(x) else None for name, x in metrics.items()}
        line = {**position, "seconds": round(seconds, 3), **values}
        self._write(self._metrics, json.dumps(line, allow_nan=False) + "\n")
        if board := self._boards.get(kind):
            try:
                for name, value in values.items():
                    if value is not None:
                        board.add_scalar(name, value, progress.step)
                board.flush()
            except OSError as error:
                self._boards.clear()
                logger.warning("TensorBoard's metrics end here: %s", error.strerror or error)

    def _write(self, file: TextIO, text: str) -> None:
        """Writes what it can: the rest waits in memory until the disk has room again.

        If the file was moved or deleted, a new one is begun, since the old one may be lost; not so
        if the whole directory was, in whose place another run may be.
        """
        try:
            file.write(text)
            if not is_at(Path(file.name), file) and self.is_own():
                with open(file.name, "a", opener=open_no_link) as new:
                    os.dup2(new.fileno(), file.fileno(), inheritable=False)
                logger.warning("%s: was moved, deleted or replaced; lines go on here", file.name)
            file.flush()
        except OSError as error:
            if not self._disk_is_full:
                self._disk_is_full = True
                logger.warning("%s: %s; training continues", file.name, error.strerror)


def _remove_later_metrics(path: Path, progress: Progress) -> None:
    """Removes lines that were written after a checkpoint, and an incomplete last line."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, TypeError, KeyError):
            record = parse_json(line)
            if record["step"] <= _last_steps(progress)[record["kind"]]:
                kept.append(line + "\n")
    replace_file(path, "".join(kept).encode())


def _last_steps(progress: Progress) -> dict[str, int]:
    """Returns the last step of each kind of line that belongs to a checkpoint."""
    # A checkpoint saved on a signal comes before the validation of its step.
    # Step 0 has been validated only if there is a score.
    valid_step = progress.valid_step or (0 if progress.best_bleu >= 0 else -1)
    return {"train": progress.step, "valid": valid_step}
