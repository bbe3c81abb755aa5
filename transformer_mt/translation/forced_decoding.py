"""Log-probability and attention weights of given translations.

Shapes: B batch, S source length, T target length, H heads.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_mt.model.ensemble import Ensemble
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.device import compute_settings
from transformer_mt.system.processes import ALONE, Processes
from transformer_mt.text.batching import Batch, EncodedPairs, cut_micro_batches, pad
from transformer_mt.text.vocabulary import BOS_ID, EOS_ID, PAD_ID, Vocabulary

BATCH_POSITIONS = 2048
"""Padded positions scored at once: the logits of all of them are in memory, in float32."""

Weights = npt.NDArray[np.float32]


@dataclass(frozen=True)
class PairAttention:
    """Attention weights of a sentence pair: for each layer, an array (H, queries, keys).

    Each row of weights sums to 1.

    Attributes:
        src_pieces: The S source pieces, EOS last.
        tgt_pieces: The T inputs of the decoder, BOS first; the queries at piece i
            predict piece i + 1.
        encoder: Encoder self-attention, (H, S, S) each.
        decoder: Decoder self-attention, (H, T, T) each; weights of later pieces are 0.
        cross: Attention of the decoder to the encoder's output, (H, T, S) each.
    """

    src_pieces: list[str]
    tgt_pieces: list[str]
    encoder: list[Weights]
    decoder: list[Weights]
    cross: list[Weights]


@torch.no_grad()
def log_probabilities(
    model: Transformer | Ensemble, pairs: EncodedPairs, processes: Processes = ALONE
) -> list[float]:
    """Computes the log-probability of each target given its source.

    Args:
        model: On its device, in evaluation mode.
        pairs: Pairs of any length; none is left out.
        processes: The processes that share the batches; each has the same model and gets all sums.

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
    sums = []
    for indices in own:
        tokens = token_log_probabilities(model, pairs.batch(indices).to(model.device))  # (B, T)
        sums.append(tokens.double().sum(dim=1))  # padding has 0
    values = torch.cat(sums).tolist() if sums else []
    by_index = dict(zip((int(i) for batch in own for i in batch), values, strict=True))
    gathered = {i: value for part in processes.gather(by_index) for i, value in part.items()}
    return [gathered[i] for i in range(len(pairs))]


def token_log_probabilities(model: Transformer | Ensemble, batch: Batch) -> Tensor:
    """Computes the log-probability of each target token, without label smoothing.

    Args:
        model: In evaluation mode, or dropout is applied.
        batch: B pairs, on the device of the model.

    Returns:
        Natural logarithms, (B, T), float32; 0 at padding.
    """
    members: Any = model.models if isinstance(model, Ensemble) else [model]
    of_members = []
    for member in members:
        with compute_settings(model.device, tf32=False):
            logits = member(batch.src, batch.tgt_in).float()  # (B, T, V)
        losses = F.cross_entropy(
            logits.flatten(0, 1), batch.tgt_out.flatten(), ignore_index=PAD_ID, reduction="none"
        )  # (B * T,)
        of_members.append(-losses.view_as(batch.tgt_out))
    return torch.stack(of_members).logsumexp(dim=0) - math.log(len(of_members))


def pair_attention(
    model: Transformer, vocab: Vocabulary, src_ids: Sequence[int], tgt_ids: Sequence[int]
) -> PairAttention:
    """Computes the attention weights of one pair.

    Args:
        model: On its device, in evaluation mode.
        vocab: Its vocabulary.
        src_ids: Source ids without EOS.
        tgt_ids: Target ids without BOS and EOS.
    """
    src_ids, tgt_ids = [*src_ids, EOS_ID], [BOS_ID, *tgt_ids]
    with compute_settings(model.device, tf32=False):
        weights = model.attention_weights(
            pad([src_ids], PAD_ID).to(model.device), pad([tgt_ids], PAD_ID).to(model.device)
        )
    return PairAttention(
        src_pieces=vocab.src.pieces(src_ids),
        tgt_pieces=vocab.tgt.pieces(tgt_ids),
        encoder=_arrays(weights.encoder),
        decoder=_arrays(weights.decoder),
        cross=_arrays(weights.cross),
    )


def _arrays(layers: Sequence[Tensor]) -> list[Weights]:
    return [weights[0].float().cpu().numpy() for weights in layers]
