"""The prepared corpus: a vocabulary and the training text as memory-mapped ids, shared by runs.

    PREPARED_DIR/NAME/        NAME is the fingerprint of everything the content depends on
        vocab.model           or src.model and tgt.model
        src.ids, tgt.ids      all ids, one line after another
        src.offsets.npy       where each line begins in src.ids; tgt.offsets.npy likewise
        report.json           counts
        manifest.json         digests of all other files

The complete directory appears by a rename, and is verified whenever it is loaded. A process waits
for another that is already preparing the same corpus. What another version prepared in another
format is not read: the corpus is prepared again.
"""

import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import compress, groupby, islice, repeat
from operator import itemgetter
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transformer_mt.config.changes import on_change
from transformer_mt.config.keys import Config
from transformer_mt.config.loading import searched_folders
from transformer_mt.config.section import OnChange, Section
from transformer_mt.errors import CheckpointError, ConfigError, DataError, OutputError
from transformer_mt.system.console import ProgressBar, logger
from transformer_mt.system.files import atomic_directory, canonical_json, locked, read_json, sha256
from transformer_mt.system.manifest import verify_manifest, write_manifest
from transformer_mt.text.batching import EncodedLines, EncodedPairs, encode_pairs, flatten
from transformer_mt.text.cleaned_split import CleanedSplit, clean_split
from transformer_mt.text.cleaning import CLEANING_VERSION, describe_dropped, reason_to_drop_pieces
from transformer_mt.text.corpus import CorpusSplit, RawPairs, open_split
from transformer_mt.text.corpus_report import CorpusReport, IdType
from transformer_mt.text.splitting import (
    SourceStatistics,
    has_words,
    leading_symbols,
    split_sentences,
)
from transformer_mt.text.vocabulary import UNK_ID, Vocabulary, train_vocabulary

REPORT = "report.json"
FORMAT = 7
"""Format of the files; part of the fingerprint."""
_PAIRS_PER_CHUNK = 20_000
"""Pairs encoded at once."""
_MANY_UNKNOWN = 0.01
"""Share of unknown and byte pieces of a side above which there is a warning."""
_MANY_TRAINED = 0.01
"""Share of the pairs of a text that are also training pairs above which there is a warning."""


@dataclass(frozen=True)
class PreparedCorpus:
    """A prepared corpus, mapped from disk.

    `pairs` has those kept as often as their weights say. By `digest`, that of ids and offsets, a
    run knows its text. `known_sources` describes earlier text that the model was trained on.
    """

    path: Path
    vocab: Vocabulary
    pairs: EncodedPairs
    report: CorpusReport
    digest: str
    known_sources: SourceStatistics | None = None

    @property
    def sources(self) -> SourceStatistics | None:
        """What the source lines look like; the larger values, if there was earlier text."""
        return SourceStatistics.combine(max, (self.report.sources, self.known_sources))

    @property
    def summary(self) -> str:
        """Says how many pairs were kept, dropped and, if some are repeated, are in an epoch."""
        kept, dropped = self.report.kept, describe_dropped(self.report.dropped)
        text = f"{kept:,} training pairs of {self.report.pairs:,} (dropped: {dropped})"
        return text if len(self.pairs) == kept else f"{text}, {len(self.pairs):,} per epoch"

    def require_unchanged(self) -> None:
        """Verifies the files again; what is mapped stays if their folder was deleted.

        Raises:
            DataError: If a file has changed.
        """
        if self.path.exists() and _read_verified(self.path)[1] != self.digest:
            raise DataError(f"{self.path}: replaced by another corpus; run the same command again")


