"""Runs side by side, as a table: where they differ, and what they reached."""

import csv
import io
import json
import logging
import statistics
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

from transformer_mt.checkpoints.evaluations import VALIDATION, EvaluationRecord, read_evaluations
from transformer_mt.checkpoints.exported import load_exported
from transformer_mt.checkpoints.layout import (
    EXPORT,
    METRICS,
    RUN_FILE,
    checkpoint_path,
    not_a_run,
)
from transformer_mt.checkpoints.metrics import RunMetrics, read_metrics, run_names
from transformer_mt.checkpoints.run_description import read_description
from transformer_mt.config.keys import DEFAULTS, flat_values
from transformer_mt.config.loading import format_value
from transformer_mt.errors import CheckpointError
from transformer_mt.system.console import escape_controls
from transformer_mt.version import SOURCE_PACKAGES

logger = logging.getLogger(__name__)

Row = dict[str, Any]
"""A run, or a statistic of several: its name as `run`, values of keys, and numbers by column.

What is unknown is missing.
"""

_SEED, _SOURCES = "train.seed", [f"source of {name}/" for name in SOURCE_PACKAGES]
_DIGESTS = {
    "training text": "corpus_digest",
    "validation text": "valid_digest",
    "started from": "init_digest",
}
"""Columns with digests, by their keys in the description of a run."""
_SETTINGS = (*DEFAULTS, *_SOURCES, *_DIGESTS)
"""Columns that tell runs apart: the keys, and the digests of the program's source and of what a run
was trained on."""
_UNFINISHED = "unfinished"
_TEXT_COLUMNS = {"run", *_SETTINGS, _UNFINISHED}
_DECIMALS = {"parameters": 0, "steps": 0, "minutes": 1, "tokens/s": 0}
"""Decimal places of a column; those of scores are two."""
_TITLE_WIDTH = 12
"""Characters after which the title of a column is wrapped."""


def read_rows(paths: Sequence[Path]) -> list[list[Row]]:
    """Reads run directories, in groups of runs of one program that differ in their seeds alone.

    Runs of a group have the same text. The mean and the standard deviation of its finished runs, if
    there are several, are its last two rows. Only the keys in which runs differ are kept. What is
    damaged is left out with a warning.

    Raises:
        CheckpointError: If a path is not a run.
    """
    paths = list({path.resolve(): path for path in paths}.values())
    runs = [
        _read_exported(path, name) if (path / EXPORT).exists() else _read_run(path, name)
        for path, name in zip(paths, run_names(paths), strict=True)
    ]
    known = [run for run in runs if _SEED in run]
    equal = {key for key in _SETTINGS if len({str(run[key]) for run in known}) == 1}
    groups: dict[str, list[Row]] = {}
    for run in runs:
        row = {title: value for title, value in run.items() if title not in equal}
        settings = [row[key] for key in _SETTINGS if key in row and key != _SEED]
        groups.setdefault(str(settings) if _SEED in run else run["run"], []).append(row)
    return [
        [*group, *_statistics([row for row in group if _UNFINISHED not in row])]
        for group in groups.values()
    ]


def _read_run(path: Path, name: str) -> Row:
    if not any((path / file).is_file() for file in (RUN_FILE, METRICS)):
        raise not_a_run(path, f"{RUN_FILE} and no {METRICS}")
    row, metrics = Row(run=name), RunMetrics(name, [])
    if (path / METRICS).is_file():
        with _left_out_if_damaged():
            metrics = RunMetrics(name, read_metrics(path))
    with _left_out_if_damaged():
        row |= _read_settings(path, metrics)
    if metrics.records:
        row |= {"steps": metrics.end("step"), "minutes": metrics.end("minutes")}
    if speeds := metrics.finite("train", "tokens_per_second"):
        row["tokens/s"] = statistics.median(speeds)
    best_checkpoint = None
    if best := metrics.best_validation(row.get("valid.metric", "bleu")):
        row["validation BLEU"] = best.get("ema_bleu", best["bleu"])
        row["perplexity"] = best["perplexity"]
        best_checkpoint = checkpoint_path(path, int(best["step"])).name
    for record in read_evaluations(path):
        if record.test_set != VALIDATION:
            row |= _scores(record, best_checkpoint)
    return row


