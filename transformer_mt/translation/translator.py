"""Translation of lines: order and empty lines are kept, long lines are split and joined.

It knows only the interface of the runtime that decodes, and imports no PyTorch.
"""

import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, groupby, pairwise, tee
from typing import Literal, NamedTuple

from transformer_mt.errors import ConfigError
from transformer_mt.system.processes import ALONE, Processes
from transformer_mt.text.splitting import LineSplitter
from transformer_mt.text.vocabulary import Vocabulary
from transformer_mt.translation.options import (
    DEFAULT_SEARCH,
    MAX_LENGTH_PENALTY,
    OutputOptions,
    SearchOptions,
)
from transformer_mt.translation.runtime import EXTRA_LENGTH, Hypothesis, Runtime, Source

logger = logging.getLogger(__name__)

MIN_BATCH_LENGTH = 8
"""Shorter lines count as this many positions in a batch: their logits need memory too."""

_KINDS = {
    "split": (logging.INFO, "translated in parts"),
    "copied": (logging.INFO, "without words copied"),
    "cut": (logging.WARNING, "cut at the length limit; such text usually repeats itself"),
    "empty": (logging.WARNING, "with words translated into nothing"),
}
"""Kinds of lines that are counted, each with the level and text of its message."""


class Translation(NamedTuple):
    """One translation of a line.

    Attributes:
        text: Detokenised, without line break or tab.
        score: Its log-probability divided by the length penalty, summed over the parts of a split
            line; 0 for what is empty or copied, NaN from greedy search.
        parts: In how many parts the line was translated; 0 for one that is empty or copied.
        is_cut: Whether the length limit ended a part.
    """

    text: str
    score: float
    parts: int = 1
    is_cut: bool = False

    @property
    def status(self) -> Literal["ok", "cut", "empty", "copied"]:
        """Tells what was copied, or went wrong: a cut, or no text for a line that has words."""
        if not self.parts and self.text:
            return "copied"
        if self.parts and not self.text.strip():
            return "empty"
        return "cut" if self.is_cut else "ok"


class _Plan(NamedTuple):
    """How lines are translated.

    Attributes:
        lines: Indices of the sources of each line; an empty line has none.
        sources: The sources in the order of the text; equal ones of a chunk are one.
        counts: How many lines each source counts, by index: a line counts with its first part.
        batches: Indices of the sources in batches of similar length.
    """

    lines: list[list[int]]
    sources: list[Source]
    counts: Counter[int]
    batches: list[list[int]]


def count_kinds(translations: Iterable[Translation]) -> dict[str, int]:
    """Counts the lines that were split, copied, or gone wrong, given their best translations."""
    counts = dict.fromkeys(_KINDS, 0)
    for translation in translations:
        counts["split"] += translation.parts > 1
        if translation.status != "ok":
            counts[translation.status] += 1
    return counts


def log_kinds(counts: Mapping[str, int], prefix: str = "") -> None:
    """Logs a message for each kind of lines that occurred."""
    for kind, (level, text) in _KINDS.items():
        if count := counts.get(kind, 0):
            logger.log(level, "%s%s %s", prefix, lines_text(count), text)


def lines_text(lines: int) -> str:
    """Formats a number of lines, as in "2 lines"."""
    return f"{lines:,} {'line' if lines == 1 else 'lines'}"


def format_lines(
    translations: Sequence[Sequence[Translation]], first_line: int, options: OutputOptions
) -> str:
    """Formats the translations of consecutive lines, each ended by a line feed.

    Those of each line are the best first; lines are numbered from 1.
    """
    rows = []
    for line, ranked in enumerate(translations, start=first_line):
        for rank, translation in enumerate(ranked, start=1):
            if options.format == "jsonl":
                score = None if math.isnan(translation.score) else translation.score
                row = {"line": line, "rank": rank, "score": score, "text": translation.text}
                row |= {"parts": translation.parts, "status": translation.status}
                rows.append(json.dumps(row, ensure_ascii=False, allow_nan=False))
            elif options.with_scores:
                rows.append(f"{translation.score:.4f}\t{translation.text}")
            else:
                rows.append(translation.text)
    return "".join(f"{row}\n" for row in rows)


