"""Several models that decode as one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transformer_mt.model.multi_head_attention import DecoderState
from transformer_mt.model.transformer import Transformer


@dataclass
class EnsembleState:
    """Decoding states of all members; a row holds the same hypothesis in each."""

    members: list[DecoderState]

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Keeps, repeats or reorders rows in place, as `DecoderState.select` does."""
        for state in self.members:
            state.select(rows, sources)


class Ensemble(nn.Module):
    """Models with one vocabulary that decode with the mean of their probabilities.

    Args:
        models: At least one; their sizes may differ.
    """

    def __init__(self, models: Sequence[Transformer]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    @property
    def device(self) -> torch.device:
        """Device of the models."""
        return self.models[0].device  # type: ignore[return-value]

    def begin_decoding(self, src: Tensor, max_length: int) -> EnsembleState:
        """Encodes padded source ids, (B, S), with every model."""
        return EnsembleState([model.begin_decoding(src, max_length) for model in self.models])  # type: ignore[operator]

    def next_logits(self, ids: Tensor, state: EnsembleState) -> Tensor:
        """Computes the log-probabilities of the next token, (R,) to (R, V)."""
        log_probabilities = torch.stack(
            [
                model.next_logits(ids, member).float().log_softmax(-1)  # type: ignore[operator]
                for model, member in zip(self.models, state.members, strict=True)
            ]
        )  # (models, R, V)
        return log_probabilities.logsumexp(0) - math.log(len(self.models))
