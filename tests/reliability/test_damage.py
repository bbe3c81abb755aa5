"""Damaged checkpoints: never loaded as good, always named."""

import os
import pickle
import re
import shutil
from pathlib import Path

import pytest
from conftest import refuses, replace_file, tiny_config

from transformer_mt.checkpoints.checkpoint import load_checkpoint
from transformer_mt.checkpoints.run_directory import list_checkpoints, load_newest
from transformer_mt.errors import CheckpointError
from transformer_mt.system.files import sha256
from transformer_mt.system.manifest import write_manifest
from transformer_mt.training.run import train

NAMES = [
    "config.json",
    "ema.safetensors",
    "manifest.json",
    "model.safetensors",
    "state.json",
    "training.safetensors",
    "vocab.model",
]


@pytest.fixture(scope="module")
def original(corpus_dir, tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("damage") / "run"
    train(tiny_config(corpus_dir, train__max_steps=15, train__ema_decay=0.9), run_dir)
    return run_dir


@pytest.fixture
def run_dir(original, tmp_path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


def flip(path: Path, place: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)


DAMAGE = {
    "first byte": lambda path: flip(path, 0),
    "middle byte": lambda path: flip(path, path.stat().st_size // 2),
    "last byte": lambda path: flip(path, -1),
    "empty": lambda path: path.write_bytes(b""),
    "without its end": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "missing": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}


WHOLE = [("manifest.json", damage) for damage in DAMAGE]
WHOLE += [("model.safetensors", damage) for damage in DAMAGE]
WHOLE += [(name, "last byte") for name in NAMES if (name, "last byte") not in WHOLE]


@pytest.mark.parametrize(("name", "damage"), WHOLE)
def test_a_damaged_file_is_named_and_passed_over(run_dir, caplog, name, damage):
    """Any damage to the manifest and the weights; a bit of every other file.

    Sabotage: leave a file out of the manifest; verify sizes instead of digests.
    """
    newest, before, _ = list_checkpoints(run_dir)
    assert sorted(path.name for path in newest.iterdir()) == NAMES
    DAMAGE[damage](newest / name)
    refuses(CheckpointError, name.replace(".", r"\."), load_checkpoint, newest)
    assert load_newest(run_dir).path == before
    assert len(caplog.messages) == 1 and str(newest / name) in caplog.messages[0]


def test_training_goes_on_from_the_one_before(corpus_dir, run_dir):
    """What is made again is as it had been. If none is good, training refuses and leaves all."""
    config = tiny_config(corpus_dir, train__max_steps=15, train__ema_decay=0.9)
    newest = list_checkpoints(run_dir)[0]
    digest = sha256(newest / "model.safetensors")
    flip(newest / "model.safetensors", -5)
    train(config, run_dir)
    assert sha256(newest / "model.safetensors") == digest and load_checkpoint(newest)
    for path in list_checkpoints(run_dir):
        flip(path / "model.safetensors", 100)
    left = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    refuses(CheckpointError, "no checkpoint can be used", train, config, run_dir)
    for path, raw in left.items():
        assert path.name == ".lock" or path.read_bytes() == raw


class Bomb:
    """Something that a pickle would execute."""

    def __reduce__(self):
        """Says what to call, and with what."""
        return (pytest.fail, ("a pickle was executed",))


PICKLE = pickle.dumps(Bomb())
UNSAFE = [
    *(("model.safetensors", raw) for raw in (PICKLE, b"{}", b"\xff" * 7 + b"\x7f{}")),
    ("model.safetensors", b'\x08\0\0\0\0\0\0\0{"a":{}}'),
    *(("config.json", raw) for raw in (PICKLE, b"[" * 100_000, b"1" * 5000, b"{}", b"null")),
    *(("state.json", raw) for raw in (PICKLE, b"[" * 100_000, b"1" * 5000)),
    *(("vocab.model", raw) for raw in (PICKLE, b"{}")),
]


@pytest.mark.parametrize(("name", "raw"), UNSAFE, ids=lambda value: str(value)[:20])
def test_a_genuine_manifest_makes_no_file_safe(run_dir, name, raw):
    """Nothing is executed or believed: it is refused, in our own words, and the file is named."""
    path = list_checkpoints(run_dir)[0]
    replace_file(path, name, raw)
    with pytest.raises(CheckpointError, match=f"^{re.escape(str(path / name))}: "):
        load_checkpoint(path).build_model(raw=True)


@pytest.mark.parametrize("name", ["../escape", "/etc/passwd", "a/b", "..", ""])
def test_a_path_that_climbs_out_is_refused(run_dir, name):
    """Only plain names of files beside the manifest."""
    path = list_checkpoints(run_dir)[0]
    write_manifest(path, {name: "0" * 64})
    refuses(CheckpointError, r"manifest\.json: names a file outside", load_checkpoint, path)
