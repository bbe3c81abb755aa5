"""Corpora on the hub, by the `datasets` library."""

import logging
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any

from transformer_mt.config.keys import DataConfig
from transformer_mt.config.loading import searched_folders
from transformer_mt.errors import DataError
from transformer_mt.system.console import shows_bars
from transformer_mt.text.data_files import BATCH_ROWS, pair_columns, texts_of_rows, wanted_columns

MOVED_TEXT = (
    "if the text has moved, train with --set data.path=NEW, and evaluate with --src and --ref"
)
"""Advice about a missing folder."""

_SECONDS_TO_ANSWER = 5.0
_CSV_ON_HUB = (
    "CSV is only read from a folder, since the library would make words such as null empty: run hf"
    " download NAME --repo-type dataset --local-dir DIR, set data.path = DIR, and name the files"
)


def load_dataset(config: DataConfig, split: str) -> Any:
    """Loads a split of a corpus on the hub, from the cache if the hub cannot be reached.

    Raises:
        DataError: If the corpus does not exist or cannot be read, or the cache cannot be written.
    """
    import datasets
    import yaml
    from huggingface_hub.errors import HfHubHTTPError

    # Of the library that reads the hub, httpx or another: a lost connection is not an OSError.
    of_client = HfHubHTTPError.__bases__
    of_libraries = datasets.exceptions.DatasetsError, yaml.YAMLError, *of_client
    of_system = OSError, RuntimeError, ImportError
    of_wrong_card = ValueError, TypeError, AttributeError, LookupError, StopIteration
    place, problem = f"data.path = {config.path}, split {split}", _why_offline()
    options = {"name": config.name, "split": split, "cache_dir": config.cache_dir}
    try:
        # Offline the cache is used at once, without a minute of retries.
        with _library_settings(offline=bool(problem)):
            dataset = datasets.load_dataset(config.path, **options)
    except (*of_libraries, *of_system, *of_wrong_card) as error:
        cause = error.__cause__ or error
        reason = " ".join(f"{type(cause).__name__}: {cause}".split())
        if problem:
            reason = (
                f"{problem}, and data.cache_dir = {config.cache_dir} does not give it ({reason});"
                " without network, set data.path to a local folder (--set data.path=NEW) or"
                " data.cache_dir to a cache that contains it"
            )
        elif isinstance(error, datasets.exceptions.DatasetNotFoundError):
            reason += f"; {MOVED_TEXT}"
        searched = searched_folders(config.path)
        raise DataError(f"{place}: no such folder{searched}; on the hub: {reason}") from None
    if dataset.info.builder_name == "csv":
        raise DataError(f"{place}: {_CSV_ON_HUB}")
    return dataset


def read_pairs(dataset: Any, config: DataConfig) -> Iterator[tuple[str, str]]:
    """Reads pairs from a `translation` column or from one column per language.

    Raises:
        DataError: If there is no column for a language, or it does not hold text.
    """
    columns = pair_columns(config)
    dataset = dataset.select_columns(wanted_columns(dataset.column_names, columns))
    tables = dataset.with_format("arrow").iter(batch_size=BATCH_ROWS)
    rows = (row for table in tables for row in table.to_pylist())
    return texts_of_rows(enumerate(rows, start=1), columns, f"{config.path}, row")


def _why_offline() -> str:
    """Explains why the hub is not used; empty if the hub answers, even with an error."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    try:
        request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
        urllib.request.urlopen(request, timeout=_SECONDS_TO_ANSWER).close()
    except (OSError, ValueError, HTTPException) as error:  # also if it is not an address
        reason = getattr(error, "reason", error)
        # The hub's client may know certificates that Python does not, so let it try.
        if not isinstance(error, urllib.error.HTTPError) and not isinstance(reason, ssl.SSLError):
            return f"{constants.ENDPOINT} is unreachable ({str(reason).strip()})"
    return ""


@contextmanager
def _library_settings(offline: bool) -> Iterator[None]:
    """Silences the library; hides its bars where ours are hidden; if offline, uses caches only."""
    import datasets
    from huggingface_hub import constants, utils

    library_logger = logging.getLogger(datasets.__name__)
    library_logger.handlers, handlers = [logging.NullHandler()], library_logger.handlers
    was_offline = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    shown = [library for library in (datasets, utils) if not library.are_progress_bars_disabled()]
    hidden = [] if shows_bars() else shown
    for library in hidden:
        library.disable_progress_bars()
    if offline:
        datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        library_logger.handlers = handlers
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = was_offline
        for library in hidden:
            library.enable_progress_bars()
