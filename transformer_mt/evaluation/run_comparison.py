"""Runs side by side, as a table: where they differ, and what they reached.

A row is a run with a setting of search, a column of scores a metric on a test set.
"""

import csv
import io
import json
import re
import statistics
import textwrap
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import zip_longest
from os.path import realpath
from pathlib import Path
from typing import Any

from transformer_mt.checkpoints.evaluations import VALIDATION, read_evaluations
from transformer_mt.checkpoints.layout import EXPORT, METRICS, RUN_FILE, checkpoint_path, not_a_run
from transformer_mt.checkpoints.metrics import RunMetrics, read_metrics, run_names
from transformer_mt.checkpoints.run_directory import description_if_sound
from transformer_mt.config.keys import DEFAULTS, flat_values
from transformer_mt.config.loading import format_value
from transformer_mt.errors import CheckpointError, ConfigError
from transformer_mt.evaluation.paired_test import paired_t_test
from transformer_mt.system.console import escape_controls, logger
from transformer_mt.system.manifest import MANIFEST
from transformer_mt.version import SOURCE_PACKAGES

Row = dict[str, Any]
"""A run with a setting of search, or a statistic of several: values of keys, and numbers by column.

`run` is its name, `signatures` has those of sacreBLEU by column. What is unknown is missing.
"""

_SEED, _SOURCES = "train.seed", [f"source of {name}/" for name in SOURCE_PACKAGES]
_DIGESTS = {
    "encoded text": "corpus_digest",
    "validation text": "valid_digest",
    "started from": "init_digest",
}
"""Columns with digests, by their keys in the description of a run."""
_AVERAGED = "averaged checkpoints"
_SETTINGS = (*DEFAULTS, *_SOURCES, *_DIGESTS, _AVERAGED)
"""Columns that tell runs apart: the keys, the digests of the program's source and of what a run was
trained on, and the number of checkpoints of an average."""
UNFINISHED, _SEARCH, _SCORE, _SIGNATURES = "unfinished", "search", "score", "signatures"
_TEXT_COLUMNS = ("run", *_SETTINGS, UNFINISHED, _SEARCH, _SCORE)
_DECIMALS = {"parameters": 0, "steps": 0, "minutes": 1, "tokens/s": 0, "df": 0, "p": 4}
"""Decimal places of a column; those of scores are two."""
_TITLE_WIDTH = 12
"""Characters after which the title of a column is wrapped."""
_TEXT_DIGEST = re.compile(r"\([0-9a-f]{8}\)\Z")
"""Ends the name of a test set, unless that is sacreBLEU's."""
_RESAMPLING = re.compile(r"\|bs:\d+\|seed:\w+")
_MARKDOWN = re.compile(r"\||<(?=\D)")
"""What ends a cell, or begins an HTML tag, which is not shown: `<bt>` may be a symbol."""
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {"<": r"\textless{}", ">": r"\textgreater{}", '"': r"{\char34}", "±": r"$\pm$"}
_LATEX |= {"|": r"\textbar\allowbreak{}", "[": "{[}", "*": "{*}", "−": "$-$"}
_LATEX |= {char: f"\\{char}" for char in "&%$#_{}"}
"""Characters as LaTeX. A signature can be broken after its bars alone; at the start of a row, a
bracket or an asterisk would be an argument of the command before it, which ends a row."""


def read_rows(
    paths: Sequence[Path], test_sets: Sequence[str] = (), metrics: Sequence[str] = ()
) -> list[list[Row]]:
    """Reads run directories, in groups that differ in their seeds alone.

    Runs of a group have the same program, text and setting of search; a run has a row for each
    setting that it was scored with. Only the keys in which runs differ are kept. What is damaged is
    left out with a warning. Names or patterns choose test sets and metrics; without any, all.

    Raises:
        CheckpointError: If a path is not a run.
        ConfigError: If no run has a score that is chosen.
    """
    scores = [f"{name}: {metric}" for name in test_sets or ["*"] for metric in metrics or ["*"]]
    paths = list({realpath(path): path for path in paths}.values())
    named, texts = zip(paths, run_names(paths), strict=True), dict[str, str]()
    rows = [row for path, name in named for row in _read_run(path, name, scores, texts)]
    if (test_sets or metrics) and not any(": " in title for row in rows for title in row):
        raise ConfigError(f"no run has a score that matches {' or '.join(map(repr, scores))}")
    known = [row for row in rows if _SEED in row]
    equal = {key for key in _SETTINGS if len({str(row[key]) for row in known}) == 1}
    groups: dict[tuple[str, str], list[Row]] = {}
    for each in rows:
        row = {title: value for title, value in each.items() if title not in equal}
        settings = str(_settings(row)) if _SEED in each else row["run"]
        groups.setdefault((settings, row.get(_SEARCH, "")), []).append(row)
    return list(groups.values())


