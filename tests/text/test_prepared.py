"""The prepared corpus: its content, when it is reused, and that it is complete or absent."""

import logging
import os
import shutil
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from conftest import copy_lines, file_size_limit, peak_memory, refuses, tiny_config, write_pairs

from transformer_mt.config.keys import VocabConfig
from transformer_mt.errors import ConfigError, DataError, OutputError
from transformer_mt.system.files import sha256
from transformer_mt.system.manifest import MANIFEST, read_manifest, write_manifest
from transformer_mt.text import prepared as prepared_module
from transformer_mt.text.batching import EncodedLines, EncodedPairs, flatten
from transformer_mt.text.corpus import RawPairs
from transformer_mt.text.prepared import _count_common, _fingerprint, prepare, warn_of_trained_pairs
from transformer_mt.text.vocabulary import UNK_ID, Vocabulary, train_vocabulary


@pytest.fixture
def folder(tmp_path) -> Path:
    """Gives a corpus of 300 pairs to copy."""
    write_pairs(tmp_path / "corpus", "train", [(line, line) for line in copy_lines(300, 0)])
    return tmp_path / "corpus"


def prepared_names(folder: Path) -> list[str]:
    """Lists the prepared corpora, without their lock files."""
    paths = (folder.parent / "prepared").glob("*")
    return sorted(path.name for path in paths if not path.name.endswith(".lock"))


def test_nothing_left_is_an_error_with_the_counts(folder):
    for path in folder.iterdir():
        path.write_text(path.read_text().replace("\n", " and more\n"))
    (folder / "empty.jsonl").touch()
    for key, value, message in (
        ("data__drop_identical", True, r"left of 300 \(300 identical sides\)"),
        ("data__max_length", 1, r"left of 300 \(300 over 1 pieces\)"),
        ("data__train", "empty.jsonl", "^data.train = empty.jsonl: contains no pairs$"),
    ):
        refuses(DataError, message, prepare, tiny_config(folder, **{key: value}))
    assert prepared_names(folder) == []


def test_a_corpus_is_made_again_only_for_keys_that_shape_it(folder, monkeypatch):
    """Or for other text, though size and time of its files are the same."""
    first = prepare(tiny_config(folder))
    changes = {"data__train": "train[:200]", "data__max_length": 9, "data__drop_duplicates": True}
    changes |= {"vocab__size": 289, "vocab__kind": "char"}
    for key, value in changes.items():
        prepare(tiny_config(folder, **{key: value}))
    prepare(tiny_config(folder, data__src_lang="en", data__tgt_lang="de"))
    assert len(prepared_names(folder)) == 7
    for version in ("CLEANING_VERSION", "FORMAT"):
        with monkeypatch.context() as patch:
            patch.setattr(prepared_module, version, 0)
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
    """If it equals the learned one, that corpus is used; `vocab.path` may have gone or moved."""
    first, other = prepare(tiny_config(folder)), prepare(tiny_config(folder, vocab__size=289))
    assert prepare(tiny_config(folder), first.vocab).path == first.path
    mixed = prepare(tiny_config(folder), other.vocab)
    assert mixed.vocab.src_model == other.vocab.src_model
    assert mixed.digest == other.digest and mixed.path not in (first.path, other.path)
    assert prepare(tiny_config(folder), other.vocab).path == mixed.path
    two = [corpus.vocab.src_model for corpus in (first, other)]
    each = [Vocabulary(*sides) for sides in product(two, two)]
    assert len({_fingerprint(tiny_config(folder), "", vocab) for vocab in each}) == 4
    for same in (first.path / "vocab.model", tmp_path / "missing.model"):
        config = tiny_config(folder, vocab__path=str(same))
        assert prepare(config, first.vocab).digest == first.digest
    config = tiny_config(folder, vocab__path=str(other.path / "vocab.model"))
    message = "vocab.path = .*: this is not the vocabulary of the"
    refuses(ConfigError, message, prepare, config, first.vocab)
    assert prepare(config).digest == other.digest
    two = VocabConfig(kind="char", size=30, shared=False)
    train_vocabulary([Counter("ab"), Counter("cd")], two).save(tmp_path)
    config, message = tiny_config(folder, vocab__path=str(tmp_path)), "this is two vocabularies; "
    refuses(ConfigError, f"^vocab.path = {tmp_path}: {message}", prepare, config)


