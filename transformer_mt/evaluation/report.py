"""The evaluation of a system on a test set, as text or as JSON."""

import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from sacrebleu.metrics.base import Metric

from transformer_mt.checkpoints.evaluations import (
    EvaluationRecord,
    Score,
    SearchSetting,
    write_evaluation,
)
from transformer_mt.config.keys import DataConfig, ValidConfig
from transformer_mt.errors import ConfigError, DataError
from transformer_mt.evaluation.comparison import (
    Comparison,
    compare,
    format_comparison,
    format_sentence,
)
from transformer_mt.evaluation.scoring import corpus_score
from transformer_mt.system.console import ProgressBar, escape_controls
from transformer_mt.system.files import parse_json
from transformer_mt.system.outputs import Output, write_lines
from transformer_mt.system.processes import Processes, join_processes
from transformer_mt.text.cleaning import warn_of_held_out
from transformer_mt.text.corpus import read_lines
from transformer_mt.text.test_sets import EvaluationSet, check_text
from transformer_mt.translation.options import TranslateOptions
from transformer_mt.translation.run import device_to_join
from transformer_mt.translation.translation_model import (
    build_translation_model,
    find_models,
    require_one_direction,
)
from transformer_mt.translation.translator import count_kinds, log_kinds

if TYPE_CHECKING:
    from transformer_mt.translation.translation_model import SavedModels

logger = logging.getLogger(__name__)

_SCORED = re.compile(r"(?:-?\d+\.\d{4}|-inf|nan)\t")
"""How `translate --scores` begins each line."""

_CHANGES = 3
"""Number of sentences shown with the largest gains over a baseline, and with the largest losses."""


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
    models: "SavedModels" = field(default_factory=list)
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
    """Scores of a system on a test set, and its comparison with a baseline if there is one."""

    test_set: EvaluationSet
    system: SystemOutput
    scores: list[Score]
    baseline: SystemOutput | None
    comparison: Comparison | None

    def to_dict(self) -> dict[str, object]:
        """Returns the scores and what they depend on, for JSON; an ensemble has a list of steps."""
        result: dict[str, object] = {
            "test_set": self.test_set.name,
            "sentences": len(self.test_set),
            "tokenizer": self.scores[0].tokenizer,
        }
        for score in self.scores:
            result |= {score.name: score.value, f"{score.name}_signature": score.signature}
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
        if self.baseline and self.comparison:
            result |= {"baseline": self.baseline.name, **asdict(self.comparison)}
        return result


def format_as_json(reports: Sequence[EvaluationReport]) -> str:
    """Formats each report as a JSON object on a line of its own."""
    return "\n".join(json.dumps(report.to_dict()) for report in reports)


def format_reports(reports: Sequence[EvaluationReport], samples: int | None = None) -> str:
    """Formats reports on one test set for people, several without a baseline as a table.

    So many sentences of the test set come first, with all translations. With a baseline, as many
    of the largest changes come last instead, three if `samples` is None.
    """
    first, test_set = reports[0], reports[0].test_set
    heading = f"{test_set.name}, {len(test_set):,} sentences"
    paragraphs: list[str] = []
    if first.baseline is None:
        for i in range(min(samples or 0, len(test_set))):
            translations = {report.system.name: report.system.lines[i] for report in reports}
            if len(reports) == 1:
                translations = {"hypothesis": first.system.lines[i]}
            paragraphs.append("\n".join(format_sentence(test_set, i, translations)))
        if len(reports) > 1:
            table = [heading, "".join(f"{score.title:>7}" for score in first.scores)]
            for report in reports:
                values = "".join(f"{score.value:7.2f}" for score in report.scores)
                table.append(f"{values}  {report.system.describe()}")
            signatures = [f"{score.title}|{score.signature}" for score in first.scores]
            return "\n\n".join([*paragraphs, "\n".join(table), "\n".join(signatures)])
    changes = _CHANGES if samples is None else samples
    for report in reports:
        lines = [f"{report.system.describe()}: {heading}", *(score.text for score in report.scores)]
        paragraphs.append("\n".join(lines))
        if report.baseline and report.comparison:
            paragraphs.append(f"compared with {report.baseline.describe()}")
            paragraphs.append(
                format_comparison(
                    report.comparison, test_set, report.system.lines, report.baseline.lines, changes
                )
            )
    return "\n\n".join(paragraphs)


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
        runs: Each holds a run or a checkpoint, or the several of an ensemble. With `hypotheses`,
            only the corpus and the languages of the first are used, and none is needed.
        hypotheses: An existing translation to score.
        baseline: A run, a checkpoint or a translation to compare with.
        load_test_set: Loads a test set, given the corpus of the first run, if one is given.
        choose_metrics: Gives the metrics, BLEU first, for a target language, references and the
            first run's `valid.tokenize`.
        options: How to load the models and to search for translations.
        languages: `src_lang` and `tgt_lang` if no run is named; empty if they are unknown.
        save: Where to write the translation of a single system.

    Returns:
        A report for each system, in the main process; nothing in the other processes that
        `torchrun` started, which only translate.

    Raises:
        TransformerMTError: If a path, the test set, or an option is wrong.
    """
    paths = [*chain(*runs), *([baseline] if baseline else [])]
    with join_processes(device_to_join(paths, options.load.device)) as processes:
        translate = partial(_translate, options=options, processes=processes)
        if not processes.is_main:
            sources, count = processes.broadcast(([""], 0))
            for _ in range(count):
                translate([], sources)
            processes.finish()
            return []
        # Read files and runs first, so that mistakes show before anything is translated.
        named = [find_models(paths) for paths in runs]
        data, tokenize = _common_corpus(named, languages)
        test_set = load_test_set(data)
        metrics = choose_metrics(data.tgt_lang, references=test_set.references, configured=tokenize)
        sides = filter(None, [test_set.src, *test_set.references])
        warn_of_held_out(test_set.name, *sides, form=named[0][0].vocab.form if named else "none")
        systems = [_read_translation(hypotheses, test_set)] if hypotheses else named
        other = _open(baseline, test_set) if baseline else None
        if other and not isinstance(other, SystemOutput):
            require_one_direction(models[0].config.data for models in (*named, other))
        new = [each for each in (*systems, other) if each and not isinstance(each, SystemOutput)]
        if new and test_set.src is None:
            raise ConfigError(
                f"{new[0][0].path}: to translate with it, name --src, the source text of --ref"
            )
        _warn_of_changed_models(new)
        sources, _ = processes.broadcast((test_set.src or [], len(new)))
        other_output = translate(other, sources) if other else None
        reports = []
        with save.lock() if save else nullcontext():
            for system in systems:
                output = translate(system, sources)
                if save:  # first, so that no later error loses the translation
                    write_lines(output.lines, save)
                reports.append(_score(test_set, output, metrics, other_output))
        processes.finish()
    return reports


def _score(
    test_set: EvaluationSet,
    output: SystemOutput,
    metrics: list[Metric],
    baseline: SystemOutput | None,
) -> EvaluationReport:
    """Scores and records a translation, and compares it with a baseline."""
    scores = [corpus_score(output.lines, test_set.references, metric) for metric in metrics]
    _record(test_set, output, scores)
    comparison = compare(test_set, output.lines, baseline.lines, metrics) if baseline else None
    return EvaluationReport(test_set, output, scores, baseline, comparison)


def _common_corpus(
    systems: "Sequence[SavedModels]", languages: Mapping[str, str]
) -> tuple[DataConfig, str]:
    """Gives the first system's corpus and `valid.tokenize`; the others must have its languages."""
    configs = [models[0].config for models in systems]
    require_one_direction(config.data for config in configs)
    if configs and any(languages.values()):
        raise ConfigError("--src-lang and --tgt-lang: leave them out; a run has its own languages")
    if not configs:
        return DataConfig(path="none").model_copy(update=languages), ValidConfig().tokenize
    return configs[0].data, configs[0].valid.tokenize


