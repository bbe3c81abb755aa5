"""Test sets: a split of the corpus, two files, or one of sacreBLEU's own sets."""

import socket
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from http.client import HTTPException
from pathlib import Path

from sacrebleu.dataset import DATASETS
from sacrebleu.utils import SACREBLEU_DIR

from transformer_mt.config import DataConfig, Splits
from transformer_mt.errors import DataError
from transformer_mt.text.corpus import RawPairs, load_split, load_text

_DOWNLOAD_TIMEOUT = 10.0
"""Seconds without an answer after which a download fails."""


def load_test_set(
    data: DataConfig,
    split: str | None = None,
    src: Path | None = None,
    ref: Path | None = None,
    test_set: str | None = None,
) -> RawPairs:
    """Loads raw sources and references, by default those of the configured test split.

    Args:
        data: The corpus and its languages.
        split: A split of the corpus; train, valid and test are the configured ones.
        src: A file of source text, instead of a split.
        ref: The file of its reference translation.
        test_set: The name of one of sacreBLEU's sets, such as wmt16, instead of a split or files.

    Raises:
        DataError: If more than one test set is given, or it does not exist or cannot be read.
    """
    if (src is None) != (ref is None):
        raise DataError("--src and --ref go together")
    if sum(choice is not None for choice in (split, src, test_set)) > 1:
        raise DataError("choose one of --split, --test-set, and --src with --ref")
    if test_set:
        return _load_sacrebleu(test_set, data.src_lang, data.tgt_lang)
    if src and ref:
        return load_text(src, ref)
    split = split or "test"
    configured: dict[str, Splits] = {
        "train": data.train,
        "valid": data.valid,
        "validation": data.valid,
        "test": data.test,
    }
    return load_split(data, configured.get(split, split))


def _load_sacrebleu(name: str, src_lang: str, tgt_lang: str) -> RawPairs:
    if name not in DATASETS:
        close = get_close_matches(name, DATASETS, 3)
        raise DataError(
            f"--test-set {name}: sacreBLEU has no such set"
            + (f"; did you mean {', '.join(close)}?" if close else "")
        )
    dataset, pair = DATASETS[name], f"{src_lang}-{tgt_lang}"
    if pair not in dataset.langpairs:
        raise DataError(f"--test-set {name}: has {', '.join(dataset.langpairs)}, not {pair}")
    try:
        with _socket_timeout(_DOWNLOAD_TIMEOUT):  # sacreBLEU's downloads have no timeout
            sources = list(dataset.source(pair))  # type: ignore[no-untyped-call]
            references = list(dataset.references(pair))  # type: ignore[no-untyped-call]
    except (OSError, HTTPException, tarfile.TarError, SystemExit) as error:
        raise DataError(
            f"--test-set {name}: cannot download it ({error}); without network, copy its folder"
            f" into {SACREBLEU_DIR}, or use --src and --ref"
        ) from None
    if any(len(alternatives) > 1 for alternatives in references):
        raise DataError(
            f"--test-set {name}: has several references; save the translation with --save and score"
            " it with sacrebleu"
        )
    return RawPairs(sources, [alternatives[0] for alternatives in references])


@contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    """Sets the default timeout of new sockets, and restores it afterwards."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
