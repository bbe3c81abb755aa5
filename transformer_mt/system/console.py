"""What a run tells: metrics.jsonl for programs, train.log for people, the progress bar."""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO, TypeVar

import numpy as np
import torch
from tqdm import tqdm

from transformer_mt import __version__
from transformer_mt.errors import CheckpointError

T = TypeVar("T")

SECONDS_BETWEEN_LINES = 10.0
"""Where there is no bar, figures come as a line at most so often."""


class Talk:
    """What a command says on stderr.

    Args:
        quiet: Whether that is warnings alone.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

    @property
    def shows_bars(self) -> bool:
        """Whether there is a terminal for them."""
        return not self.quiet and sys.stderr.isatty()

    def say(self, text: str) -> None:
        """Prints a line."""
        if not self.quiet:
            print(text, file=sys.stderr)

    def warn(self, text: str) -> None:
        """Prints a warning, quiet or not."""
        print(f"warning: {text}", file=sys.stderr)

    def bar(
        self,
        name: str,
        unit: str,
        total: int | None = None,
        items: Iterable[T] | None = None,
        hidden: bool = False,
    ) -> "tqdm[T]":
        """Shows, where there is a terminal, how far the caller has come with some items.

        Args:
            name: What is being done.
            unit: What is counted.
            total: How many there will be, if known.
            items: What to iterate over; else the caller moves the bar with `update`.
            hidden: Shows nothing, as `quiet` does.
        """
        hidden = hidden or not self.shows_bars
        unit = f" {unit}"
        return tqdm(items, name, total, unit=unit, dynamic_ncols=True, disable=hidden, leave=False)


class RunLog:
    """The log files of one run directory and the progress bar on stderr.

    Args:
        run_dir: The run directory, which exists.
        step: The step the run stands at; metrics of later steps, which an interrupted process
            wrote and this one will write again, are removed.
        total: Steps the run will have at most, for the bar.
        quiet: Whether stderr gets warnings alone.
    """

    def __init__(self, run_dir: Path, step: int, total: int, quiet: bool = False) -> None:
        self._quiet, self._shown, self._full = quiet, 0.0, False
        self._metrics_path = run_dir / "metrics.jsonl"
        _truncate_metrics(self._metrics_path, step)
        self._metrics = self._metrics_path.open("a", encoding="utf-8")
        self._text = (run_dir / "train.log").open("a", encoding="utf-8")
        self._bar = tqdm(
            total=total,
            initial=step,
            unit="step",
            dynamic_ncols=True,
            bar_format="{n_fmt}/{total_fmt} {bar} {elapsed}<{remaining}{postfix}",
            file=sys.stderr,
            disable=quiet or not sys.stderr.isatty(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()
        for file in (self._metrics, self._text):
            try:
                file.close()
            except OSError as failed:
                if error is None:
                    raise CheckpointError(f"{file.name}: {failed.strerror}") from None

    def record(self, kind: str, **values: Any) -> None:
        """Adds a line to metrics.jsonl; `kind` is `train` or `valid`."""
        self._write(self._metrics, json.dumps({"kind": kind, **values}) + "\n")

    def _write(self, file: TextIO, text: str) -> None:
        """Writes what it can: the rest waits in memory until the disk has room again."""
        try:
            file.write(text)
            file.flush()
        except OSError as error:
            if not self._full:
                self._full = True
                self._bar.write(
                    f"warning: {file.name}: {error.strerror}; training goes on", file=sys.stderr
                )

    def say(self, text: str) -> None:
        """Prints a line to stderr, above the bar, and keeps it in train.log."""
        if not self._quiet:
            self._bar.write(text, file=sys.stderr)
        self.note(text)

    def warn(self, text: str) -> None:
        """Does the same, quiet or not."""
        self._bar.write(f"warning: {text}", file=sys.stderr)
        self.note(f"warning: {text}")

    def note(self, text: str) -> None:
        """Keeps a line in train.log alone."""
        self._write(self._text, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def advance(self) -> None:
        """Moves the bar by a step."""
        self._bar.update()

    def show(self, step: int, loss: float, lr: float, speed: float, mfu: float) -> None:
        """Shows figures behind the bar, or now and then as a line where there is no terminal."""
        shown = f"loss {loss:.3f}, {speed:,.0f} tokens/s, {mfu:.0%} of peak"
        if not self._bar.disable:
            self._bar.set_postfix_str(shown)
        elif not self._quiet and time.monotonic() - self._shown > SECONDS_BETWEEN_LINES:
            self._shown = time.monotonic()
            print(f"step {step}: {shown}, lr {lr:.1e}", file=sys.stderr)


def environment() -> str:
    """Describes, for train.log, what a run was made with."""
    versions = f"torch {torch.__version__}, numpy {np.__version__}"
    python = f"python {platform.python_version()}"
    threads = f"{torch.get_num_threads()} threads"
    return f"transformer-mt {__version__}, commit {_commit()}, {versions}, {python}, {threads}"


def _commit() -> str:
    """Names the commit of the source tree, if it is one."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def _truncate_metrics(path: Path, step: int) -> None:
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
            if record["step"] <= step:
                kept.append(line + "\n")
        except (ValueError, TypeError, KeyError):
            continue  # the line a killed process was writing
    beside = path.with_name(path.name + ".tmp")
    beside.write_text("".join(kept), encoding="utf-8")
    os.replace(beside, path)
