"""Several references, references without a source, and files of different length."""

import json
import re
from pathlib import Path

import pytest
import sacrebleu
from conftest import copy_lines, run_program, tiny_config
from sacrebleu.dataset import DATASETS
from sacrebleu.metrics.chrf import CHRF
from test_evaluate import evaluate
from test_evaluate import sacrebleu as sacrebleu_program

from transformer_mt.config.keys import DataConfig
from transformer_mt.errors import DataError
from transformer_mt.evaluation.comparison import compare, format_comparison
from transformer_mt.evaluation.scoring import (
    bleu,
    paired_bootstrap,
    score_all,
    sentence_chrf,
)
from transformer_mt.text.test_sets import EvaluationSet, load_test_set

SIZE = 40


def write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """Gives a source, two references, and translations that are near one or the other."""
    folder = tmp_path_factory.mktemp("texts")
    first, second = copy_lines(SIZE, 5), copy_lines(SIZE, 6)
    first = [f"{line} and so on" for line in first]
    mixed = [pair[i % 2] for i, pair in enumerate(zip(first, second, strict=True))]
    worse = [line if i % 3 else line[1:] for i, line in enumerate(mixed)]
    texts = {"src": first, "ref1": first, "ref2": second, "hyp": mixed, "base": worse}
    for name, lines in texts.items():
        write_lines(folder / name, lines)
    write_lines(folder / "short", mixed[:-1])
    return folder


def test_several_references_are_scored_as_sacrebleu_does(texts):
    """BLEU, chrF2 and TER with `nrefs:2`, to the last digit, in the order given."""
    refs = "--ref", texts / "ref1", "--ref", texts / "ref2"
    result = evaluate("--hypotheses", texts / "hyp", *refs, "--ter")
    printed = sacrebleu_program(
        texts / "ref1", texts / "ref2", "-i", texts / "hyp", "-m", "bleu", "chrf", "ter"
    )
    for score, name in zip(json.loads(printed), ("bleu", "chrf", "ter"), strict=True):
        assert score["score"] == round(result[name], 10)
        assert score["signature"] == result[f"{name}_signature"]
        assert "nrefs:2" in result[f"{name}_signature"]
    alone = evaluate("--hypotheses", texts / "hyp", "--ref", texts / "ref1")
    assert alone["bleu"] < result["bleu"]


def test_a_baseline_with_several_references_is_compared_as_sacrebleu_does(texts):
    """Scores and p-values of the paired bootstrap."""
    refs = "--ref", texts / "ref1", "--ref", texts / "ref2"
    result = evaluate("--hypotheses", texts / "hyp", *refs, "--baseline", texts / "base")
    printed = sacrebleu_program(
        *(texts / "ref1", texts / "ref2", "-i", texts / "base", texts / "hyp"),
        *("-m", "bleu", "chrf", "--paired-bs", "-f", "text"),
    )
    values = [float(value) for value in re.findall(r"(\d+\.\d{10}) \(", printed)]
    p_values = [float(value) for value in re.findall(r"\(p = (\d\.\d+)\)", printed)]
    metrics = result["differences"]
    assert values == [round(metric[key], 10) for key in ("baseline", "value") for metric in metrics]
    assert p_values == [round(metric["p_value"], 4) for metric in metrics]
    assert all("nrefs:2" in metric["signature"] for metric in metrics)


def test_the_best_reference_counts_for_a_sentence():
    """Sabotage: score each sentence against the first reference."""
    hypotheses, references = ["a b c", "x y z"], [["a b c", "nothing"], ["else", "x y z"]]
    assert sentence_chrf(hypotheses, references) == [100.0, 100.0]
    direct = sacrebleu.sentence_chrf("a b d", ["a b c", "else"]).score
    assert sentence_chrf(["a b d"], [["a b c"], ["else"]]) == [direct]


def test_hypotheses_and_a_reference_are_enough(texts):
    """Without a run and a source; samples show no source, and lengths are the reference's."""
    ref = "--ref", texts / "ref1"
    result = evaluate("--hypotheses", texts / "hyp", *ref)
    with_source = evaluate("--hypotheses", texts / "hyp", *ref, "--src", texts / "src")
    assert result == with_source
    arguments = ("--hypotheses", texts / "hyp", *ref, "--baseline", texts / "base")
    done = run_program("evaluate", *arguments, "--samples", 1)
    printed = done.stdout.decode()
    assert done.returncode == 0 and "\nref. words " in printed and "source" not in printed
    printed = run_program("evaluate", *arguments, "--src", texts / "src").stdout.decode()
    assert "\nsource words " in printed and "ref. words" not in printed
    printed = run_program("evaluate", *arguments[:4], "--samples", 1).stdout.decode().splitlines()
    assert printed[0].startswith("reference   ") and printed[1].startswith("hypothesis  ")


