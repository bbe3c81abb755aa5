"""The prepared corpus: training text as a vocabulary and memory-mapped ids, shared by runs.

    PREPARED_DIR/NAME/        NAME is the fingerprint of everything that shaped it
        vocab.model           or src.model and tgt.model
        src.ids, tgt.ids      all ids, flat
        src.offsets.npy       where each line begins; tgt.offsets.npy likewise
        report.json           counts; written last

It appears at one stroke, whole. Who finds another process at it waits for that one.
"""

import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from transformer_mt.config import Config, DataConfig, values_that_shape_corpus
from transformer_mt.errors import ConfigError, DataError
from transformer_mt.system.console import progress_bar
from transformer_mt.system.files import atomic_directory, locked
from transformer_mt.text.cleaning import (
    _KEPT,
    _length_reason,
    _text_reason,
    describe_dropped,
)
from transformer_mt.text.corpus import Pair, Source, open_split
from transformer_mt.text.encoded_pairs import EncodedLines, EncodedPairs, flatten
from transformer_mt.text.vocabulary import UNK_ID, Vocabulary, train_vocabulary

logger = logging.getLogger(__name__)

REPORT = "report.json"
FORMAT = 1
_CHUNK = 20_000


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
        """Names the ids, whatever shaped them."""
        return str(self.report["digest"])

    @property
    def dropped(self) -> str:
        """Says how many pairs were left out, by reason."""
        return describe_dropped(self.report["dropped"])


def prepare(
    config: Config, vocab: Vocabulary | None = None, scratch: Path | None = None
) -> PreparedCorpus:
    """Gives the prepared corpus of a configuration, making it if there is none.

    Args:
        config: What shapes it: the corpus, its limits and the vocabulary.
        vocab: The vocabulary of a run that exists; None learns or loads the configured one.
        scratch: Where to make it, if there is none, instead of in `data.prepared_dir`.

    Raises:
        ConfigError: If the vocabulary at `vocab.path` is not of the kind configured.
        DataError: If the corpus or vocabulary cannot be used, or no pair is left.
    """
    source, folder = open_split(config.data, config.data.train), Path(config.data.prepared_dir)
    if vocab is None and config.vocab.path:
        vocab = _foreign_vocabulary(config)
    text = source.identity()
    learned = _load(folder / _fingerprint(config, text, None))
    # A run's vocabulary is most often the one that was learned from this very text.
    if learned and (vocab is None or vocab.equals(learned.vocab)):
        return learned
    name = _fingerprint(config, text, vocab)
    folder = folder if (folder / name).exists() else scratch or folder
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / f".{name}.lock", _log_waiting):
        if not (folder / name).exists():
            _make(config, source, vocab, folder / name)
    found = _load(folder / name)
    assert found
    return found


def _log_waiting(holder: str) -> None:
    logger.info("process %s prepares the same corpus; waiting for it", holder)


def _fingerprint(config: Config, text: str, vocab: Vocabulary | None) -> str:
    shape: dict[str, Any] = {"format": FORMAT, "text": text}
    shape["data"] = values_that_shape_corpus(config.data)
    shape["vocab"] = (
        [hashlib.sha256(model).hexdigest() for model in (vocab.src_model, vocab.tgt_model)]
        if vocab
        else values_that_shape_corpus(config.vocab)
    )
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]


def _foreign_vocabulary(config: Config) -> Vocabulary:
    vocab = Vocabulary.load(Path(str(config.vocab.path)))
    if vocab.shared != config.vocab.shared:
        kind = "one shared vocabulary" if vocab.shared else "two vocabularies"
        raise ConfigError(
            f"vocab.path = {config.vocab.path}: this is {kind}; set vocab.shared and"
            " model.tie_embeddings accordingly"
        )
    return vocab


def _load(path: Path) -> PreparedCorpus | None:
    if not (path / REPORT).exists():
        return None
    try:
        report = json.loads((path / REPORT).read_bytes())
        sides = []
        for side in ("src", "tgt"):
            offsets = np.load(path / f"{side}.offsets.npy", mmap_mode="r")
            ids = np.memmap(path / f"{side}.ids", report["dtype"], "r", shape=(int(offsets[-1]),))
            sides.append(EncodedLines(ids, offsets))
        return PreparedCorpus(path, Vocabulary.load(path), EncodedPairs(*sides), report)
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: damaged ({error}); delete it, and it is made again") from None


def _make(config: Config, source: Source, vocab: Vocabulary | None, final: Path) -> None:
    """Reads the corpus twice: to clean and count words, then to encode what is kept."""
    with atomic_directory(final) as folder:
        began = time.monotonic()
        cleaned = _clean(config, source, vocab is None)
        read = time.monotonic()
        if vocab is None:
            distinct = sum(map(len, cleaned.counts))
            logger.info("learning %d pieces from %d distinct words", config.vocab.size, distinct)
            vocab = train_vocabulary(cleaned.counts, config.vocab)
            cleaned.counts.clear()  # they may fill a gigabyte
        vocab.save(folder)
        learned = time.monotonic()
        report = _encode(config.data, source, cleaned, vocab, folder)
        seconds = {
            "reading": read - began,
            "vocabulary": learned - read,
            "encoding": time.monotonic() - learned,
        }
        report["seconds"] = {phase: round(value, 1) for phase, value in seconds.items()}
        (folder / REPORT).write_text(json.dumps(report, indent=1) + "\n")
    _log_summary(report)


