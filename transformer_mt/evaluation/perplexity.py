"""Perplexity: how well a model predicts given translations."""

import math

import numpy as np
import torch

from transformer_mt.model.likelihood import token_log_probabilities
from transformer_mt.model.transformer import Transformer, evaluation_mode
from transformer_mt.system.processes import ALONE, Processes
from transformer_mt.text.batching import cut_micro_batches
from transformer_mt.text.encoded_pairs import EncodedPairs
from transformer_mt.text.vocabulary import PAD_ID


@torch.no_grad()
def mean_nll(
    model: Transformer,
    pairs: EncodedPairs,
    micro_batch_tokens: int,
    processes: Processes = ALONE,
) -> float:
    """Computes the mean negative log-likelihood per target token, without label smoothing.

    Args:
        model: On its device; set to evaluation mode during the computation.
        pairs: Pairs of any length; none is left out.
        micro_batch_tokens: Padded positions computed at once, unless a single pair has more.
        processes: The processes that share the micro-batches; each has the same model.

    Returns:
        Nats per target token, EOS included.
    """
    src_lengths, tgt_lengths = pairs.lengths
    order = np.lexsort((src_lengths, tgt_lengths))
    limit = max(micro_batch_tokens, int(src_lengths.max()), int(tgt_lengths.max()))
    micro_batches = cut_micro_batches(order, src_lengths, tgt_lengths, limit)
    sums = []
    with evaluation_mode(model):
        for indices in micro_batches[processes.rank :: processes.world_size]:
            batch = pairs.batch(indices).to(model.device)
            log_probabilities = token_log_probabilities(
                model, batch.src, batch.tgt_in, batch.tgt_out, PAD_ID
            )  # (B, T)
            sums.append(log_probabilities.double().sum())  # padding has 0
    own = torch.stack(sums).tolist() if sums else []
    # fsum is exact, so the order, and thus the number of processes, does not matter.
    total = math.fsum(value for values in processes.gather(own) for value in values)
    return -total / int(tgt_lengths.sum())


def perplexity(nll: float) -> float:
    """Computes the perplexity of a mean negative log-likelihood in nats per token.

    Returns:
        Its exponential; infinity if that exceeds the range of a float.
    """
    return math.exp(nll) if nll < 700 else math.inf