@pytest.mark.parametrize("step", ["clean_split", "train_vocabulary", "_write_ids"])
def test_text_that_changes_meanwhile_is_refused(folder, monkeypatch, step):
    """Before or between the readings, with a vocabulary that is given too; nothing is mixed."""
    vocab = prepare(tiny_config(folder, vocab__size=289)).vocab if step == "_write_ids" else None
    names, function = prepared_names(folder), getattr(prepared_module, step)
    change = slice(299) if step == "train_vocabulary" else slice(None, None, -1)

    def change_first(*arguments, **options):
        for path in folder.iterdir():
            lines = path.read_text().splitlines(keepends=True)
            path.write_text("".join([*lines, lines[0]][change]))
        return function(*arguments, **options)

    monkeypatch.setattr(prepared_module, step, change_first)
    message = f"^data.path = {folder}: the text changed while it was"
    refuses(DataError, message, prepare, tiny_config(folder), vocab)
    assert prepared_names(folder) == names


def test_a_scratch_folder(folder, tmp_path, monkeypatch):
    """A dry run leaves no files in `data.prepared_dir`, and uses a corpus that is there.

    One that cannot be written is named, or the key and the absolute path; text has other errors.
    """
    scratch = prepare(tiny_config(folder), scratch=tmp_path / "scratch")
    assert prepared_names(folder) == [] and scratch.path.parent == tmp_path / "scratch"
    first = prepare(tiny_config(folder))
    assert prepare(tiny_config(folder), scratch=tmp_path / "scratch").path == first.path

    (tmp_path / "taken").touch()
    monkeypatch.chdir(tmp_path)
    config, taken = tiny_config(folder, data__prepared_dir="taken/x"), tmp_path / "taken/x"
    reason = f"{taken}: cannot be written: Not a directory$"
    refuses(OutputError, f"^data.prepared_dir = taken/x: {reason}", prepare, config)
    refuses(OutputError, f"^{reason}", prepare, config, scratch=taken)


def test_a_full_disk_is_named(folder):
    """Also when it is full at the offsets. Sabotage: let NumPy write them to the file."""
    config = tiny_config(folder)
    vocab = prepare(config).vocab
    write_pairs(folder, "train", [("a", "a")] * 3_000)
    with file_size_limit(16_000):
        refuses(OutputError, "cannot be written: File too large$", prepare, config, vocab)


def test_two_at_once_make_one(folder, monkeypatch, caplog):
    """Sabotage: hold no lock."""
    caplog.set_level(logging.INFO)
    written, write = [], prepared_module._write_prepared

    def recording(*arguments):
        until = time.monotonic() + 60
        while caplog.text.count("waiting for it") < 2 and time.monotonic() < until:
            time.sleep(0.01)
        written.append(arguments)
        write(*arguments)

    monkeypatch.setattr(prepared_module, "_write_prepared", recording)
    with ThreadPoolExecutor(3) as threads:
        corpora = list(threads.map(prepare, [tiny_config(folder)] * 3))
    assert len({each.path for each in corpora}) == len(prepared_names(folder)) == len(written) == 1
    assert caplog.text.count("is preparing the same corpus; waiting for it") == 2


@pytest.mark.parametrize("name", ["report.json", "tgt.ids", "tgt.offsets.npy", MANIFEST])
@pytest.mark.parametrize("damage", ["missing", "cut", "other bytes"])
def test_a_damaged_corpus_is_named(folder, name, damage):
    """When it is loaded, and when training asks again."""
    config = tiny_config(folder)
    loaded = prepare(config)
    path = loaded.path
    raw = (path / name).read_bytes()
    if damage == "missing":
        (path / name).unlink()
    else:
        (path / name).write_bytes(raw[:-8] + b"\0" * 8 * (damage == "other bytes"))
    message = rf"^{path}: damaged \(.*\); delete this folder to have it made again"
    refuses(DataError, message, prepare, config)
    refuses(DataError, message, loaded.require_unchanged)
    shutil.rmtree(path)
    loaded.require_unchanged()  # what is mapped stays
    assert (prepare(config).path / name).read_bytes() == raw


def test_ids_of_another_type_are_refused(folder):
    """NumPy would take their bytes for addresses. Sabotage: map what the report says."""
    config = tiny_config(folder)
    path = prepare(config).path
    report = (path / "report.json").read_text()
    (path / "report.json").write_text(report.replace('"uint16"', '"O"'))
    write_manifest(path, {**read_manifest(path), "report.json": sha256(path / "report.json")})
    refuses(DataError, "damaged .*dtype: Input should be 'uint16' or 'int32'", prepare, config)


