"""From lines to lines: order kept, empty lines kept, long lines split and joined."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from transformer_mt.errors import ConfigError
from transformer_mt.model.cpu_kernels import packed_weights
from transformer_mt.model.ensemble import Ensemble
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.device import compute_settings
from transformer_mt.text.batching import pad
from transformer_mt.text.vocabulary import BOS_ID, EOS_ID, PAD_ID, Vocabulary
from transformer_mt.translation.search import Hypothesis, beam_search, greedy

CHUNK_LINES = 8192
"""Lines sorted by length and decoded together; a chunk's translations come out at once."""
BATCH_TOKENS = {"cpu": 8192, "cuda": 32768}
"""Padded source positions decoded at once, times the beam, by device."""
SHORTEST = 8
"""A shorter line counts as so many positions: its logits need room too."""
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


@dataclass(frozen=True)
class SearchOptions:
    """How translations are looked for.

    Attributes:
        beam_size: 1 is greedy search.
        length_penalty: Exponent of the length penalty of beam search.
        scored: Whether scores are wanted of a beam of 1 too.
        batch_tokens: Padded source positions decoded at once, times the beam; None is what suits
            the device.
    """

    beam_size: int = 1
    length_penalty: float = 0.6
    scored: bool = False
    batch_tokens: int | None = None


GREEDY = SearchOptions()


class Translator:
    """Translation with one model or several, in the precision of their weights.

    The text of a line does not depend on how lines are batched, rounding of ties aside, so
    validation, `evaluate` and `translate` agree.

    Args:
        model: On its device; set to evaluation mode while it translates.
        vocab: Its vocabulary.
        max_length: Source pieces the model was trained to take; longer lines are split.
        search: How to look for translations.

    Attributes:
        lines_split: Lines so far that were translated in parts.

    Raises:
        ConfigError: If the beam is wider than half the vocabulary.
    """

    def __init__(
        self,
        model: Transformer | Ensemble,
        vocab: Vocabulary,
        max_length: int,
        search: SearchOptions = GREEDY,
    ) -> None:
        if not 1 <= search.beam_size <= vocab.tgt_size // 2:
            raise ConfigError(f"beam size {search.beam_size}: choose 1 to {vocab.tgt_size // 2}")
        self.model, self.vocab, self.max_length, self.search = model, vocab, max_length, search
        self.greedy = search.beam_size == 1 and not search.scored
        self.batch_tokens = search.batch_tokens or BATCH_TOKENS[model.device.type]
        self.lines_split = 0

    def translate(
        self, lines: Iterable[str], advance: Callable[[int], object] = lambda lines: None
    ) -> Iterator[str]:
        r"""Translates lines lazily, one for one and in order; no result holds a `\n` or `\r`."""
        remaining = iter(lines)
        while chunk := list(islice(remaining, CHUNK_LINES)):
            yield from (found[0].text for found in self.translate_chunk(chunk, advance))

    def translate_chunk(
        self, lines: Sequence[str], advance: Callable[[int], object] = lambda lines: None
    ) -> list[list[Translation]]:
        """Gives for every line its `beam_size` best translations, the best first.

        They differ in their pieces, so two may spell the same text. Those of a split line join
        the best of each part, then the second best of each, and so on.

        Args:
            lines: Source text; similar lengths are batched, so many lines are faster than few.
            advance: Is told of lines that are done, batch by batch.
        """
        parts: list[list[int]] = []
        owners: list[int] = []
        for line, ids in enumerate(self.vocab.encode_src(lines)):
            split = self._split(ids)
            self.lines_split += len(split) > 1
            parts += split
            owners += [line] * len(split)
        found: list[list[list[Hypothesis]]] = [[] for _ in lines]
        for owner, hypotheses in zip(owners, self._decode_all(parts, owners, advance), strict=True):
            found[owner].append(hypotheses)
        advance(sum(not some for some in found))
        return [
            [self._join([part[rank] for part in line]) for rank in range(self.search.beam_size)]
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
    def _decode_all(
        self, sources: list[list[int]], owners: list[int], advance: Callable[[int], object]
    ) -> list[list[Hypothesis]]:
        """Decodes in batches of similar length; gives hypotheses in the order of the sources."""
        training = self.model.training
        self.model.eval()
        found: list[list[Hypothesis]] = [[] for _ in sources]
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]), reverse=True)
        with compute_settings(self.model.device, tf32=False), packed_weights(self.model):
            while order:
                longest = max(len(sources[order[0]]) + 1, SHORTEST)
                rows = max(1, self.batch_tokens // (longest * self.search.beam_size))
                batch, order = order[:rows], order[rows:]
                hypotheses = self._decode([sources[i] for i in batch])
                for i, some in zip(batch, hypotheses, strict=True):
                    found[i] = some
                advance(sum(i == 0 or owners[i] != owners[i - 1] for i in batch))
        self.model.train(training)
        return found

    def _decode(self, sources: list[list[int]]) -> list[list[Hypothesis]]:
        device, step = self.model.device, self.model.next_logits
        src = pad([[*ids, EOS_ID] for ids in sources], PAD_ID).to(device)
        max_lengths = torch.tensor([len(ids) + EXTRA_LENGTH for ids in sources], device=device)
        state = self.model.begin_decoding(src, int(max_lengths.max()))
        if self.greedy:
            rows = greedy(step, state, max_lengths, BOS_ID, EOS_ID)  # type: ignore[arg-type]
            return [[Hypothesis(ids, math.nan, math.nan)] for ids in rows]
        search = BOS_ID, EOS_ID, self.search.beam_size, self.search.length_penalty
        return beam_search(step, state, max_lengths, *search)  # type: ignore[arg-type]
