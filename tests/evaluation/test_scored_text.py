"""Text that is evaluated: what is reported of it, what is refused, and that it is not replaced."""

import json
import re
import shutil

import pytest
from conftest import assert_one_error, refuses, replace_file, write_lines
from test_evaluate import evaluate, texts

from transformer_mt.config.keys import DataConfig
from transformer_mt.config.loading import parse_config
from transformer_mt.errors import DataError
from transformer_mt.text.test_sets import check_text, load_test_set
from transformer_mt.text.trained_here import remember_text

__all__ = ["texts"]  # a fixture


def test_plain_text_is_scored(texts):
    """Not what `translate` writes with scores or as JSON. Sabotage: score those lines."""
    lines = (texts / "hyp").read_text().splitlines()
    write_lines(texts, scores=[f"-1.0000\t{line}" for line in lines])
    write_lines(texts, json=[json.dumps({"text": line}) for line in lines])
    for name, message in (("scores", "each line has a tab; name a file"), ("json", "is JSON;")):
        for choice in ({"hyp": name}, {"baseline": name}):
            refuses(DataError, f"^{texts / name}: {message}", evaluate, texts, **choice)
    for choice in ({"refs": ["scores"]}, {"src": "scores"}):
        refuses(DataError, f"^{texts}/scores: each line has a tab", evaluate, texts, **choice)
    write_lines(texts, few=['{"a"', "a\tb", *lines[2:]])
    evaluate(texts, hyp="few")  # a single such line is text


@pytest.mark.parametrize("form", ["{} .", "ab@@ c {}", "\u2581{}", "{} a@@"])
def test_text_that_is_tokenised_or_cut_into_pieces(texts, copy_run, caplog, form):
    """Of files and splits, but not of a young model. Sabotage: warn of a single line."""
    lines = (texts / "hyp").read_text().splitlines()
    for count, warned in ((12, True), (2, True), (1, False)):
        write_lines(texts, cut=[*map(form.format, lines[:count]), *lines[count:]])
        for choice in ({"hyp": "cut"}, {"baseline": "cut"}, {"refs": ["cut"], "src": None}):
            caplog.clear()
            evaluate(texts, **choice)
            message = f"{texts}/cut: {count} of 12 lines look tokenised or cut into pieces, such as"
            assert [text.startswith(message) for text in caplog.messages] == [True] * warned
    caplog.clear()
    evaluate(texts, copy_run, hyp=None, src="cut", refs=["ref"])
    assert not caplog.messages
    for language in ("de", "en"):
        (texts / f"test.{language}").write_text(f"{form.format('a b')}\na b\n")
    load_test_set(DataConfig(path=str(texts)), str(texts / "test"))
    for language, text in zip(("de", "en"), caplog.messages, strict=True):
        assert f", {language}: 1 of 2 lines look tok" in text
    check_text(texts, [form.format("a b")] * 100 + ["a b"] * 1_900)  # many, though a small share
    assert f"{texts}: 100 of 2,000 lines look tok" in caplog.text


def test_empty_lines_of_a_test_set_are_counted(texts, copy_run, caplog):
    """With and without a source, as what the model never writes is; no part of the report."""
    lines = (texts / "ref").read_text().splitlines()
    write_lines(texts, gaps=["", lines[1], "\t ", *lines[3:]])
    warning = r"gaps \(\w{8}\): 2 of 12 pairs have an empty side and count in the scores;"
    for src in ("ref", None):
        caplog.clear()
        evaluate(texts, src=src, refs=["gaps"])
        [message] = caplog.messages
        assert re.match(warning, message)
    write_lines(texts, nfd=["u\u0308"] * 12)
    evaluate(texts, copy_run, hyp=None, refs=["nfd"])
    assert "12 references have decomposed letters" in caplog.messages[-1]


@pytest.mark.parametrize(
    ("hyp", "ref", "counts"), [("nfd", "ref", (12, 0)), ("hyp", "nfd", (0, 12)), ("nfd", "nfd", ())]
)
def test_letters_composed_otherwise_than_those_of_the_reference(texts, caplog, hyp, ref, counts):
    """Would cost BLEU in silence. Sabotage: look only at the references."""
    write_lines(texts, nfd=["u\u0308"] * 12)
    evaluate(texts, hyp=hyp, refs=[ref])
    shown = [re.findall(r": (\d+) lines have .* but (\d+) references;", m) for m in caplog.messages]
    assert shown == ([[tuple(map(str, counts))]] if counts else [])


def test_what_is_scored_is_not_replaced(copy_run, corpus_dir, tmp_path, call):
    """Files, or those of a split, by any name. Sabotage: compare names as they were typed."""
    for language in ("de", "en"):
        shutil.copy(corpus_dir / f"test.{language}", tmp_path / f"mine.{language}")
    (tmp_path / "link").symlink_to("mine.en")
    run = shutil.copytree(copy_run / "step-00000001", tmp_path / "model")
    config = json.loads((run / "config.json").read_text())
    config["data"] |= {"path": str(tmp_path), "test": "mine"}
    remember_text(parse_config(config, "").data)
    replace_file(run, "config.json", json.dumps(config).encode())
    before = (tmp_path / "mine.en").read_bytes()
    for name in ("mine.en", "mine.de", "link"):
        done = call("evaluate", run, "--save", tmp_path / name)
        assert_one_error(done, f"{name}: is text that is scored; to replace it, add --overwrite")
    assert (tmp_path / "mine.en").read_bytes() == before
    assert call("evaluate", run, "--save", tmp_path / "new").code == 0
    for _ in range(2):  # what --save names is typed, not derived
        assert call("evaluate", run, "--save", tmp_path / "new").code == 0
    files = "--hypotheses", tmp_path / "new", "--ref", tmp_path / "mine.en"
    for words in ((run,), files):
        (tmp_path / "mine.en").write_bytes(before)
        assert call("evaluate", *words, "--save", tmp_path / "mine.en", "--overwrite").code == 0
        assert (tmp_path / "mine.en").read_bytes() == (tmp_path / "new").read_bytes()