def test_chunks_change_nothing(folder, monkeypatch, tmp_path):
    few = {"vocab__kind": "char", "vocab__size": 20}
    whole = prepare(tiny_config(folder, **few))
    monkeypatch.setattr(prepared_module, "_PAIRS_PER_CHUNK", 7)
    parts = prepare(tiny_config(folder, data__prepared_dir=str(tmp_path / "deep/other"), **few))
    assert parts.path.name == whole.path.name
    for name in ("src.ids", "tgt.ids", "src.offsets.npy", "tgt.offsets.npy"):
        assert (parts.path / name).read_bytes() == (whole.path / name).read_bytes()
    assert (parts.digest, parts.report) == (whole.digest, whole.report)
    assert all(whole.report.unknown.values())


def test_characters_that_become_bytes_are_counted_as_unknown(folder, caplog, prepared):
    """On the side that has them, at each start. Sabotage: count unknown pieces alone; tell once."""
    write_pairs(folder, "train", [("ab", "ดี"), ("cd", "ขาว a")])
    caplog.set_level(logging.INFO)
    corpus = prepare(tiny_config(folder), prepared.vocab)
    assert corpus.report.unknown == {"source": 0, "target": 3 * 5}
    assert " 15 unknown or single bytes, " in caplog.messages[-2]
    share = 15 / len(corpus.pairs.tgt.ids)
    assert caplog.messages[-1].startswith(f"{share:.1%} of the target pieces are unknown or single")
    for vocab in (None, None, prepared.vocab):  # of one that is learned, too
        prepare(tiny_config(folder, vocab__kind="char", vocab__max_words=1), vocab)
    assert caplog.text.count(" pieces are unknown or single bytes: raise vocab.size") == 2 + 2 * 2


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    ("changes", "pairs", "dropped"),
    [
        # A source may have two translations, and a translation two sources.
        (
            {"drop_duplicates": True},
            [("a b", "x"), ("a b", "y"), ("a c", "x"), ("a b", "x"), ("a", "b x"), ("a b", "x")],
            {3: "duplicate", 5: "duplicate"},
        ),
        # SentencePiece's own mark of a space is text, but holds no piece.
        ({}, [("a", "a"), ("a", "a"), ("  ", "c"), ("▁", "a")], {2: "empty", 3: "empty"}),
        (
            {"max_length": 6, "max_length_ratio": 2.0},
            [("ab", "abcde"), ("ab", "abcdef"), ("a", "abcd"), ("abc", "abc")],
            {1: "over 6 pieces", 2: "length ratio over 2"},
        ),
    ],
)
def test_which_pairs_are_dropped(folder, swapped, changes, pairs, dropped):
    """By hand, one piece per character: those kept are stored in order, the others counted."""
    pairs = [pair[::-1] for pair in pairs] if swapped else pairs
    write_pairs(folder, "train", pairs)
    values = {f"data__{key}": value for key, value in changes.items()}
    prepared = prepare(tiny_config(folder, vocab__kind="char", **values))
    assert prepared.report.dropped == dict(Counter(dropped.values()))
    kept = [pair for i, pair in enumerate(pairs) if i not in dropped]
    src, tgt = (prepared.vocab.src.encode([pair[side] for pair in kept]) for side in (0, 1))
    assert [line.tolist() for line in prepared.pairs.src] == src
    assert [line.tolist() for line in prepared.pairs.tgt] == tgt
    assert prepared.report.longest == max(map(len, src + tgt))
    assert (prepared.report.pairs, prepared.report.kept) == (len(pairs), len(kept))


def test_pairs_that_are_trained_on_are_counted(folder, caplog, prepared):
    """Whole pairs; those of which a side differs, or the pieces have another order, do not count.

    Sabotage: compare sources alone, or only the sums of ids; take all unknown words for the same.
    """
    write_pairs(folder, "train", [("ab cd", "ef"), ("ab", "g h"), ("ab", "g h"), ("d", "ij")])
    corpus = prepare(tiny_config(folder), prepared.vocab)
    others = [("ab cd", "ij"), ("cd ab", "ef"), ("", "ef"), ("ab cd", ""), ("", "ab " * 9_999)]
    new = [(f"{line} {line}", line) for line in "abcdefghij" * 20]
    texts = RawPairs(*map(list, zip(("ab", "g h"), ("d ", "ij"), *others, *new, strict=True)))
    warn_of_trained_pairs("it", texts, corpus)
    warn_of_trained_pairs("it", RawPairs(texts.src[:1], texts.tgt[:1]), corpus)
    assert not caplog.messages  # two of 207, and a single one
    warn_of_trained_pairs("it", RawPairs(texts.src[:199], texts.tgt[:199]), corpus)
    assert caplog.messages[0].startswith("it: 2 of 199 pairs are also training pairs, so ")
    unknown = EncodedPairs(flatten([[UNK_ID, 9]]), flatten([[8]]))  # maybe of other words
    assert _count_common(unknown, unknown) == 0


