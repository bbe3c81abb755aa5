"""The metrics of a run in metrics.jsonl, for plots."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_mt.checkpoints.run_directory import METRICS
from transformer_mt.errors import CheckpointError

KINDS = ("train", "valid")


@dataclass(frozen=True)
class RunMetrics:
    """The figures of one run.

    Attributes:
        name: Its name in a legend.
        records: The lines of metrics.jsonl, in order.
    """

    name: str
    records: list[dict[str, Any]]

    def series(self, kind: str, key: str, x: str = "step") -> tuple[list[float], list[float]]:
        """Returns one figure over steps or minutes.

        Args:
            kind: One of `KINDS`.
            key: Name of the figure; a record without it is left out.
            x: `step` or `minutes`.

        Returns:
            Positions and values; a non-finite value is NaN.
        """
        records = [r for r in self.records if r["kind"] == kind and key in r]
        positions = [float(r["step"] if x == "step" else r["seconds"] / 60) for r in records]
        return positions, [math.nan if r[key] is None else float(r[key]) for r in records]

    def end(self, x: str) -> float:
        """Returns the last position in steps or minutes."""
        ends = [self.series(kind, x if x == "step" else "seconds", x)[0] for kind in KINDS]
        return max((position for positions in ends for position in positions), default=0.0)

    def last(self, kind: str, key: str) -> float | None:
        """Returns the last finite value of a figure; None if there is none."""
        _, values = self.series(kind, key)
        return next((value for value in reversed(values) if math.isfinite(value)), None)


def read_metrics(run_dir: Path) -> RunMetrics:
    """Reads the metrics of a run, which may be in training.

    Raises:
        CheckpointError: If there is no such run, or it has no metrics file.
    """
    path = run_dir / METRICS
    if not run_dir.is_dir():
        raise CheckpointError(f"{run_dir}: no such run")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise CheckpointError(f"{run_dir}: has no {METRICS}; name a run directory") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    records = [_parse(line, f"{path}, line {i}") for i, line in enumerate(lines[:-1], 1)]
    return RunMetrics(run_dir.resolve().name, records)  # the last line may be incomplete


def _parse(line: str, place: str) -> dict[str, Any]:
    """Reads one line; earlier versions wrote NaN, which later ones write as null."""
    try:
        record = json.loads(line, parse_constant=lambda name: None)
        _require_numbers(record)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise CheckpointError(f"{place}: damaged (not a line of metrics)") from None
    return dict(record)


def _require_numbers(record: dict[str, Any]) -> None:
    """Raises an error unless a record has its position and otherwise only numbers."""
    numbers = {key: value for key, value in record.items() if key != "kind"}
    if record["kind"] not in KINDS or None in (numbers["step"], numbers["seconds"]):
        raise ValueError
    if not all(value is None or isinstance(value, int | float) for value in numbers.values()):
        raise TypeError


def name_runs(runs: Sequence[RunMetrics], paths: Sequence[Path]) -> list[RunMetrics]:
    """Names runs by their directories, with as many parent folders as needed to tell them apart.

    Args:
        runs: The runs.
        paths: The directory of each.
    """
    parts = [path.resolve().parts for path in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(set(parts)):
            break
    return [RunMetrics(name, run.records) for name, run in zip(names, runs, strict=True)]
