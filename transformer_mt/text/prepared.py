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
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from transformer_mt.config.keys import Config, DataConfig, values_that_shape_corpus
from transformer_mt.config.loading import searched_folders
from transformer_mt.errors import ConfigError, DataError
from transformer_mt.system.console import progress_bar
from transformer_mt.system.files import atomic_directory, locked
from transformer_mt.text.batching import EncodedLines, EncodedPairs, flatten
from transformer_mt.text.cleaning import (
    CLEANING_VERSION,
    DropReasons,
    describe_dropped,
    reason_to_drop_pieces,
    reason_to_drop_text,
)
from transformer_mt.text.corpus import CorpusSplit, Pair, open_split
from transformer_mt.text.vocabulary import UNK_ID, Vocabulary, train_vocabulary

logger = logging.getLogger(__name__)

REPORT = "report.json"
FORMAT = 1
"""Format of the files; part of the fingerprint."""
_PAIRS_PER_CHUNK = 20_000
"""Pairs encoded at once; the digest of the ids depends on it, so it must not change."""
_MANY_UNKNOWN = 0.01
"""Share of unknown pieces above which there is a warning."""


@dataclass(frozen=True)
class PreparedCorpus:
    """A prepared corpus, mapped from disk.

    Attributes:
        path: Its directory.
        vocab: Its vocabulary.
        pairs: Its training pairs.
        report: Counts: `pairs` read, `kept`, `dropped` by reason, and so on.
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
        DataError: If the corpus or vocabulary cannot be used, the prepared corpus is damaged, or
            no pair is left.
    """
    split = open_split(config.data, config.data.train)
    configured_vocab = _load_configured_vocabulary(config, vocab)
    vocab = vocab or configured_vocab
    folder, split_digest = Path(config.data.prepared_dir), split.digest()
    learned = _load_prepared(folder / _fingerprint(config, split_digest, None))
    # The vocabulary of a run is usually the one that was learned from this same text.
    if learned and (vocab is None or vocab.has_same_ids(learned.vocab)):
        return learned
    name = _fingerprint(config, split_digest, vocab)
    folder = folder if (folder / name).exists() else scratch or folder
    if not (folder / name).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / f".{name}.lock", _log_waiting):
            if not (folder / name).exists():
                _write_prepared(config, split, vocab, folder / name)
    prepared = _load_prepared(folder / name)
    if prepared is None:
        raise _damaged(folder / name, f"{REPORT} is missing")
    return prepared


def _log_waiting(holder: str) -> None:
    logger.info("process %s is preparing the same corpus; waiting for it", holder)


def _fingerprint(config: Config, split_digest: str, vocab: Vocabulary | None) -> str:
    """Names a prepared corpus by everything that its content depends on."""
    inputs: dict[str, Any] = {
        "format": FORMAT,
        "cleaning": CLEANING_VERSION,
        "text": split_digest,
        "data": values_that_shape_corpus(config.data),
    }
    if vocab:
        models = (vocab.src_model, vocab.tgt_model)
        inputs["vocab"] = [hashlib.sha256(model).hexdigest() for model in models]
    else:
        inputs["vocab"] = values_that_shape_corpus(config.vocab)
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


def _load_prepared(path: Path) -> PreparedCorpus | None:
    """Maps a prepared corpus from disk; returns None if there is none.

    Raises:
        DataError: If its files are damaged.
    """
    if not (path / REPORT).exists():
        return None
    try:
        report = json.loads((path / REPORT).read_bytes())
        src, tgt = (_load_lines(path, side, report["dtype"]) for side in ("src", "tgt"))
        return PreparedCorpus(path, Vocabulary.load(path), EncodedPairs(src, tgt), report)
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, reason: object) -> DataError:
    return DataError(f"{path}: damaged ({reason}); delete this folder to have it made again")


