"""Translations of a test set, from a model or from a file, and their score."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformer_mt.evaluation.scoring import Score, bleu
from transformer_mt.system.console import progress_bar
from transformer_mt.text.corpus import RawPairs, read_lines
from transformer_mt.translation.options import SearchOptions
from transformer_mt.translation.translation_model import TranslationModel
from transformer_mt.translation.translator import Translator


@dataclass(frozen=True)
class Evaluation:
    """Translations of a test set and their score.

    Attributes:
        hypotheses: One per source line, detokenised.
        bleu: Corpus BLEU.
    """

    hypotheses: list[str]
    bleu: Score


def evaluate(
    translator: Translator, pairs: RawPairs, advance: Callable[[int], object] = lambda lines: None
) -> Evaluation:
    """Translates raw sources and scores the result against raw references.

    Args:
        translator: What translates.
        pairs: Sources and references.
        advance: Called with the number of lines that have been translated, batch by batch; may
            raise to stop.

    Raises:
        DataError: If there are no pairs.
    """
    hypotheses = list(translator.translate(pairs.src, advance))
    return Evaluation(hypotheses, bleu(hypotheses, [pairs.tgt]))


@dataclass(frozen=True)
class SystemOutput:
    """The translation of a test set by one system.

    Attributes:
        lines: One per source line.
        name: The checkpoints or the file it comes from.
        seconds: Time spent translating; 0 if it was read from a file.
    """

    lines: list[str]
    name: str
    seconds: float


def read_output(path: Path) -> SystemOutput:
    """Reads a translation from a file.

    Raises:
        DataError: If it cannot be read or is not UTF-8.
    """
    return SystemOutput(list(read_lines(path)), str(path), 0.0)


def translate_test_set(
    model: TranslationModel, sources: Sequence[str], options: SearchOptions
) -> SystemOutput:
    """Translates a test set, with a progress bar.

    Raises:
        ConfigError: If the beam size exceeds half the vocabulary.
    """
    translator, began = model.translator(options), time.monotonic()
    with progress_bar("translating", "lines", len(sources)) as bar:
        lines = list(translator.translate(sources, bar.update))
    return SystemOutput(lines, model.name, time.monotonic() - began)