def test_all_references_of_a_sentence_are_shown():
    """Numbered if there are several."""
    test_set = EvaluationSet("texts", "texts", ["quelle"], [["one"], ["two"]])
    comparison = compare(test_set, ["one"], ["on"])
    text = format_comparison(comparison, test_set, ["one"], ["on"], 1)
    assert text.splitlines()[-5:] == [
        "  source       quelle",
        "  reference 1  one",
        "  reference 2  two",
        "  system       one",
        "  baseline     on",
    ]


def test_lengths_are_those_of_the_first_reference_without_a_source():
    """Sabotage: measure the last reference."""
    test_set = EvaluationSet("texts", "texts", None, [["a " * 11], ["a"]])
    [bucket] = compare(test_set, ["a"], ["b"]).buckets
    assert bucket.words == "11-20"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--hypotheses hyp --ref ref1 --ref short", "/ref1 has 40 lines and {}/short has 39"),
        ("--hypotheses hyp --src short --ref ref1", "/short has 39 lines and {}/ref1 has 40"),
        ("--hypotheses short --ref ref1", "/short has 39 lines, but {}/ref1 has 40"),
        (
            "--hypotheses hyp --ref ref1 --baseline short",
            "/short has 39 lines, but {}/ref1 has 40",
        ),
        ("--hypotheses hyp --ref nope", "/nope: no such file"),
        ("--hypotheses hyp --src src", "name a run, or --hypotheses with --ref or --test-set"),
    ],
)
def test_files_of_different_length_are_named(texts, arguments, message):
    """With both counts, in one line."""
    words = [word if word.startswith("--") else texts / word for word in arguments.split()]
    done = run_program("evaluate", *words)
    error = done.stderr.decode()
    assert done.returncode == 2 and not done.stdout and error.count("\n") == 1
    assert message.format(texts) in error


def test_what_must_be_translated_needs_a_source(copy_run, texts):
    """By the run or by the baseline; said before a model is loaded."""
    for arguments in (
        (copy_run, "--ref", texts / "ref1"),
        ("--hypotheses", texts / "hyp", "--ref", texts / "ref1", "--baseline", copy_run),
    ):
        done = run_program("evaluate", *arguments)
        error = done.stderr.decode()
        assert done.returncode == 2 and error.count("\n") == 1
        assert str(copy_run) in error and "name --src" in error


def test_a_baseline_of_another_length_is_found_before_translating(copy_run, texts):
    """Nothing is translated first: the model is not even loaded."""
    files = "--src", texts / "src", "--ref", texts / "ref1"
    done = run_program("evaluate", copy_run, *files, "--baseline", texts / "short")
    assert done.returncode == 2 and b"sentences in" not in done.stderr
    assert f"{texts}/short has 39 lines, but {texts}/ref1 has 40" in done.stderr.decode()


def test_files_by_name(tmp_path):
    """In the order given, without white space at the ends of lines; empty files are refused."""
    for name, text in (("a", b" one \r\ntwo"), ("b", b"1\n\t2\n"), ("c", b"I\nII\n"), ("d", b"")):
        (tmp_path / name).write_bytes(text)
    data, refs = DataConfig(path="none"), [tmp_path / "b", tmp_path / "c"]
    test_set = load_test_set(data, src=tmp_path / "a", refs=refs)
    assert (test_set.src, test_set.references) == (["one", "two"], [["1", "2"], ["I", "II"]])
    one = EvaluationSet(str(refs[0]), "b", None, [["1", "2"]])
    assert load_test_set(data, refs=refs[:1]) == one
    with pytest.raises(DataError, match=f"{tmp_path / 'd'}: contains no lines"):
        load_test_set(data, refs=[tmp_path / "d"])


def test_a_test_set_of_a_split_has_its_name(corpus_dir):
    """For messages."""
    data = tiny_config(corpus_dir).data
    test_set = load_test_set(data)
    assert test_set.name == f"{corpus_dir}, split test" and len(test_set) == 60
    assert test_set.src == test_set.references[0]


def test_a_sacrebleu_set_with_several_references(monkeypatch):
    """All of them count."""
    dataset = DATASETS["wmt16"]
    monkeypatch.setattr(dataset, "source", lambda pair: ["eins", "zwei"])
    monkeypatch.setattr(dataset, "references", lambda pair: [("one", "1"), ("two", "2")])
    test_set = load_test_set(DataConfig(path="none"), test_set="wmt16")
    assert test_set.references == [["one", "two"], ["1", "2"]] and test_set.src == ["eins", "zwei"]


def test_every_reference_must_be_complete():
    """Not only the first. Sabotage: check the first reference alone."""
    with pytest.raises(DataError, match="2 hypotheses for 1 references"):
        paired_bootstrap(["a", "b"], ["a", "b"], [["a", "b"], ["a"]])


def test_bleu_alone_computes_no_chrf(monkeypatch):
    """Validation needs BLEU only. Sabotage: take the first of all scores."""
    hypotheses, references = ["a b c d e"], [["a b c d f"]]
    expected = score_all(hypotheses, references)[0]
    monkeypatch.setattr(CHRF, "corpus_score", None)
    assert bleu(hypotheses, references) == expected
