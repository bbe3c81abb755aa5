"""Corpora that the `datasets` library reads."""

import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer_mt.config import DataConfig
from transformer_mt.errors import DataError

Pair = tuple[str, str]

_ROWS_AT_ONCE = 10_000


def _load_dataset(config: DataConfig, builder: str, what: str, **options: Any) -> Any:
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
        return datasets.load_dataset(builder, cache_dir=config.cache_dir, **options)
    except (ValueError, OSError, datasets.exceptions.DatasetGenerationError) as error:
        reason = " ".join(str(error.__cause__ or error).split()) or type(error).__name__
        if not Path(config.path).is_dir() and (unreachable or constants.HF_HUB_OFFLINE):
            reason = (
                f"{unreachable or 'HF_HUB_OFFLINE is set'}, and data.cache_dir ="
                f" {config.cache_dir} does not hold it; without network, set data.path to a local"
                " folder or data.cache_dir to a cache that holds it"
            )
        raise DataError(f"data.path = {config.path}, split {what}: {reason}") from None


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


def _rows(dataset: Any, config: DataConfig) -> Iterator[Pair]:
    """Reads a translation column, or a column a language; a missing value is an empty side."""
    src, tgt = config.src_lang, config.tgt_lang
    nested = "translation" in dataset.column_names
    feature = dataset.features["translation"] if nested else dataset.column_names
    # The hub's own type for translations lists its languages; a plain struct is a mapping.
    languages = list(getattr(feature, "languages", feature))
    for key, language in (("src_lang", src), ("tgt_lang", tgt)):
        if language not in languages:
            raise DataError(f"data.{key} = {language}: {config.path} has {', '.join(languages)}")
    for rows in dataset.iter(batch_size=_ROWS_AT_ONCE):
        pairs = (
            ((pair[src], pair[tgt]) for pair in rows["translation"])
            if nested
            else zip(rows[src], rows[tgt], strict=True)
        )
        for left, right in pairs:
            yield (left or "").strip(), (right or "").strip()