def prepare(
    config: Config, vocab: Vocabulary | None = None, scratch: Path | None = None
) -> PreparedCorpus:
    """Loads the prepared corpus of a configuration, making it first if it does not exist.

    Args:
        config: The corpus, its limits and the vocabulary.
        vocab: The vocabulary of an existing run; None learns or loads the configured one.
        scratch: Where to make the corpus, if it does not exist, instead of `data.prepared_dir`.

    Raises:
        ConfigError: If the vocabulary at `vocab.path` contradicts the configuration or `vocab`, or
            an existing one lacks a symbol.
        DataError: If the corpus or vocabulary cannot be used, the text changes meanwhile, the
            prepared corpus is damaged, or no pair is left.
        OutputError: If the prepared corpus cannot be written.
    """
    split = open_split(config.data, config.data.train)
    configured_vocab = load_configured_vocabulary(config, vocab)
    vocab = vocab or configured_vocab
    if vocab:
        vocab.symbol_ids(config.vocab.symbols)  # raises an error if it lacks one
    folder, split_digest = Path(config.data.prepared_dir), split.digest()
    learned_path = folder / _fingerprint(config, split_digest, None)
    if learned_path.exists():
        learned = _load_prepared(learned_path, config)
        # The vocabulary of a run is usually the one that was learned from this same text.
        if vocab is None or vocab.has_same_ids(learned.vocab):
            _warn_of_unknown_pieces(learned)
            return learned
    name = _fingerprint(config, split_digest, vocab)
    folder = folder if (folder / name).exists() else scratch or folder
    path = folder / name
    if not path.exists():
        waiting = "process %s is preparing the same corpus; waiting for it"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder / f".{name}.lock", partial(logger.info, waiting)):
                if not path.exists():
                    _write_prepared(config, split, split_digest, vocab, path)
                    corpus = _load_prepared(path, config)
                    _log_summary(corpus)
                    return corpus
        except OSError as error:
            setting = "" if scratch else f"data.prepared_dir = {config.data.prepared_dir}: "
            reason = f"cannot be written: {error.strerror}"
            raise OutputError(f"{setting}{folder.absolute()}: {reason}") from None
    corpus = _load_prepared(path, config)
    _warn_of_unknown_pieces(corpus)
    return corpus


def values_that_shape_corpus(section: Section) -> dict[str, object]:
    """Returns the values of a section that the prepared corpus depends on, by name, for JSON."""
    fields = type(section).model_fields.items()
    return section.model_dump(
        include={name for name, field in fields if on_change(field) is OnChange.SHAPES_CORPUS}
    )


def _fingerprint(config: Config, split_digest: str, vocab: Vocabulary | None) -> str:
    """Names a prepared corpus by everything that its content depends on."""
    models = (vocab.src_model, vocab.tgt_model) if vocab else ()
    digests = [hashlib.sha256(model).hexdigest() for model in models]
    inputs = {
        "format": FORMAT,
        "cleaning": CLEANING_VERSION,
        "text": split_digest,
        "data": values_that_shape_corpus(config.data),
        # Targets with a symbol are refused, even if the vocabulary has it anyway.
        "vocab": [*digests, *config.vocab.symbols]
        if vocab
        else values_that_shape_corpus(config.vocab),
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]


def load_configured_vocabulary(config: Config, vocab: Vocabulary | None) -> Vocabulary | None:
    """Loads the vocabulary at `vocab.path`, if set, and checks that it can be used.

    An existing run has its own copy, so the path may be missing, but not hold a different one.
    """
    path, setting = config.vocab.path, f"vocab.path = {config.vocab.path}"
    if path is None or (vocab and not Path(path).exists()):
        return None
    if not Path(path).exists():
        raise DataError(f"{setting}: no such file or folder{searched_folders(path)}")
    configured = Vocabulary.load(Path(path), config.data.normalize)
    if vocab and not vocab.has_same_ids(configured):
        raise ConfigError(
            f"{setting}: this is not the vocabulary of the checkpoint, which cannot be replaced;"
            " change the path back or remove it"
        )
    if configured.shared != config.vocab.shared:
        kind = "one shared vocabulary" if configured.shared else "two vocabularies"
        raise ConfigError(
            f"{setting}: this is {kind}; set vocab.shared and model.tie_embeddings accordingly"
        )
    return configured


def _load_prepared(path: Path, config: Config) -> PreparedCorpus:
    """Maps a prepared corpus from disk and verifies all of it."""
    report, digest = _read_verified(path)
    vocab = Vocabulary.load(path, config.data.normalize)
    return PreparedCorpus(path, vocab, _map_pairs(path, report.dtype), report, digest)


def _read_verified(path: Path) -> tuple[CorpusReport, str]:
    """Compares all files with their digests, at about a second per gigabyte.

    Returns:
        The report, and the digest of the corpus.
    """
    try:
        digests = verify_manifest(path)
        report: CorpusReport = read_json(path / REPORT, CorpusReport)
    except CheckpointError as error:
        raise DataError(
            f"{path}: damaged ({error}); delete this folder to have it made again"
        ) from None
    names = (f"{side}.{kind}" for side in ("src", "tgt") for kind in ("ids", "offsets.npy"))
    return report, hashlib.sha256("".join(digests[name] for name in names).encode()).hexdigest()