def describe_settings(row: Row) -> str:
    """Returns the settings of a row, which are those in which runs differ, but for the seed."""
    return ", ".join(f"{key}={_format_cell(row, key)}" for key in _settings(row))


def _settings(row: Row) -> Row:
    return {key: row[key] for key in _SETTINGS if key in row and key != _SEED}


def _matches(title: str, patterns: Sequence[str]) -> bool:
    """Tells whether a pattern matches, or there is none; case and parentheses need not be given."""
    titles = title.lower(), re.sub(r" \(.*?\)", "", title.lower())
    # Brackets are those of a slice, not a choice of characters.
    patterns = [pattern.lower().replace("[", "[[]") for pattern in patterns]
    return not patterns or any(fnmatchcase(t, p) for t in titles for p in patterns)


def _read_run(path: Path, name: str, scores: Sequence[str], texts: dict[str, str]) -> list[Row]:
    if not any((path / file).is_file() for file in (RUN_FILE, METRICS, EXPORT)):
        raise not_a_run(path, f"{RUN_FILE} and no {METRICS}")
    row, metrics = Row(run=name), RunMetrics(name, [])
    if (path / METRICS).is_file():
        try:
            metrics = RunMetrics(name, read_metrics(path))
        except CheckpointError as error:
            logger.warning("%s; left out", error)
    row |= _read_settings(path, metrics)
    if metrics.records:
        row |= {"steps": metrics.end("step"), "minutes": metrics.end("minutes")}
    if speeds := metrics.finite("train", "tokens_per_second"):
        row["tokens/s"] = statistics.median(speeds)
    # An average or an exported model, which may have been renamed, has no other.
    best_checkpoint = None if (path / MANIFEST).is_file() else path.name
    if best := metrics.best_validation(row.get("valid.metric", "bleu")):
        average, weights = (" (average)", " (weights)") if "ema_bleu" in best else ("", "")
        titles = {f"{VALIDATION}: BLEU{average}": best.get("ema_bleu", best["bleu"])}
        titles[f"{VALIDATION}: perplexity{weights}"] = best["perplexity"]
        row |= {title: titles[title] for title in titles if _matches(title, scores)}
        best_checkpoint = checkpoint_path(path, int(best["step"])).name
    return _rows_by_search(row, path, best_checkpoint, scores, texts)


def _read_settings(path: Path, metrics: RunMetrics) -> Row:
    """Reads the values of all keys, what else tells runs apart, and whether a run has ended."""
    description = description_if_sound(path)
    if not description:
        return {}
    row: Row = {}
    for key, value in flat_values(description.config).items():
        row[key] = value if isinstance(value, str | int | float) else format_value(value)
    vocabulary = description.vocabulary  # the one in use, maybe that of `vocab.path`
    row["vocab.size"], row["vocab.kind"] = max(vocabulary.src, vocabulary.tgt), vocabulary.kind
    row |= {name: description.environment.get(name, "")[:8] for name in _SOURCES}
    row |= {name: description.digests[key][:8] for name, key in _DIGESTS.items()}
    # Not which, since seeds may have stopped at different steps.
    row[_AVERAGED] = str(len(description.averaged_steps) or "")
    if not description.complete:
        step, last = metrics.end("step"), description.config.train.max_steps
        row[UNFINISHED] = f"step {step:,.0f} of {last:,}"
    return {**row, "parameters": description.parameters}


