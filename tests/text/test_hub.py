"""Loading from the hub, through the real client, against a hub on loopback."""

import io
import os
import socket
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import command, copy_lines, tiny_values, write_toml
from fake_hub import FakeHub, serve

from transformer_mt.checkpoints.run_directory import list_checkpoints

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


def downloads(hub: FakeHub) -> int:
    return sum(request.startswith("GET") and "train-" in request for request in hub.requests)


def test_a_hub_that_works_and_then_none(config):
    """The corpus is downloaded once; then it trains from the cache, hub or no hub."""
    with serve(wmt16()) as hub:
        assert_trained(config, train(config, hub.url))
        assert downloads(hub) == 1
    began = time.monotonic()
    assert_trained(config, train(config, closed_port(), "again"), "again")
    assert_trained(config, train(config, closed_port(), "offline", HF_HUB_OFFLINE="1"), "offline")
    assert time.monotonic() - began < 40
    if subprocess.run([*NO_NETWORK, "true"], capture_output=True).returncode:
        pytest.skip("this machine does not let a process do without its network")
    done = train(config, "https://huggingface.co", "cut", NO_NETWORK)
    assert_trained(config, done, "cut")


@pytest.mark.parametrize("faults", [{"busy": 2}, {"broken": 1}])
def test_a_hub_that_works_badly(config, faults):
    """Two answers of 503, or a download that ends in the middle, cost only time."""
    with serve(wmt16(), **faults) as hub:
        assert_trained(config, train(config, hub.url))
        name = next(name for name in hub.files if "train" in name)
        assert hub.busy[name] == hub.broken[name] == 0
        assert downloads(hub) == (2 if "broken" in faults else 1)


def test_a_corpus_the_hub_has_not(config):
    """The id is named."""
    with serve({}) as hub:
        config.write_text(config.read_text().replace("wmt/wmt16", "wmt/wmt61"))
        done = train(config, hub.url)
    assert done.returncode == 2 and done.stdout == ""
    assert "wmt/wmt61" in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


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