def _read_settings(path: Path, metrics: RunMetrics) -> Row:
    """Reads the values of all keys, what else tells runs apart, and whether a run has ended."""
    description = read_description(path)
    if not description:
        return {}
    row: Row = {}
    for key, value in flat_values(description.config).items():
        row[key] = value if isinstance(value, str | int | float) else format_value(value)
    vocabulary = description.vocabulary  # the one in use, maybe that of `vocab.path`
    row["vocab.size"], row["vocab.kind"] = max(vocabulary.src, vocabulary.tgt), vocabulary.kind
    row |= {name: description.environment.get(name, "")[:8] for name in _SOURCES}
    row |= {name: description.digests[key][:8] for name, key in _DIGESTS.items()}
    if not description.complete:
        step, last = metrics.end("step"), description.config.train.max_steps
        row[_UNFINISHED] = f"step {step:,.0f} of {last:,}"
    return {**row, "parameters": description.parameters}


def _read_exported(path: Path, name: str) -> Row:
    """Reads scores and step; with settings, it would be grouped with the run it was made from."""
    row: Row = {"run": name, "steps": load_exported(path).step}
    for record in read_evaluations(path):
        row |= _scores(record, path.name)
    return row


def _scores(record: EvaluationRecord, best_checkpoint: str | None) -> Row:
    # The score of another checkpoint must not be taken for that of the best.
    other = "" if record.checkpoint == best_checkpoint else f", {record.checkpoint}"
    scores = {}
    for score in record.scores:
        tokenizer = "" if score.tokenizer in ("", "13a") else f" ({score.tokenizer})"
        title = f"{record.test_set} {score.title}{tokenizer}, {record.search}{other}"
        scores[title] = score.value
    return scores


@contextmanager
def _left_out_if_damaged() -> Iterator[None]:
    try:
        yield
    except CheckpointError as error:
        logger.warning("%s; left out", error)


def _statistics(group: Sequence[Row]) -> list[Row]:
    """Computes mean and sample standard deviation of several runs, where all have a number."""
    if len(group) < 2:
        return []
    if len({row.get(_SEED) for row in group}) < len(group):
        names = ", ".join(row["run"] for row in group)
        logger.warning("%s: some have the same seed, so there is no mean", names)
        return []
    first = group[0]
    settings = {key: first[key] for key in first if key in _SETTINGS and key != _SEED}
    mean = {"run": f"mean of {len(group)}", **settings}
    deviation = {"run": f"std. dev. of {len(group)}", **settings}
    for title in first:
        if title not in _TEXT_COLUMNS and all(title in row for row in group):
            values = [row[title] for row in group]
            mean[title], deviation[title] = statistics.fmean(values), statistics.stdev(values)
    return [mean, deviation]


def format_rows(groups: Sequence[Sequence[Row]], file_format: str) -> str:
    """Formats groups of rows as `text`, `markdown`, `csv`, or a `json` list with an object each."""
    rows = [row for group in groups for row in group]
    if file_format == "json":
        return json.dumps(rows, indent=1, ensure_ascii=False)
    columns = dict.fromkeys(title for row in rows for title in row)
    texts = ["run", *(key for key in (*_SETTINGS, _UNFINISHED) if key in columns)]
    titles = [*texts, *(title for title in columns if title not in _TEXT_COLUMNS)]
    if file_format == "csv":
        content = io.StringIO()
        writer = csv.DictWriter(content, titles, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return content.getvalue().removesuffix("\n")
    table = [[[_format_cell(row, title) for title in titles] for row in group] for group in groups]
    if file_format == "text":
        return _align(titles, table, len(texts))
    rule = ["---"] * len(texts) + ["---:"] * (len(titles) - len(texts))
    lines = [[cell.replace("|", r"\|") for cell in row] for group in table for row in group]
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, rule, *lines))


def _format_cell(row: Row, title: str) -> str:
    value = row.get(title, "")
    if isinstance(value, str):
        return value
    return format_value(value) if title in DEFAULTS else f"{value:z,.{_DECIMALS.get(title, 2)}f}"


def _align(titles: list[str], groups: list[list[list[str]]], text_columns: int) -> str:
    """Aligns text to the left and numbers to the right, with an empty line between groups."""
    wrapped = [textwrap.wrap(title, _TITLE_WIDTH, break_long_words=False) for title in titles]
    header = [list(line) for line in zip_longest(*(lines[::-1] for lines in wrapped), fillvalue="")]
    header.reverse()  # the last lines of all titles are at the same height
    columns = zip(*header, *(row for group in groups for row in group), strict=True)
    widths = [max(map(len, column)) for column in columns]

    def join(row: list[str]) -> str:
        cells = [
            cell.ljust(width) if i < text_columns else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return escape_controls("  ".join(cells).rstrip())

    gap = "\n\n" if any(len(group) > 1 for group in groups) else "\n"
    return gap.join("\n".join(map(join, block)) for block in (header, *groups))
