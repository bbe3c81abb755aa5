"""The evaluation of a system on a test set, as text or as JSON."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from transformer_mt.checkpoints.checkpoint import EMA, Checkpoint
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
from transformer_mt.evaluation.evaluator import SystemOutput, SystemTranslator, read_output
from transformer_mt.evaluation.scoring import score_all
from transformer_mt.system.device import choose_device
from transformer_mt.system.outputs import Output, write_lines
from transformer_mt.system.processes import join_processes
from transformer_mt.text.test_sets import EvaluationSet
from transformer_mt.translation.options import LoadOptions, SearchOptions
from transformer_mt.translation.translation_model import find_checkpoints

DEFAULT_CHANGES = 3
"""Number of sentences shown with the largest gains over a baseline, and with the largest losses."""


@dataclass(frozen=True)
class EvaluationReport:
    """Scores of a system on a test set, and its comparison with a baseline.

    Attributes:
        test_set: The test set that was translated.
        system: The translation that was scored.
        beam_size: The beam size it was translated with.
        scores: BLEU, chrF2 and, if requested, TER.
        baseline: The translation it was compared with.
        comparison: The result; None without a baseline.
    """

    test_set: EvaluationSet
    system: SystemOutput
    beam_size: int
    scores: list[Score]
    baseline: SystemOutput | None
    comparison: Comparison | None

    def to_dict(self) -> dict[str, object]:
        """Returns the values and signatures for JSON."""
        result: dict[str, object] = {"sentences": len(self.test_set)}
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
        """Formats the report for people.

        Args:
            samples: Number of sentences shown; with a baseline, of the largest gains and of the
                largest losses. None shows none, or `DEFAULT_CHANGES` of each with a baseline.
        """
        scores = [score.text for score in self.scores]
        if not self.baseline or not self.comparison:
            return "\n".join([*self._format_samples(samples or 0), *scores])
        changes = DEFAULT_CHANGES if samples is None else samples
        comparison = format_comparison(
            self.comparison, self.test_set, self.system.lines, self.baseline.lines, changes
        )
        return "\n".join([*scores, "", f"compared with {self.baseline.name}", "", comparison])

    def _format_samples(self, count: int) -> list[str]:
        lines = []
        for i in range(min(count, len(self.test_set))):
            lines += format_sentence(self.test_set, i, {"hypothesis": self.system.lines[i]})
            lines.append("")
        return lines


def evaluate_system(
    paths: Sequence[Path],
    hypotheses: Path | None,
    baseline: Path | None,
    load_test_set: Callable[[DataConfig], EvaluationSet],
    search: SearchOptions,
    load: LoadOptions,
    ter: bool = False,
    save: Output | None = None,
) -> EvaluationReport | None:
    """Scores a new or existing translation of a test set, and compares it with a baseline.

    Args:
        paths: Each is a run or a checkpoint; several form an ensemble. With `hypotheses`, only the
            corpus and the languages of the first are used, and none is needed.
        hypotheses: An existing translation to score.
        baseline: A run, a checkpoint or a translation to compare with.
        load_test_set: Loads a test set, given the corpus of the first run, if one is given.
        search: How to search for translations.
        load: How to load the models.
        ter: Whether to compute TER as well.
        save: Where to write the translation before it is scored.

    Returns:
        The report, in the main process; None in the other processes that `torchrun` started,
        which only translate.

    Raises:
        TransformerMTError: If a path, the test set, or an option is wrong.
    """
    with join_processes(choose_device(load.device).type) as processes:
        systems = SystemTranslator(search, load, processes)
        if not processes.is_main:
            systems.serve()
            return None
        checkpoints = find_checkpoints(paths[:1] if hypotheses else paths) if paths else []
        data = checkpoints[0].config.data if checkpoints else DataConfig(path="none")
        test_set = load_test_set(data)
        # Read files and runs first, so that mistakes show before anything is translated.
        read = _read_translation(hypotheses, test_set) if hypotheses else None
        other = _read_translation(baseline, test_set) if baseline and _is_file(baseline) else None
        other_checkpoints = find_checkpoints([baseline]) if baseline and not other else []
        with save.lock() if save else nullcontext():
            system = read or _translate(systems, checkpoints, test_set)
            if save:  # first, so that no later error loses the translation
                write_lines(system.lines, save)
        if other_checkpoints:
            other = _translate(systems, other_checkpoints, test_set)
        systems.finish()
    scores = score_all(system.lines, test_set.references, ter)
    if len(checkpoints) == 1 and not read:
        _record(checkpoints[0], test_set, system, scores, search, load)
    comparison = compare(test_set, system.lines, other.lines, ter) if other else None
    return EvaluationReport(test_set, system, search.beam_size, scores, other, comparison)


def _record(
    checkpoint: Checkpoint,
    test_set: EvaluationSet,
    system: SystemOutput,
    scores: list[Score],
    search: SearchOptions,
    load: LoadOptions,
) -> None:
    """Saves the scores and translations beside the checkpoint, for reports and model cards."""
    assert test_set.src is not None
    data = checkpoint.config.data
    record = EvaluationRecord(
        test_set=test_set.title,
        checkpoint=checkpoint.path.resolve().name,
        digest=checkpoint.digest,
        search=SearchSetting(
            beam_size=search.beam_size,
            length_penalty=search.length_penalty if search.beam_size > 1 else None,
            precision=load.precision,
            max_length=load.max_length or data.max_length,
            raw=load.raw and EMA in checkpoint.files,
        ),
        scores=scores,
        sources=test_set.src,
        references=test_set.references,
        hypotheses=system.lines,
        seconds=round(system.seconds, 3),
    )
    write_evaluation(checkpoint.path, record)
    refresh_average_card(checkpoint)


def _is_file(baseline: Path) -> bool:
    """Tells whether a baseline is a translation, in a file or pipe, rather than a run."""
    return baseline.exists() and not baseline.is_dir()


def _read_translation(path: Path, test_set: EvaluationSet) -> SystemOutput:
    """Reads a translation of a test set.

    Raises:
        DataError: If it cannot be read, or has a different number of lines.
    """
    output = read_output(path)
    if len(output.lines) != len(test_set):
        raise DataError(
            f"{path} has {len(output.lines)} lines, but {test_set.name} has {len(test_set)}:"
            " a translation has one line per reference"
        )
    return output


def _translate(
    systems: SystemTranslator, checkpoints: list[Checkpoint], test_set: EvaluationSet
) -> SystemOutput:
    if test_set.src is None:
        raise ConfigError(
            f"{checkpoints[0].path}: to translate with it, name --src, the source text of --ref"
        )
    return systems.translate(checkpoints, test_set.src)