def test_to_count_trained_pairs_takes_little_memory():
    """Sabotage: sum the ids of all lines at once; leave out the last line of a chunk."""
    ids, counts = np.arange(4_000_000, dtype=np.int32) + 2, np.full(100_000, 40)
    trained = EncodedPairs(EncodedLines.cut(ids, counts), EncodedLines.cut(ids, counts))
    first_and_last = np.r_[:9, 99_991:100_000]
    few = EncodedPairs(*(side.take(first_and_last) for side in (trained.src, trained.tgt)))
    assert _count_common(few, trained) == 18
    assert peak_memory(_count_common, few, trained) < 8 * len(ids)


def test_targets_with_a_symbol_are_refused(folder, caplog):
    """Search never writes one. In sources, and in pairs that are dropped, it may stand."""
    config = tiny_config(folder, vocab__symbols=["<url>", "<x>"], vocab__kind="char")
    pairs = [("<url> a", "b"), ("", "<url> c@@"), ("c@@ c", "d"), ("e <x>", "f@@")]
    write_pairs(folder, "train", pairs)
    assert prepare(config).report.kept == 3
    assert "data.train = train: 2 pairs are cut into pieces with @@" in caplog.text
    names, message = prepared_names(folder), "^vocab.symbols: 2 training targets have a symbol, but"
    write_pairs(folder, "train", [*pairs, ("a", "<url>"), ("a", "see b<x>, <url>.")])
    refuses(DataError, message, prepare, config)
    assert prepared_names(folder) == names
    assert prepare(tiny_config(folder, vocab__kind="char")).report.kept == 5
    vocab = train_vocabulary([Counter(["ab"])], config.vocab)
    prepare(tiny_config(folder), vocab)
    refuses(DataError, message, prepare, config, vocab)  # not the corpus without symbols


def test_the_report_by_hand(folder, caplog):
    """Over both sides of what is kept; the vocabulary lacks the letter q."""
    write_pairs(folder, "train", [("ab", "abc de"), ("a b", "c d e"), ("e", "a"), ("f g h", "f")])
    caplog.set_level(logging.INFO)
    first = prepare(tiny_config(folder, vocab__kind="char"))
    assert caplog.messages[0] == "learning 292 pieces from 11 distinct words"
    pairs = [("ab", "abc qe"), ("a b", "c q eq ab"), ("e", "qaa"), ("", "f g h")]
    write_pairs(folder, "train", pairs)
    prepared = prepare(tiny_config(folder, vocab__kind="char"), first.vocab)
    report = prepared.report
    assert (report.pairs, report.kept, report.dropped) == (4, 3, {"empty": 1})
    assert report.unknown == {"source": 0, "target": 4}
    assert report.longest == 10  # c q eq ab, each word with a piece before it
    # Sources of 3 + 4 + 2 pieces and 1 + 2 + 1 words, targets of 7 + 10 + 4 and 2 + 4 + 1.
    assert report.pieces_per_word == round(30 / 11, 3)
    assert first.summary == "4 training pairs of 4 (dropped: none)"
    assert caplog.messages[-3] == prepared.summary == "3 training pairs of 4 (dropped: 1 empty)"
    summary = "2.727 pieces per word, 4 unknown or single bytes, longest 10 pieces"
    assert caplog.messages[-2] == summary
    assert caplog.messages[-1] == (
        "19.0% of the target pieces are unknown or single bytes: raise vocab.size; if vocab.path or"
        " train.init_from is set, leave it out to learn a vocabulary from this text"
    )
    assert prepared.pairs.lengths.tolist() == [[4, 5, 3], [8, 11, 5]]
    shorter = prepare(tiny_config(folder, vocab__kind="char", data__max_length=7), first.vocab)
    # Without the pair of 4 + 10 pieces and 2 + 4 words.
    assert shorter.report.pieces_per_word == round(16 / 5, 3)


