"""Several models that decode as one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transformer_mt.model.decoder_cache import DecoderState
from transformer_mt.model.transformer import Transformer


@dataclass
class EnsembleState:
    """The states of all members, row by row the same hypotheses.

    Attributes:
        members: One state a model.
    """

    members: list[DecoderState]

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Keeps, repeats or reorders rows in place, as `DecoderState.select` does."""
        for state in self.members:
            state.select(rows, sources)


class Ensemble(nn.Module):
    """Models with one vocabulary, whose mean probability decides each token.

    Args:
        models: At least one; the sizes may differ.
    """

    def __init__(self, models: Sequence[Transformer]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    @property
    def device(self) -> torch.device:
        """Where the models are."""
        return self.models[0].device  # type: ignore[return-value]

    def start(self, src: Tensor, max_length: int) -> EnsembleState:
        """Encodes source ids, (B, S), with every model."""
        return EnsembleState([model.start(src, max_length) for model in self.models])  # type: ignore[operator]

    def next_logits(self, ids: Tensor, state: EnsembleState) -> Tensor:
        """Computes the log-probabilities of the next position, (R,) to (R, V)."""
        members = zip(self.models, state.members, strict=True)
        logits = [model.next_logits(ids, its).float() for model, its in members]  # type: ignore[operator]
        stacked = torch.stack([some.log_softmax(-1) for some in logits])
        return stacked.logsumexp(0) - math.log(len(logits))
