"""What a model is tested on: a split of its corpus, two files, or one of sacreBLEU's own sets."""

import socket
import tarfile
from difflib import get_close_matches
from http.client import HTTPException
from pathlib import Path

from sacrebleu.dataset import DATASETS
from sacrebleu.utils import SACREBLEU_DIR

from transformer_mt.config import DataConfig
from transformer_mt.errors import DataError
from transformer_mt.text.corpus import RawPairs, load_split, load_text

_SECONDS_TO_CONNECT = 10.0


def load_test_set(
    data: DataConfig,
    split: str | None = None,
    src: Path | None = None,
    ref: Path | None = None,
    test_set: str | None = None,
) -> RawPairs:
    """Loads raw sources and references; without a choice the configured test split.

    Args:
        data: The corpus and its languages.
        split: A split of it; train, valid and test are those of the configuration.
        src: Source text, instead of a split.
        ref: Its reference translation.
        test_set: sacreBLEU's name of a set, such as wmt16, instead of either.

    Raises:
        DataError: If more than one is chosen, or what is chosen is not there.
    """
    if (src is None) != (ref is None):
        raise DataError("--src and --ref go together")
    if sum(choice is not None for choice in (split, src, test_set)) > 1:
        raise DataError("choose one of --split, --test-set, and --src with --ref")
    if test_set:
        return _load_sacrebleu(test_set, data.src_lang, data.tgt_lang)
    if src and ref:
        return load_text(src, ref)
    wanted = split or "test"
    names = {"train": data.train, "valid": data.valid, "validation": data.valid, "test": data.test}
    return load_split(data, names.get(wanted, wanted))


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
        socket.setdefaulttimeout(_SECONDS_TO_CONNECT)  # sacreBLEU's downloads have none
        sources = list(dataset.source(pair))  # type: ignore[no-untyped-call]
        references = list(dataset.references(pair))  # type: ignore[no-untyped-call]
    except (OSError, HTTPException, tarfile.TarError, SystemExit) as error:
        raise DataError(
            f"--test-set {name}: cannot download it ({error}); without network, put sacreBLEU's"
            f" folder of it into {SACREBLEU_DIR}, or use --src and --ref"
        ) from None
    if any(len(some) > 1 for some in references):
        raise DataError(f"--test-set {name}: has several references; use --save and sacrebleu")
    return RawPairs(sources, [some[0] for some in references])
