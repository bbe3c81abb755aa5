"""metrics.jsonl: the records that training has written, for curves and for programs.

PANELS has the charts that show them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import realpath
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt

from transformer_mt.checkpoints.layout import METRICS, not_a_run
from transformer_mt.errors import CheckpointError
from transformer_mt.system.files import parse_json


@dataclass(frozen=True)
class Panel:
    """One chart of training curves; here, since the command line names them without Matplotlib.

    A curve has the kind and the name of its metric in metrics.jsonl, and a label if there are two;
    the second is dashed.
    """

    title: str
    unit: str
    curves: tuple[tuple[str, str, str], ...]


LOSS_UNIT = "nats per target token"
PANELS: dict[str, Panel] = {
    "loss": Panel("Training loss, label-smoothed", LOSS_UNIT, (("train", "loss", ""),)),
    "nll": Panel(
        "Loss without label smoothing (NLL)",
        LOSS_UNIT,
        (("train", "nll", "training"), ("valid", "nll", "validation")),
    ),
    "bleu": Panel(
        "Validation BLEU",
        "BLEU",
        (("valid", "bleu", "weights"), ("valid", "ema_bleu", "moving average")),
    ),
    "lr": Panel("Learning rate", "rate", (("train", "lr", ""),)),
    "grad_norm": Panel("Gradient norm before clipping", "norm", (("train", "grad_norm", ""),)),
    "speed": Panel("Speed", "target tokens per second", (("train", "tokens_per_second", ""),)),
}


@dataclass(frozen=True)
class RunMetrics:
    """The lines of a run's metrics.jsonl, in order, with minutes; a non-finite number is NaN."""

    name: str
    records: list[dict[str, Any]]

    def series(self, kind: str, key: str, x: str = "step") -> tuple[list[float], list[float]]:
        """Returns positions, in steps or minutes, and values of one metric of `train` or `valid`.

        A record without the metric is left out.
        """
        records = [r for r in self.records if r["kind"] == kind and key in r]
        return [r[x] for r in records], [r[key] for r in records]

    def end(self, x: str) -> float:
        """Returns the last position in steps or minutes."""
        return max((record[x] for record in self.records), default=0.0)

    def finite_points(self, kind: str, key: str) -> list[tuple[float, float]]:
        """Returns steps and values of a metric where it is finite."""
        points = zip(*self.series(kind, key), strict=True)
        return [(step, value) for step, value in points if math.isfinite(value)]

    def finite(self, kind: str, key: str) -> list[float]:
        """Returns the finite values of a metric."""
        return [value for _, value in self.finite_points(kind, key)]

    def best_validation(self, metric: str = "bleu") -> dict[str, Any] | None:
        """Returns the record that is the best by a `valid.metric`, as training chooses it.

        The moving average's scores count if there is one. Of equal ones it is that with the lowest
        NLL, and its perplexity is finite; None if there is none.
        """

        def rank(record: dict[str, Any]) -> tuple[float, float]:
            score, nll = (record.get(f"ema_{k}", record.get(k, 0.0)) for k in (metric, "nll"))
            return (0.0 if metric == "nll" else score), -nll

        records = [r for r in self.records if r["kind"] == "valid" and "bleu" in r]
        finite = [r for r in records if math.isfinite(r.get("perplexity", math.nan))]
        return max(finite, key=rank, default=None)


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Reads the records of a run, which may be in training.

    Raises:
        CheckpointError: If its metrics file is missing or damaged.
    """
    path = run_dir / METRICS
    if not path.is_file():
        raise not_a_run(run_dir, METRICS)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    # The last line may be incomplete.
    return [_parse(line, f"{path}, line {i}") for i, line in enumerate(lines[:-1], 1)]


class _Line(BaseModel):
    """A line of metrics.jsonl, with the fields of `training.run_log` that its kind has."""

    model_config = ConfigDict(strict=True, extra="allow")
    __pydantic_extra__: dict[str, float | None]

    kind: Literal["train", "valid"]
    step: NonNegativeInt
    seconds: NonNegativeFloat


def _parse(line: str, place: str) -> dict[str, Any]:
    try:
        record = _Line.model_validate(parse_json(line)).model_dump()
    except ValueError:
        raise CheckpointError(f"{place}: damaged (not a line of metrics)") from None
    values = {key: math.nan if value is None else value for key, value in record.items()}
    return {**values, "minutes": record["seconds"] / 60}


def read_runs(paths: Sequence[Path]) -> list[RunMetrics]:
    """Reads the metrics of runs, with the names of `run_names`.

    Raises:
        CheckpointError: If one does not exist or has no metrics yet.
    """
    runs = []
    for path, name in zip(paths, run_names(paths), strict=True):
        runs.append(RunMetrics(name, read_metrics(path)))
        if not runs[-1].records:
            raise CheckpointError(f"{path}: its {METRICS} has no complete line yet")
    return runs


def run_names(paths: Sequence[Path]) -> list[str]:
    """Names runs with as many parent folders as tell them apart."""
    parts = [Path(realpath(path)).parts for path in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(set(parts)):
            break
    return names
