"""Perplexity and BLEU of a model that is loaded, as validation measures them."""

import math
from collections.abc import Callable

from transformer_mt.checkpoints.evaluations import Score
from transformer_mt.evaluation.scoring import bleu
from transformer_mt.model.transformer import Transformer, evaluation_mode
from transformer_mt.system.processes import ALONE, Processes
from transformer_mt.text.batching import EncodedPairs
from transformer_mt.text.corpus import RawPairs
from transformer_mt.translation.forced_decoding import log_probabilities
from transformer_mt.translation.translator import Translator


def mean_nll(model: Transformer, pairs: EncodedPairs, processes: Processes = ALONE) -> float:
    """Computes the mean negative log-likelihood per target token, without label smoothing.

    The model is in evaluation mode during the computation, and each process has the same. No pair
    is left out, however long it is.

    Returns:
        Nats per target token, EOS included.
    """
    with evaluation_mode(model):
        sums = log_probabilities(model, pairs, processes)
    return -math.fsum(sums) / int(pairs.lengths[1].sum())


def perplexity(nll: float) -> float:
    """Computes the perplexity of nats per token; infinity if it exceeds the range of a float."""
    return math.exp(nll) if nll < 700 else math.inf


def evaluate(
    translator: Translator, pairs: RawPairs, advance: Callable[[int], object] = lambda lines: None
) -> tuple[list[str], Score]:
    """Translates raw sources and scores the result against raw references.

    `advance` is called with the number of lines translated, batch by batch, and may raise to stop.

    Returns:
        The hypotheses, one per source line, and their corpus BLEU.

    Raises:
        DataError: If there are no pairs.
    """
    hypotheses = translator.translate(pairs.src, advance)
    return hypotheses, bleu(hypotheses, [pairs.tgt])
