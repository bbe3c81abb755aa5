"""Loading from the hub, through the real client, against a hub on loopback."""

import io
import os
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import command, copy_lines, tiny_values, write_toml
from fake_hub import FakeHub, serve
from huggingface_hub import constants

from transformer_mt.checkpoints.run_directory import list_checkpoints
from transformer_mt.config.keys import DataConfig
from transformer_mt.errors import DataError
from transformer_mt.text import hub

NO_NETWORK = ("unshare", "--map-root-user", "--net")


def parquet(lines: list[str]) -> bytes:
    """Packs lines as the hub's wmt16 does, each its own translation."""
    buffer = io.BytesIO()
    rows = [{"translation": {"de": line, "en": line}} for line in lines]
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def wmt16() -> dict[str, bytes]:
    """Gives the files of a small `wmt/wmt16`."""
    sizes = {"train": 1000, "validation": 30, "test": 30}
    readme = ["---", "configs:", "- config_name: de-en", "  data_files:"]
    files = {}
    for seed, (split, count) in enumerate(sizes.items()):
        readme += [f"  - split: {split}", f"    path: de-en/{split}-*"]
        files[f"de-en/{split}-00000-of-00001.parquet"] = parquet(copy_lines(count, seed))
    return {"README.md": "\n".join([*readme, "---", ""]).encode(), **files}


@pytest.fixture
def config(tmp_path) -> Path:
    """Gives a configuration that names the hub's corpus and trains two steps."""
    values = tiny_values(tmp_path, data__path="wmt/wmt16", train__max_steps=2)
    folders = {f"{name}_dir": str(tmp_path / name) for name in ("cache", "prepared")}
    values["data"] |= {"name": "de-en", **folders}
    return write_toml(tmp_path / "tiny.toml", values)


def train(config: Path, endpoint: str, run: str = "run", prefix: tuple[str, ...] = (), **variables):
    """Trains with everything of the hub below the configuration's folder."""
    folder = config.parent
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "home")}
    environment.pop("HF_HUB_OFFLINE", None)
    return subprocess.run(
        [*prefix, *command("train", config, "--run", folder / run)],
        capture_output=True,
        text=True,
        env={**environment, **variables},
        timeout=120,
    )


def assert_trained(config: Path, done: subprocess.CompletedProcess[str], run: str = "run") -> None:
    assert done.returncode == 0, done.stderr
    assert "1000 training pairs of 1000" in done.stderr
    assert [path.name for path in list_checkpoints(config.parent / run)] == ["step-00000002"]


def closed_port() -> str:
    """Gives an endpoint where nothing listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


def downloads(fake_hub: FakeHub) -> int:
    return sum(r.startswith("GET") and "train-" in r for r in fake_hub.requests)


def test_an_answer_of_any_kind_is_a_hub(monkeypatch):
    """An error page too. Sabotage: take an HTTP error for a missing network."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with serve({}) as fake_hub:
        assert hub._why_offline(fake_hub.url) == ""
        assert hub._why_offline(f"{fake_hub.url}/api/datasets/wmt/wmt16") == ""
        assert len(fake_hub.requests) == 2
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert hub._why_offline(fake_hub.url) == "HF_HUB_OFFLINE is set"
        assert len(fake_hub.requests) == 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (urllib.error.URLError(ssl.SSLError("unknown certificate")), ""),
        (ssl.SSLError("unknown certificate"), ""),
        (urllib.error.URLError(OSError("no route")), "http://hub is unreachable (no route)"),
        (TimeoutError("timed out"), "http://hub is unreachable (timed out)"),
    ],
)
def test_why_a_hub_is_not_used(monkeypatch, error, reason):
    """Certificates that Python does not know may be known to the hub's client."""

    def fail(request, timeout):
        raise error

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(urllib.request, "urlopen", fail)
    assert hub._why_offline("http://hub") == reason


@pytest.mark.parametrize("src", ["de", "en"])
def test_the_hubs_own_type_for_translations(src):
    """It lists its languages, unlike a plain struct; missing values are empty."""
    tgt = {"de": "en", "en": "de"}[src]
    rows = [{"de": " eins ", "en": "one"}, {"de": None, "en": "two"}, {"de": "drei", "en": None}]
    features = datasets.Features({"translation": datasets.Translation(languages=["de", "en"])})
    dataset = datasets.Dataset.from_dict({"translation": rows}, features=features)
    pairs = list(hub.read_pairs(dataset, DataConfig(path="hub", src_lang=src, tgt_lang=tgt)))
    sides = {"de": ["eins", "", "drei"], "en": ["one", "two", ""]}
    assert pairs == list(zip(sides[src], sides[tgt], strict=True))
    for key, languages in (("src_lang", ("fr", "en")), ("tgt_lang", ("de", "fr"))):
        config = DataConfig(path="hub", src_lang=languages[0], tgt_lang=languages[1])
        with pytest.raises(DataError, match=f"data.{key} = fr: hub has de, en"):
            next(hub.read_pairs(dataset, config))


def test_a_hub_that_works_and_then_none(config):
    """The corpus is downloaded once; then it trains from the cache, hub or no hub."""
    with serve(wmt16()) as fake_hub:
        assert_trained(config, train(config, fake_hub.url))
        assert downloads(fake_hub) == 1
    began = time.monotonic()
    assert_trained(config, train(config, closed_port(), "again"), "again")
    assert_trained(config, train(config, closed_port(), "offline", HF_HUB_OFFLINE="1"), "offline")
    assert time.monotonic() - began < 120  # each retry of the client would take a minute
    if subprocess.run([*NO_NETWORK, "true"], capture_output=True).returncode:
        pytest.skip("this machine does not let a process do without its network")
    done = train(config, "https://huggingface.co", "cut", NO_NETWORK)
    assert_trained(config, done, "cut")


@pytest.mark.parametrize("faults", [{"busy": 2}, {"broken": 1}])
def test_a_hub_that_works_badly(config, faults):
    """Two answers of 503, or a download that ends in the middle, cost only time."""
    with serve(wmt16(), **faults) as fake_hub:
        assert_trained(config, train(config, fake_hub.url))
        name = next(name for name in fake_hub.files if "train" in name)
        assert fake_hub.busy[name] == fake_hub.broken[name] == 0
        assert downloads(fake_hub) == (2 if "broken" in faults else 1)


def test_a_corpus_the_hub_has_not(config):
    """The id is named, then the folders that were looked in, then what the hub answers."""
    with serve({}) as fake_hub:
        config.write_text(config.read_text().replace("wmt/wmt16", "wmt/wmt61"))
        done = train(config, fake_hub.url)
    assert done.returncode == 2 and done.stdout == ""
    assert "wmt/wmt61" in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr
    assert f"no such folder in {config.parent} or {Path.cwd()}; on the hub: Data" in done.stderr
    assert "--set data.path=NEW" in done.stderr


@pytest.mark.parametrize("offline", [False, True])
def test_no_hub_and_no_cache(config, offline):
    """It is said within seconds, with the ways to work without it."""
    variables = {"HF_HUB_OFFLINE": "1"} if offline else {}
    endpoint, began = closed_port(), time.monotonic()
    done = train(config, endpoint, **variables)
    assert time.monotonic() - began < 15
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    for word in ("wmt/wmt16", "a local folder", "data.cache_dir"):
        assert word in done.stderr
    assert ("HF_HUB_OFFLINE" if offline else endpoint) in done.stderr
    assert not (config.parent / "run").exists()
