"""The prepared corpus: what is dropped, when it is reused, and that it is complete or absent."""

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
from conftest import tiny_config, write_copy_corpus

from transformer_mt.errors import ConfigError, DataError
from transformer_mt.system.files import MANIFEST
from transformer_mt.text import prepared as prepared_module
from transformer_mt.text.prepared import _fingerprint, prepare
from transformer_mt.text.vocabulary import Vocabulary


@pytest.fixture
def folder(tmp_path) -> Path:
    """Gives a corpus of 300 pairs to copy."""
    write_copy_corpus(tmp_path / "corpus", {"train": 300, "validation": 5})
    return tmp_path / "corpus"


def prepared_names(folder: Path) -> list[str]:
    """Lists the prepared corpora, without their lock files."""
    paths = (folder.parent / "prepared").glob("*")
    return sorted(path.name for path in paths if not path.name.endswith(".lock"))


def test_nothing_left_is_an_error_with_the_counts(folder):
    """The message counts the dropped pairs by reason; no files remain."""
    for language in ("de", "en"):
        path = folder / f"train.{language}"
        path.write_text(path.read_text().replace("\n", " and more\n"))
    for changes, counts in (
        ({"data__drop_identical": True}, "300 identical sides"),
        ({"data__max_length": 1}, "300 over 1 pieces"),
    ):
        with pytest.raises(DataError, match=rf"left of 300 \({counts}\)"):
            prepare(tiny_config(folder, data__train="train", **changes))
    assert prepared_names(folder) == []


def test_a_corpus_is_made_again_only_for_keys_that_shape_it(folder, monkeypatch):
    """Or for other text, though size and time of its files are the same.

    Sabotage: leave `CLEANING_VERSION` out of the fingerprint; identify text by size and time.
    """
    first = prepare(tiny_config(folder))
    for changes in (
        {"data__train": "train[:200]"},
        {"data__max_length": 9},
        {"data__drop_duplicates": True},
        {"data__src_lang": "en", "data__tgt_lang": "de"},
        {"vocab__size": 289},
        {"vocab__kind": "char"},
    ):
        assert prepare(tiny_config(folder, **changes)).path != first.path
    assert len(prepared_names(folder)) == 7
    with monkeypatch.context() as patch:
        patch.setattr(prepared_module, "CLEANING_VERSION", prepared_module.CLEANING_VERSION + 1)
        other_rules = prepare(tiny_config(folder))
    assert other_rules.path != first.path and other_rules.digest == first.digest
    path = folder / "train.en"
    times, raw = path.stat(), path.read_bytes()
    path.write_bytes((b"z" if raw[:1] != b"z" else b"y") + raw[1:])
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert prepare(tiny_config(folder)).digest != first.digest
    path.write_bytes(raw)
    monkeypatch.setattr(prepared_module, "_write_prepared", None)
    others = {"model__d_ff": 64, "train__seed": 5, "vocab__sampling": 0.1}
    assert prepare(tiny_config(folder, **others)).path == first.path


def test_a_run_keeps_its_own_vocabulary(folder, tmp_path):
    """If it equals the learned one, that corpus is used; `vocab.path` may have gone or moved.

    Sabotage: use the run's vocabulary without comparing; leave one of two out of the fingerprint.
    """
    first, other = prepare(tiny_config(folder)), prepare(tiny_config(folder, vocab__size=289))
    assert prepare(tiny_config(folder), first.vocab).path == first.path
    mixed = prepare(tiny_config(folder), other.vocab)
    assert mixed.vocab.src_model == other.vocab.src_model
    assert mixed.digest == other.digest and mixed.path not in (first.path, other.path)
    assert prepare(tiny_config(folder), other.vocab).path == mixed.path
    two = [corpus.vocab.src_model for corpus in (first, other)]
    names = {
        _fingerprint(tiny_config(folder), "", Vocabulary(*sides)) for sides in product(two, two)
    }
    assert len(names) == 4
    for same in (first.path / "vocab.model", tmp_path / "missing.model"):
        config = tiny_config(folder, vocab__path=str(same))
        assert prepare(config, first.vocab).digest == first.digest
    config = tiny_config(folder, vocab__path=str(other.path / "vocab.model"))
    with pytest.raises(ConfigError, match=r"vocab.path = .*: this is not the vocabulary of the"):
        prepare(config, first.vocab)
    assert prepare(config).digest == other.digest


