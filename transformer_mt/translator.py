"""From lines to lines: order kept, empty lines kept, long lines split and joined."""

from collections.abc import Iterable, Iterator
from itertools import islice

import torch

from transformer_mt.batching import pad
from transformer_mt.decoding import greedy
from transformer_mt.model import Transformer
from transformer_mt.vocab import BOS_ID, EOS_ID, PAD_ID, Vocabulary

CHUNK_LINES = 8192
"""Lines sorted by length and decoded together; a chunk's translations come out at once."""
BATCH_TOKENS = 4096
"""Padded source positions decoded at once."""
EXTRA_LENGTH = 50
"""Output is at most so much longer than the source, in pieces (section 6.1 of the paper)."""

_SENTENCE_ENDS = (".", "!", "?", "…")
_CLAUSE_ENDS = (";", ":", ",", "–", "—")


class Translator:
    """Greedy translation with one model, in fp32.

    The text of a line does not depend on how lines are batched, rounding of ties aside, so
    validation, `evaluate` and `translate` agree.

    Args:
        model: On its device; set to evaluation mode while it translates.
        vocab: Its vocabulary.
        max_length: Source pieces the model was trained to take; longer lines are split.
    """

    def __init__(self, model: Transformer, vocab: Vocabulary, max_length: int) -> None:
        self.model, self.vocab, self.max_length = model, vocab, max_length
        self.lines_split = 0

    def translate(self, lines: Iterable[str]) -> Iterator[str]:
        r"""Translates lines lazily, one for one and in order; no result holds a `\n` or `\r`."""
        remaining = iter(lines)
        while chunk := list(islice(remaining, CHUNK_LINES)):
            yield from self._translate_chunk(chunk)

    def _translate_chunk(self, lines: list[str]) -> list[str]:
        parts: list[list[int]] = []
        owners: list[int] = []
        for line, ids in enumerate(self.vocab.encode_src(lines)):
            split = self._split(ids)
            self.lines_split += len(split) > 1
            parts += split
            owners += [line] * len(split)
        texts: list[list[str]] = [[] for _ in lines]
        for owner, hypothesis in zip(owners, self._decode_all(parts), strict=True):
            texts[owner].append(self.vocab.decode_tgt(hypothesis))
        return [" ".join(filter(None, text)) for text in texts]

    def _split(self, ids: list[int]) -> list[list[int]]:
        """Cuts pieces into parts the model can take; no piece is lost; no pieces, no parts."""
        parts = []
        while len(ids) > self.max_length:
            cut = self._cut(self.vocab.src_pieces(ids[: self.max_length + 1]))
            parts.append(ids[:cut])
            ids = ids[cut:]
        return [*parts, ids] if ids else parts

    def _cut(self, pieces: list[str]) -> int:
        """Finds the last good place to cut: after a sentence, a clause, a word, or anywhere."""
        words = [i for i in range(1, len(pieces)) if pieces[i].startswith("▁")]
        for ends in (_SENTENCE_ENDS, _CLAUSE_ENDS):
            places = [i for i in words if pieces[i - 1].endswith(ends)]
            # A part of a few words has little context: such a mark is no better than a word end.
            if places and places[-1] > len(pieces) // 4:
                return places[-1]
        return words[-1] if words else len(pieces) - 1

    @torch.no_grad()
    def _decode_all(self, sources: list[list[int]]) -> list[list[int]]:
        """Decodes in batches of similar length; gives hypotheses in the order of the sources."""
        training = self.model.training
        self.model.eval()
        hypotheses: list[list[int]] = [[] for _ in sources]
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]), reverse=True)
        while order:
            rows = max(1, BATCH_TOKENS // (len(sources[order[0]]) + 1))
            batch, order = order[:rows], order[rows:]
            found = self._decode([sources[i] for i in batch])
            for i, hypothesis in zip(batch, found, strict=True):
                hypotheses[i] = hypothesis
        self.model.train(training)
        return hypotheses

    def _decode(self, sources: list[list[int]]) -> list[list[int]]:
        device = self.model.src_embedding.device
        src = pad([[*ids, EOS_ID] for ids in sources], PAD_ID).to(device)
        max_lengths = torch.tensor([len(ids) + EXTRA_LENGTH for ids in sources], device=device)
        state = self.model.start(src, int(max_lengths.max()))
        return greedy(self.model.decode_step, state, max_lengths, BOS_ID, EOS_ID)
