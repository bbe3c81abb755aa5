"""Log-probability of given translations."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_mt.model.transformer import Transformer
from transformer_mt.system.device import compute_settings
from transformer_mt.system.processes import ALONE, Processes
from transformer_mt.text.batching import Batch, EncodedPairs, cut_micro_batches
from transformer_mt.text.vocabulary import PAD_ID

if TYPE_CHECKING:
    from transformer_mt.model.ensemble import Ensemble

BATCH_POSITIONS = 2048
"""Padded positions scored at once: the logits of all of them are in memory, in float32."""


@torch.no_grad()
def log_probabilities(
    model: "Transformer | Ensemble", pairs: EncodedPairs, processes: Processes = ALONE
) -> list[float]:
    """Computes the log-probability of each target given its source.

    Args:
        model: On its device, in evaluation mode.
        pairs: Pairs of any length; none is left out.
        processes: Processes with the same model that share the batches; each gets all sums.

    Returns:
        For each pair, the sum over its target tokens including EOS, in nats. An ensemble
        gives each token the mean of its members' probabilities.
    """
    if not len(pairs):
        return []
    src_lengths, tgt_lengths = pairs.lengths
    order = np.lexsort((src_lengths, tgt_lengths))
    limit = max(BATCH_POSITIONS, int(src_lengths.max()), int(tgt_lengths.max()))
    batches = cut_micro_batches(order, src_lengths, tgt_lengths, limit)
    own = batches[processes.rank :: processes.world_size]
    sums = [_sum_tokens(model, pairs.batch(indices).to(model.device)) for indices in own]
    values = torch.cat(sums).tolist() if sums else []
    by_index = dict(zip((int(i) for batch in own for i in batch), values, strict=True))
    gathered = {i: value for part in processes.gather(by_index) for i, value in part.items()}
    return [gathered[i] for i in range(len(pairs))]


def _sum_tokens(model: "Transformer | Ensemble", batch: Batch) -> Tensor:
    """Sums the log-probabilities of the target tokens of B pairs, (B,), float64."""
    members: Any = [model] if isinstance(model, Transformer) else model.models
    of_members = []
    for member in members:
        with compute_settings(model.device, tf32=False):
            logits = member(batch.src, batch.tgt_in).float()  # (B, T, V)
        losses = F.cross_entropy(
            logits.flatten(0, 1), batch.tgt_out.flatten(), ignore_index=PAD_ID, reduction="none"
        )  # (B * T,)
        of_members.append(-losses.view_as(batch.tgt_out))
    tokens = torch.stack(of_members).logsumexp(dim=0) - math.log(len(of_members))  # (B, T)
    return tokens.double().sum(dim=1)  # padding has 0