def _warn_of_changed_models(systems: "Sequence[SavedModels]") -> None:
    """Warns of checkpoints trained with other source; exported models do without PyTorch."""
    if checkpoints := [each for models in systems for each in models if not each.is_exported]:
        from transformer_mt.checkpoints.checkpoint import warn_of_changed_model

        warn_of_changed_model(checkpoints)


def _open(path: Path, test_set: EvaluationSet) -> "SystemOutput | SavedModels":
    """Reads a translation, in a file or pipe, or else a model to translate with."""
    is_file = path.exists() and not path.is_dir()
    return _read_translation(path, test_set) if is_file else find_models([path])


def _read_translation(path: Path, test_set: EvaluationSet) -> SystemOutput:
    lines = _parse_output(path, list(read_lines(path)))
    if len(lines) != len(test_set):
        raise DataError(
            f"{path} has {len(lines):,} lines, but {test_set.name} has {len(test_set):,}:"
            " a translation has one line per reference"
        )
    return SystemOutput(lines, str(path))


def _parse_output(path: Path, lines: list[str]) -> list[str]:
    """Gives the translations in what `translate` wrote: text, with scores too, or JSON's best."""
    if lines and all(line.startswith('{"') for line in lines):
        try:
            best = [row for row in map(parse_json, lines) if row["rank"] == 1]
            if [row["line"] for row in best] == list(range(1, len(best) + 1)):
                return [str(row["text"]) for row in best]
        except (ValueError, KeyError):
            pass
        raise DataError(f"{path}: is JSON, but not as translate --format jsonl writes it")
    if lines and all(map(_SCORED.match, lines)):
        lines = [line.partition("\t")[2] for line in lines]
    check_text(path, lines)
    return lines


def _translate(
    system: "SystemOutput | SavedModels",
    sources: list[str],
    options: TranslateOptions,
    processes: Processes,
) -> SystemOutput:
    """Translates with the main process's models; returns a translation as it is.

    All processes call this, to share the batches.
    """
    if isinstance(system, SystemOutput):
        return system
    search, load = options.search, options.load
    model = build_translation_model(system, load, processes)
    translator, began = model.translator(search, processes), time.monotonic()
    with ProgressBar("translating", "lines", len(sources)) as bar:
        translations = translator.best(sources, bar.update)
    setting = SearchSetting(
        beam_size=search.beam_size,
        length_penalty=search.length_penalty if search.beam_size > 1 else None,
        precision=model.runtime.precision,
        max_length=load.max_length,
        raw=any(each.is_raw(load.raw) for each in model.checkpoints),
    )
    lines, counts = [each.text for each in translations], count_kinds(translations)
    seconds = time.monotonic() - began
    averaged = any(each.is_averaged(load.raw) for each in model.checkpoints)
    output = SystemOutput(lines, model.name, model.checkpoints, setting, averaged, seconds, counts)
    if processes.is_main:
        logger.info(f"{len(sources):,} sentences in {output.seconds:.1f} s with {output.name}")
        log_kinds(counts)
    return output


def _record(test_set: EvaluationSet, output: SystemOutput, scores: list[Score]) -> None:
    """Saves the scores and translations of a checkpoint beside it, for reports and exports."""
    if output.search is None or len(output.models) > 1:
        return
    [model] = output.models
    record = EvaluationRecord(
        test_set=test_set.title,
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
