"""Translation of lines: order and empty lines are kept, long lines are split and joined."""

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from transformer_mt.errors import ConfigError
from transformer_mt.model.cpu_kernels import packed_weights
from transformer_mt.model.ensemble import Ensemble
from transformer_mt.model.transformer import Transformer, evaluation_mode
from transformer_mt.system.device import compute_settings, total_memory
from transformer_mt.system.processes import ALONE, Processes
from transformer_mt.system.worker_threads import WorkerThreads
from transformer_mt.text.batching import copy_to_device, pad
from transformer_mt.text.vocabulary import BOS_ID, EOS_ID, PAD_ID, Vocabulary
from transformer_mt.translation.options import DEFAULT_SEARCH, MAX_LENGTH_PENALTY, SearchOptions
from transformer_mt.translation.search import DecodingState, Hypothesis, beam_search, greedy

CPU_BATCH_TOKENS, CUDA_BATCH_TOKENS_PER_GB = 4096, 1024
"""Default of `SearchOptions.batch_tokens`. On a CPU, several batches are decoded at once, each by a
thread. On CUDA it grows with the memory: the caches of the big model take some 0.5 GB per 1,024
positions in float32."""
MIN_BATCH_LENGTH = 8
"""Shorter lines count as this many positions in a batch: their logits need memory too."""
EXTRA_LENGTH = 50
"""Output has at most this many pieces more than the source (section 6.1 of the paper)."""

_SENTENCE_ENDS = (".", "!", "?", "…")
_CLAUSE_ENDS = (";", ":", ",", "–", "—")


@dataclass(frozen=True)
class Translation:
    """One translation of a line.

    Attributes:
        text: Detokenised, without line break or tab.
        score: Its log-probability divided by the length penalty, summed over the parts of a split
            line; 0 for an empty line, NaN from greedy search.
    """

    text: str
    score: float


def default_batch_tokens(device: torch.device) -> int:
    """Chooses the size of a batch: padded source positions times beam size."""
    if device.type == "cuda":
        return int(CUDA_BATCH_TOKENS_PER_GB * total_memory(device) / 1e9)
    return CPU_BATCH_TOKENS


