"""The text that translations are scored against."""

import tarfile
from http.client import HTTPException
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import copy_lines, refuses, tiny_config, write_lines
from sacrebleu.dataset import DATASETS
from sacrebleu.utils import SACREBLEU_DIR

from transformer_mt.config.keys import DataConfig
from transformer_mt.errors import DataError
from transformer_mt.text import test_sets
from transformer_mt.text.corpus import RawPairs, load_split
from transformer_mt.text.test_sets import EvaluationSet, load_test_set

ANY = DataConfig(path="none")


def test_files_by_name(tmp_path):
    for name, text in (("a", b" one \r\ntwo"), ("b", b"1\n\t2\n"), ("c", b"I\nII\n"), ("d", b"")):
        (tmp_path / name).write_bytes(text)
    refs = [tmp_path / "b", tmp_path / "c"]
    test_set = load_test_set(ANY, src=tmp_path / "a", refs=refs)
    assert (test_set.src, test_set.references) == (["one", "two"], [["1", "2"], ["I", "II"]])
    one = EvaluationSet("b (b598b3a6)", None, [["1", "2"]])
    assert load_test_set(ANY, refs=refs[:1]) == one
    (tmp_path / "b\udcff").write_bytes(b"1\n2\n")  # a name that is not UTF-8
    assert load_test_set(ANY, refs=[tmp_path / "b\udcff"]).name == "b? (b598b3a6)"
    assert test_set.name.startswith("b, c (")
    (tmp_path / "long").write_text("1\n2\n3\n")
    longer, message = [refs[1], tmp_path / "long"], "a has 2 lines and .*long has 3: they must be "
    refuses(DataError, message, load_test_set, ANY, src=tmp_path / "a", refs=longer)
    (tmp_path / "a").write_text("noisy\ntwo\n")  # the references are the same
    assert load_test_set(ANY, src=tmp_path / "a", refs=refs).name != test_set.name
    refs[0].write_text("1\n3\n")  # another text of the same name
    assert load_test_set(ANY, refs=refs[:1]).name != one.name
    changed = load_test_set(ANY, src=tmp_path / "a", refs=refs)
    assert changed.name.startswith("b, c (") and changed.name != test_set.name
    message = f"{tmp_path / 'd'}: contains no lines"
    refuses(DataError, message, load_test_set, ANY, refs=[tmp_path / "d"])


def test_columns_by_name_or_number(tmp_path):
    """Each text is a line, as in plain files. Sabotage: keep the breaks of a field."""
    raw = '\ufeffde;en\n"ei\r\n\r\nns";"""one"""\nzwei;two\n'
    (tmp_path / "a.csv").write_bytes(raw.encode())
    (tmp_path / "a.tsv").write_text('"one" \teins\ntwo\t zwei\n')
    (tmp_path / "a.jsonl").write_text('{"1": {"en": "\\"one\\""}}\n\n{"1": {"en": "two"}}\n')
    (tmp_path / "plain").write_text("one\ntwo\n")

    def load(src: str, refs: str, *columns: str | None) -> tuple[object, object]:
        sides = {"src": tmp_path / src if src else None}
        sides["refs"] = [tmp_path / ref for ref in refs.split()]
        test_set = load_test_set(ANY, **sides, columns=columns)
        return test_set.src, test_set.references

    for refs, column in ("a.csv", "en"), ("a.tsv a.tsv", "1"), ("a.jsonl", "1.en"):
        expected = [['"one"', "two"]] * len(refs.split())
        assert load("a.csv", refs, "de", column) == (["ei ns", "zwei"], expected)
    assert load("a.tsv", "plain", "2", None) == (["eins", "zwei"], [["one", "two"]])
    for choice, message in (
        (("a.csv", "a.csv", None, "en"), "a.csv: is a table; add --src-column and the name or"),
        (("", "a.tsv plain", None, "1"), "plain: columns need .parquet, .jsonl, "),
        (("", "plain", "1", None), "--src-column and --ref-column need their files"),
        (("", "a.tsv", None, "3"), "a.tsv, line 1: .* columns is 2, not 3"),
        (("", "a.jsonl", None, "1.fr"), "^--ref-column = 1.fr: .*a.jsonl, line 1 has en"),
    ):
        refuses(DataError, message, load, *choice)


