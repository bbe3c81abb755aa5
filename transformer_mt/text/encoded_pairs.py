"""Pairs of piece ids in flat arrays, in memory or mapped from disk."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from transformer_mt.text.batching import Batch, Indices
from transformer_mt.text.corpus import RawPairs
from transformer_mt.text.vocabulary import BOS_ID, EOS_ID, PAD_ID, Vocabulary

Ids = npt.NDArray[np.uint16] | npt.NDArray[np.int32]


@dataclass(frozen=True)
class EncodedLines:
    """The ids of one language, one line after another, without begin and end marks.

    Attributes:
        ids: All ids.
        offsets: Where each line begins in `ids`, (N + 1,) int64.
    """

    ids: Ids
    offsets: Indices

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Ids:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> Indices:
        """Tokens of each line with its begin or end mark, (N,)."""
        return np.diff(self.offsets) + 1

    def tokens(self, lines: Indices) -> int:
        """Counts the tokens of some lines, each with its begin or end mark."""
        return int((self.offsets[lines + 1] - self.offsets[lines] + 1).sum())

    def gather(self, lines: Indices, begin: bool, end: bool) -> torch.Tensor:
        """Copies lines, with a begin or an end mark or both, into a padded (B, L) tensor."""
        starts = self.offsets[lines]
        lengths = self.offsets[lines + 1] - starts
        columns = np.arange(int(lengths.max(initial=0)))
        real = columns < lengths[:, None]
        marked = np.full((len(lines), begin + len(columns) + end), PAD_ID, np.int64)
        padded = marked[:, int(begin) : int(begin) + len(columns)]
        padded[real] = self.ids[(starts[:, None] + columns)[real]]
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
        tgt: Target lines, as many.
    """

    src: EncodedLines
    tgt: EncodedLines

    def __len__(self) -> int:
        return len(self.src)

    @property
    def lengths(self) -> tuple[Indices, Indices]:
        """Tokens of each source with its end mark and of each target with one mark, (N,) each."""
        return self.src.lengths, self.tgt.lengths

    def batch(self, indices: Indices) -> Batch:
        """Pads some pairs, with their marks, into a batch on the CPU."""
        return Batch(
            src=self.src.gather(indices, begin=False, end=True),
            tgt_in=self.tgt.gather(indices, begin=True, end=False),
            tgt_out=self.tgt.gather(indices, begin=False, end=True),
            src_tokens=self.src.tokens(indices),
            tgt_tokens=self.tgt.tokens(indices),
        )


def flatten(rows: Sequence[Sequence[int]]) -> EncodedLines:
    """Puts rows of ids, without marks, one after another."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    ids = np.fromiter((i for row in rows for i in row), np.int32, int(lengths.sum()))
    return EncodedLines(ids, np.concatenate(([0], np.cumsum(lengths))))


def encode_pairs(raw: RawPairs, vocab: Vocabulary) -> EncodedPairs:
    """Encodes pairs as they are, dropping none."""
    return EncodedPairs(flatten(vocab.encode_src(raw.src)), flatten(vocab.encode_tgt(raw.tgt)))