def _map_pairs(folder: Path, dtype: IdType) -> EncodedPairs:
    """Maps the ids of both sides; their offsets are read into memory."""
    src, tgt = (
        EncodedLines(
            np.memmap(folder / f"{side}.ids", dtype, "r"), np.load(folder / f"{side}.offsets.npy")
        )
        for side in ("src", "tgt")
    )
    return EncodedPairs(src, tgt)


def _write_prepared(
    config: Config, split: CorpusSplit, split_digest: str, vocab: Vocabulary | None, path: Path
) -> None:
    """Reads a split twice: to clean it and count its words, then to encode the pairs kept."""
    with atomic_directory(path) as folder:
        cleaned = clean_split(config, split, count_words=vocab is None)
        if vocab is None:
            distinct = sum(map(len, cleaned.word_counts))
            logger.info(f"learning {config.vocab.size:,} pieces from {distinct:,} distinct words")
            vocab = train_vocabulary(cleaned.word_counts, config.vocab, config.data.normalize)
            cleaned.word_counts.clear()  # frees up to a gigabyte
        vocab.save(folder)
        report = _write_ids(config, split, cleaned, vocab, folder)
        if split.digest() != split_digest:
            raise DataError(
                f"data.path = {config.data.path}: the text changed while it was being prepared; run"
                " the command again"
            )
        (folder / REPORT).write_bytes(canonical_json(report))
        write_manifest(folder, {file.name: sha256(file) for file in folder.iterdir()})


def _write_ids(
    config: Config, split: CorpusSplit, cleaned: CleanedSplit, vocab: Vocabulary, folder: Path
) -> CorpusReport:
    """Writes ids and offsets of the pairs kept, as often as their weights say."""
    dtype: IdType = "uint16" if max(vocab.src.size, vocab.tgt.size) <= 2**16 else "int32"
    kept, zero = 0, np.zeros(1, np.int64)
    counts = {"src": [zero], "tgt": [zero]}
    for encoded in _encode(config, split, cleaned, vocab):
        kept += len(encoded)
        for weight, pairs in groupby(encoded, itemgetter(2)):
            src_rows, tgt_rows, _ = zip(*pairs, strict=True)
            for name, rows in (("src", src_rows), ("tgt", tgt_rows)):
                lines = flatten(rows)
                with (folder / f"{name}.ids").open("ab") as file:
                    file.writelines(repeat(lines.ids.astype(dtype).data, weight))
                counts[name] += repeat(lines.counts, weight)
    if not kept:
        raise cleaned.nothing_left(config.data)
    for name, parts in counts.items():
        content = io.BytesIO()  # since np.save to a full disk does not say that it is full
        np.save(content, np.cumsum(np.concatenate(parts)))
        (folder / f"{name}.offsets.npy").write_bytes(content.getbuffer())
    corpus = _map_pairs(folder, dtype)
    pieces, several = len(corpus.src.ids) + len(corpus.tgt.ids), cleaned.several_sentences
    sources = SourceStatistics.measure(corpus.src.counts, several, cleaned.changed_wordless)
    return CorpusReport(
        pairs=len(cleaned.kept),
        kept=kept,
        dropped=dict(cleaned.dropped),
        pieces_per_word=round(pieces / cleaned.words, 3),
        pieces=pieces,
        unknown={
            "source": int(np.isin(corpus.src.ids, vocab.src.unknown_ids()).sum()),
            "target": int(np.isin(corpus.tgt.ids, vocab.tgt.unknown_ids()).sum()),
        },
        longest=int(max(corpus.src.counts.max(), corpus.tgt.counts.max())),
        sources=sources,
        dtype=dtype,
    )