def test_a_test_set_of_a_split_has_its_name(corpus_dir, monkeypatch):
    """And a digest, which tells its two directions apart. Sabotage: leave it out."""
    monkeypatch.setattr(test_sets, "readable_corpus", lambda data, *_, **__: data)
    data = tiny_config(corpus_dir).data
    test_set = load_test_set(data)
    assert len(test_set) == 60
    digest = load_split(data, "test").digest()[:8]
    assert test_set.name == f"{corpus_dir.name}, split test ({digest})"
    part = data.model_copy(update={"test": "test[5:]"})
    assert load_test_set(part).name.startswith(f"{corpus_dir.name}, split test (")
    assert load_test_set(part).name != test_set.name
    assert test_set.src == test_set.references[0]
    changes = {"train": "train[:9]", "valid": "validation[:5]", "test": "test[5:]"}
    data = data.model_copy(update=changes)
    splits = "train", "valid", "validation", "test", "test[:2]"
    assert [len(load_test_set(data, split)) for split in splits] == [9, 5, 60, 55, 2]
    pairs = RawPairs(["a"], ["b"])
    monkeypatch.setattr(test_sets, "load_split", lambda data, split: pairs)
    hub = load_test_set(DataConfig(path="wmt/wmt16")).name
    assert hub == f"wmt/wmt16, split test ({pairs.digest()[:8]})"
    assert pairs.digest() != RawPairs(pairs.tgt, pairs.src).digest()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_of_sacrebleus_own_sets(tmp_path, monkeypatch):
    """All references of a set count; its languages have codes of two letters."""
    dataset, texts = DATASETS["wmt16"], {"src": copy_lines(9, 1), "ref": copy_lines(9, 2)}
    for name in ("src", "ref", "docid", "genre", "origlang"):
        write_lines(tmp_path, **{f"wmt16.de-en.{name}": texts.get(name, ["x"] * 9)})
    monkeypatch.setattr(dataset, "_outdir", str(tmp_path))
    regional = DataConfig(path="none", src_lang="deu", tgt_lang="EN_us")
    test_set = load_test_set(regional, test_set="wmt16")
    assert (test_set.name, test_set.src) == ("wmt16 (de-en)", texts["src"])
    assert test_set.references == [texts["ref"]]
    monkeypatch.setattr(dataset, "source", lambda pair: ["eins", "zwei"])
    monkeypatch.setattr(dataset, "references", lambda pair: [("one", "1"), ("two", "2")])
    test_set = load_test_set(ANY, test_set="wmt16")
    assert test_set.references == [["one", "two"], ["1", "2"]] and test_set.src == ["eins", "zwei"]

    monkeypatch.setattr(dataset, "references", lambda pair: [("one", "1")])
    message = "^--test-set wmt16: its files in .* have different numbers of lines; delete"
    refuses(DataError, message, load_test_set, ANY, test_set="wmt16")

    for error in (OSError("x"), HTTPException("x"), tarfile.TarError("x"), SystemExit("x")):
        monkeypatch.setattr(dataset, "source", Mock(side_effect=error))
        message = rf"^--test-set wmt16: cannot download it \(x\); .* {SACREBLEU_DIR},"
        refuses(DataError, message, load_test_set, ANY, test_set="wmt16")


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"test_set": "wtm16"}, "--test-set wtm16: sacreBLEU has no such set"),
        ({"test_set": "wmt19/google/ar"}, "^--test-set wmt19/google/ar: has en-de, not de-en$"),
        ({"test_set": "wmt16", "split": "test"}, "choose one of"),
        ({"src": Path("a")}, "--src needs --ref"),
        ({"columns": (None, "1")}, "--ref-column need their files"),
        ({"refs": [Path("a")], "split": "test"}, "choose one of"),
        ({"refs": [Path("a")], "test_set": "wmt16"}, "choose one of"),
    ],
)
def test_a_wrong_choice(choice, message):
    refuses(DataError, message, load_test_set, ANY, **choice)
