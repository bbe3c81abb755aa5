"""The choice of beam size and length penalty on validation text, and test scores with it."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

from transformer_mt.evaluation.evaluate import (
    EvaluationReport,
    format_reports,
    read_inputs,
    score_output,
    translate_system,
)
from transformer_mt.evaluation.run_comparison import format_rows
from transformer_mt.evaluation.scoring import choose_metrics
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

        def score(text: EvaluationSet, search: SearchOptions) -> list[EvaluationReport]:
            setting = TranslateOptions(options, search)
            outputs = (translate_system(system, text, setting, load) for system in systems)
            return [score_output(text, each, metrics, records=text is test) for each in outputs]

        validated = [score(valid, search) for search in searches]
        best = max(range(len(searches)), key=lambda i: fmean(_bleu(validated[i])))
        return [*validated, score(test, searches[best])]


def format_tuning(tuned: Sequence[Sequence[EvaluationReport]]) -> str:
    """Formats a table of the settings, the scores of the test set, and a line to quote."""
    *validated, tested = tuned
    valid, first = validated[0][0].test_set, tested[0]
    kind = f" (mean ± standard deviation of {len(tested)} runs)" if len(tested) > 1 else ""
    table = [
        [{"search": str(reports[0].system.search), "BLEU": _format_bleu(reports)}]
        for reports in validated
    ]
    quote = (
        f"BLEU {_format_bleu(tested)}{kind}, {first.test_set.name}, {first.system.search}, chosen"
        f" on {valid.name}: {first.scores[0].signature}"
    )
    heading = f"{valid.name}, {len(valid):,} sentences{kind}"
    return "\n\n".join([heading, format_rows(table, "text"), format_reports(tested), quote])


def _bleu(reports: Sequence[EvaluationReport]) -> list[float]:
    return [report.scores[0].value for report in reports]


def _format_bleu(reports: Sequence[EvaluationReport]) -> str:
    values = _bleu(reports)
    deviation = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{deviation}"