def test_the_digest_depends_on_ids_and_lines(folder):
    long, short, digests = ("a a", "b"), ("a", "b"), set()
    vocab = train_vocabulary([Counter("ab")], VocabConfig(kind="char"))
    for pairs in ([long, short], [short, long], [long[::-1], short[::-1]]):
        write_pairs(folder, "train", pairs)
        digests.add(prepare(tiny_config(folder, vocab__kind="char"), vocab).digest)
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("src", "tgt", "dtype"),
    [(65_536, 300, "uint16"), (300, 65_537, "int32"), (65_537, 300, "int32")],
)
def test_ids_are_as_narrow_as_the_vocabulary_allows(folder, src, tgt, dtype):
    """Two bytes hold 65,536 different ids; the larger vocabulary decides for both sides."""
    vocab = train_vocabulary([Counter("ab"), Counter("cd")], VocabConfig(kind="char", size=300))
    vocab.src.size, vocab.tgt.size = src, tgt
    prepared = prepare(tiny_config(folder, vocab__kind="char"), vocab)
    assert prepared.report.dtype == dtype and isinstance(prepared.pairs.src.ids, np.memmap)
    assert prepared.pairs.src.ids.dtype == prepared.pairs.tgt.ids.dtype == np.dtype(dtype)


def test_each_language_has_its_own_vocabulary_or_both_one(folder):
    """Learned from its own side, without dropped pairs; a shared one from both."""
    write_pairs(folder, "train", [("ab ab", "cd"), ("ba", "dc"), ("xyz", "")])
    two = {"vocab__shared": False, "model__tie_embeddings": False}
    vocab = prepare(tiny_config(folder, vocab__kind="char", **two)).vocab
    sides = vocab.src.pieces(range(vocab.src.size)), vocab.tgt.pieces(range(vocab.tgt.size))
    assert [set(side[4:]) for side in sides] == [{"▁", "a", "b"}, {"▁", "c", "d"}]
    shared = prepare(tiny_config(folder, vocab__kind="char")).vocab
    assert shared.shared and set(shared.src.pieces(range(4, shared.src.size))) == set("▁abcd")


def test_a_weight_repeats_what_cleaning_keeps(folder):
    """As if the entry were listed as often, but duplicates are dropped first."""
    write_pairs(folder, "train", [("ab ab", "cd. Ef"), ("ab", "cd"), ("", "x")])
    write_pairs(folder, "more", [("ba", "dc")])
    more = {"src": "more.en", "tgt": "more.de"}
    listed = ["train", "train", "more", "more", "more"]
    weighted = [{"name": "train", "weight": 2}, {**more, "weight": 3}]
    kinds = {"vocab__kind": "char", "data__src_lang": "en", "data__tgt_lang": "de"}
    expected = prepare(tiny_config(folder, data__train=listed, **kinds))
    strict = {**kinds, "data__drop_duplicates": True}
    prepared = prepare(tiny_config(folder, data__train=weighted, **strict))
    assert prepared.summary == "3 training pairs of 4 (dropped: 1 empty), 7 per epoch"
    assert prepared.vocab.has_same_ids(expected.vocab)
    for side in ("src", "tgt"):
        texts = [getattr(corpus.pairs, side) for corpus in (prepared, expected)]
        rows, listed_rows = (sorted(row.tolist() for row in text) for text in texts)
        assert rows == listed_rows and len(rows) == 7
    for key in ("pieces", "pieces_per_word", "unknown", "longest", "sources"):
        assert getattr(prepared.report, key) == getattr(expected.report, key)
    assert prepared.sources.several_sentences == 2 / 7
    other = prepare(tiny_config(folder, data__train=[weighted[0], more], **strict))
    assert other.path != prepared.path and other.digest != prepared.digest
    for wrong in (0, 1001, 1.5):
        splits, message = [{**more, "weight": wrong}], r"data.train\[0\].weight = .* should be"
        refuses(ConfigError, message, tiny_config, folder, data__train=splits)


def test_lines_without_words_whose_translation_differs_are_counted(folder):
    """By weight; white space is no difference. So a model knows whether to copy such lines."""
    for symbols in ([], ["<2fr>"]):
        first = " ".join([*symbols, "1,5"]), "1.5"
        write_pairs(folder, "numbers", [first, ("2  3", "2 3"), ("4", "4"), ("ab", "cd")])
        values = {"vocab__kind": "char", "vocab__symbols": symbols}
        train = ["train[:1]", {"name": "numbers", "weight": 2}]
        prepared = prepare(tiny_config(folder, data__train=train, **values))
        assert prepared.sources.changed_wordless == 2 / 9
