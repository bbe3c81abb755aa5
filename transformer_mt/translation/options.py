"""Options of loading and searching, and their defaults. Imports nothing heavy: --help needs it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SearchOptions:
    """How translations are searched for.

    Attributes:
        beam_size: Hypotheses kept per sentence; 1 is greedy search.
        length_penalty: Exponent alpha of the length penalty of beam search.
        with_scores: Whether scores are needed; greedy search alone does not compute them.
        batch_tokens: Padded source positions times beam size decoded at once; None is a default
            for the device.
    """

    beam_size: int = 1
    length_penalty: float = 0.6
    with_scores: bool = False
    batch_tokens: int | None = None


@dataclass(frozen=True)
class LoadOptions:
    """How checkpoints are loaded for translation.

    Attributes:
        device: `auto`, `cpu` or `cuda`.
        precision: `fp32`, `bf16` or `fp16`; the weights are rounded to it.
        max_length: Source pieces after which a line is split; None is the maximum in training.
        raw: Whether to use the trained weights even if the checkpoint has their moving average.
    """

    device: str = "auto"
    precision: str = "fp32"
    max_length: int | None = None
    raw: bool = False


DEFAULT_SEARCH = SearchOptions()
DEFAULT_LOAD = LoadOptions()
