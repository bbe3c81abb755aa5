"""The choice of beam size and length penalty on validation text, and test scores with it."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

from transformer_mt.checkpoints.layout import RUN_FILE
from transformer_mt.checkpoints.metrics import run_names
from transformer_mt.errors import ConfigError
from transformer_mt.evaluation.evaluate import (
    EvaluationReport,
    format_reports,
    read_inputs,
    score_output,
    translate_system,
)
from transformer_mt.evaluation.run_comparison import (
    UNFINISHED,
    describe_settings,
    format_rows,
    read_rows,
)
from transformer_mt.evaluation.scoring import choose_metrics
from transformer_mt.system.console import logger
from transformer_mt.text.test_sets import EvaluationSet, load_test_set
from transformer_mt.translation.options import LoadOptions, SearchOptions, TranslateOptions
from transformer_mt.translation.sharing import share_work


def tune_search(
    runs: Sequence[Path],
    splits: Sequence[str | None],
    searches: Sequence[SearchOptions],
    options: LoadOptions,
) -> list[list[EvaluationReport]]:
    """Chooses the search with the best mean BLEU over runs, and scores the test set with it.

    Both texts are those of the first run. Of equal settings the first is the best. Only scores on
    the test set are recorded.

    Args:
        runs: Runs or checkpoints, which translate the same languages.
        splits: The validation text and the test set, as for `load_test_set`.
        searches: The settings.
        options: How to load the models.

    Returns:
        A list per setting of reports on the validation text, one per run, and last the list of
        those on the test set; nothing in the processes that only share the work.

    Raises:
        TransformerMTError: If a path, a text, or an option is wrong.
    """
    loaders = [partial(load_test_set, split=split) for split in splits]
    with share_work(runs, options.device) as load:
        if not load:
            return []
        [valid, test], metrics, systems = read_inputs(
            [[run] for run in runs], None, None, loaders, choose_metrics, {}
        )
        chosen, scored = (
            set(zip(*filter(None, [x.src, *x.references]), strict=True)) for x in (valid, test)
        )
        if chosen <= scored or scored <= chosen:
            raise ConfigError(
                f"{test.name}: a search must not be chosen on the text it is scored on"
            )

        def score(text: EvaluationSet, search: SearchOptions) -> list[EvaluationReport]:
            setting = TranslateOptions(options, search)
            outputs = (translate_system(system, text, setting, load) for system in systems)
            return [score_output(text, each, metrics, records=text is test) for each in outputs]

        # Sizes below 1, then the largest: a wrong one shows before any other is tried.
        by_size = sorted(searches, key=lambda search: (search.beam_size > 0, -search.beam_size))
        scores = {search: score(valid, search) for search in by_size}
        validated = [scores[search] for search in searches]
        best = max(range(len(searches)), key=lambda i: fmean(_bleu(validated[i])))
        return [*validated, score(test, searches[best])]


def format_tuning(runs: Sequence[Path], tuned: Sequence[Sequence[EvaluationReport]]) -> str:
    """Formats a table of the settings, the test scores, and a line to quote for each system.

    Runs that differ in their seeds alone are one system.
    """
    *validated, tested = tuned
    valid, names = validated[0][0].test_set, _name_systems(runs)
    table = [
        [{"search": str(reports[0].system.search), "BLEU": _format_bleu(reports)}]
        for reports in validated
    ]
    quotes = []
    for name in dict.fromkeys(names):
        own = [report for of, report in zip(names, tested, strict=True) if of == name]
        quotes.append(
            f"{name}BLEU {_format_bleu(own)}{_kind(own)}, {own[0].test_set.name},"
            f" {own[0].system.search}, chosen on {valid.name}: {own[0].scores[0].signature}"
        )
    heading = f"{valid.name}, {len(valid):,} sentences{_kind(tested)}"
    return "\n\n".join([heading, format_rows(table, "text"), format_reports(tested), *quotes])


def _kind(reports: Sequence[EvaluationReport]) -> str:
    return f" (mean ± standard deviation of {len(reports)} runs)" if len(reports) > 1 else ""


def _name_systems(runs: Sequence[Path]) -> list[str]:
    """Names the settings in which runs differ, for each run; warns of those that have not ended."""
    if not all((run / RUN_FILE).is_file() for run in runs):
        return [f"{name}: " for name in run_names(runs)]
    rows = {row["run"]: row for group in read_rows(runs) for row in group}
    systems = [rows[name] for name in run_names(runs)]
    for row in systems:
        if UNFINISHED in row:
            logger.warning("%s: unfinished (%s)", row["run"], row[UNFINISHED])
    settings = [describe_settings(row) for row in systems]
    seeds = {(each, row.get("train.seed")) for each, row in zip(settings, systems, strict=True)}
    if len(seeds) < len(systems):  # one run twice
        return [f"{name}: " for name in run_names(runs)]
    return [f"{each}: " if each else "" for each in settings]


def _bleu(reports: Sequence[EvaluationReport]) -> list[float]:
    return [report.scores[0].value for report in reports]


def _format_bleu(reports: Sequence[EvaluationReport]) -> str:
    values = _bleu(reports)
    deviation = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{deviation}"
