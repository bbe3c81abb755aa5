"""The evaluation of a system on a test set, as text or as JSON."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

from sacrebleu.metrics.base import Metric

from transformer_mt.checkpoints.evaluations import (
    EvaluationRecord,
    Score,
    SearchSetting,
    write_evaluation,
)
from transformer_mt.config.keys import DataConfig, ValidConfig
from transformer_mt.errors import ConfigError, DataError
from transformer_mt.evaluation.run_comparison import Row, format_rows
from transformer_mt.evaluation.scoring import (
    Difference,
    compare_scores,
    corpus_score,
    sentence_chrf,
)
from transformer_mt.system.console import ProgressBar, escape_controls, logger
from transformer_mt.system.outputs import Output, write_lines
from transformer_mt.text.cleaning import warn_of_held_out, warn_of_other_form
from transformer_mt.text.corpus import read_lines
from transformer_mt.text.test_sets import EvaluationSet, check_text
from transformer_mt.translation.options import TranslateOptions
from transformer_mt.translation.sharing import LoadModels, share_work
from transformer_mt.translation.summary import count_kinds, log_kinds
from transformer_mt.translation.translation_model import (
    SavedModels,
    find_models,
    require_one_direction,
)


@dataclass(frozen=True)
class SystemOutput:
    """The translation of a test set by one system.

    The system is a checkpoint, an ensemble of several, an exported model, or a file that was read,
    which has neither models nor search settings. `seconds` were spent translating;
    `moving_average` tells that this average of the weights was used; `counts` has the numbers of
    lines that were split, and whose translation was cut or is empty.
    """

    lines: list[str]
    name: str
    models: SavedModels = field(default_factory=list)
    search: SearchSetting | None = None
    moving_average: bool = False
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)

    def describe(self) -> str:
        """Says what the translation depends on, for people."""
        if self.search is None:
            return escape_controls(self.name)
        names = [f"{each.path} (step {each.step})" for each in self.models]
        text = " and ".join(names) + (", moving average" if self.moving_average else "")
        return escape_controls(f"{text}, {self.search}")


@dataclass(frozen=True)
class EvaluationReport:
    """Scores of a system on a test set, and its differences from a baseline if there is one."""

    test_set: EvaluationSet
    system: SystemOutput
    scores: list[Score]
    baseline: SystemOutput | None
    differences: list[Difference]

    def to_dict(self) -> dict[str, object]:
        """Returns the scores and what they depend on, for JSON; an ensemble has a list of steps."""
        result: dict[str, object] = {
            "test_set": self.test_set.name,
            "sentences": len(self.test_set),
            "tokenizer": self.scores[0].tokenizer,
        }
        for score in self.scores:
            result |= {score.name: score.value, f"{score.name}_signature": score.signature}
            if score.confidence is not None:
                result[f"{score.name}_confidence"] = score.confidence
        system = self.system
        if system.search is None:
            result["hypotheses"] = system.name
        else:
            steps = [model.step for model in system.models]
            result |= {
                "checkpoint": system.name,
                "step": steps if len(steps) > 1 else steps[0],
                "moving_average": system.moving_average,
                **asdict(system.search),
                "seconds": round(system.seconds, 3),
            }
            result |= {f"lines_{kind}": count for kind, count in system.counts.items()}
        if self.baseline:
            result |= {"baseline": self.baseline.name, "differences": self.differences}
        return result


def format_as_json(reports: Sequence[EvaluationReport]) -> str:
    """Formats each report as a JSON object on a line of its own."""
    return "\n".join(json.dumps(report.to_dict(), default=asdict) for report in reports)


def format_reports(reports: Sequence[EvaluationReport], samples: int = 0) -> str:
    """Formats reports on one test set for people, several or those with a baseline as a table.

    So many sentences of the test set come first, with all translations.
    """
    first, paragraphs = reports[0], _format_samples(reports, samples)
    heading = f"{first.test_set.name}, {len(first.test_set):,} sentences"
    if len(reports) == 1 and not first.baseline:
        lines = [f"{first.system.describe()}: {heading}", *(score.text for score in first.scores)]
        return "\n\n".join([*paragraphs, "\n".join(lines)])
    rows: list[Row] = []
    for report in reports:
        run = {"run": report.system.describe()}
        rows += [run | asdict(difference) for difference in report.differences]
        if not first.baseline:
            rows.append(run | {score.title: str(score) for score in report.scores})
    table = format_rows([[row] for row in rows], "text")
    if first.baseline:
        heading += f", compared with {first.baseline.describe()}"
        return "\n\n".join([*paragraphs, heading, table])
    signatures = "\n".join(f"{score.title}|{score.signature}" for score in first.scores)
    return "\n\n".join([*paragraphs, heading, table, signatures])


def _format_samples(reports: Sequence[EvaluationReport], samples: int) -> list[str]:
    """Formats the first sentences, or those that differ most from a baseline, by chrF2."""
    first, test_set = reports[0], reports[0].test_set
    shown = list(range(len(test_set)))
    translations = {report.system.name: report.system.lines for report in reports}
    if len(reports) == 1:
        translations = {"hypothesis": first.system.lines}
    if samples and first.baseline:
        translations["baseline"] = first.baseline.lines
        new, old = (
            sentence_chrf(each.lines, test_set.references)
            for each in (first.system, first.baseline)
        )
        shown.sort(key=lambda i: -abs(new[i] - old[i]))
    texts: dict[str, Sequence[object]] = {"line": range(1, len(test_set) + 1)}
    texts |= {} if test_set.src is None else {"source": test_set.src}
    for number, reference in enumerate(test_set.references, start=1):
        texts["reference" if len(test_set.references) == 1 else f"reference {number}"] = reference
    texts |= translations
    width = max(map(len, texts))
    return [
        "\n".join(escape_controls(f"{label:{width}}  {lines[i]}") for label, lines in texts.items())
        for i in shown[:samples]
    ]


def evaluate_systems(
    runs: Sequence[Sequence[Path]],
    hypotheses: Path | None,
    baseline: Path | None,
    load_test_set: Callable[[DataConfig], EvaluationSet],
    choose_metrics: Callable[..., list[Metric]],
    options: TranslateOptions,
    languages: Mapping[str, str],
    save: Output | None = None,
) -> list[EvaluationReport]:
    """Scores new or existing translations of a test set, and compares them with a baseline.

    Args:
        runs: Each holds a run or a checkpoint, or the several of an ensemble.
        hypotheses: An existing translation to score; of the runs, if any, it needs the corpus.
        baseline: A run, a checkpoint or a translation to compare with.
        load_test_set: Loads a test set, given a corpus.
        choose_metrics: Gives the metrics, BLEU first.
        options: How to load the models and to search for translations.
        languages: `src_lang` and `tgt_lang` if no run is named; empty if they are unknown.
        save: Where to write the translation of a single system.

    Returns:
        A report for each system; none in the processes that only share the work.

    Raises:
        TransformerMTError: If a path, the test set, or an option is wrong.
    """
    paths = [*chain(*runs), *([baseline] if baseline else [])]
    with share_work(paths, options.load.device) as load:
        if not load:
            return []
        [test_set], metrics, systems = read_inputs(
            runs, hypotheses, baseline, [load_test_set], choose_metrics, languages
        )
        translate = partial(translate_system, test_set=test_set, options=options, load=load)
        other = translate(systems.pop()) if baseline else None
        with save.lock() if save else nullcontext():
            reports = [
                score_output(test_set, translate(each), metrics, other, save) for each in systems
            ]
    return reports


def score_output(
    test_set: EvaluationSet,
    output: SystemOutput,
    metrics: list[Metric],
    baseline: SystemOutput | None = None,
    save: Output | None = None,
    records: bool = True,
) -> EvaluationReport:
    """Saves, scores and records a translation, and compares it with a baseline."""
    if save:  # first, so that no later error loses the translation
        write_lines(output.lines, save)
    scores = [corpus_score(output.lines, test_set.references, metric) for metric in metrics]
    if records:
        _record(test_set, output, scores)
    differences: list[Difference] = []
    if baseline:
        differences = compare_scores(output.lines, baseline.lines, test_set.references, metrics)
    return EvaluationReport(test_set, output, scores, baseline, differences)


def read_inputs(
    runs: Sequence[Sequence[Path]],
    hypotheses: Path | None,
    baseline: Path | None,
    loaders: Sequence[Callable[[DataConfig], EvaluationSet]],
    choose_metrics: Callable[..., list[Metric]],
    languages: Mapping[str, str],
) -> "tuple[list[EvaluationSet], list[Metric], list[SystemOutput | SavedModels]]":
    """Reads files and runs, so that mistakes show before anything is translated.

    Args:
        runs: As for `evaluate_systems`, like all but the loaders.
        hypotheses: A translation of the first test set.
        baseline: A translation of the first test set, or what makes one.
        loaders: Each loads a test set.
        choose_metrics: Gives the metrics for the first test set.
        languages: Those of no run.

    Returns:
        The test sets, the metrics and the systems, of which the baseline, if there is one, is last.
    """
    named = [find_models(paths) for paths in runs]
    data, tokenize = _common_corpus(named, languages)
    test_sets = [load(data) for load in loaders]
    test_set = test_sets[0]
    metrics = choose_metrics(data.tgt_lang, references=test_set.references, configured=tokenize)
    for each in test_sets:
        sides = filter(None, [each.src, *each.references])
        warn_of_held_out(each.name, *sides, form=named[0][0].vocab.form if named else "none")
    systems: list[SystemOutput | SavedModels] = [*named]
    if hypotheses:
        systems = [_read_translation(hypotheses, test_set)]
    if baseline and baseline.exists() and not baseline.is_dir():  # a pipe, too
        systems.append(_read_translation(baseline, test_set))
    elif baseline:
        systems.append(find_models([baseline]))
    new = [each for each in systems if not isinstance(each, SystemOutput)]
    require_one_direction(models[0].config.data for models in (*named, *new))
    if new and test_set.src is None:
        raise ConfigError(
            f"{new[0][0].path}: to translate with it, name --src, the source text of --ref"
        )
    # Exported models do without PyTorch.
    if checkpoints := [each for models in new for each in models if not each.is_exported]:
        from transformer_mt.checkpoints.checkpoint import warn_of_changed_model

        warn_of_changed_model(checkpoints)
    return test_sets, metrics, systems


def _common_corpus(
    systems: "Sequence[SavedModels]", languages: Mapping[str, str]
) -> tuple[DataConfig, str]:
    """Returns the first system's corpus and `valid.tokenize`, or the languages of no corpus."""
    if not systems:
        return DataConfig(path="none").model_copy(update=languages), ValidConfig().tokenize
    if any(languages.values()):
        raise ConfigError("--src-lang and --tgt-lang: leave them out; a run has its own languages")
    config = systems[0][0].config
    return config.data, config.valid.tokenize