def _encode(
    config: Config, split: CorpusSplit, cleaned: CleanedSplit, vocab: Vocabulary
) -> Iterator[list[tuple[list[int], list[int], int]]]:
    """Reads a split for the second time, and completes the counts of `cleaned`.

    Yields chunks of the pairs kept, each as source ids, target ids and weight.
    """
    symbols = leading_symbols(config.vocab.symbols)
    pairs = ProgressBar("encoding", "pairs", len(cleaned.kept), split.read_weighted())
    kept = compress(pairs, cleaned.kept)
    while chunk := list(islice(kept, _PAIRS_PER_CHUNK)):
        src, tgt, weights = zip(*((*pair, weight) for pair, weight in chunk), strict=True)
        encoded = []
        ids = vocab.src.encode(src), vocab.tgt.encode(tgt)
        rows = zip(src, tgt, *ids, weights, strict=True)
        for src_text, tgt_text, src_ids, tgt_ids, weight in rows:
            if reason := reason_to_drop_pieces(config.data, len(src_ids), len(tgt_ids)):
                cleaned.dropped[reason] += 1
            else:
                encoded.append((src_ids, tgt_ids, weight))
                cleaned.words += weight * (len(src_text.split()) + len(tgt_text.split()))
                src_text = symbols.sub("", src_text)
                sentences = split_sentences(vocab.src.fold(src_text), config.data.src_lang)
                cleaned.several_sentences += weight * (len(sentences) > 1)
                is_changed = src_text.split() != tgt_text.split()
                cleaned.changed_wordless += weight * (is_changed and not has_words(src_text))
        yield encoded


def _log_summary(corpus: PreparedCorpus) -> None:
    report = corpus.report
    logger.info(corpus.summary)
    logger.info(
        f"{report.pieces_per_word} pieces per word, {sum(report.unknown.values()):,} unknown or"
        f" single bytes, longest {report.longest:,} pieces"
    )
    _warn_of_unknown_pieces(corpus)


def _warn_of_unknown_pieces(corpus: PreparedCorpus) -> None:
    for side, lines in (("source", corpus.pairs.src), ("target", corpus.pairs.tgt)):
        if (share := corpus.report.unknown[side] / len(lines.ids)) > _MANY_UNKNOWN:
            logger.warning(
                f"{share:.1%} of the {side} pieces are unknown or single bytes: raise vocab.size;"
                " if vocab.path or train.init_from is set, leave it out to learn a vocabulary from"
                " this text"
            )


def warn_of_trained_pairs(name: str, raw: RawPairs, corpus: PreparedCorpus) -> None:
    """Warns if many pairs of a text, called `name` in the message, are also training pairs."""
    known = _count_common(encode_pairs(raw.src, raw.tgt, corpus.vocab), corpus.pairs)
    if known > max(1, _MANY_TRAINED * len(raw)):  # a single one may be a common sentence
        logger.warning(
            f"{name}: {known:,} of {len(raw):,} pairs are also training pairs, so its scores are"
            " too high; remove them from this text or from the training text"
        )


def _count_common(pairs: EncodedPairs, trained: EncodedPairs) -> int:
    """Counts the pairs that are also training pairs, leaving out those with unknown pieces."""
    rows = [(pairs.src[i].tolist(), pairs.tgt[i].tolist()) for i in range(len(pairs))]
    # The sums of ids are quick to compare, and few other pairs have the same.
    src_sums, tgt_sums = np.array([(sum(src), sum(tgt)) for src, tgt in rows]).T
    trained_src_sums, trained_tgt_sums = _sum_ids(trained.src), _sum_ids(trained.tgt)
    is_alike = np.isin(trained_src_sums << 32 | trained_tgt_sums, src_sums << 32 | tgt_sums)
    alike: list[int] = np.flatnonzero(is_alike).tolist()
    known = {(*trained.src[i].tolist(), -1, *trained.tgt[i].tolist()) for i in alike}
    texts = ((*src, -1, *tgt) for src, tgt in rows)
    return sum(text in known and UNK_ID not in text for text in texts)


def _sum_ids(lines: EncodedLines) -> npt.NDArray[np.int64]:
    """Sums the ids of each line, of which none is empty, (N,)."""
    sums = []
    for first in range(0, len(lines), _PAIRS_PER_CHUNK):  # NumPy copies what it sums, as int64
        offsets = lines.offsets[first : first + _PAIRS_PER_CHUNK + 1]
        ids = lines.ids[offsets[0] : offsets[-1]]
        sums.append(np.add.reduceat(ids, offsets[:-1] - offsets[0], dtype=np.int64))
    return np.concatenate(sums)
