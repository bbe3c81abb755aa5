"""The evaluation of a system on a test set, as text or as JSON."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from sacrebleu.metrics.base import Metric

from transformer_mt.checkpoints.checkpoint import EMA, Checkpoint, warn_of_changed_model
from transformer_mt.checkpoints.evaluations import (
    EvaluationRecord,
    Score,
    SearchSetting,
    write_evaluation,
)
from transformer_mt.checkpoints.model_card import refresh_average_card
from transformer_mt.config.keys import DataConfig
from transformer_mt.errors import ConfigError, DataError
from transformer_mt.evaluation.comparison import (
    Comparison,
    compare,
    format_comparison,
    format_sentence,
)
from transformer_mt.evaluation.scoring import corpus_score
from transformer_mt.system.console import progress_bar
from transformer_mt.system.device import choose_device
from transformer_mt.system.outputs import Output, write_lines
from transformer_mt.system.processes import Processes, join_processes
from transformer_mt.text.corpus import read_lines
from transformer_mt.text.test_sets import EvaluationSet
from transformer_mt.translation.options import LoadOptions, SearchOptions
from transformer_mt.translation.translation_model import (
    build_translation_model,
    find_checkpoints,
    share_checkpoints,
)

logger = logging.getLogger(__name__)

_CHANGES = 3
"""Number of sentences shown with the largest gains over a baseline, and with the largest losses."""


@dataclass(frozen=True)
class SystemOutput:
    """The translation of a test set by one system, and the checkpoints or file it comes from.

    `seconds` were spent translating; they are 0 if it was read from a file.
    """

    lines: list[str]
    name: str
    seconds: float = 0.0


@dataclass(frozen=True)
class EvaluationReport:
    """Scores of a system on a test set, and its comparison with a baseline if there is one."""

    test_set: EvaluationSet
    system: SystemOutput
    beam_size: int
    scores: list[Score]
    baseline: SystemOutput | None
    comparison: Comparison | None

    def to_dict(self) -> dict[str, object]:
        """Returns the values and signatures for JSON."""
        tokenizer = self.scores[0].tokenizer
        result: dict[str, object] = {"sentences": len(self.test_set), "tokenizer": tokenizer}
        for score in self.scores:
            result |= {score.name: score.value, f"{score.name}_signature": score.signature}
        if self.system.seconds:
            seconds = round(self.system.seconds, 3)
            result |= {"beam_size": self.beam_size, "seconds": seconds}
        result |= {"checkpoint" if self.system.seconds else "hypotheses": self.system.name}
        if self.baseline and self.comparison:
            result |= {"baseline": self.baseline.name, **asdict(self.comparison)}
        return result

    def format(self, samples: int | None = None) -> str:
        """Formats the report for people, with so many sentences of the test set.

        With a baseline, these are as many of the largest gains and of the largest losses; three of
        each if `samples` is None.
        """
        lines = [score.text for score in self.scores]
        if self.baseline and self.comparison:
            changes = _CHANGES if samples is None else samples
            comparison = format_comparison(
                self.comparison, self.test_set, self.system.lines, self.baseline.lines, changes
            )
            return "\n".join([*lines, "", f"compared with {self.baseline.name}", "", comparison])
        shown: list[str] = []
        for i in range(min(samples or 0, len(self.test_set))):
            shown += [*format_sentence(self.test_set, i, {"hypothesis": self.system.lines[i]}), ""]
        return "\n".join(shown + lines)


def evaluate_system(
    paths: Sequence[Path],
    hypotheses: Path | None,
    baseline: Path | None,
    load_test_set: Callable[[DataConfig], EvaluationSet],
    choose_metrics: Callable[[str], list[Metric]],
    search: SearchOptions,
    load: LoadOptions,
    save: Output | None = None,
) -> EvaluationReport | None:
    """Scores a new or existing translation of a test set, and compares it with a baseline.

    Args:
        paths: Each is a run or a checkpoint; several form an ensemble. With `hypotheses`, only the
            corpus and the languages of the first are used, and none is needed.
        hypotheses: An existing translation to score.
        baseline: A run, a checkpoint or a translation to compare with.
        load_test_set: Loads a test set, given the corpus of the first run, if one is given.
        choose_metrics: Gives the metrics for a target language, BLEU first.
        search: How to search for translations.
        load: How to load the models.
        save: Where to write the translation.

    Returns:
        The report, in the main process; None in the other processes that `torchrun` started,
        which only translate.

    Raises:
        TransformerMTError: If a path, the test set, or an option is wrong.
    """
    with join_processes(choose_device(load.device).type) as processes:
        translate = partial(_translate, search=search, load=load, processes=processes)
        if not processes.is_main:
            sources, systems = processes.broadcast(([""], 0))
            for _ in range(systems):
                translate([], sources)
            processes.finish()
            return None
        checkpoints = find_checkpoints(paths[:1] if hypotheses else paths) if paths else []
        data = checkpoints[0].config.data if checkpoints else DataConfig(path="none")
        metrics, test_set = choose_metrics(data.tgt_lang), load_test_set(data)
        # Read files and runs first, so that mistakes show before anything is translated.
        system = _read_translation(hypotheses, test_set) if hypotheses else checkpoints
        other = _open(baseline, test_set) if baseline else None
        new = [each for each in (system, other) if isinstance(each, list)]
        if new and test_set.src is None:
            raise ConfigError(
                f"{new[0][0].path}: to translate with it, name --src, the source text of --ref"
            )
        warn_of_changed_model(chain(*new))
        sources, _ = processes.broadcast((test_set.src or [], len(new)))
        with save.lock() if save else nullcontext():
            output = translate(system, sources)
            if save:  # first, so that no later error loses the translation
                write_lines(output.lines, save)
        other_output = translate(other, sources) if other else None
        processes.finish()
    scores = [corpus_score(output.lines, test_set.references, metric) for metric in metrics]
    if len(checkpoints) == 1 and not hypotheses:
        _record(checkpoints[0], test_set, output, scores, search, load)
    comparison = None
    if other_output:
        comparison = compare(test_set, output.lines, other_output.lines, metrics)
    return EvaluationReport(test_set, output, search.beam_size, scores, other_output, comparison)


def _open(path: Path, test_set: EvaluationSet) -> SystemOutput | list[Checkpoint]:
    """Reads a translation, in a file or pipe, or else a run to translate with."""
    is_file = path.exists() and not path.is_dir()
    return _read_translation(path, test_set) if is_file else find_checkpoints([path])


def _read_translation(path: Path, test_set: EvaluationSet) -> SystemOutput:
    lines = list(read_lines(path))
    if len(lines) != len(test_set):
        raise DataError(
            f"{path} has {len(lines)} lines, but {test_set.name} has {len(test_set)}:"
            " a translation has one line per reference"
        )
    return SystemOutput(lines, str(path))


def _translate(
    system: SystemOutput | list[Checkpoint],
    sources: list[str],
    search: SearchOptions,
    load: LoadOptions,
    processes: Processes,
) -> SystemOutput:
    """Translates with the main process's checkpoints; returns a translation as it is.

    All processes call this, to share the batches.
    """
    if isinstance(system, SystemOutput):
        return system
    model = build_translation_model(share_checkpoints(system, processes), load)
    processes.watch_peers()
    translator, began = model.translator(search, processes), time.monotonic()
    with progress_bar("translating", "lines", len(sources)) as bar:
        lines = translator.translate(sources, bar.update)
    output = SystemOutput(lines, model.name, time.monotonic() - began)
    if processes.is_main:
        logger.info(f"{len(sources)} sentences in {output.seconds:.1f} s with {output.name}")
    return output


def _record(
    checkpoint: Checkpoint,
    test_set: EvaluationSet,
    output: SystemOutput,
    scores: list[Score],
    search: SearchOptions,
    load: LoadOptions,
) -> None:
    """Saves the scores and translations beside the checkpoint, for reports and model cards."""
    record = EvaluationRecord(
        test_set=test_set.title,
        checkpoint=checkpoint.path.resolve().name,
        digest=checkpoint.digest,
        search=SearchSetting(
            beam_size=search.beam_size,
            length_penalty=search.length_penalty if search.beam_size > 1 else None,
            precision=load.precision,
            max_length=load.max_length or checkpoint.config.data.max_length,
            raw=load.raw and EMA in checkpoint.files,
        ),
        scores=scores,
        sources=test_set.src or [],
        references=test_set.references,
        hypotheses=output.lines,
        seconds=round(output.seconds, 3),
    )
    write_evaluation(checkpoint.path, record)
    refresh_average_card(checkpoint)