def _rows_by_search(
    run: Row, path: Path, best: str | None, scores: Sequence[str], texts: dict[str, str]
) -> list[Row]:
    """Adds the scores on test sets: a row for each setting of search.

    A row without them comes first if nothing else would show the run, or the validation of its
    best checkpoint. `texts` has the first name of each text, since folders are renamed.
    """
    rows: dict[str, Row] = {}
    validation = [title for title in run if title.startswith(f"{VALIDATION}: ")]
    without_validation = {title: run[title] for title in run if title not in validation}
    is_shown = not validation  # which a row of the best shows, too
    for record in read_evaluations(path):
        # The score of another checkpoint must not be taken for that of the best.
        is_best = best in (None, record.checkpoint)
        search = f"{record.search}{'' if is_best else f', {record.checkpoint}'}"
        digest = _TEXT_DIGEST.search(record.test_set)
        text = texts.setdefault(digest[0] if digest else record.test_set, record.test_set)
        for score in record.scores:
            title = f"{text}: {score.full_title}"
            if record.test_set != VALIDATION and _matches(title, scores):
                known = run if is_best else without_validation
                is_shown |= is_best
                row = rows.setdefault(search, {**known, _SEARCH: search, _SIGNATURES: {}})
                row[title] = score.value
                signature = _RESAMPLING.sub("", score.signature)  # of an interval, not shown here
                row[_SIGNATURES][title] = f"{score.title}|{signature}"
    return list(rows.values()) if rows and is_shown else [run, *rows.values()]


def compare_seeds(groups: Sequence[Sequence[Row]]) -> list[list[Row]]:
    """Tests each setting against that of the first run: a row for each score on a test set.

    Pairs are the finished runs of one seed, with the same setting of search.

    Raises:
        ConfigError: If no setting has two pairs.
    """
    baseline = _settings(groups[0][0])
    baselines = {g[0].get(_SEARCH): _by_seed(g) for g in groups if _settings(g[0]) == baseline}
    tests = []
    for group in groups:
        new, old = _by_seed(group), baselines.get(group[0].get(_SEARCH), {})
        for title in _titles(group) if _settings(group[0]) != baseline else ():
            seeds = [seed for seed in new if title in new[seed] and title in old.get(seed, ())]
            if len(seeds) > 1 and title in new[seeds[0]].get(_SIGNATURES, ()):
                test = paired_t_test([new[seed][title] - old[seed][title] for seed in seeds])
                names = {_SEED: ", ".join(map(str, seeds)), _SCORE: title}
                tests.append([_common(group[0]) | names | test])
    if not tests:
        raise ConfigError(
            "--baseline: evaluate two seeds of both settings with the same search; seeds of one"
            f" setting differ in {_SEED} alone"
        )
    return tests


def _by_seed(group: Sequence[Row]) -> dict[int | None, Row]:
    """Returns the finished runs by their seeds; none if several have the same."""
    finished = [row for row in group if UNFINISHED not in row]
    seeds = {row.get(_SEED): row for row in finished}
    if len(seeds) == len(finished):
        return seeds
    names = ", ".join(row["run"] for row in finished)
    logger.warning("%s: some have the same seed, so there is no mean", names)
    return {}


def _with_mean(group: Sequence[Row], rows: Sequence[Row], replaces_runs: bool) -> Sequence[Row]:
    """Adds mean ± sample standard deviation of the finished rows, where all have a number."""
    if len(rows) < 2:
        return group
    mean = {"run": f"mean ± std. dev. of {len(rows)}", **_common(rows[0])}
    for title in rows[0]:
        if title not in (*_TEXT_COLUMNS, _SIGNATURES) and all(title in row for row in rows):
            values = [row[title] for row in rows]
            mean[title], deviation = statistics.fmean(values), statistics.stdev(values)
            if deviation:
                shown = (_format_cell({title: value}, title) for value in (mean[title], deviation))
                mean[title] = " ± ".join(shown)
    return [*(row for row in group if UNFINISHED in row or not replaces_runs), mean]


def _common(row: Row) -> Row:
    """Returns what the rows of a group have in common."""
    return _settings(row) | {key: row[key] for key in (_SEARCH, _SIGNATURES) if key in row}


def _titles(rows: Sequence[Row], columns: Sequence[str] = ()) -> list[str]:
    """Returns the columns that match a pattern, text before numbers; without a pattern, all.

    Raises:
        ConfigError: If a pattern matches no column.
    """
    present = dict.fromkeys(title for row in rows for title in row if title != _SIGNATURES)
    titles = [title for title in dict.fromkeys((*_TEXT_COLUMNS, *present)) if title in present]
    for pattern in columns:
        if not any(_matches(title, [pattern]) for title in titles):
            raise ConfigError(f"--columns {pattern}: matches none of: {'; '.join(titles)}")
    # Whatever is chosen, a run that is not finished is marked, and no two rows look the same.
    needed = {"run", UNFINISHED, *(key for row in rows for key in _settings(row))}
    if len({row.get(_SEARCH) for row in rows}) > 1:
        needed.add(_SEARCH)
    return [title for title in titles if _matches(title, columns) or title in needed]