class Translator:
    """Translation with one model or an ensemble, in the precision of its weights.

    The translation of a line does not depend on how lines are batched, except if rounding decides
    a tie, so validation, `evaluate` and `translate` agree.

    Args:
        model: On its device; set to evaluation mode while it translates.
        vocab: Its vocabulary.
        max_length: Source pieces the model was trained on; longer lines are split.
        options: How to search.
        processes: The processes over which the batches are distributed. Each is given the same
            lines and model and gets all translations, the same ones as a single process.

    Attributes:
        chunk_lines: Consecutive lines that are sorted by length and cut into batches together.
        batch_tokens: Padded source positions of a batch times beam size.
        lines_split: Lines so far that were translated in parts.

    Raises:
        ConfigError: If the beam size or the length penalty is outside its limits.
    """

    chunk_lines = 8192

    def __init__(
        self,
        model: Transformer | Ensemble,
        vocab: Vocabulary,
        max_length: int,
        options: SearchOptions = DEFAULT_SEARCH,
        processes: Processes = ALONE,
    ) -> None:
        if not 1 <= options.beam_size <= vocab.tgt.size // 2:
            raise ConfigError(
                f"beam size {options.beam_size}: choose 1 to {vocab.tgt.size // 2}, half the"
                " target vocabulary"
            )
        if not 0 <= options.length_penalty <= MAX_LENGTH_PENALTY:
            raise ConfigError(
                f"length penalty {options.length_penalty:g}: choose 0 to {MAX_LENGTH_PENALTY:g}"
            )
        self.model, self.vocab, self.max_length, self.options = model, vocab, max_length, options
        self.greedy = options.beam_size == 1 and not options.with_scores
        self.batch_tokens = options.batch_tokens or default_batch_tokens(model.device)
        self.processes, self.lines_split = processes, 0
        self._workers = WorkerThreads()

    def translate(
        self, lines: Sequence[str], advance: Callable[[int], object] = lambda lines: None
    ) -> list[str]:
        r"""Translates lines one for one and in order; no result contains a `\n` or `\r`.

        Args:
            lines: Source text.
            advance: Called with the number of lines that have been translated, batch by batch.
        """
        texts: list[str] = []
        size = self.chunk_lines * self.processes.world_size  # more would only need more memory
        for start in range(0, len(lines), size):
            translated = self.n_best(lines[start : start + size], advance)
            texts += [best.text for best, *_ in translated]
        return texts

    def n_best(
        self, lines: Sequence[str], advance: Callable[[int], object] = lambda lines: None
    ) -> list[list[Translation]]:
        """Finds the `beam_size` best translations of every line, the best first.

        They differ in their pieces, but two may have the same text. Those of a split line join
        the best translations of its parts, then the second best, and so on.

        Args:
            lines: Source text; similar lengths are batched, so many lines at once are faster.
            advance: Called with the number of lines that have been translated, batch by batch.
        """
        parts: list[list[int]] = []
        owners: list[int] = []
        for line, ids in enumerate(self.vocab.src.encode(lines)):
            line_parts = self._split(ids)
            self.lines_split += len(line_parts) > 1
            parts += line_parts
            owners += [line] * len(line_parts)
        decoded = self._decode_all(parts, owners, advance)
        hypotheses: list[list[list[Hypothesis]]] = [[] for _ in lines]  # by line, part, rank
        for owner, part_hypotheses in zip(owners, decoded, strict=True):
            hypotheses[owner].append(part_hypotheses)
        advance(sum(not line for line in hypotheses))  # empty lines have no parts
        ranks = range(self.options.beam_size)
        return [
            [self._join([part[rank] for part in line]) for rank in ranks] for line in hypotheses
        ]

    def _join(self, parts: list[Hypothesis]) -> Translation:
        texts = (self.vocab.tgt.decode(part.ids) for part in parts)
        return Translation(" ".join(filter(None, texts)), sum(part.score for part in parts))

    def _split(self, ids: list[int]) -> list[list[int]]:
        """Splits a line into parts of at most `max_length` pieces; an empty line has no parts."""
        parts = []
        while len(ids) > self.max_length:
            end = self._split_point(self.vocab.src.pieces(ids[: self.max_length + 1]))
            parts.append(ids[:end])
            ids = ids[end:]
        return [*parts, ids] if ids else parts

    def _split_point(self, pieces: list[str]) -> int:
        """Finds the last end of a sentence, else of a clause, else of a word, else the last piece.

        Takes one piece more than a part may have; returns the index that the next part begins with.
        """
        word_starts = [i for i in range(1, len(pieces)) if pieces[i].startswith("▁")]
        for ends in (_SENTENCE_ENDS, _CLAUSE_ENDS):
            points = [i for i in word_starts if pieces[i - 1].endswith(ends)]
            # A part of a few words lacks context, so a mark this early is no better than the
            # end of a later word.
            if points and points[-1] > len(pieces) // 4:
                return points[-1]
        return word_starts[-1] if word_starts else len(pieces) - 1

    def _decode_all(
        self, sources: list[list[int]], owners: list[int], advance: Callable[[int], object]
    ) -> list[list[Hypothesis]]:
        """Decodes in batches of similar length, and restores the order of the sources.

        Each source belongs to the line in `owners`; `advance` is called with the lines of a batch.
        """

        def decode(
            batch: list[int], raise_if_cancelled: Callable[[], None] = lambda: None
        ) -> list[list[Hypothesis]]:
            return self.decode([sources[i] for i in batch], raise_if_cancelled)

        batches, own = self._cut_batches(sources, owners), dict[int, list[Hypothesis]]()
        rank, world_size = self.processes.rank, self.processes.world_size
        own_batches = batches[rank::world_size]
        if self.model.device.type == "cpu":  # several at once
            decoded = self._workers.map(decode, own_batches)
        else:
            decoded = (decode(batch) for batch in own_batches)
        # Each round has a batch for every process; the last round may have fewer.
        rounds = [batches[i : i + world_size] for i in range(0, len(batches), world_size)]
        with (
            evaluation_mode(self.model),
            compute_settings(self.model.device, tf32=False),
            packed_weights(self.model),
            closing(decoded),
        ):
            for assigned in rounds:
                if rank < len(assigned):
                    own.update(zip(assigned[rank], next(decoded), strict=True))
                # A line counts once, with its first part. All processes report every round, since
                # `advance` may ask them all whether to stop.
                parts = (i for batch in assigned for i in batch)
                advance(sum(i == 0 or owners[i] != owners[i - 1] for i in parts))
        gathered = {i: each for part in self.processes.gather(own) for i, each in part.items()}
        return [gathered[i] for i in range(len(sources))]

    def _cut_batches(self, sources: list[list[int]], owners: list[int]) -> list[list[int]]:
        """Cuts each chunk of lines into batches of indices of similar length, longest first."""
        batches = []
        indices = range(len(sources))
        for _, chunk in groupby(indices, key=lambda i: owners[i] // self.chunk_lines):
            order = sorted(chunk, key=lambda i: len(sources[i]), reverse=True)
            while order:
                longest = max(len(sources[order[0]]) + 1, MIN_BATCH_LENGTH)
                rows = max(1, self.batch_tokens // (longest * self.options.beam_size))
                batches.append(order[:rows])
                order = order[rows:]
        return batches

    @torch.no_grad()
    def decode(
        self, sources: list[list[int]], raise_if_cancelled: Callable[[], None] = lambda: None
    ) -> list[list[Hypothesis]]:
        """Finds the `beam_size` best hypotheses of each source, the best first, in one batch.

        Args:
            sources: Source ids without EOS, none empty; the model is in evaluation mode.
            raise_if_cancelled: Called at every position.

        Returns:
            Hypotheses of each source; those of greedy search have NaN as log-probability.
        """

        def next_logits(ids: Tensor, state: DecodingState) -> Tensor:
            raise_if_cancelled()
            return self.model.next_logits(ids, state)  # type: ignore[arg-type]

        device = self.model.device
        src = copy_to_device(pad([[*ids, EOS_ID] for ids in sources], PAD_ID), device)
        limits = [len(ids) + EXTRA_LENGTH for ids in sources]
        max_lengths = copy_to_device(torch.tensor(limits), device)
        state = self.model.begin_decoding(src, max(limits))
        if self.greedy:
            rows = greedy(next_logits, state, max_lengths, BOS_ID, EOS_ID)
            return [[Hypothesis(ids, math.nan)] for ids in rows]
        return beam_search(
            next_logits,
            state,
            max_lengths,
            BOS_ID,
            EOS_ID,
            self.options.beam_size,
            self.options.length_penalty,
        )
