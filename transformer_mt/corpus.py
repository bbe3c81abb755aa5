"""Parallel text: from Hugging Face datasets or local files to raw pairs, then to clean ids."""

import hashlib
import re
import ssl
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from transformer_mt.batching import Batch, Ids, Indices, collate
from transformer_mt.config import DataConfig
from transformer_mt.errors import DataError
from transformer_mt.vocab import BOS_ID, EOS_ID, PAD_ID, Vocabulary

_ENCODE_AT_ONCE = 10_000
_SLICE = re.compile(r"(?P<split>[^\[\]]+)(?:\[(?P<start>-?\d*):(?P<stop>-?\d*)\])?")


@dataclass(frozen=True)
class RawPairs:
    """Line-aligned raw text, trimmed, nothing filtered.

    Attributes:
        src: Source lines.
        tgt: Target lines, as many.
    """

    src: list[str]
    tgt: list[str]

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True)
class IdPairs:
    """Pairs of piece ids in flat arrays, without begin and end marks.

    Attributes:
        src_ids: All source ids, one pair after another, int32.
        src_offsets: Where each pair begins in `src_ids`, (N + 1,) int64.
        tgt_ids: All target ids, int32.
        tgt_offsets: Where each pair begins in `tgt_ids`, (N + 1,) int64.
        dropped: How many pairs were left out, by reason.
    """

    src_ids: Ids
    src_offsets: Indices
    tgt_ids: Ids
    tgt_offsets: Indices
    dropped: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.src_offsets) - 1

    def src(self, index: int) -> Ids:
        """Gives the source ids of one pair."""
        return self.src_ids[self.src_offsets[index] : self.src_offsets[index + 1]]

    def tgt(self, index: int) -> Ids:
        """Gives the target ids of one pair."""
        return self.tgt_ids[self.tgt_offsets[index] : self.tgt_offsets[index + 1]]

    @property
    def src_lengths(self) -> Indices:
        """Tokens of each source with its end mark, (N,)."""
        return np.diff(self.src_offsets) + 1

    @property
    def tgt_lengths(self) -> Indices:
        """Tokens of each target with its begin or end mark, (N,)."""
        return np.diff(self.tgt_offsets) + 1

    def batch(self, indices: Indices) -> Batch:
        """Pads some pairs, with their marks, into a batch on the CPU."""
        src, tgt = [self.src(i) for i in indices], [self.tgt(i) for i in indices]
        return collate(src, tgt, PAD_ID, BOS_ID, EOS_ID)

    def digest(self) -> str:
        """Names the content: SHA-256 over ids and offsets."""
        digest = hashlib.sha256()
        for array in (self.src_ids, self.src_offsets, self.tgt_ids, self.tgt_offsets):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def load_split(config: DataConfig, split: str) -> RawPairs:
    """Loads one split of the configured corpus.

    Args:
        config: Where the corpus lies and which languages to take.
        split: A split's name, or a slice of it such as `train[:5000]`.

    Raises:
        DataError: Naming the file, split, column or language that is missing or malformed.
    """
    folder = Path(config.path)
    if folder.is_file():
        raise DataError(f"data.path = {config.path}: this is a file; name the folder it lies in")
    if not folder.is_dir() and not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", config.path):
        raise DataError(f"data.path = {config.path}: there is no such folder")
    is_text = folder.is_dir() and _has_text(folder, config)
    pairs = _load_text(folder, config, split) if is_text else _load_dataset(config, split)
    if not len(pairs):
        raise DataError(f"{config.path}: split {split} holds no pairs")
    return pairs


def load_text(src_path: Path, tgt_path: Path) -> RawPairs:
    """Reads two line-aligned files.

    Raises:
        DataError: If one cannot be read, is not UTF-8, or has more lines than the other.
    """
    src, tgt = _read_text(src_path), _read_text(tgt_path)
    if len(src) != len(tgt):
        raise DataError(
            f"{src_path} has {len(src)} lines and {tgt_path} has {len(tgt)}:"
            " they must be line-aligned"
        )
    return RawPairs([line.strip() for line in src], [line.strip() for line in tgt])


def decode_lines(raw: Iterable[bytes]) -> Iterator[str]:
    r"""Decodes lines of a binary stream; such a stream splits at `\n` alone.

    Invalid UTF-8 becomes U+FFFD, so that no line is ever lost.
    """
    for line in raw:
        yield line.removesuffix(b"\n").decode("utf-8", errors="replace")


def encode_pairs(raw: RawPairs, vocab: Vocabulary) -> IdPairs:
    """Encodes pairs as they are, dropping none."""
    return _encode(raw, vocab, lambda src, tgt: None)


def encode_training_pairs(raw: RawPairs, vocab: Vocabulary, config: DataConfig) -> IdPairs:
    """Encodes pairs and drops those that training cannot use, counting them by reason.

    Raises:
        DataError: If no pair is left; gives the counts.
    """

    def reason(src: list[int], tgt: list[int]) -> str | None:
        if not src or not tgt:
            return "empty"
        longer, shorter = max(len(src), len(tgt)), min(len(src), len(tgt))
        if longer > config.max_length:
            return f"over {config.max_length} pieces"
        if config.max_length_ratio and longer > config.max_length_ratio * shorter:
            return f"length ratio over {config.max_length_ratio:g}"
        return None

    pairs = _encode(raw, vocab, reason)
    if not len(pairs):
        counts = ", ".join(f"{count} {why}" for why, count in pairs.dropped.items())
        raise DataError(
            f"data.train = {config.train}: no training pair is left of {len(raw)}"
            f" ({counts or 'the split is empty'}); see data.max_length and data.max_length_ratio"
        )
    return pairs


