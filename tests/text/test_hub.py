"""Loading from the hub, through the real client, against a hub on loopback."""

import hashlib
import io
import json
import os
import re
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import BadStatusLine
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import datasets
import pyarrow as pa
import pytest
import yaml
from conftest import copy_lines, refuses
from huggingface_hub import constants, utils

from transformer_mt.config.keys import DataConfig
from transformer_mt.errors import DataError
from transformer_mt.text import corpus, hub

NOTHING_LISTENS = "http://127.0.0.1:9"
PROGRAM = """
import json, sys, time
time.sleep = lambda seconds: sys.exit(f"waited for {seconds} s")
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


COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(BaseHTTPRequestHandler):
    """Serves files of repositories, a content for each path; other repositories are absent."""

    repositories: dict[str, dict[str, bytes]] = {}
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        """Keeps quiet."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        match = re.fullmatch(r"(?:/api)?/datasets/(\w+/\w+)(.*)", self.path.partition("?")[0])
        repository, path = match.groups() if match else ("", "")
        files = self.repositories.get(repository, {})
        if (match := re.fullmatch(r"/resolve/[^/]+/(.+)", path)) and match[1] in files:
            content = files[match[1]]
            self._reply(200, content, {"X-Repo-Commit": COMMIT, "ETag": _digest(content)})
        elif files and re.fullmatch(r"(/revision/[^/]+)?", path):
            siblings = [{"rfilename": name} for name in files]
            self._json({"id": repository, "sha": COMMIT, "siblings": siblings, "tags": []})
        elif files and re.fullmatch(r"/(tree|paths-info)/[^/]+", path):
            wanted = json.loads(body)["paths"] if body else files
            rows = [(name, content) for name, content in files.items() if name in wanted]
            keys = "path", "size", "oid", "type"
            values = ((name, len(data), _digest(data), "file") for name, data in rows)
            self._json([dict(zip(keys, row, strict=True)) for row in values])
        else:
            self._reply(404, b"", {"X-Error-Code": "EntryNotFound" if files else "RepoNotFound"})

    do_HEAD = do_GET = do_POST = _answer

    def _json(self, value: object) -> None:
        self._reply(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _reply(self, code: int, body: bytes, headers: Mapping[str, str] = {}) -> None:
        self.send_response(code)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def wmt16() -> dict[str, bytes]:
    """Gives the files of a small `wmt/wmt16`, with the hub's own type and a missing source."""
    readme = "---\nconfigs:\n- {config_name: de-en, data_files: train-*}\n---\n"
    rows = [{"de": line, "en": line} for line in copy_lines(1000, 0)]
    rows[0]["de"] = None
    features = datasets.Features({"translation": datasets.Translation(languages=["de", "en"])})
    dataset = datasets.Dataset.from_dict({"translation": rows}, features=features)
    dataset.to_parquet(buffer := io.BytesIO())
    return {"README.md": readme.encode(), "train-00000-of-00001.parquet": buffer.getvalue()}


def load_elsewhere(folder: Path, endpoint: str, *paths: str) -> list[object]:
    """Loads corpora in another process, which gives the sources of each, or the error."""
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "home")}
    environment.pop("HF_HUB_OFFLINE", None)
    words = [sys.executable, "-c", PROGRAM, folder / "cache", *paths]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (urllib.error.HTTPError("http://hub", 404, "Not Found", {}, None), None),
        (urllib.error.URLError(ssl.SSLError("unknown certificate")), None),
        (urllib.error.URLError(OSError("no route")), "http://hub is unreachable (no route), and"),
        (TimeoutError("timed out"), "http://hub is unreachable (timed out), and"),
        (BadStatusLine("SSH-2.0\r\n"), "http://hub is unreachable (SSH-2.0), and"),
        (ValueError("unknown url type: 'hub'"), "http://hub is unreachable (unknown url type: "),
        (None, "HF_HUB_OFFLINE is set, and"),
    ],
)
def test_what_the_library_may_do(monkeypatch, error, reason):
    """Offline, only read its cache; an error page is an answer, and certificates may differ."""

    def fail(request, timeout):
        raise error

    is_offline = error is None
    places = datasets.config, constants
    for place in places:
        monkeypatch.setattr(place, "HF_HUB_OFFLINE", is_offline)
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub")
    monkeypatch.setattr(urllib.request, "urlopen", fail)

    def state() -> list[bool]:
        hidden = (library.are_progress_bars_disabled() for library in (datasets, utils))
        return [*(place.HF_HUB_OFFLINE for place in places), *hidden]

    def load(path: str, **options: object):
        assert path == "a/b"
        assert options == {"name": None, "cache_dir": "data/cache", "split": "train"}
        assert state() == [reason is not None] * 2 + [True] * 2
        raise ValueError("not\nJSON") from OSError("no\n space")

    monkeypatch.setattr(datasets, "load_dataset", load)
    before = state()
    message = str(refuses(DataError, "", hub.load_dataset, DataConfig(path="a/b"), "train"))
    assert state() == before
    start = f"data.path = a/b, split train: no such folder in {Path.cwd()}, nor beside the "
    assert message.startswith(start) and "OSError: no space" in message
    assert f"; on the hub: {reason or 'OSError: no space'}" in message
    assert ("--set data.path=NEW" in message) == (reason is not None)