@pytest.mark.parametrize(
    ("step", "change"),
    [
        ("_clean", slice(None, None, -1)),
        ("train_vocabulary", slice(299)),
        ("train_vocabulary", slice(301)),
        ("train_vocabulary", slice(None, None, -1)),
        ("_write_ids", slice(None, None, -1)),
    ],
)
def test_text_that_changes_meanwhile_is_refused(folder, monkeypatch, step, change):
    """Before or between the readings, with a vocabulary that is given too; nothing is mixed.

    Sabotage: do not compare the digests; compare one that is computed before the first reading.
    """
    vocab = prepare(tiny_config(folder, vocab__size=289)).vocab if step == "_write_ids" else None
    names, function = prepared_names(folder), getattr(prepared_module, step)

    def change_first(*arguments, **options):
        for language in ("de", "en"):
            path = folder / f"train.{language}"
            lines = path.read_text().splitlines(keepends=True)
            path.write_text("".join([*lines, lines[0]][change]))
        return function(*arguments, **options)

    monkeypatch.setattr(prepared_module, step, change_first)
    with pytest.raises(DataError, match=f"^data.path = {folder}: the text changed while it was"):
        prepare(tiny_config(folder), vocab)
    assert prepared_names(folder) == names


def test_a_scratch_folder(folder, tmp_path):
    """A dry run leaves no files in `data.prepared_dir`, and uses a corpus that is there."""
    scratch = prepare(tiny_config(folder), scratch=tmp_path / "scratch")
    assert prepared_names(folder) == [] and scratch.path.parent == tmp_path / "scratch"
    first = prepare(tiny_config(folder))
    assert prepare(tiny_config(folder), scratch=tmp_path / "scratch").path == first.path


def test_two_at_once_make_one(folder, monkeypatch):
    """The second waits for the first and uses its corpus.

    Sabotage: do not look again whether it exists once the lock is held.
    """
    written, write = [], prepared_module._write_prepared

    def recording(*arguments):
        time.sleep(0.2)
        written.append(arguments)
        write(*arguments)

    monkeypatch.setattr(prepared_module, "_write_prepared", recording)
    with ThreadPoolExecutor(3) as threads:
        corpora = list(threads.map(prepare, [tiny_config(folder)] * 3))
    assert len({corpus.path for corpus in corpora}) == len(prepared_names(folder)) == 1
    assert len(written) == 1


@pytest.mark.parametrize("damage", ["cut", "missing", "other bytes"])
@pytest.mark.parametrize(
    "name", ["report.json", "src.ids", "tgt.ids", "tgt.offsets.npy", "vocab.model", MANIFEST]
)
def test_a_damaged_corpus_is_named(folder, name, damage):
    """The message names the folder to delete; it is not used in part.

    Sabotage: believe the recorded digest of the ids; verify no vocabulary or report.
    """
    config = tiny_config(folder)
    path = prepare(config).path
    raw = (path / name).read_bytes()
    if damage == "missing":
        (path / name).unlink()
    elif damage == "cut":
        (path / name).write_bytes(raw[:-8])
    else:
        zero = b"0" if name.endswith(".json") else b"\0"
        (path / name).write_bytes(raw[:-8] + zero * 8)
    with pytest.raises(DataError, match=rf"^{path}: damaged \(.*\); delete this folder to have it"):
        prepare(config)
    shutil.rmtree(path)
    assert (prepare(config).path / name).read_bytes() == raw


def test_chunks_change_nothing(folder, monkeypatch, tmp_path):
    """Encoded seven pairs at a time, ids, offsets and counts are the same.

    Sabotage: count the unknown pieces of the last chunk alone.
    """
    few = {"vocab__kind": "char", "vocab__size": 20}
    whole = prepare(tiny_config(folder, **few))
    monkeypatch.setattr(prepared_module, "_PAIRS_PER_CHUNK", 7)
    elsewhere = str(tmp_path / "deep" / "other")
    parts = prepare(tiny_config(folder, data__prepared_dir=elsewhere, **few))
    assert parts.path.name == whole.path.name
    for name in ("src.ids", "tgt.ids", "src.offsets.npy", "tgt.offsets.npy"):
        assert (parts.path / name).read_bytes() == (whole.path / name).read_bytes()
    # The digest is that of the chunks.
    chunks = {"digest": whole.digest, "chunks": whole.report["chunks"]}
    assert {**parts.report, **chunks} == whole.report and len(parts.report["chunks"]) > 40
    assert whole.report["unknown"] > 0
