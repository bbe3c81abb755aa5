"""Pairs of piece ids in flat arrays, in memory or mapped from disk."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from transformer_mt.text.batching import Batch, Indices, Lengths, TokenCounts
from transformer_mt.text.corpus import RawPairs
from transformer_mt.text.vocabulary import BOS_ID, EOS_ID, PAD_ID, Vocabulary

Ids = npt.NDArray[np.uint16] | npt.NDArray[np.int32]
"""Piece ids; the narrow type is for vocabularies of up to 65,536 pieces."""


@dataclass(frozen=True)
class EncodedLines:
    """The ids of one language, one line after another, without BOS and EOS.

    Attributes:
        ids: The ids of all lines, flat.
        offsets: Where each line begins in `ids`, and the end of the last one, (N + 1,).
    """

    ids: Ids
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Ids:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> Lengths:
        """Tokens of each line with its BOS or EOS, (N,)."""
        return np.diff(self.offsets) + 1

    def count_tokens(self, lines: Indices) -> int:
        """Counts the tokens of the given lines, each with its BOS or EOS."""
        return int((self.offsets[lines + 1] - self.offsets[lines] + 1).sum())

    def gather(self, lines: Indices, begin: bool, end: bool) -> torch.Tensor:
        """Copies lines into a padded (B, L) tensor, with BOS, EOS or both."""
        starts = self.offsets[lines]
        lengths = self.offsets[lines + 1] - starts
        columns = np.arange(int(lengths.max(initial=0)))
        is_piece = columns < lengths[:, None]
        marked = np.full((len(lines), begin + len(columns) + end), PAD_ID, np.int64)
        padded = marked[:, int(begin) : int(begin) + len(columns)]
        padded[is_piece] = self.ids[(starts[:, None] + columns)[is_piece]]
        if begin:
            marked[:, 0] = BOS_ID
        if end:
            marked[np.arange(len(lines)), begin + lengths] = EOS_ID
        return torch.from_numpy(marked)


@dataclass(frozen=True)
class EncodedPairs:
    """Parallel lines as ids.

    Attributes:
        src: Source lines.
        tgt: Target lines, the same number.
    """

    src: EncodedLines
    tgt: EncodedLines

    def __len__(self) -> int:
        return len(self.src)

    @property
    def lengths(self) -> tuple[Lengths, Lengths]:
        """Tokens of each source with EOS and of each target with BOS or EOS, (N,) each."""
        return self.src.lengths, self.tgt.lengths

    def batch(self, indices: Indices) -> Batch:
        """Collects the given pairs, with BOS and EOS, into a padded batch on the CPU."""
        return Batch(
            src=self.src.gather(indices, begin=False, end=True),
            tgt_in=self.tgt.gather(indices, begin=True, end=False),
            tgt_out=self.tgt.gather(indices, begin=False, end=True),
            src_tokens=self.src.count_tokens(indices),
            tgt_tokens=self.tgt.count_tokens(indices),
        )

    def count_tokens(self, indices: Indices) -> TokenCounts:
        """Counts the tokens of the batch of the given pairs."""
        return TokenCounts(self.src.count_tokens(indices), self.tgt.count_tokens(indices))


def flatten(rows: Sequence[Sequence[int]]) -> EncodedLines:
    """Concatenates rows of ids, without BOS and EOS."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    ids = np.fromiter((i for row in rows for i in row), np.int32, int(lengths.sum()))
    return EncodedLines(ids, np.concatenate(([0], np.cumsum(lengths))))


def encode_pairs(raw: RawPairs, vocab: Vocabulary) -> EncodedPairs:
    """Encodes all pairs, without cleaning."""
    return EncodedPairs(flatten(vocab.encode_src(raw.src)), flatten(vocab.encode_tgt(raw.tgt)))
