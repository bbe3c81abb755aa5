"""From lines to lines: order kept, empty lines kept, long lines split and joined."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch

from transformer_mt.batching import pad
from transformer_mt.decoding import Hypothesis, beam_search, greedy
from transformer_mt.errors import ConfigError
from transformer_mt.model import Transformer
from transformer_mt.vocab import BOS_ID, EOS_ID, PAD_ID, Vocabulary

CHUNK_LINES = 8192
"""Lines sorted by length and decoded together; a chunk's translations come out at once."""
BATCH_TOKENS = 4096
"""Padded source positions decoded at once, times the beam."""
EXTRA_LENGTH = 50
"""Output is at most so much longer than the source, in pieces (section 6.1 of the paper)."""

_SENTENCE_ENDS = (".", "!", "?", "…")
_CLAUSE_ENDS = (";", ":", ",", "–", "—")


@dataclass(frozen=True)
class Translation:
    """One translation of a line.

    Attributes:
        text: Detokenised, without line break or tab.
        score: Its log-probability over the length penalty, summed over the parts of a split
            line; 0 for an empty line, NaN from greedy search.
    """

    text: str
    score: float

    def show(self, with_score: bool) -> str:
        """Writes it as a line of output."""
        return f"{self.score:.4f}\t{self.text}" if with_score else self.text


class Translator:
    """Translation with one model, in fp32.

    The text of a line does not depend on how lines are batched, rounding of ties aside, so
    validation, `evaluate` and `translate` agree.

    Args:
        model: On its device; set to evaluation mode while it translates.
        vocab: Its vocabulary.
        max_length: Source pieces the model was trained to take; longer lines are split.
        beam_size: 1 is greedy search.
        length_penalty: Exponent of the length penalty of beam search.
        scored: Whether scores are wanted of a beam of 1 too.

    Raises:
        ConfigError: If the beam is wider than half the vocabulary.
    """

    def __init__(
        self,
        model: Transformer,
        vocab: Vocabulary,
        max_length: int,
        beam_size: int = 1,
        length_penalty: float = 0.6,
        scored: bool = False,
    ) -> None:
        if not 1 <= beam_size <= vocab.tgt_size // 2:
            raise ConfigError(f"beam size {beam_size}: choose 1 to {vocab.tgt_size // 2}")
        self.model, self.vocab, self.max_length = model, vocab, max_length
        self.beam_size, self.length_penalty = beam_size, length_penalty
        self.greedy = beam_size == 1 and not scored
        self.lines_split = 0

    def translate(self, lines: Iterable[str]) -> Iterator[str]:
        r"""Translates lines lazily, one for one and in order; no result holds a `\n` or `\r`."""
        return (translations[0].text for translations in self.n_best(lines))

    def n_best(self, lines: Iterable[str]) -> Iterator[list[Translation]]:
        """Gives for every line its `beam_size` best translations, the best first.

        They differ in their pieces, so two may spell the same text. Those of a split line join
        the best of each part, then the second best of each, and so on.
        """
        remaining = iter(lines)
        while chunk := list(islice(remaining, CHUNK_LINES)):
            yield from self._translate_chunk(chunk)

    def _translate_chunk(self, lines: list[str]) -> list[list[Translation]]:
        parts: list[list[int]] = []
        owners: list[int] = []
        for line, ids in enumerate(self.vocab.encode_src(lines)):
            split = self._split(ids)
            self.lines_split += len(split) > 1
            parts += split
            owners += [line] * len(split)
        found: list[list[list[Hypothesis]]] = [[] for _ in lines]
        for owner, hypotheses in zip(owners, self._decode_all(parts), strict=True):
            found[owner].append(hypotheses)
        return [
            [self._join([part[rank] for part in line]) for rank in range(self.beam_size)]
            for line in found
        ]

    def _join(self, parts: list[Hypothesis]) -> Translation:
        texts = (self.vocab.decode_tgt(part.ids) for part in parts)
        return Translation(" ".join(filter(None, texts)), sum(part.score for part in parts))

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
    def _decode_all(self, sources: list[list[int]]) -> list[list[Hypothesis]]:
        """Decodes in batches of similar length; gives hypotheses in the order of the sources."""
        training = self.model.training
        self.model.eval()
        found: list[list[Hypothesis]] = [[] for _ in sources]
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]), reverse=True)
        while order:
            rows = max(1, BATCH_TOKENS // ((len(sources[order[0]]) + 1) * self.beam_size))
            batch, order = order[:rows], order[rows:]
            hypotheses = self._decode([sources[i] for i in batch])
            for i, some in zip(batch, hypotheses, strict=True):
                found[i] = some
        self.model.train(training)
        return found

    def _decode(self, sources: list[list[int]]) -> list[list[Hypothesis]]:
        device, step = self.model.src_embedding.device, self.model.decode_step
        src = pad([[*ids, EOS_ID] for ids in sources], PAD_ID).to(device)
        max_lengths = torch.tensor([len(ids) + EXTRA_LENGTH for ids in sources], device=device)
        state = self.model.start(src, int(max_lengths.max()))
        if self.greedy:
            rows = greedy(step, state, max_lengths, BOS_ID, EOS_ID)
            return [[Hypothesis(ids, math.nan, math.nan)] for ids in rows]
        search = BOS_ID, EOS_ID, self.beam_size, self.length_penalty
        return beam_search(step, state, max_lengths, *search)