def _read_translation(path: Path, test_set: EvaluationSet) -> SystemOutput:
    lines = list(read_lines(path))
    if lines and all(line.startswith('{"') for line in lines):
        raise DataError(f"{path}: is JSON; name plain text (jq -r 'select(.rank == 1).text')")
    check_text(path, lines)
    if len(lines) != len(test_set):
        raise DataError(
            f"{path} has {len(lines):,} lines, but {test_set.name} has {len(test_set):,}:"
            " a translation has one line per reference"
        )
    warn_of_other_form(str(path), lines, test_set.references[0])
    return SystemOutput(lines, str(path))


def translate_system(
    system: "SystemOutput | SavedModels",
    test_set: EvaluationSet,
    options: TranslateOptions,
    load: LoadModels,
) -> SystemOutput:
    """Translates a test set with models; returns a translation as it is."""
    if isinstance(system, SystemOutput):
        return system
    sources, search, raw = test_set.src or [], options.search, options.load.raw
    model = load(system, options.load)
    translator, began = model.translator(search), time.monotonic()
    with ProgressBar("translating", "lines", len(sources)) as bar:
        translations = [best for best, *_ in translator.n_best(sources, bar.update)]
    setting = SearchSetting(
        beam_size=search.beam_size,
        length_penalty=search.length_penalty if search.beam_size > 1 else None,
        precision=model.runtime.precision,
        max_length=options.load.max_length,
        raw=any(each.is_raw(raw) for each in model.checkpoints),
    )
    lines, counts = [each.text for each in translations], count_kinds(translations)
    seconds = time.monotonic() - began
    averaged = any(each.is_averaged(raw) for each in model.checkpoints)
    output = SystemOutput(lines, model.name, model.checkpoints, setting, averaged, seconds, counts)
    logger.info(f"{len(sources):,} sentences in {output.seconds:.1f} s with {output.describe()}")
    log_kinds(counts)
    return output


def _record(test_set: EvaluationSet, output: SystemOutput, scores: list[Score]) -> None:
    """Saves the scores and translations of a checkpoint beside it, for reports and exports."""
    if output.search is None or len(output.models) > 1:
        return
    [model] = output.models
    record = EvaluationRecord(
        test_set=test_set.name,
        checkpoint=model.path.resolve().name,
        digest=model.digest,
        search=output.search,
        scores=scores,
        sources=test_set.src or [],
        references=test_set.references,
        hypotheses=output.lines,
        seconds=round(output.seconds, 3),
    )
    write_evaluation(model.path, record)
