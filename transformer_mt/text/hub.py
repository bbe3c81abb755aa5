"""Corpora read by the `datasets` library: from the hub, or from local Parquet and JSONL files."""

import logging
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

from transformer_mt.config.keys import DataConfig
from transformer_mt.config.loading import searched_folders
from transformer_mt.errors import DataError
from transformer_mt.system.console import shows_bars

MOVED_TEXT = (
    "if the text has moved, train with --set data.path=NEW, and evaluate with --src and --ref"
)
"""Advice about a missing folder."""

_ROWS_PER_BATCH = 10_000
_SECONDS_TO_ANSWER = 5.0
_MESSAGES = 1_000
"""Messages of the library that are kept while it loads; they name the file that is wrong."""


def load_dataset(config: DataConfig, builder: str, requested: str, **options: Any) -> Any:
    """Loads a split, from the cache if the hub cannot be reached.

    `builder` is a hub id, a folder or a file format, `requested` the split for error messages.

    Raises:
        DataError: If the corpus does not exist or cannot be read.
    """
    import datasets
    import yaml
    from huggingface_hub import constants

    of_library = datasets.exceptions.DatasetGenerationError, yaml.YAMLError
    reasons = ValueError, OSError, RuntimeError, ImportError, *of_library
    is_local = Path(config.path).is_dir()
    problem = "" if is_local else _why_offline(constants.ENDPOINT)
    # Offline the cache is used at once, without a minute of retries.
    with _library_settings(offline=bool(problem)) as messages:
        try:
            return datasets.load_dataset(builder, cache_dir=config.cache_dir, **options)
        except reasons as error:
            reason = " ".join(str(error.__cause__ or error).split()) or type(error).__name__
            is_unknown = isinstance(error, datasets.exceptions.DatasetNotFoundError)
            said = " ".join(record.getMessage() for record in messages.buffer)
            files = options.get("data_files") or map(str, Path(builder).rglob("*.*"))
            reason = ": ".join((*sorted(file for file in files if file in said)[-1:], reason))
    if problem:
        reason = (
            f"{problem}, and data.cache_dir = {config.cache_dir} does not contain it; without"
            " network, set data.path to a local folder (--set data.path=NEW) or data.cache_dir to a"
            " cache that contains it"
        )
    elif is_unknown:
        reason = f"{reason}; {MOVED_TEXT}"
    if problem or is_unknown:
        searched = searched_folders(config.path)
        reason = f"no such folder{searched}; on the hub: {reason}"
    raise DataError(f"data.path = {config.path}, split {requested}: {reason}")


def read_pairs(dataset: Any, config: DataConfig) -> Iterator[tuple[str, str]]:
    """Reads pairs from a `translation` column or from one column per language.

    A missing value becomes an empty text.

    Raises:
        DataError: If there is no column for a language, or it does not hold text.
    """
    src, tgt = config.src_lang, config.tgt_lang
    prefix = "translation." if "translation" in dataset.column_names else ""
    dataset = dataset.flatten()  # of a translation column to columns such as translation.de
    columns = [column for column in dataset.column_names if column.startswith(prefix)]
    languages = [column.removeprefix(prefix) for column in columns]
    for key, language in (("src_lang", src), ("tgt_lang", tgt)):
        if language not in languages:
            raise DataError(f"data.{key} = {language}: {config.path} has {', '.join(languages)}")
    dataset = dataset.select_columns([prefix + src, prefix + tgt])  # others may be images
    for rows in dataset.iter(batch_size=_ROWS_PER_BATCH):
        for src_text, tgt_text in zip(rows[prefix + src], rows[prefix + tgt], strict=True):
            yield _to_text(src_text, src, config), _to_text(tgt_text, tgt, config)


def _to_text(value: object, language: str, config: DataConfig) -> str:
    if isinstance(value, str | None):
        return (value or "").strip()
    raise DataError(f"{config.path}: {value!r} in the column {language} is not text")


def _why_offline(endpoint: str) -> str:
    """Explains why the hub is not used; empty if the hub answers, even with an error."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    request = urllib.request.Request(endpoint, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=_SECONDS_TO_ANSWER).close()
    except urllib.error.HTTPError:
        return ""
    except OSError as error:
        reason = getattr(error, "reason", error)
        # The hub's client may know certificates that Python does not, so let it try.
        return "" if isinstance(reason, ssl.SSLError) else f"{endpoint} is unreachable ({reason})"
    return ""


@contextmanager
def _library_settings(offline: bool) -> Iterator[BufferingHandler]:
    """Keeps messages; hides progress bars where ours are hidden; if offline, uses caches only."""
    import datasets
    from huggingface_hub import constants, utils

    messages, library_logger = BufferingHandler(_MESSAGES), logging.getLogger(datasets.__name__)
    library_logger.handlers, handlers = [messages], library_logger.handlers
    was_offline = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    shown = [library for library in (datasets, utils) if not library.are_progress_bars_disabled()]
    hidden = [] if shows_bars() else shown
    for library in hidden:
        library.disable_progress_bars()
    if offline:
        datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield messages
    finally:
        library_logger.handlers = handlers
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = was_offline
        for library in hidden:
            library.enable_progress_bars()
