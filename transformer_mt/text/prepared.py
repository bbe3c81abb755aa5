"""The prepared corpus: a vocabulary and the training text as memory-mapped ids, shared by runs.

    PREPARED_DIR/NAME/        NAME is the fingerprint of everything the content depends on
        vocab.model           or src.model and tgt.model
        src.ids, tgt.ids      all ids, one line after another
        src.offsets.npy       where each line begins in src.ids; tgt.offsets.npy likewise
        report.json           counts

The complete directory appears by a rename. A process waits for another that is already preparing
the same corpus.
"""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import compress, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transformer_mt.config.keys import Config, DataConfig, values_that_shape_corpus
from transformer_mt.config.loading import searched_folders
from transformer_mt.errors import ConfigError, DataError
from transformer_mt.system.console import progress_bar
from transformer_mt.system.files import atomic_directory, locked
from transformer_mt.text.batching import EncodedLines, EncodedPairs, flatten
from transformer_mt.text.cleaning import (
    CLEANING_VERSION,
    describe_dropped,
    reason_to_drop_pieces,
    reason_to_drop_text,
)
from transformer_mt.text.corpus import CorpusSplit, open_split
from transformer_mt.text.splitting import SourceStatistics, split_sentences
from transformer_mt.text.vocabulary import UNK_ID, Vocabulary, fold_whitespace, train_vocabulary

logger = logging.getLogger(__name__)

REPORT = "report.json"
FORMAT = 2
"""Format of the files; part of the fingerprint."""
_PAIRS_PER_CHUNK = 20_000
"""Pairs encoded at once; the digest of the ids depends on it, so it must not change."""
_MANY_UNKNOWN = 0.01
"""Share of unknown pieces above which there is a warning."""