def _load_lines(path: Path, side: str, dtype: str) -> EncodedLines:
    offsets = np.load(path / f"{side}.offsets.npy", mmap_mode="r")
    ids = np.memmap(path / f"{side}.ids", dtype, "r", shape=(int(offsets[-1]),))
    return EncodedLines(ids, offsets)


def _write_prepared(
    config: Config, split: CorpusSplit, vocab: Vocabulary | None, path: Path
) -> None:
    """Reads a split twice: to clean it and count its words, then to encode the pairs kept.

    Args:
        config: The cleaning rules, and the vocabulary to learn.
        split: The training text.
        vocab: A vocabulary to use; None learns one.
        path: The directory to write.
    """
    with atomic_directory(path) as folder:
        began = time.monotonic()
        cleaned = _clean(config, split, count_words=vocab is None)
        read = time.monotonic()
        if vocab is None:
            distinct = sum(map(len, cleaned.word_counts))
            logger.info("learning %d pieces from %d distinct words", config.vocab.size, distinct)
            vocab = train_vocabulary(cleaned.word_counts, config.vocab)
            cleaned.word_counts.clear()  # frees up to a gigabyte
        vocab.save(folder)
        learned = time.monotonic()
        report = _write_ids(config.data, split, cleaned, vocab, folder)
        seconds = {
            "reading": read - began,
            "vocabulary": learned - read,
            "encoding": time.monotonic() - learned,
        }
        report["seconds"] = {phase: round(value, 1) for phase, value in seconds.items()}
        (folder / REPORT).write_text(json.dumps(report, indent=1) + "\n")
    _log_summary(report)


@dataclass
class _CleanedSplit:
    """Result of the first reading of a split.

    Attributes:
        reasons: Why each pair is dropped, or that it is kept.
        word_counts: Occurrences of each word in the pairs kept: one counter per side, or one for
            both if the vocabulary is shared; empty unless counted.
        words: Number of words in the pairs kept.
    """

    reasons: DropReasons
    word_counts: list[Counter[str]]
    words: int = 0


def _clean(config: Config, split: CorpusSplit, count_words: bool) -> _CleanedSplit:
    """Reads a split for the first time and decides, by their text, which pairs are kept."""
    counts = [Counter[str]() for _ in range(1 if config.vocab.shared else 2)]
    cleaned, seen_pairs = _CleanedSplit(DropReasons(), counts), set[bytes]()
    for src, tgt in progress_bar("reading", "pairs", items=split.read()):
        reason = reason_to_drop_text(config.data, src, tgt, seen_pairs)
        cleaned.reasons.append(reason)
        if reason is None:
            src_words, tgt_words = src.split(), tgt.split()
            cleaned.words += len(src_words) + len(tgt_words)
            if count_words:
                counts[0].update(src_words)
                counts[-1].update(tgt_words)
    if not cleaned.words:
        raise _nothing_left(config.data, len(cleaned.reasons), cleaned.reasons.counts())
    return cleaned


def _write_ids(
    config: DataConfig, split: CorpusSplit, cleaned: _CleanedSplit, vocab: Vocabulary, folder: Path
) -> dict[str, Any]:
    """Reads a split for the second time and writes the ids of the pairs kept.

    Returns:
        The report.
    """
    dropped = cleaned.reasons.counts()
    src_writer, tgt_writer = (_EncodedLinesWriter(folder, side, vocab) for side in ("src", "tgt"))
    pairs = progress_bar("encoding", "pairs", len(cleaned.reasons), split.read())
    kept = (pair for pair, reason in zip(pairs, cleaned.reasons, strict=True) if reason is None)
    while chunk := list(islice(kept, _PAIRS_PER_CHUNK)):
        encoded = []
        for src_ids, tgt_ids in _encode(vocab, chunk):
            if reason := reason_to_drop_pieces(config, len(src_ids), len(tgt_ids)):
                dropped[reason] += 1
            else:
                encoded.append((src_ids, tgt_ids))
        src_writer.write([src_ids for src_ids, _ in encoded])
        tgt_writer.write([tgt_ids for _, tgt_ids in encoded])
    writers = src_writer, tgt_writer
    for writer in writers:
        writer.close()
    if not src_writer.lines:
        raise _nothing_left(config, len(cleaned.reasons), dropped)
    return {
        "format": FORMAT,
        "pairs": len(cleaned.reasons),
        "kept": src_writer.lines,
        "dropped": dict(dropped),
        "pieces_per_word": round(sum(writer.pieces for writer in writers) / cleaned.words, 3),
        "pieces": sum(writer.pieces for writer in writers),
        "unknown": sum(writer.unknown for writer in writers),
        "longest": max(writer.longest for writer in writers),
        "dtype": src_writer.dtype.name,
        "digest": hashlib.sha256("".join(w.digest for w in writers).encode()).hexdigest(),
    }