def _encode(
    raw: RawPairs, vocab: Vocabulary, reason: Callable[[list[int], list[int]], str | None]
) -> IdPairs:
    src_parts, tgt_parts, src_lengths, tgt_lengths = [], [], [0], [0]
    dropped: Counter[str] = Counter()
    for start in range(0, len(raw), _ENCODE_AT_ONCE):
        stop = start + _ENCODE_AT_ONCE
        encoded = zip(
            vocab.encode_src(raw.src[start:stop]),
            vocab.encode_tgt(raw.tgt[start:stop]),
            strict=True,
        )
        for src, tgt in encoded:
            if why := reason(src, tgt):
                dropped[why] += 1
                continue
            src_parts.append(np.array(src, np.int32))
            tgt_parts.append(np.array(tgt, np.int32))
            src_lengths.append(len(src))
            tgt_lengths.append(len(tgt))
    empty = np.empty(0, np.int32)
    return IdPairs(
        np.concatenate((empty, *src_parts)),
        np.cumsum(src_lengths),
        np.concatenate((empty, *tgt_parts)),
        np.cumsum(tgt_lengths),
        dropped,
    )


def _has_text(folder: Path, config: DataConfig) -> bool:
    languages = (config.src_lang, config.tgt_lang)
    return any(path.suffix[1:] in languages for path in folder.iterdir())


def _load_text(folder: Path, config: DataConfig, split: str) -> RawPairs:
    match = _SLICE.fullmatch(split)
    if not match:
        raise DataError(f"{split}: not a split; write a name or a slice, such as train[:5000]")
    name = match["split"]
    paths = [folder / f"{name}.{language}" for language in (config.src_lang, config.tgt_lang)]
    for path in paths:
        if not path.is_file():
            there = sorted(p.name for p in folder.iterdir() if p.is_file())
            raise DataError(f"{path}: no such file; the folder holds {', '.join(there[:8])}")
    pairs = load_text(*paths)
    part = slice(int(match["start"] or 0), int(match["stop"]) if match["stop"] else None)
    return RawPairs(pairs.src[part], pairs.tgt[part])


def _read_text(path: Path) -> list[str]:
    try:
        raw = path.open("rb")  # a text file would also split at a lone carriage return
    except OSError as error:
        raise DataError(f"{path}: cannot read it: {error.strerror}") from None
    lines: list[str] = []
    with raw:
        try:
            lines += (line.removesuffix(b"\n").decode("utf-8") for line in raw)
        except UnicodeDecodeError:
            number = len(lines) + 1
            raise DataError(f"{path}, line {number}: not UTF-8; convert it with iconv") from None
    return lines


def _load_dataset(config: DataConfig, split: str) -> RawPairs:
    import datasets
    from huggingface_hub import constants
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
        disable_progress_bars()
    unreachable = "" if Path(config.path).is_dir() else _why_unreachable(constants.ENDPOINT)
    if unreachable:  # then the cache is asked at once, without a minute of further tries
        datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        dataset = datasets.load_dataset(
            config.path, config.name, split=split, cache_dir=config.cache_dir
        )
    except (ValueError, OSError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if unreachable or constants.HF_HUB_OFFLINE:
            reason = (
                f"{unreachable or 'HF_HUB_OFFLINE is set'}, and data.cache_dir ="
                f" {config.cache_dir} does not hold it; without network, set data.path to a local"
                " folder or data.cache_dir to a cache that holds it"
            )
        raise DataError(f"data.path = {config.path}, split {split}: {reason}") from None
    raw = RawPairs([], [])
    for src, tgt in _columns(dataset, config, split):
        raw.src.append((src or "").strip())
        raw.tgt.append((tgt or "").strip())
    return raw


def _why_unreachable(endpoint: str) -> str:
    """Says why the hub cannot be reached; nothing if it answers, however badly."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return ""
    try:
        urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=5).close()
    except urllib.error.HTTPError:
        return ""
    except OSError as error:
        reason = getattr(error, "reason", error)
        # A certificate that only the hub's own client knows is no reason to give up.
        return "" if isinstance(reason, ssl.SSLError) else f"{endpoint} is out of reach ({reason})"
    return ""


def _columns(dataset: Any, config: DataConfig, split: str) -> Iterator[tuple[Any, Any]]:
    src, tgt = config.src_lang, config.tgt_lang
    columns = dataset.column_names
    nested = "translation" in columns
    feature = dataset.features["translation"] if nested else columns
    # The hub's own type for translations lists its languages; a plain struct is a mapping.
    languages = list(getattr(feature, "languages", feature))
    for key, language in (("src_lang", src), ("tgt_lang", tgt)):
        if language not in languages:
            raise DataError(
                f"data.{key} = {language}: split {split} of {config.path}"
                f" has {', '.join(languages)}"
            )
    for rows in dataset.iter(batch_size=_ENCODE_AT_ONCE):
        if nested:
            yield from ((pair[src], pair[tgt]) for pair in rows["translation"])
        else:
            yield from zip(rows[src], rows[tgt], strict=True)
