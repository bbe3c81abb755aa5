"""Loading from the hub, through the real client, against a hub on loopback."""

import io
import json
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import copy_lines
from fake_hub import serve
from huggingface_hub import constants
from huggingface_hub.utils import are_progress_bars_disabled

from transformer_mt.config.keys import DataConfig
from transformer_mt.errors import DataError
from transformer_mt.text import hub

NOTHING_LISTENS = "http://127.0.0.1:9"
PROGRAM = """
import json, sys
from transformer_mt.config.keys import DataConfig
from transformer_mt.errors import DataError
from transformer_mt.text.corpus import load_split

for path in sys.argv[2:]:
    try:
        result = load_split(DataConfig(path=path, cache_dir=sys.argv[1]), "train").src
    except DataError as error:
        result = str(error)
    print(json.dumps(result))
"""


def wmt16() -> dict[str, bytes]:
    """Gives the files of a small `wmt/wmt16`."""
    readme = "---\nconfigs:\n- {config_name: de-en, data_files: train-*}\n---\n"
    rows = [{"translation": {"de": line, "en": line}} for line in copy_lines(1000, 0)]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return {"README.md": readme.encode(), "train-00000-of-00001.parquet": buffer.getvalue()}


def load_elsewhere(folder: Path, endpoint: str, *paths: str) -> list[object]:
    """Loads corpora in another process, with everything of the hub below a folder.

    Returns:
        For each corpus its sources, or the error.
    """
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "home")}
    environment.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, folder / "cache", *paths],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (urllib.error.HTTPError("http://hub", 404, "Not Found", {}, None), ""),
        (urllib.error.URLError(ssl.SSLError("unknown certificate")), ""),
        (ssl.SSLError("unknown certificate"), ""),
        (urllib.error.URLError(OSError("no route")), "http://hub is unreachable (no route)"),
        (TimeoutError("timed out"), "http://hub is unreachable (timed out)"),
    ],
)
def test_why_a_hub_is_not_used(monkeypatch, error, reason):
    """An error page is an answer; the hub's client may know certificates that Python does not."""

    def fail(request, timeout):
        raise error

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(urllib.request, "urlopen", fail)
    assert hub._why_offline("http://hub") == reason
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub._why_offline("http://hub") == "HF_HUB_OFFLINE is set"


def test_the_hubs_own_type_for_translations():
    """It lists its languages, unlike a plain struct; missing values are empty."""
    rows = [{"de": " eins ", "en": "one"}, {"de": None, "en": "two"}, {"de": "drei", "en": None}]
    features = datasets.Features({"translation": datasets.Translation(languages=["de", "en"])})
    dataset = datasets.Dataset.from_dict({"translation": rows}, features=features)
    pairs = list(hub.read_pairs(dataset, DataConfig(path="hub")))
    assert pairs == [("eins", "one"), ("", "two"), ("drei", "")]
    with pytest.raises(DataError, match="data.tgt_lang = fr: hub has de, en"):
        next(hub.read_pairs(dataset, DataConfig(path="hub", tgt_lang="fr")))


def test_a_hub_and_then_none(tmp_path):
    """Without the hub the cache serves, and what it lacks is an error within seconds.

    It names the ways to work without a hub. Sabotage: leave the hub's client online when the hub
    does not answer.
    """
    with serve(wmt16()) as fake_hub:
        sources, error = load_elsewhere(tmp_path, fake_hub.url, "wmt/wmt16", "wmt/wmt61")
        assert sum(r.startswith("GET") and "train-" in r for r in fake_hub.requests) == 1
    assert sources == copy_lines(1000, 0)
    assert error.startswith("data.path = wmt/wmt61, split train: no such folder in ")
    assert "; on the hub: Data" in error and "--set data.path=NEW" in error
    began = time.monotonic()
    sources, error = load_elsewhere(tmp_path, NOTHING_LISTENS, "wmt/wmt16", "wmt/wmt17")
    assert time.monotonic() - began < 30  # each retry of the client would take a minute
    assert sources == copy_lines(1000, 0)
    for word in ("wmt/wmt17", NOTHING_LISTENS, "a local folder", "data.cache_dir"):
        assert word in error
    assert "\n" not in error


def library_settings() -> list[bool]:
    """Tells whether each library is offline, and whether each hides its progress bars."""
    offline = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    return [*offline, datasets.are_progress_bars_disabled(), are_progress_bars_disabled()]


@pytest.mark.parametrize("shows_bars", [True, False])
@pytest.mark.parametrize("offline", [True, False])
def test_settings_of_the_libraries_are_restored(monkeypatch, offline, shows_bars):
    """Of the progress bars, shown where ours are, and of the offline mode, after an error too.

    Sabotage: do not enable the bars again; set the flags without a `finally`.
    """
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "shows_bars", lambda: shows_bars)
    before = library_settings()
    assert before == [False] * 4
    with pytest.raises(DataError), hub._library_settings(offline):
        assert library_settings() == [offline, offline, not shows_bars, not shows_bars]
        raise DataError
    assert library_settings() == before
