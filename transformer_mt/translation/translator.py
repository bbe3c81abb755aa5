"""Translation of lines: order and empty lines are kept, long lines are split and joined.

It knows only the interface of the runtime that decodes, and imports no PyTorch.
"""

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, pairwise, tee
from typing import Literal, NamedTuple

from transformer_mt.errors import ConfigError
from transformer_mt.text.splitting import LineSplitter, Part
from transformer_mt.text.vocabulary import Vocabulary
from transformer_mt.translation.options import DEFAULT_SEARCH, SearchOptions
from transformer_mt.translation.runtime import EXTRA_LENGTH, Hypothesis, Runtime, Source

MIN_BATCH_LENGTH = 8
"""Shorter lines count as this many positions in a batch: their logits need memory too."""

_NO_SPACE_AFTER = re.compile("(?<=[。｡！？；：，、．」』）])\n|(?<=[。！？][”’])\n")
"""Between parts of Chinese and Japanese, which are not separated by spaces."""


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
    """How a chunk of lines is translated.

    Attributes:
        lines: The sources of each line; an empty line has none.
        batches: The sources that are decoded, each once, in batches of similar length; at least
            one batch, or a runtime would wait for the next chunks of a text without words.
    """

    lines: list[list[Source]]
    batches: list[list[Source]]


class Translator:
    """Translation of lines by any runtime.

    The translation of a line does not depend on how lines are batched, except if rounding decides
    a tie, so validation, `evaluate` and `translate` agree.

    Args:
        runtime: Decodes batches.
        vocab: The vocabulary of its model.
        splitter: Splits lines as the model needs it.
        options: How to search.

    Attributes:
        first_chunk_lines: Lines of the first chunk of a text.
        chunk_lines: Lines of each of the others.
        batch_tokens: Padded source positions of a batch times beam size.

    Raises:
        ConfigError: If the beam size is outside its limits.
    """

    def __init__(
        self,
        runtime: Runtime,
        vocab: Vocabulary,
        splitter: LineSplitter,
        options: SearchOptions = DEFAULT_SEARCH,
    ) -> None:
        if not 1 <= options.beam_size <= vocab.tgt.size // 2:
            raise ConfigError(
                f"beam size {options.beam_size}: choose 1 to {vocab.tgt.size // 2}, half the"
                " target vocabulary"
            )
        self.runtime, self.vocab, self.splitter, self.options = runtime, vocab, splitter, options
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
        return [best.text for best, *_ in self.n_best(lines, advance)]

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
        bounds = [0, *range(self.first_chunk_lines, len(lines), self.chunk_lines), len(lines)]
        chunks = (lines[begin:end] for begin, end in pairwise(bounds))
        return list(chain.from_iterable(self.translate_chunks(chunks, advance, first_line)))

    def translate_chunks(
        self, chunks: Iterable[Sequence[str]], advance: Callable[[int], object], first_line: int = 1
    ) -> Generator[list[list[Translation]]]:
        """Finds the `n_best` best translations of every line, as `n_best` does, chunk by chunk.

        Chunks are taken before the translations of those before them are complete, so that no
        thread is idle at the end of a chunk.
        """
        plans, plans_ahead = tee(self._plan_all(chunks, first_line))
        batches = (batch for plan in plans_ahead for batch in plan.batches)
        with closing(self.runtime.decode(batches, self.options)) as decoded:
            for plan in plans:
                translated = self._translate(plan, decoded, advance)
                yield [
                    _join([translated[source] for source in sources], self.options.n_best)
                    for sources in plan.lines
                ]
                plan.lines.clear()  # `tee` frees plans only in blocks of 57
                plan.batches.clear()

    def _plan_all(self, chunks: Iterable[Sequence[str]], first_line: int) -> Generator[_Plan]:
        for lines in chunks:
            planned = [
                [self._source(part, line, number) for number, part in enumerate(parts)]
                for line, parts in enumerate(self.splitter.split(lines), first_line)
            ]
            sources = dict.fromkeys(each for each in chain.from_iterable(planned) if each.ids)
            yield _Plan(planned, self._cut_batches(sources))
            first_line += len(lines)

    def _source(self, part: Part, line: int, number: int) -> Source:
        source = Source((), copied=part) if isinstance(part, str) else Source(tuple(part))
        return source._replace(line=line, part=number) if self.options.sampling else source

    def _translate(
        self,
        plan: _Plan,
        decoded: Iterator[list[list[Hypothesis]]],
        advance: Callable[[int], object],
    ) -> dict[Source, list[Translation]]:
        """Translates the sources of a chunk, given the hypotheses of its batches."""
        translated = {
            source: [Translation(source.copied, 0, 0)] * self.options.n_best
            for source in chain.from_iterable(plan.lines)
            if not source.ids
        }
        # A line counts as translated when its first part is.
        counts = Counter(sources[0] for sources in plan.lines if sources and sources[0].ids)
        advance(len(plan.lines) - counts.total())  # those that are empty or copied
        for batch in plan.batches:
            translated |= zip(batch, self._detokenize(batch, next(decoded)), strict=True)
            advance(sum(counts[source] for source in batch))
        return translated

    def _detokenize(
        self, sources: Sequence[Source], hypotheses: list[list[Hypothesis]]
    ) -> list[list[Translation]]:
        """Returns the text of the hypotheses of each source."""
        texts = iter(self.vocab.tgt.decode([each.ids for ranked in hypotheses for each in ranked]))
        return [
            [
                Translation(next(texts), score, is_cut=len(ids) == len(source.ids) + EXTRA_LENGTH)
                for ids, score in ranked
            ]
            for source, ranked in zip(sources, hypotheses, strict=True)
        ]

    def _cut_batches(self, sources: Iterable[Source]) -> list[list[Source]]:
        """Cuts sources into batches of similar length, the longest first."""
        order = sorted(sources, key=lambda source: len(source.ids), reverse=True)
        batches = []
        while order:
            longest = max(len(order[0].ids) + 1, MIN_BATCH_LENGTH)
            rows = max(1, self.batch_tokens // (longest * self.options.beam_size))
            batches.append(order[:rows])
            order = order[rows:]
        return batches or [[]]


def _join(parts: list[list[Translation]], n_best: int) -> list[Translation]:
    """Joins the `n_best` translations of a line's parts, rank by rank; an empty line has none."""
    if len(parts) == 1:
        return parts[0]
    joined = []
    for rank in range(n_best):
        ranked = [part[rank] for part in parts]
        lines = "\n".join(each.text for each in ranked if each.text)
        text = _NO_SPACE_AFTER.sub("", lines).replace("\n", " ")
        is_cut = any(each.is_cut for each in ranked)
        joined.append(Translation(text, sum(each.score for each in ranked), len(parts), is_cut))
    return joined
