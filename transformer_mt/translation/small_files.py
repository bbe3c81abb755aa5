"""The small files of a job, translated together, as many lines at once as a chunk of a large one.

One by one, each would give the processor a few lines, and wait for the disk.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice

from transformer_mt.errors import NotTextError, OutputError
from transformer_mt.system.console import ProgressBar
from transformer_mt.system.files import replace_file
from transformer_mt.system.output_record import OutputRecord
from transformer_mt.system.outputs import Fingerprint, naming_output
from transformer_mt.system.streams import CHUNK_BYTES, LineReader, compress, open_input
from transformer_mt.translation.formats import InputFormat, Segment, choose_format, join_segments
from transformer_mt.translation.inputs import FilePair
from transformer_mt.translation.options import TranslateOptions
from transformer_mt.translation.summary import Summary, count_kinds
from transformer_mt.translation.translator import Translation, Translator

_SYNC_THREADS = 8
"""Files that wait for the disk at once."""


@dataclass(frozen=True)
class _SmallFile:
    """A file that has been read.

    Attributes:
        pair: The file and its output, which is a file.
        fingerprint: What the output depends on.
        text: All of it.
        counts: Those of its format.
        require_unchanged: Raises DataError if it has changed since.
    """

    pair: FilePair
    fingerprint: Fingerprint
    text: Segment
    counts: dict[str, int]
    require_unchanged: Callable[[], None]


class SmallFiles:
    """Translates the small files of a job.

    Args:
        translator: Translates their lines.
        options: How.
        made_from: What each output depends on beside its input.
        record: That of the folder of outputs.
        summary: Takes what becomes of the files.
    """

    def __init__(
        self,
        translator: Translator,
        options: TranslateOptions,
        made_from: Fingerprint,
        record: OutputRecord,
        summary: Summary,
    ) -> None:
        self._translator, self._options, self._made_from = translator, options, made_from
        self._record, self._summary, self._large = record, summary, list[FilePair]()

    def translate(self, pairs: Sequence[FilePair]) -> list[FilePair]:
        """Translates those that are small and not complete; returns the others, which are large."""
        groups = deque[list[_SmallFile]]()
        with ProgressBar("translating", "files", len(pairs)) as progress:

            def read_texts() -> Iterator[list[str]]:
                for group in self._read_groups(pairs, progress.update):
                    groups.append(group)
                    yield [text for file in group for text in file.text.texts]

            chunks = self._translator.translate_chunks(read_texts(), lambda lines: None)
            with closing(chunks):
                for translations in chunks:
                    group = groups.popleft()
                    self._write(group, iter(translations))
                    progress.update(len(group))
        return self._large

    def _read_groups(
        self, pairs: Iterable[FilePair], advance: Callable[[int], object]
    ) -> Iterator[list[_SmallFile]]:
        """Reads the small files, in groups of about as many lines as a chunk has."""
        group, lines, size = list[_SmallFile](), 0, 0
        for pair in pairs:
            file = None
            with self._summary.one_file(pair.name, pair.skips_binary):
                file = self._read(pair)
            if not file:
                advance(1)
                continue
            group.append(file)
            lines += max(1, len(file.text.texts))
            size += sum(map(len, file.text.texts))
            if lines >= self._translator.chunk_lines or size >= CHUNK_BYTES:
                yield group
                group, lines, size = [], 0, 0
        if group:
            yield group

    def _read(self, pair: FilePair) -> _SmallFile | None:
        """Reads a file, unless it is complete or large."""
        text_format = choose_format(pair.input, self._options)
        made_from = {**self._made_from, **text_format.fingerprint}
        require_unchanged, fingerprint = pair.watch_and_hash(made_from)
        if self._record.is_complete(pair.output, fingerprint):
            if pair.output.state.exists():  # of a translation with other options
                with suppress(OutputError), pair.output.lock():
                    pair.output.discard()
            self._summary.skipped += 1
            return None
        # What is drawn for a line depends on its number in the file; a stopped file goes on.
        alone = not fingerprint or self._options.search.sampling or pair.output.state.exists()
        text = self._read_text(pair, text_format, bool(alone))
        if not fingerprint or text is None:
            self._large.append(pair)
            return None
        return _SmallFile(pair, fingerprint, text, text_format.counts, require_unchanged)

    def _read_text(self, pair: FilePair, text_format: InputFormat, alone: bool) -> Segment | None:
        """Reads a file; None if it has several chunks, or is to be translated alone.

        Raises:
            NotTextError: If its first chunk shows that it is not text.
        """
        size = self._translator.chunk_lines
        with open_input(pair.input) as source:
            lines = LineReader(source, pair.name).chunks(size, size)
            first = next(lines, [])
            if pair.skips_binary and any(b"\0" in line for line in first):
                raise NotTextError(f"{pair.name}: contains null bytes")
            if alone or next(lines, None):
                return None
            return join_segments(list(text_format.chunks([first] if first else [])))

    def _write(
        self, group: Sequence[_SmallFile], translations: Iterator[list[Translation]]
    ) -> None:
        """Writes the translations of a group, and counts them."""
        written = []
        for file in group:
            ranked = list(islice(translations, len(file.text.texts)))
            kinds = count_kinds(best for best, *_ in ranked)
            counts = {"lines": len(ranked), **kinds, **file.counts}
            data = file.text.write(ranked).encode("utf-8", "surrogateescape")
            written.append((file, compress(data, file.pair.output.suffix), counts))
        # First, so that whatever a kill leaves is known to be the work of this program.
        self._record.append(
            (file.pair.output, hashlib.sha256(content).hexdigest(), file.fingerprint)
            for file, content, _ in written
        )
        started = []
        with self._record.lock(), ThreadPoolExecutor(_SYNC_THREADS) as pool:
            for file, content, counts in written:
                output = file.pair.output
                assert output.target
                with self._summary.one_file(file.pair.name):
                    file.require_unchanged()
                    self._record.require_own(output)
                    # Another process may be writing `.NAME.partial`.
                    done = pool.submit(replace_file, output.target, content, "small")
                    started.append((file, counts, done))
            for file, counts, done in started:
                with self._summary.one_file(file.pair.name), naming_output(file.pair.output.name):
                    done.result()
                    self._summary.add_file(counts)