@dataclass
class Cleaned:
    """What the first reading found.

    Attributes:
        reasons: Why each pair is dropped, as an index into `names`; 0 keeps it.
        names: The reasons.
        counts: Words of the kept lines with their counts: of each side, or of both in one.
        words: How many words that are.
    """

    reasons: bytearray
    names: list[str]
    counts: list[Counter[str]]
    words: int = 0

    def dropped(self) -> Counter[str]:
        """Counts the pairs that are dropped, by reason."""
        counts = Counter(map(self.names.__getitem__, self.reasons))
        counts.pop(_KEPT, None)
        return counts


def _clean(config: Config, source: Source, learn: bool) -> Cleaned:
    """Reads the corpus once; counts words if a vocabulary is to be learned from them."""
    counts = [Counter[str]() for _ in range(1 if config.vocab.shared else 2)]
    cleaned, seen = Cleaned(bytearray(), [_KEPT], counts), set[bytes]()
    for pair in progress_bar("reading", "pairs", items=source.read()):
        why = _text_reason(config.data, pair, seen)
        if why not in cleaned.names:
            cleaned.names.append(why)
        cleaned.reasons.append(cleaned.names.index(why))
        if not why:
            src, tgt = pair[0].split(), pair[1].split()
            cleaned.words += len(src) + len(tgt)
            if learn:
                counts[0].update(src)
                counts[-1].update(tgt)
    if not cleaned.words:
        _refuse(config.data, len(cleaned.reasons), cleaned.dropped())
    return cleaned


def _encode(
    config: DataConfig,
    source: Source,
    cleaned: Cleaned,
    vocab: Vocabulary,
    folder: Path,
) -> dict[str, Any]:
    """Reads the corpus again and writes ids and offsets of what is kept; gives the report."""
    dropped, sides = (
        cleaned.dropped(),
        [_Writer(folder, "src", vocab), _Writer(folder, "tgt", vocab)],
    )
    pairs = progress_bar("encoding", "pairs", len(cleaned.reasons), source.read())
    text = (pair for pair, why in zip(pairs, cleaned.reasons, strict=True) if not why)
    while chunk := list(islice(text, _CHUNK)):
        src, tgt = zip(*chunk, strict=True)
        kept = []
        for rows in zip(vocab.encode_src(src), vocab.encode_tgt(tgt), strict=True):
            if why := _length_reason(config, *map(len, rows)):
                dropped[why] += 1
            else:
                kept.append(rows)
        for number, side in enumerate(sides):
            side.add([rows[number] for rows in kept])
    for side in sides:
        side.close()
    if not sides[0].lines:
        _refuse(config, len(cleaned.reasons), dropped)
    return {
        "format": FORMAT,
        "pairs": len(cleaned.reasons),
        "kept": sides[0].lines,
        "dropped": dict(dropped),
        "pieces_per_word": round(sum(side.pieces for side in sides) / cleaned.words, 3),
        "unknown": sum(side.unknown for side in sides),
        "longest": max(side.longest for side in sides),
        "dtype": sides[0].dtype.name,
        "digest": hashlib.sha256("".join(side.digest for side in sides).encode()).hexdigest(),
    }


class _Writer:
    """Writes one side's ids as they come, and its offsets at the end."""

    def __init__(self, folder: Path, name: str, vocab: Vocabulary) -> None:
        largest = max(vocab.src_size, vocab.tgt_size)
        self.dtype = np.dtype(np.uint16 if largest <= 2**16 else np.int32)
        self._offsets = folder / f"{name}.offsets.npy"
        self._file = (folder / f"{name}.ids").open("wb")
        self._hash, self._lengths = hashlib.sha256(), [np.zeros(1, np.int64)]
        self.lines = self.pieces = self.unknown = self.longest = 0

    def add(self, rows: Sequence[Sequence[int]]) -> None:
        side = flatten(rows)
        raw, lengths = side.ids.astype(self.dtype).tobytes(), np.diff(side.offsets)
        self._file.write(raw)
        self._lengths.append(lengths)
        for part in (raw, lengths.tobytes()):
            self._hash.update(part)
        self.lines += len(rows)
        self.pieces += len(side.ids)
        self.unknown += int((side.ids == UNK_ID).sum())
        self.longest = max(self.longest, int(lengths.max(initial=0)))

    def close(self) -> None:
        self._file.close()
        np.save(self._offsets, np.cumsum(np.concatenate(self._lengths)))
        self.digest = self._hash.hexdigest()


def _refuse(config: DataConfig, pairs: int, dropped: Counter[str]) -> None:
    raise DataError(
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
        f"{report['pieces_per_word']} pieces a word, {report['unknown']} unknown, longest"
        f" {report['longest']} pieces; {seconds}"
    )
