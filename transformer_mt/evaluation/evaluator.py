"""Translations of a test set, from a model or from a file, and their score."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transformer_mt.checkpoints.checkpoint import Checkpoint
from transformer_mt.checkpoints.evaluations import Score
from transformer_mt.evaluation.scoring import bleu
from transformer_mt.model.transformer import Transformer, evaluation_mode
from transformer_mt.system.console import progress_bar
from transformer_mt.system.processes import ALONE, Processes
from transformer_mt.text.batching import EncodedPairs
from transformer_mt.text.corpus import RawPairs, read_lines
from transformer_mt.translation.forced_decoding import log_probabilities
from transformer_mt.translation.options import LoadOptions, SearchOptions
from transformer_mt.translation.translation_model import build_translation_model, share_checkpoints
from transformer_mt.translation.translator import Translator


def mean_nll(model: Transformer, pairs: EncodedPairs, processes: Processes = ALONE) -> float:
    """Computes the mean negative log-likelihood per target token, without label smoothing.

    Args:
        model: On its device; set to evaluation mode during the computation.
        pairs: Pairs of any length; none is left out.
        processes: The processes that share the work; each has the same model.

    Returns:
        Nats per target token, EOS included.
    """
    with evaluation_mode(model):
        sums = log_probabilities(model, pairs, processes)
    return -math.fsum(sums) / int(pairs.lengths[1].sum())


def perplexity(nll: float) -> float:
    """Computes the perplexity of a mean negative log-likelihood in nats per token.

    Returns:
        Its exponential; infinity if that exceeds the range of a float.
    """
    return math.exp(nll) if nll < 700 else math.inf


logger = logging.getLogger(__name__)


def evaluate(
    translator: Translator, pairs: RawPairs, advance: Callable[[int], object] = lambda lines: None
) -> tuple[list[str], Score]:
    """Translates raw sources and scores the result against raw references.

    Args:
        translator: The translator to use.
        pairs: Sources and references.
        advance: Called with the number of lines that have been translated, batch by batch; may
            raise to stop.

    Returns:
        The hypotheses, one per source line, and their corpus BLEU.

    Raises:
        DataError: If there are no pairs.
    """
    hypotheses = list(translator.translate(pairs.src, advance))
    return hypotheses, bleu(hypotheses, [pairs.tgt])


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


class SystemTranslator:
    """Translates test sets with one system after another, using several processes.

    The batches are distributed over the processes, all of which load each model.

    Args:
        search: How to search.
        load: How to load the models.
        processes: The processes that translate.
    """

    def __init__(
        self, search: SearchOptions, load: LoadOptions, processes: Processes = ALONE
    ) -> None:
        self._search, self._load, self._processes = search, load, processes

    def translate(self, checkpoints: list[Checkpoint], sources: list[str]) -> SystemOutput:
        """Translates a test set, with a progress bar; called by the main process.

        Args:
            checkpoints: The checkpoints of one system; several form an ensemble.
            sources: Source text.

        Raises:
            CheckpointError: If the weights do not fit the configuration of a checkpoint.
            ConfigError: If an option is wrong.
            DeviceError: If the device is absent or does not support the precision.
        """
        self._next_task(sources)
        output = self._translate(checkpoints, sources)
        logger.info(f"{len(sources)} sentences in {output.seconds:.1f} s with {output.name}")
        return output

    def serve(self) -> None:
        """Takes part in all translations of the main process until it finishes."""
        while (sources := self._next_task(None)) is not None:
            self._translate([], sources)
        self._processes.finish()

    def finish(self) -> None:
        """Lets the other processes end; called by the main process."""
        self._next_task(None)
        self._processes.finish()

    def _next_task(self, sources: list[str] | None) -> list[str] | None:
        """Returns the sources that the main process translates next; None if it finishes."""
        return self._processes.broadcast(sources)

    def _translate(self, checkpoints: list[Checkpoint], sources: list[str]) -> SystemOutput:
        checkpoints = share_checkpoints(checkpoints, self._processes)
        model = build_translation_model(checkpoints, self._load)
        self._processes.watch_peers()
        translator, began = model.translator(self._search, self._processes), time.monotonic()
        with progress_bar("translating", "lines", len(sources)) as bar:
            lines = list(translator.translate(sources, bar.update))
        return SystemOutput(lines, model.name, time.monotonic() - began)
