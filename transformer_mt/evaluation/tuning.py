"""The choice of beam size and length penalty on validation text, and test scores with it."""

import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from transformer_mt.evaluation.evaluate import (
    EvaluationReport,
    format_reports,
    read_inputs,
    score_output,
    translate_test_set,
)
from transformer_mt.evaluation.scoring import choose_metrics
from transformer_mt.text.test_sets import load_test_set
from transformer_mt.translation.options import LoadOptions, SearchOptions, TranslateOptions
from transformer_mt.translation.sharing import share_work

if TYPE_CHECKING:
    from transformer_mt.translation.translation_model import SavedModels


def tune_search(
    runs: Sequence[Path], searches: Sequence[SearchOptions], options: LoadOptions
) -> list[list[EvaluationReport]]:
    """Chooses the search with the best mean BLEU over runs, and scores the test set with it.

    Both texts are those of the first run. Of equal settings the first is the best.

    Args:
        runs: Runs or checkpoints, which translate the same languages.
        searches: The settings.
        options: How to load the models.

    Returns:
        A list per setting of reports on the validation text, one per run, and last the list of
        those on the test set; nothing in the processes that only share the work.

    Raises:
        TransformerMTError: If a path, a text, or an option is wrong.
    """
    loaders = [partial(load_test_set, split=split) for split in ("valid", "test")]
    settings = [TranslateOptions(options, search) for search in searches]
    with share_work(runs, options.device) as load:
        if not load:
            return []
        [valid, test], metrics, systems = read_inputs(
            [[run] for run in runs], None, None, loaders, choose_metrics, {}
        )
        validated: list[list[EvaluationReport]] = [[] for _ in settings]
        for models in (named := cast("list[SavedModels]", systems)):
            model = load(models, options)
            for search in searches:
                model.translator(search)  # a mistake shows before anything is translated
            for setting, reports in zip(settings, validated, strict=True):
                output = translate_test_set(model, valid, setting)
                reports.append(score_output(valid, output, metrics))
        _, best = max(zip(map(_mean, validated), settings, strict=True), key=lambda pair: pair[0])
        outputs = (translate_test_set(load(models, options), test, best) for models in named)
        tested = [score_output(test, output, metrics) for output in outputs]
    return [*validated, tested]


def format_tuning(tuned: Sequence[Sequence[EvaluationReport]]) -> str:
    """Formats a table of the settings, the scores of the test set, and a line to quote."""
    *validated, tested = tuned
    valid, first = tuned[0][0].test_set, tested[0]
    kind = f" (mean ± standard deviation of {len(tested)} runs)" if len(tested) > 1 else ""
    table = [f"{valid.name}, {len(valid):,} sentences: BLEU{kind}"]
    for reports in validated:
        search = reports[0].system.search
        mark = "*" if search == first.system.search else " "
        table.append(f"{mark} {_format_bleu(reports)}  {search}")
    quote = (
        f"BLEU {_format_bleu(tested)}{kind}: {first.test_set.name}, {first.system.search}, chosen"
        f" on {valid.name}; {first.scores[0].signature}"
    )
    return "\n\n".join(["\n".join(table), format_reports(tested), quote])


def _mean(reports: Sequence[EvaluationReport]) -> float:
    return statistics.fmean(report.scores[0].value for report in reports)


def _format_bleu(reports: Sequence[EvaluationReport]) -> str:
    values = [report.scores[0].value for report in reports]
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{_mean(reports):.2f}{deviation}"
