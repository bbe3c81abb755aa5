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
from types import SimpleNamespace
from unittest.mock import Mock

import datasets
import pyarrow as pa
import pytest
import yaml
from conftest import copy_lines
from fake_hub import serve
from huggingface_hub import constants, utils

from transformer_mt.config.keys import DataConfig
from transformer_mt.errors import DataError
from transformer_mt.text import corpus, hub

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
    """Gives the files of a small `wmt/wmt16`, with the hub's own type and a missing source."""
    readme = "---\nconfigs:\n- {config_name: de-en, data_files: train-*}\n---\n"
    rows = [{"de": line, "en": line} for line in copy_lines(1000, 0)]
    rows[0]["de"] = None
    features = datasets.Features({"translation": datasets.Translation(languages=["de", "en"])})
    dataset, buffer = (
        datasets.Dataset.from_dict({"translation": rows}, features=features),
        io.BytesIO(),
    )
    dataset.to_parquet(buffer)
    return {"README.md": readme.encode(), "train-00000-of-00001.parquet": buffer.getvalue()}


def load_elsewhere(folder: Path, endpoint: str, *paths: str) -> list[object]:
    """Loads corpora in another process, which gives the sources of each, or the error."""
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
        (urllib.error.HTTPError("http://hub", 404, "Not Found", {}, None), None),
        (urllib.error.URLError(ssl.SSLError("unknown certificate")), None),
        (urllib.error.URLError(OSError("no route")), "http://hub is unreachable (no route), and"),
        (TimeoutError("timed out"), "http://hub is unreachable (timed out), and"),
        (None, "HF_HUB_OFFLINE is set, and"),
    ],
)
def test_what_the_library_may_do(monkeypatch, error, reason):
    """Without network only read its cache, and show no bars without ours; later all it could.

    An error page is an answer; the hub's client may know certificates that Python does not.
    """

    def fail(request, timeout):
        raise error

    is_offline = error is None
    places = [(datasets.config, "HF_HUB_OFFLINE"), (constants, "HF_HUB_OFFLINE")]
    for place in places:
        monkeypatch.setattr(*place, is_offline)
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub")
    monkeypatch.setattr(urllib.request, "urlopen", fail)

    def state() -> list[bool]:
        hidden = (library.are_progress_bars_disabled() for library in (datasets, utils))
        return [*(getattr(*place) for place in places), *hidden]

    def load(path: str, **options: object):
        assert path == "a/b"
        assert options == {"name": None, "cache_dir": "data/cache", "split": "train"}
        assert state() == [reason is not None] * 2 + [True] * 2
        raise ValueError("not\nJSON") from OSError("no\n space")

    monkeypatch.setattr(datasets, "load_dataset", load)
    before = state()
    with pytest.raises(DataError) as raised:
        hub.load_dataset(DataConfig(path="a/b"), "train")
    assert state() == before
    start = f"data.path = a/b, split train: no such folder in {Path.cwd()}, nor beside the "
    message = str(raised.value)
    assert message.startswith(start) and "OSError: no space" in message
    assert f"; on the hub: {reason or 'OSError: no space'}" in message
    assert ("--set data.path=NEW" in message) == (reason is not None)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("a loading script"),
        yaml.YAMLError("bad card"),
        datasets.exceptions.ExpectedMoreSplitsError({"test"}),
        StopIteration(),
    ],
)
def test_whatever_the_library_raises_is_one_line(monkeypatch, error):
    """With the type of the error, since some have no text."""
    monkeypatch.setattr(urllib.request, "urlopen", Mock())
    monkeypatch.setattr(datasets, "load_dataset", Mock(side_effect=error))
    with pytest.raises(DataError, match=f"; on the hub: {type(error).__name__}:"):
        hub.load_dataset(DataConfig(path="a/b"), "x")


def test_other_columns_are_not_decoded():
    """Sabotage: read whole rows."""
    broken = {"bytes": b"no image", "path": None}
    columns = {"de": ["eins"], "en": ["one"], "picture": [broken]}
    types = {"de": datasets.Value("string"), "en": datasets.Value("string")}
    features = datasets.Features({**types, "picture": datasets.Image()})
    dataset = datasets.Dataset.from_dict(columns, features)
    assert list(hub.read_pairs(dataset, DataConfig(path="a/b"))) == [("eins", "one")]


def test_a_corpus_of_the_hub_is_known_by_its_revision(monkeypatch):
    """By the names of its files in the cache; its configuration is that of `data.name`."""
    config, names = DataConfig(path="wmt/wmt16", name="cs-en"), ["1/a.arrow", "1/b.arrow"]

    def load(*arguments: object) -> SimpleNamespace:
        assert arguments == (config, "dev")
        return SimpleNamespace(cache_files=[{"filename": name} for name in names])

    monkeypatch.setattr(corpus, "load_dataset", load)
    digests = [corpus.open_split(config, "dev").digest()]
    for i in range(2):
        names[i] = names[i].replace("1", "2")
        digests.append(corpus.open_split(config, "dev").digest())
    assert len(set(digests)) == 3


def test_a_hub_and_then_none(tmp_path):
    """Without the hub the cache serves, and what it lacks is an error within seconds."""
    with serve(wmt16()) as fake_hub:
        sources, error = load_elsewhere(tmp_path, fake_hub.url, "wmt/wmt16", "wmt/wmt61")
    assert sources == ["", *copy_lines(1000, 0)[1:]]
    assert error.startswith("data.path = wmt/wmt61, split train: no such folder in ")
    assert "; on the hub: Data" in error and "--set data.path=NEW" in error
    began = time.monotonic()
    sources, error = load_elsewhere(tmp_path, NOTHING_LISTENS, "wmt/wmt16", "wmt/wmt17")
    assert time.monotonic() - began < 30  # each retry of the client would take a minute
    assert sources == ["", *copy_lines(1000, 0)[1:]]
    for word in ("wmt/wmt17", NOTHING_LISTENS, "a local folder", "data.cache_dir"):
        assert word in error
    assert "\n" not in error


def test_tables_of_the_hub_are_refused(tmp_path):
    """The library would read the word null as no text; also from its cache, without the hub."""
    readme = wmt16()["README.md"]
    with serve({"README.md": readme, "train-1.csv": b"de,en\nnull,NA\nja,yes\n"}) as fake_hub:
        online = load_elsewhere(tmp_path, fake_hub.url, "wmt/wmt16")
    offline = load_elsewhere(tmp_path, NOTHING_LISTENS, "wmt/wmt16")
    message = "data.path = wmt/wmt16, split train: CSV is only read from a folder"
    assert [error[: len(message)] for error in (*online, *offline)] == [message] * 2


def test_text_in_another_encoding(tmp_path):
    """In Parquet nothing says so before it is read."""
    latin = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xfc"))
    dataset = datasets.Dataset(pa.table({"de": latin, "en": ["b"]}))
    with pytest.raises(DataError, match="^a/b, row 1: cannot be read: 'utf-8' codec"):
        list(hub.read_pairs(dataset, DataConfig(path="a/b")))
