"""From raw sources and raw references to hypotheses and scores: the one way to a BLEU."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from transformer_mt.evaluation.scoring import Score, bleu
from transformer_mt.model.likelihood import token_log_probabilities
from transformer_mt.model.transformer import Transformer
from transformer_mt.text.batching import cut_micro_batches
from transformer_mt.text.corpus import RawPairs
from transformer_mt.text.encoded_pairs import EncodedPairs
from transformer_mt.text.vocabulary import PAD_ID
from transformer_mt.translation.translator import Translator


@dataclass(frozen=True)
class Evaluation:
    """Translations of a set and their score.

    Attributes:
        hypotheses: One a source line, detokenised.
        bleu: Corpus BLEU.
    """

    hypotheses: list[str]
    bleu: Score


def evaluate(translator: Translator, pairs: RawPairs) -> Evaluation:
    """Translates raw sources and scores the result against raw references.

    Raises:
        DataError: If there are no pairs.
    """
    hypotheses = list(translator.translate(pairs.src))
    return Evaluation(hypotheses, bleu(hypotheses, pairs.tgt))


@torch.no_grad()
def mean_nll(model: Transformer, pairs: EncodedPairs, micro_batch_tokens: int) -> float:
    """Computes the unsmoothed negative log-likelihood, in nats a target token.

    Args:
        model: On its device; set to evaluation mode meanwhile.
        pairs: Every pair counts, however long.
        micro_batch_tokens: Padded positions computed at once, unless a single pair needs more.
    """
    training, device = model.training, model.device
    model.eval()
    src_lengths, tgt_lengths = pairs.lengths
    order = np.lexsort((src_lengths, tgt_lengths))
    room = max(micro_batch_tokens, int(src_lengths.max()), int(tgt_lengths.max()))
    total = torch.zeros((), dtype=torch.float64, device=device)
    for part in cut_micro_batches(order, src_lengths, tgt_lengths, room):
        batch = pairs.batch(part).to(device)
        log_probabilities = token_log_probabilities(
            model, batch.src, batch.tgt_in, batch.tgt_out, PAD_ID
        )
        total -= log_probabilities[batch.tgt_out != PAD_ID].sum()
    model.train(training)
    return float(total) / int(tgt_lengths.sum())


def perplexity(mean: float) -> float:
    """Turns nats a token into a perplexity; one too large for a float is infinite."""
    return math.exp(mean) if mean < 700 else math.inf
