"""Runs side by side, as a table: where they differ, and what they reached."""

import csv
import io
import json
import logging
import re
import statistics
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from transformer_mt.checkpoints.evaluations import VALIDATION, read_evaluations, run_folders
from transformer_mt.checkpoints.run_files import (
    METRICS,
    RUN_FILE,
    is_step_name,
    read_description,
    step_name,
)
from transformer_mt.config.keys import flat_values
from transformer_mt.config.loading import parse_config
from transformer_mt.config.reference import format_value
from transformer_mt.errors import CheckpointError, ConfigError
from transformer_mt.figures.metrics import RunMetrics, read_metrics, run_names
from transformer_mt.system.console import escape_controls

logger = logging.getLogger(__name__)

_SEED = "train.seed"
_DECIMALS = {"parameters": 0, "steps": 0, "minutes": 1, "tokens/s": 0}
"""Decimal places of a column; those of scores are two."""
_TITLE_WIDTH = 12
"""Characters after which the title of a column is wrapped."""


@dataclass(frozen=True)
class Row:
    """A run, or a statistic of several runs.

    `settings` holds the values of its configuration by key, and `numbers` what it reached by
    column; what is unknown is missing.
    """

    name: str
    settings: dict[str, object]
    numbers: dict[str, float]


def read_rows(paths: Sequence[Path]) -> list[list[Row]]:
    """Reads run directories, in groups of runs that differ in their seeds alone.

    The mean and the standard deviation of a group of several runs are its last two rows. Only the
    keys in which runs differ are kept. What is damaged is left out with a warning.

    Raises:
        CheckpointError: If a path is not a run.
    """
    paths = list({path.resolve(): path for path in paths}.values())
    rows = [_read_row(path, name) for path, name in zip(paths, run_names(paths), strict=True)]
    known = [row.settings for row in rows if row.settings]
    differ = [key for key in (known or [{}])[0] if len({str(each[key]) for each in known}) > 1]
    groups: dict[str, list[Row]] = {}
    for row in rows:
        settings = {key: row.settings[key] for key in differ if row.settings}
        shared = {key: value for key, value in settings.items() if key != _SEED}
        group = str(shared) if row.settings else row.name
        groups.setdefault(group, []).append(replace(row, settings=settings))
    return [[*group, *_statistics(group)] for group in groups.values()]


def _read_row(path: Path, name: str) -> Row:
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such run directory")
    files = {file.name for file in path.iterdir()}
    if not files & {RUN_FILE, METRICS} and not any(map(is_step_name, files)):
        raise CheckpointError(f"{path}: has neither {RUN_FILE} nor {METRICS}; name a run directory")
    description: dict[str, Any] = {}
    settings: dict[str, object] = {}
    metrics = RunMetrics(name, [])
    with _left_out_if_damaged():
        description = read_description(path)
    if description:
        with _left_out_if_damaged():
            settings = flat_values(parse_config(description["config"], str(path / RUN_FILE)))
    if METRICS in files:
        with _left_out_if_damaged():
            metrics = read_metrics(path)
    return Row(name, settings, dict(_numbers(path, description, metrics)))


@contextmanager
def _left_out_if_damaged() -> Iterator[None]:
    try:
        yield
    except (CheckpointError, ConfigError) as error:
        logger.warning("%s; left out", error)


def _numbers(
    path: Path, description: dict[str, Any], metrics: RunMetrics
) -> Iterator[tuple[str, float]]:
    """Yields the titles and values of the columns of a run."""
    if "parameters" in description:
        yield "parameters", description["parameters"]
    if metrics.records:
        yield "steps", metrics.end("step")
        yield "minutes", metrics.end("minutes")
    if speeds := metrics.finite("train", "tokens_per_second"):
        yield "tokens/s", statistics.median(speeds)
    best_checkpoint = None
    if best := metrics.best_validation():
        yield "validation BLEU", best.get("ema_bleu", best["bleu"])
        yield "perplexity", best["perplexity"]
        best_checkpoint = step_name(int(best["step"]))
    for record in read_evaluations(run_folders(path)):
        if record.test_set != VALIDATION:
            # The score of another checkpoint must not be taken for that of the best.
            other = "" if record.checkpoint == best_checkpoint else f", {record.checkpoint}"
            for score in record.scores:
                tokenizer = "" if score.tokenizer in ("", "13a") else f" ({score.tokenizer})"
                title = f"{record.test_set} {score.title}{tokenizer}, {record.search}{other}"
                yield title, score.value