def format_rows(
    groups: Sequence[Sequence[Row]], file_format: str, columns: Sequence[str] = ()
) -> str:
    """Formats groups of rows as a table; `columns` are names or patterns, without any all.

    It is `csv`, a `json` list with an object for each row, or for people, with mean and standard
    deviation of each group: `text`, `markdown`, or `latex`, which has them instead of the runs.

    Raises:
        ConfigError: If a pattern matches no column.
    """
    rows = [row for group in groups for row in group]
    titles = _titles(rows, columns)
    if file_format == "latex" and columns and not _matches("run", columns):
        titles = [title for title in titles if title != "run"]
    if file_format == "json":
        objects = [{t: row[t] for t in (*titles, _SIGNATURES) if t in row} for row in rows]
        return json.dumps(objects, indent=1, ensure_ascii=False)
    if file_format == "csv":
        content = io.StringIO()
        cells = [[row.get(title, "") for title in titles] for row in rows]
        csv.writer(content, lineterminator="\n").writerows([titles, *cells])
        return content.getvalue().removesuffix("\n")
    finished = [list(_by_seed(group).values()) for group in groups]
    with_runs = zip(groups, finished, strict=True)
    shown = [_with_mean(group, rows, file_format == "latex") for group, rows in with_runs]
    table = [[[_format_cell(row, title) for title in titles] for row in group] for group in shown]
    texts = sum(title in _TEXT_COLUMNS for title in titles)
    if file_format == "text":
        return _align(titles, table, texts)
    lines = [row for group in table for row in group]
    if file_format == "latex":
        known = dict.fromkeys(item for row in rows for item in row.get(_SIGNATURES, {}).items())
        signatures = [text for title, text in known if title in titles or _SCORE in titles]
        seeds = set(map(len, finished))
        counts = sorted(seeds - {0, 1})
        number = f"{counts[0]} " if len(counts) == 1 else ""
        singles = "; single runs have no ±" if counts != sorted(seeds) else ""
        means = [f"mean ± standard deviation over {number}seeds{singles}"] if counts else []
        return _latex(titles, lines, texts, [*means, *dict.fromkeys(signatures)])
    rule = ["---"] * texts + ["---:"] * (len(titles) - texts)
    lines = [[_MARKDOWN.sub(r"\\\g<0>", cell) for cell in row] for row in (titles, rule, *lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def _format_cell(row: Row, title: str) -> str:
    value = row.get(title, "")
    if isinstance(value, str):
        return value
    if title == "p" and value < 0.0001:
        return "<0.0001"
    return format_value(value) if title in DEFAULTS else f"{value:z,.{_DECIMALS.get(title, 2)}f}"


def _align(titles: list[str], groups: list[list[list[str]]], text_columns: int) -> str:
    """Aligns text to the left and numbers to the right, with an empty line between groups."""
    wrapped = [textwrap.wrap(title, _TITLE_WIDTH, break_long_words=False) for title in titles]
    header = [list(line) for line in zip_longest(*(lines[::-1] for lines in wrapped), fillvalue="")]
    header.reverse()  # the last lines of all titles are at the same height
    columns = zip(*header, *(row for group in groups for row in group), strict=True)
    widths = [max(map(len, column)) for column in columns]
    sides = "<" * text_columns + ">" * (len(titles) - text_columns)
    line = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))

    def join(row: list[str]) -> str:
        return escape_controls(line.format(*row).rstrip())

    gap = "\n\n" if any(len(group) > 1 for group in groups) else "\n"
    return gap.join("\n".join(map(join, block)) for block in (header, *groups))


def _latex(titles: list[str], rows: list[list[str]], texts: int, caption: list[str]) -> str:
    """Formats a table for the package booktabs."""

    def escape(text: str) -> str:
        return "".join(_LATEX.get(char, char) for char in escape_controls(text))

    rows = [[*row[:texts], *(cell.replace("-", "−") for cell in row[texts:])] for row in rows]
    header, *body = [" & ".join(map(escape, row)) + r" \\" for row in (titles, *rows)]
    table = [
        r"\begin{table}\centering  % needs \usepackage{booktabs}",
        rf"\caption{{{escape(', '.join(caption))}}}",
        rf"\begin{{tabular}}{{{'l' * texts}{'r' * (len(titles) - texts)}}}",
        *(r"\toprule", header, r"\midrule", *body, r"\bottomrule"),
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(table)