@dataclass(frozen=True)
class PreparedCorpus:
    """A prepared corpus, mapped from disk.

    The report counts the `pairs` read, those `kept`, those `dropped` by reason, and so on.
    """

    path: Path
    vocab: Vocabulary
    pairs: EncodedPairs
    report: dict[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 digest of the ids, which does not depend on how they were made."""
        return str(self.report["digest"])

    @property
    def sources(self) -> SourceStatistics:
        """What the source lines look like."""
        return SourceStatistics(**self.report["sources"])

    @property
    def dropped(self) -> str:
        """Numbers of dropped pairs by reason, as text."""
        return describe_dropped(self.report["dropped"])


def prepare(
    config: Config, vocab: Vocabulary | None = None, scratch: Path | None = None
) -> PreparedCorpus:
    """Loads the prepared corpus of a configuration, making it first if it does not exist.

    Args:
        config: The corpus, its limits and the vocabulary.
        vocab: The vocabulary of an existing run; None learns or loads the configured one.
        scratch: Where to make the corpus, if it does not exist, instead of `data.prepared_dir`.

    Raises:
        ConfigError: If the vocabulary at `vocab.path` contradicts the configuration or `vocab`.
        DataError: If the corpus or vocabulary cannot be used, the text changes meanwhile, the
            prepared corpus is damaged, or no pair is left.
    """
    split = open_split(config.data, config.data.train)
    configured_vocab = _load_configured_vocabulary(config, vocab)
    vocab = vocab or configured_vocab
    folder, split_digest = Path(config.data.prepared_dir), split.digest()
    learned_path = folder / _fingerprint(config, split_digest, None)
    if learned_path.exists():
        learned = _load_prepared(learned_path)
        # The vocabulary of a run is usually the one that was learned from this same text.
        if vocab is None or vocab.has_same_ids(learned.vocab):
            return learned
    name = _fingerprint(config, split_digest, vocab)
    folder = folder if (folder / name).exists() else scratch or folder
    path = folder / name
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        waiting = "process %s is preparing the same corpus; waiting for it"
        with locked(folder / f".{name}.lock", partial(logger.info, waiting)):
            if not path.exists():
                _write_prepared(config, split, split_digest, vocab, path)
    return _load_prepared(path)


def _fingerprint(config: Config, split_digest: str, vocab: Vocabulary | None) -> str:
    """Names a prepared corpus by everything that its content depends on."""
    inputs: dict[str, Any] = {
        "format": FORMAT,
        "cleaning": CLEANING_VERSION,
        "text": split_digest,
        "data": values_that_shape_corpus(config.data),
    }
    inputs["vocab"] = values_that_shape_corpus(config.vocab)
    if vocab:
        models = (vocab.src_model, vocab.tgt_model)
        inputs["vocab"] = [hashlib.sha256(model).hexdigest() for model in models]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]


def _load_configured_vocabulary(config: Config, vocab: Vocabulary | None) -> Vocabulary | None:
    """Loads the vocabulary at `vocab.path`, if set, and checks that it can be used.

    An existing run has its own copy, so the path may be missing, but not hold a different one.
    """
    if config.vocab.path is None:
        return None
    if not Path(config.vocab.path).exists():
        if vocab:
            return None
        searched = searched_folders(config.vocab.path)
        raise DataError(f"vocab.path = {config.vocab.path}: no such file or folder{searched}")
    configured = Vocabulary.load(Path(config.vocab.path))
    if vocab and not vocab.has_same_ids(configured):
        raise ConfigError(
            f"vocab.path = {config.vocab.path}: this is not the vocabulary of the checkpoint, which"
            " cannot be replaced; change the path back or remove it"
        )
    if configured.shared != config.vocab.shared:
        kind = "one shared vocabulary" if configured.shared else "two vocabularies"
        raise ConfigError(
            f"vocab.path = {config.vocab.path}: this is {kind}; set vocab.shared and"
            " model.tie_embeddings accordingly"
        )
    return configured


def _load_prepared(path: Path) -> PreparedCorpus:
    """Maps a prepared corpus from disk."""
    try:
        report = json.loads((path / REPORT).read_bytes())
        sides = []
        for side in ("src", "tgt"):
            offsets = np.load(path / f"{side}.offsets.npy", mmap_mode="r")
            ids = np.memmap(path / f"{side}.ids", report["dtype"], "r", shape=(int(offsets[-1]),))
            sides.append(EncodedLines(ids, offsets))
        return PreparedCorpus(path, Vocabulary.load(path), EncodedPairs(sides[0], sides[1]), report)
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: damaged ({error}); delete this folder to have it made again"
        ) from None


def _write_prepared(
    config: Config, split: CorpusSplit, split_digest: str, vocab: Vocabulary | None, path: Path
) -> None:
    """Reads a split twice: to clean it and count its words, then to encode the pairs kept."""
    with atomic_directory(path) as folder:
        cleaned = _clean(config, split, count_words=vocab is None)
        if vocab is None:
            distinct = sum(map(len, cleaned.word_counts))
            logger.info(f"learning {config.vocab.size:,} pieces from {distinct:,} distinct words")
            vocab = train_vocabulary(cleaned.word_counts, config.vocab)
            cleaned.word_counts.clear()  # frees up to a gigabyte
        vocab.save(folder)
        report = _write_ids(config.data, split, cleaned, vocab, folder)
        if split.digest() != split_digest:
            raise DataError(
                f"data.path = {config.data.path}: the text changed while it was being prepared; run"
                " the command again"
            )
        (folder / REPORT).write_text(json.dumps(report, indent=1) + "\n")
    _log_summary(report)


@dataclass
class _CleanedSplit:
    """Result of the first reading of a split; words are those of the pairs kept."""

    word_counts: list[Counter[str]]  # one per side, or one for both if the vocabulary is shared
    kept: bytearray = field(default_factory=bytearray)  # for each pair, 1 if it is kept, else 0
    dropped: Counter[str] = field(default_factory=Counter)
    words: int = 0


def _clean(config: Config, split: CorpusSplit, count_words: bool) -> _CleanedSplit:
    """Reads a split for the first time and decides, by their text, which pairs are kept."""
    counts = [Counter[str]() for _ in range(1 if config.vocab.shared else 2)]
    cleaned, seen_pairs = _CleanedSplit(counts), set[bytes]()
    for src, tgt in progress_bar("reading", "pairs", items=split.read()):
        reason = reason_to_drop_text(config.data, src, tgt, seen_pairs)
        cleaned.kept.append(reason is None)
        if reason:
            cleaned.dropped[reason] += 1
            continue
        src_words, tgt_words = src.split(), tgt.split()
        cleaned.words += len(src_words) + len(tgt_words)
        if count_words:
            counts[0].update(src_words)
            counts[-1].update(tgt_words)
    if not cleaned.words:
        raise _nothing_left(config.data, cleaned)
    return cleaned


def _write_ids(
    config: DataConfig, split: CorpusSplit, cleaned: _CleanedSplit, vocab: Vocabulary, folder: Path
) -> dict[str, Any]:
    """Reads a split for the second time, writes the ids of the pairs kept, and reports counts."""
    several_sentences = 0
    writers = [_EncodedLinesWriter(folder, side, vocab) for side in ("src", "tgt")]
    pairs = progress_bar("encoding", "pairs", len(cleaned.kept), split.read())
    kept = compress(pairs, cleaned.kept)
    while chunk := list(islice(kept, _PAIRS_PER_CHUNK)):
        src, tgt = zip(*chunk, strict=True)
        encoded = []
        for text, *pair in zip(src, vocab.src.encode(src), vocab.tgt.encode(tgt), strict=True):
            if reason := reason_to_drop_pieces(config, *map(len, pair)):
                cleaned.dropped[reason] += 1
            else:
                encoded.append(pair)
                sentences = split_sentences(fold_whitespace(text), config.src_lang)
                several_sentences += len(sentences) > 1
        for side, writer in enumerate(writers):
            writer.write([pair[side] for pair in encoded])
    counts = np.stack([writer.close() for writer in writers])
    if not counts.size:
        raise _nothing_left(config, cleaned)
    return {
        "format": FORMAT,
        "pairs": len(cleaned.kept),
        "kept": counts.shape[1],
        "dropped": dict(cleaned.dropped),
        "pieces_per_word": round(int(counts.sum()) / cleaned.words, 3),
        "pieces": int(counts.sum()),
        "unknown": sum(writer.unknown for writer in writers),
        "longest": int(counts.max()),
        "sources": asdict(SourceStatistics.measure(counts[0], several_sentences)),
        "dtype": writers[0].dtype.name,
        "digest": hashlib.sha256("".join(w.hash.hexdigest() for w in writers).encode()).hexdigest(),
    }


class _EncodedLinesWriter:
    """Writes the ids of one side in chunks, and the offsets of its lines at the end."""

    def __init__(self, folder: Path, side: str, vocab: Vocabulary) -> None:
        largest = max(vocab.src.size, vocab.tgt.size)
        self.dtype = np.dtype(np.uint16 if largest <= 2**16 else np.int32)
        self.hash, self.unknown = hashlib.sha256(), 0
        self._offsets_path = folder / f"{side}.offsets.npy"
        self._file, self._counts = (folder / f"{side}.ids").open("wb"), [np.zeros(1, np.int64)]

    def write(self, rows: Sequence[Sequence[int]]) -> None:
        """Appends lines."""
        lines = flatten(rows)
        raw = lines.ids.astype(self.dtype).tobytes()
        self._file.write(raw)
        self._counts.append(lines.counts)
        self.hash.update(raw)
        self.hash.update(lines.counts.tobytes())
        self.unknown += int((lines.ids == UNK_ID).sum())

    def close(self) -> npt.NDArray[np.int64]:
        """Writes the offsets; returns the number of ids in each line, (N,)."""
        self._file.close()
        counts = np.concatenate(self._counts)
        np.save(self._offsets_path, np.cumsum(counts))
        return counts[1:]


def _nothing_left(config: DataConfig, cleaned: _CleanedSplit) -> DataError:
    return DataError(
        f"data.train = {config.train}: no training pair is left of {len(cleaned.kept):,}"
        f" ({describe_dropped(cleaned.dropped)}); see the limits under [data]"
    )


def _log_summary(report: dict[str, Any]) -> None:
    logger.info(
        f"{report['kept']:,} training pairs of {report['pairs']:,}"
        f" (dropped: {describe_dropped(report['dropped'])})"
    )
    logger.info(
        f"{report['pieces_per_word']} pieces per word, {report['unknown']:,} unknown, longest"
        f" {report['longest']:,} pieces"
    )
    if report["unknown"] > _MANY_UNKNOWN * report["pieces"]:
        share = report["unknown"] / report["pieces"]
        logger.warning(f"{share:.1%} of the pieces are unknown: raise vocab.size")