def _encode(vocab: Vocabulary, pairs: Sequence[Pair]) -> Iterator[tuple[list[int], list[int]]]:
    src, tgt = zip(*pairs, strict=True)
    return zip(vocab.encode_src(src), vocab.encode_tgt(tgt), strict=True)


class _EncodedLinesWriter:
    """Writes the ids of one side in chunks, and the offsets of its lines at the end.

    Args:
        folder: Where to write.
        side: `src` or `tgt`, the beginning of the file names.
        vocab: The vocabulary, whose size decides the type of the ids.

    Attributes:
        dtype: Type of the ids on disk.
        lines: Number of lines so far.
        pieces: Number of ids so far.
        unknown: Number of ids of the unknown piece so far.
        longest: Pieces of the longest line so far.
        digest: SHA-256 digest of ids and lengths, once closed.
    """

    def __init__(self, folder: Path, side: str, vocab: Vocabulary) -> None:
        largest = max(vocab.src_size, vocab.tgt_size)
        self.dtype = np.dtype(np.uint16 if largest <= 2**16 else np.int32)
        self._offsets_path = folder / f"{side}.offsets.npy"
        self._file = (folder / f"{side}.ids").open("wb")
        self._hash, self._lengths = hashlib.sha256(), [np.zeros(1, np.int64)]
        self.lines = self.pieces = self.unknown = self.longest = 0
        self.digest = ""

    def write(self, rows: Sequence[Sequence[int]]) -> None:
        """Appends lines."""
        encoded = flatten(rows)
        raw, lengths = encoded.ids.astype(self.dtype).tobytes(), np.diff(encoded.offsets)
        self._file.write(raw)
        self._lengths.append(lengths)
        self._hash.update(raw)
        self._hash.update(lengths.tobytes())
        self.lines += len(rows)
        self.pieces += len(encoded.ids)
        self.unknown += int((encoded.ids == UNK_ID).sum())
        self.longest = max(self.longest, int(lengths.max(initial=0)))

    def close(self) -> None:
        """Writes the offsets."""
        self._file.close()
        np.save(self._offsets_path, np.cumsum(np.concatenate(self._lengths)))
        self.digest = self._hash.hexdigest()


def _nothing_left(config: DataConfig, pairs: int, dropped: Counter[str]) -> DataError:
    return DataError(
        f"data.train = {config.train}: no training pair is left of {pairs}"
        f" ({describe_dropped(dropped)}); see the limits under [data]"
    )


def _log_summary(report: dict[str, Any]) -> None:
    seconds = ", ".join(f"{phase} {value:.0f} s" for phase, value in report["seconds"].items())
    logger.info(
        f"{report['kept']} training pairs of {report['pairs']}"
        f" (dropped: {describe_dropped(report['dropped'])})"
    )
    logger.info(
        f"{report['pieces_per_word']} pieces per word, {report['unknown']} unknown, longest"
        f" {report['longest']} pieces; {seconds}"
    )
    if report["unknown"] > _MANY_UNKNOWN * report["pieces"]:
        share = report["unknown"] / report["pieces"]
        logger.warning(f"{share:.1%} of the pieces are unknown: raise vocab.size")