class Translator:
    """Translation of lines by any runtime.

    The translation of a line does not depend on how lines are batched, except if rounding decides
    a tie, so validation, `evaluate` and `translate` agree.

    Args:
        runtime: Decodes batches.
        vocab: The vocabulary of its model.
        splitter: Splits lines as the model needs it.
        options: How to search.
        processes: The processes over which the batches are distributed. Each is given the same
            lines and model, and gets all translations, the same ones as a single process.

    Attributes:
        first_chunk_lines: Lines of the first chunk of a text.
        chunk_lines: Lines of each of the others.
        batch_tokens: Padded source positions of a batch times beam size.

    Raises:
        ConfigError: If the beam size or the length penalty is outside its limits.
    """

    def __init__(
        self,
        runtime: Runtime,
        vocab: Vocabulary,
        splitter: LineSplitter,
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
        self.runtime, self.vocab, self.splitter, self.options = runtime, vocab, splitter, options
        self.processes = processes
        self.first_chunk_lines, self.chunk_lines = runtime.chunk_lines
        self.batch_tokens = options.batch_tokens or runtime.batch_tokens

    def translate(
        self, lines: Sequence[str], advance: Callable[[int], object] = lambda lines: None
    ) -> list[str]:
        r"""Translates lines one for one and in order; no result contains a `\n` or `\r`.

        Args:
            lines: Source text.
            advance: Called with the number of lines that have been translated, batch by batch.
        """
        return [translation.text for translation in self.best(lines, advance)]

    def best(
        self, lines: Sequence[str], advance: Callable[[int], object] = lambda lines: None
    ) -> list[Translation]:
        """Finds the best translation of every line.

        The arguments are those of `translate`.
        """
        size = self.chunk_lines * self.processes.world_size  # more would only need more memory
        bounds = [0, *range(self.first_chunk_lines, len(lines), size), len(lines)]
        chunks = (lines[begin:end] for begin, end in pairwise(bounds))
        translated = self.translate_chunks(chunks, advance)
        return [best for ranked_of_lines in translated for best, *_ in ranked_of_lines]

    def n_best(
        self,
        lines: Sequence[str],
        advance: Callable[[int], object] = lambda lines: None,
        first_line: int = 1,
    ) -> list[list[Translation]]:
        """Finds the `n_best` best translations of every line, the best first.

        They differ in their pieces, but two may have the same text, and a copied line is the same
        at every rank. Those of a split line join the best translations of its parts, then the
        second best, and so on.

        Args:
            lines: Source text; similar lengths are batched, so many lines at once are faster.
            advance: Called with the number of lines that have been translated, batch by batch.
            first_line: Number of the first line in its text; matters to sampling alone.
        """
        [translations] = self.translate_chunks([lines], advance, first_line)
        return translations

    def translate_chunks(
        self,
        chunks: Iterable[Sequence[str]],
        advance: Callable[[int], object],
        first_line: int = 1,
    ) -> Generator[list[list[Translation]]]:
        """Finds the `n_best` best translations of every line, as `n_best` does, chunk by chunk.

        Chunks are taken before the translations of those before them are complete, so that no
        thread is idle at the end of a chunk. All processes must have the same chunks.
        """
        plans, plans_ahead = tee(self._plan_all(chunks, first_line))
        own_batches = (
            [plan.sources[i] for i in batch]
            for plan in plans_ahead
            for batch in plan.batches[self.processes.rank :: self.processes.world_size]
        )
        with closing(self.runtime.decode(own_batches, self.options)) as decoded:
            for plan in plans:
                translated = self._translate_all(plan, decoded, advance)
                counted = sum(plan.counts[i] for batch in plan.batches for i in batch)
                advance(len(plan.lines) - counted)  # those that are empty or copied
                yield [
                    _join([translated[i] for i in parts], self.options.n_best)
                    for parts in plan.lines
                ]

    def _plan_all(self, chunks: Iterable[Sequence[str]], first_line: int) -> Generator[_Plan]:
        for lines in chunks:
            indices = dict[Source, int]()
            rows = list[list[int]]()
            for number, parts in enumerate(self.splitter.split(lines)):
                chunk = number // self.chunk_lines
                sources = [
                    Source(tuple(part), chunk)
                    if isinstance(part, list)
                    else Source((), chunk, copied=part)
                    for part in parts
                ]
                if self.options.sampling:
                    line = first_line + number
                    sources = [each._replace(line=line, part=i) for i, each in enumerate(sources)]
                rows.append([indices.setdefault(source, len(indices)) for source in sources])
            counts = Counter(row[0] for row in rows if row)
            sources = list(indices)
            yield _Plan(rows, sources, counts, self._cut_batches(sources))
            first_line += len(lines)

    def _translate_all(
        self,
        plan: _Plan,
        decoded: Iterator[list[list[Hypothesis]]],
        advance: Callable[[int], object],
    ) -> dict[int, list[Translation]]:
        """Translates the sources of a plan, given the hypotheses of this process's batches."""
        copied = {i: each.copied for i, each in enumerate(plan.sources) if not each.ids}
        own = {i: [Translation(text, 0, 0)] * self.options.n_best for i, text in copied.items()}
        world_size = self.processes.world_size
        for first in range(0, len(plan.batches), world_size):
            # Each round has a batch for every process; the last round may have fewer.
            assigned = plan.batches[first : first + world_size]
            if self.processes.rank < len(assigned):
                batch = assigned[self.processes.rank]
                limits = [len(plan.sources[i].ids) + EXTRA_LENGTH for i in batch]
                own |= zip(batch, self._detokenize(next(decoded), limits), strict=True)
            # All processes report every round: `advance` may ask them all whether to stop.
            advance(sum(plan.counts[i] for batch in assigned for i in batch))
        return dict(chain.from_iterable(part.items() for part in self.processes.gather(own)))

    def _detokenize(
        self, found: list[list[Hypothesis]], limits: list[int]
    ) -> list[list[Translation]]:
        """Gives the text of the hypotheses of each source; `limits` are their largest lengths."""
        texts = iter(self.vocab.tgt.decode([each.ids for ranked in found for each in ranked]))
        return [
            [Translation(next(texts), each.score, is_cut=len(each.ids) == limit) for each in ranked]
            for ranked, limit in zip(found, limits, strict=True)
        ]

    def _cut_batches(self, sources: Sequence[Source]) -> list[list[int]]:
        """Cuts the sources of each chunk into batches of similar length, longest first."""
        batches = []
        for _, chunk in groupby(range(len(sources)), key=lambda i: sources[i].chunk):
            translated = (i for i in chunk if sources[i].ids)
            order = sorted(translated, key=lambda i: len(sources[i].ids), reverse=True)
            while order:
                longest = max(len(sources[order[0]].ids) + 1, MIN_BATCH_LENGTH)
                rows = max(1, self.batch_tokens // (longest * self.options.beam_size))
                batches.append(order[:rows])
                order = order[rows:]
        return batches


def _join(parts: list[list[Translation]], n_best: int) -> list[Translation]:
    """Joins the `n_best` translations of a line's parts, rank by rank; an empty line has none."""
    if len(parts) == 1:
        return parts[0]
    joined = []
    for rank in range(n_best):
        ranked = [part[rank] for part in parts]
        text = " ".join(filter(None, (each.text for each in ranked)))
        is_cut = any(each.is_cut for each in ranked)
        joined.append(Translation(text, sum(each.score for each in ranked), len(parts), is_cut))
    return joined
