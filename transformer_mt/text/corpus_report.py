"""What is counted while a corpus is prepared; reading it again needs no PyTorch."""

from dataclasses import dataclass
from typing import Literal

from transformer_mt.text.splitting import SourceStatistics

IdType = Literal["uint16", "int32"]


@dataclass(frozen=True)
class CorpusReport:
    """What is counted while a corpus is prepared; pieces are those of both sides.

    Attributes:
        pairs: Pairs read.
        kept: Pairs kept, each counted once, however often an epoch has it.
        dropped: Pairs dropped, by reason.
        pieces_per_word: Pieces by words.
        pieces: Pieces of an epoch.
        unknown: Pieces of `source` and `target` that are unknown or single bytes.
        longest: Pieces of the longest line.
        sources: What the source lines look like.
        dtype: Type of the stored ids.
    """

    pairs: int
    kept: int
    dropped: dict[str, int]
    pieces_per_word: float
    pieces: int
    unknown: dict[str, int]
    longest: int
    sources: SourceStatistics
    dtype: IdType