def test_what_is_not_an_address(monkeypatch):
    """As of HF_ENDPOINT without https://."""
    monkeypatch.setattr(constants, "ENDPOINT", "hub.org")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert hub._why_offline() == "hub.org is unreachable (unknown url type: 'hub.org')"


def test_whatever_the_library_raises_is_one_line(monkeypatch):
    """With the type of the error, since some have no text; also of a lost connection."""
    with pytest.raises(utils.HfHubHTTPError.__bases__[0]) as lost:
        utils.get_session().get(NOTHING_LISTENS)
    assert not isinstance(lost.value, OSError)
    monkeypatch.setattr(urllib.request, "urlopen", Mock())
    errors = [RuntimeError("a loading script"), yaml.YAMLError("bad card"), StopIteration()]
    errors += [AttributeError("of dataset_info: [1]"), TypeError("of configs: [1]"), KeyError("a")]
    for error in (*errors, lost.value):
        monkeypatch.setattr(datasets, "load_dataset", Mock(side_effect=error))
        message = f"; on the hub: {type(error).__name__}:"
        refuses(DataError, message, hub.load_dataset, DataConfig(path="a/b"), "x")


def test_other_columns_are_not_decoded():
    """Sabotage: read whole rows."""
    broken = {"bytes": b"no image", "path": None}
    columns = {"de": ["eins"], "en": ["one"], "picture": [broken]}
    types = dict.fromkeys(("de", "en"), datasets.Value("string")) | {"picture": datasets.Image()}
    dataset = datasets.Dataset.from_dict(columns, datasets.Features(types))
    assert list(hub.read_pairs(dataset, DataConfig(path="a/b"))) == [("eins", "one")]
    # Text may be of another encoding, which nothing says before it is read.
    latin = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xfc"))
    dataset = datasets.Dataset(pa.table({"de": latin, "en": ["b"]}))
    pairs = hub.read_pairs(dataset, DataConfig(path="a/b"))
    refuses(DataError, "^a/b, row 1: cannot be read: 'utf-8' codec", list, pairs)


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


def test_a_hub_and_then_none(tmp_path, monkeypatch):
    """Without the hub the cache serves, and what it lacks is an error without a wait.

    Tables are refused either way: the library would read the word null as no text. Sabotage: let
    the client notice that there is no hub, which it does after a minute of retries.
    """
    parquet = wmt16()
    table = {"README.md": parquet["README.md"], "train-1.csv": b"de,en\nnull,NA\nja,yes\n"}
    paths = "wmt/wmt16", "wmt/table", "wmt/wmt61"
    monkeypatch.setattr(FakeHub, "repositories", {"wmt/wmt16": parquet, "wmt/table": table})
    with ThreadingHTTPServer(("127.0.0.1", 0), FakeHub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        online = load_elsewhere(tmp_path, f"http://127.0.0.1:{server.server_port}", *paths)
        server.shutdown()
    offline = load_elsewhere(tmp_path, NOTHING_LISTENS, *paths)
    for sources, refused, error in (online, offline):
        assert sources == ["", *copy_lines(1000, 0)[1:]]
        assert refused.startswith("data.path = wmt/table, split train: CSV is only read from a f")
        assert error.startswith("data.path = wmt/wmt61, split train: no such folder in ")
        assert "--set data.path=NEW" in error and "\n" not in error
    assert "; on the hub: Data" in online[2]
    for word in (NOTHING_LISTENS, "a local folder", "data.cache_dir"):
        assert word in offline[2]