def _statistics(group: Sequence[Row]) -> list[Row]:
    """Computes mean and sample standard deviation of several runs, where all have a number."""
    count = len(group)
    if count < 2:
        return []
    settings = {key: value for key, value in group[0].settings.items() if key != _SEED}
    shared = [title for title in group[0].numbers if all(title in row.numbers for row in group)]
    values = {title: [row.numbers[title] for row in group] for title in shared}
    means = {title: statistics.fmean(numbers) for title, numbers in values.items()}
    deviations = {title: statistics.stdev(numbers) for title, numbers in values.items()}
    return [
        Row(f"mean of {count}", settings, means),
        Row(f"std. dev. of {count}", settings, deviations),
    ]


def format_rows(groups: Sequence[Sequence[Row]], file_format: str) -> str:
    """Formats groups of rows as `text`, `markdown`, `csv`, or a `json` list with an object each."""
    rows = [row for group in groups for row in group]
    keys = list(dict.fromkeys(key for row in rows for key in row.settings))
    columns = list(dict.fromkeys(title for row in rows for title in row.numbers))
    if file_format == "json":
        objects = [{"run": row.name, **row.settings, **row.numbers} for row in rows]
        return json.dumps(objects, indent=1, ensure_ascii=False, default=str)
    thousands = "" if file_format == "csv" else ","

    def cells(row: Row) -> list[str]:
        settings = [_format_setting(row.settings[k]) if k in row.settings else "" for k in keys]
        numbers = [_format_number(row.numbers.get(c), c, thousands) for c in columns]
        return [row.name, *settings, *numbers]

    titles = ["run", *keys, *columns]
    if file_format == "text":
        return _align(titles, [[cells(row) for row in group] for group in groups], 1 + len(keys))
    if file_format == "markdown":
        rule = ["---"] * (1 + len(keys)) + ["---:"] * len(columns)
        table = [[cell.replace("|", r"\|") for cell in row] for row in map(cells, rows)]
        return "\n".join(f"| {' | '.join(row)} |" for row in (titles, rule, *table))
    content = io.StringIO()
    csv.writer(content, lineterminator="\n").writerows([titles, *map(cells, rows)])
    return content.getvalue().removesuffix("\n")


def _format_setting(value: object) -> str:
    return value if isinstance(value, str) else format_value(value)


def _format_number(value: float | None, title: str, thousands: str) -> str:
    return "" if value is None else f"{value:{thousands}.{_DECIMALS.get(title, 2)}f}"


class _TitleWrapper(textwrap.TextWrapper):
    """Wraps titles, also within names such as optim.label_smoothing."""

    wordsep_re = re.compile(r"(\s+)|(?<=[._])(?=[^\W\d])")


def _align(titles: list[str], groups: list[list[list[str]]], text_columns: int) -> str:
    """Aligns text to the left and numbers to the right, with an empty line between groups."""
    wrapper = _TitleWrapper(_TITLE_WIDTH, break_long_words=False)
    lines = zip_longest(*(wrapper.wrap(title)[::-1] for title in titles), fillvalue="")
    header = [list(line) for line in lines][::-1]
    table = [*header, *(row for group in groups for row in group)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]

    def join(row: list[str]) -> str:
        cells = [
            cell.ljust(width) if i < text_columns else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return escape_controls("  ".join(cells).rstrip())

    gap = "\n\n" if any(len(group) > 1 for group in groups) else "\n"
    return gap.join("\n".join(map(join, block)) for block in (header, *groups))
