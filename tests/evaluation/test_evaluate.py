"""The evaluation of a run or of a translation, and its report."""

import json
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from checkpoints.small_checkpoint import change_config
from conftest import assert_one_error, copy_lines, refuses, replace_file, write_lines
from sacrebleu.dataset import DATASETS
from sacrebleu.metrics.bleu import BLEU

from transformer_mt.checkpoints import checkpoint as checkpoint_module
from transformer_mt.checkpoints.evaluations import read_evaluations
from transformer_mt.checkpoints.layout import CONFIG, EMA, MODEL
from transformer_mt.errors import CheckpointError, ConfigError, DataError, OutputError
from transformer_mt.evaluation.evaluate import evaluate_systems, format_as_json, format_reports
from transformer_mt.evaluation.scoring import choose_metrics, corpus_score
from transformer_mt.system.outputs import check_output
from transformer_mt.text.test_sets import load_test_set
from transformer_mt.translation.options import LoadOptions, SearchOptions, TranslateOptions


@pytest.fixture
def texts(tmp_path) -> Path:
    """Gives a folder with a reference, which is its own source, and a translation of it."""
    lines = copy_lines(12, 8)
    changed = [line[::-1] if i % 2 == 0 else line for i, line in enumerate(lines)]
    write_lines(tmp_path, ref=lines, hyp=changed, short=lines[:11])
    return tmp_path


def evaluate_all(texts, *runs, hyp="hyp", src="ref", refs=("ref",), baseline=None, **options):
    """Evaluates a translation in a file of the folder, or runs if `hyp` is None."""
    sides = {"src": texts / src if src else None, "refs": [texts / ref for ref in refs]}
    load = partial(load_test_set, **sides)
    given = {key: options.pop(key) for key in ("ter", "tokenizer") if key in options}
    search = TranslateOptions(LoadOptions(), options.pop("search", SearchOptions()))
    settings = {"options": search, "languages": {"src_lang": "", "tgt_lang": ""}, **options}
    systems = runs, texts / hyp if hyp else None, texts / baseline if baseline else None
    return evaluate_systems(*systems, load, partial(choose_metrics, **given), **settings)


def evaluate(texts: Path, *paths: Path, **options):
    """Evaluates a single system; several paths are an ensemble."""
    [report] = evaluate_all(texts, *([list(paths)] if paths else []), **options)
    return report


def test_scores(texts):
    """Before them as many sentences as requested, or all there are."""
    result, lines = evaluate(texts, ter=True), (texts / "hyp").read_text().splitlines()
    assert result.system == type(result.system)(lines, str(texts / "hyp"))
    metrics = choose_metrics("en", ter=True)
    scores = [corpus_score(lines, result.test_set.references, metric) for metric in metrics]
    assert result.scores == scores and len(scores) == 3
    values = {score.name: score.value for score in scores}
    signatures = {f"{score.name}_signature": score.signature for score in scores}
    expected = {"test_set": result.test_set.name, "sentences": 12, "tokenizer": "13a"}
    expected |= {"hypotheses": str(texts / "hyp"), **values, **signatures}
    assert result.to_dict() == expected
    heading = f"{texts}/hyp: {expected['test_set']}, 12 sentences"
    assert format_reports([result]) == "\n".join([heading, *(score.text for score in scores)])
    paragraphs = format_reports([result], samples=99).split("\n\n")
    assert len(paragraphs) == 13 and paragraphs[-1].startswith(heading)
    for i in (0, 11):
        text = result.test_set.src[i]
        shown = f"source      {text}\nreference   {text}\nhypothesis  {lines[i]}"
        assert paragraphs[i] == f"line        {i + 1}\n{shown}"
    write_lines(texts, **{"e\x1b": ["\x1b[31m"] * 12})
    shown = format_reports([evaluate(texts, hyp="e\x1b")], samples=1)
    assert "hypothesis  \\x1b[31m\n\n" in shown and "/e\\x1b: " in shown
    without_source = evaluate(texts, src=None, ter=True)
    assert without_source.to_dict() == {**expected, "test_set": without_source.test_set.name}
    shown = format_reports([without_source], samples=2).split("\n\n")
    assert shown[1] == paragraphs[1].replace(f"source      {lines[1]}\n", "") and len(shown) == 3


def test_a_baseline(texts):
    """The sentences that differ most are shown. Sabotage: show the first; one system's p-value."""
    words = [f"w{i} " * length for i, length in enumerate((0, 10, 11, 60, 61))]
    ref = [f"{word}end" for word in words]
    system, baseline = list(ref), list(ref)
    system[1], baseline[4] = "bad", "worse than that"
    baseline[3] = baseline[3].removesuffix("d")
    write_lines(texts, ref=ref, system=system, old=baseline, more=words)
    result = evaluate(texts, hyp="system", baseline="old")
    [values] = map(json.loads, format_as_json([result]).splitlines())
    assert values["baseline"] == str(texts / "old")
    assert values["differences"][0]["system"] == values["bleu"] < 100
    bleu, chrf = result.differences
    name = texts / "system"
    width, signature = len(str(name)), len(chrf.signature)
    assert format_reports([result]).splitlines() == [
        f"{result.test_set.name}, 5 sentences, compared with {texts}/old",
        "",
        f"{'run':{width}}  score  system  baseline  difference       p  {'signature':>{signature}}",
        f"{name}  BLEU    92.79     49.61       43.18  {bleu.p:.4f}  {bleu.signature:>{signature}}",
        f"{name}  chrF2   94.20     62.01       32.20  {chrf.p:.4f}  {chrf.signature}",
    ]
    samples = format_reports([result], samples=3).split("\n\n")[:3]
    assert [re.findall(r"^line +(\d)$", text, re.M) for text in samples] == [["5"], ["2"], ["4"]]
    assert samples[0].endswith("\nbaseline    worse than that")
    several = evaluate(texts, hyp="system", baseline="old", refs=("ref", "more"))
    labels = [line[:13].strip() for line in format_reports([several], samples=1).splitlines()[:6]]
    assert labels == "line|source|reference 1|reference 2|hypothesis|baseline".split("|")


def test_a_model_is_evaluated_and_recorded(copy_run, texts, tmp_path):
    """With the corpus and the name of its checkpoint; as a baseline it gives the same."""
    run = shutil.copytree(copy_run, tmp_path / "run", ignore=shutil.ignore_patterns("evaluations"))
    saved, beam = check_output(texts / "saved"), SearchOptions(beam_size=2)
    result = evaluate(texts, run, hyp=None, baseline="hyp", search=beam, save=saved)
    assert (texts / "saved").read_text().splitlines() == result.system.lines
    values = result.to_dict()
    assert values["beam_size"] == 2 and result.system.seconds > 0
    [record] = read_evaluations(run)[-1:]
    assert values["checkpoint"] == f"{run}/{record.checkpoint}"
    assert re.fullmatch(r"ref \(\w{8}\)", record.test_set)
    assert record.search.length_penalty == beam.length_penalty
    assert record.search.max_length is None  # the model's own
    assert record.hypotheses == result.system.lines and record.sources == result.test_set.src
    assert [(s.name, s.value) for s in record.scores] == [(s.name, s.value) for s in result.scores]
    (tmp_path / "link").symlink_to(run / record.checkpoint)
    before = len(read_evaluations(run))
    evaluate(texts, tmp_path / "link", hyp=None)
    assert len(read_evaluations(run)) == before + 1
    assert {each.checkpoint for each in read_evaluations(run)} == {record.checkpoint}
    assert not (run / record.checkpoint / "evaluations").exists()
    again = evaluate(texts, hyp="saved", baseline=run, search=beam)
    assert again.baseline.lines == result.system.lines == again.system.lines


def test_the_tokenizer_of_a_run_is_that_of_its_validation(copy_run, texts, tmp_path):
    """Unless --tokenize names another. Sabotage: ignore the run's valid.tokenize."""
    run = shutil.copytree(copy_run, tmp_path / "run")
    config = change_config(run, "valid", tokenize="intl")
    replace_file(run / "step-00000001", CONFIG, config.model_dump_json().encode())
    assert evaluate(texts, run, hyp=None).scores[0].tokenizer == "intl"
    assert evaluate(texts, run).scores[0].tokenizer == "intl"  # of a given translation
    assert evaluate(texts, run, hyp=None, tokenizer="auto").scores[0].tokenizer == "13a"
    assert evaluate(texts).scores[0].tokenizer == "13a"


def test_what_the_command_prints(texts, call):
    names = ("--hypotheses", "hyp"), ("--src", "ref"), ("--ref", "ref")
    files = [word for option, name in names for word in (option, texts / name)]
    result = evaluate(texts)
    assert call("evaluate", *files).out.decode() == format_reports([result]) + "\n"
    shown = format_reports([result], samples=2) + "\n"
    assert call("evaluate", *files, "--samples", 2).out.decode() == shown
    assert call("evaluate", *files, "--json").out.decode() == format_as_json([result]) + "\n"
    assert b" = 100.00 " in call("evaluate", *files, "--ref", texts / "hyp").out
    named = json.loads(call("evaluate", *files, "--confidence", "--chrf++", "--json").out)
    intervals = "bleu_confidence", "chrf_confidence", "chrf++_confidence"
    assert all(0 < named[name] < 50 for name in intervals)
    assert "|bs:1000|" in named["bleu_signature"]
    table, references = texts / "a.tsv", (texts / "ref").read_text().splitlines()
    write_lines(texts, **{"a.tsv": [f"x\t{line}" for line in references]})
    files = "--hypotheses", texts / "hyp", "--src", table, "--ref", table
    shown = call("evaluate", *files, "--src-column", 1, "--ref-column", 2).out.decode()
    assert shown.splitlines()[1:] == format_reports([result]).splitlines()[1:]
    assert_one_error(call("evaluate", *files, "--src-column", 1), "a.tsv: is a table; add --ref")


def test_what_was_scored_is_named(copy_run, texts, tmp_path, call, monkeypatch):
    """All that a sweep varies, in JSON and for people. Sabotage: ignore any option."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    run = shutil.copytree(copy_run, tmp_path / "run")
    path = run / "step-00000001"
    files = "evaluate", run, "--src", texts / "ref", "--ref", texts / "ref", "--device", "cpu"
    options = "--precision bf16 --max-length 20 --beam-size 3 --length-penalty 0.6 --ter"
    done = call(*files, *options.split(), "--tokenize", "char", "--json")
    [row] = map(json.loads, done.out.splitlines())
    named = {"test_set": read_evaluations(run)[-1].test_set, "tokenizer": "char", "step": 1}
    named |= {"checkpoint": str(path), "moving_average": False, "beam_size": 3, "precision": "bf16"}
    named |= {"length_penalty": 0.6, "max_length": 20, "lines_split": 1, "lines_cut": 0}
    named["lines_empty"] = 0
    assert row.items() >= named.items() and "ter_signature" in row
    assert row["seconds"] == read_evaluations(run)[-1].seconds > 0
    described = f"{path} (step 1), beam 3, alpha 0.6, bf16, lines split after 20 pieces"
    assert re.search(rf"12 sentences in \d+\.\d s with {re.escape(described)}\n1 line ", done.err)
    [first, *_] = call(*files, *options.split()).out.decode().splitlines()
    assert first == f"{described}: {named['test_set']}, 12 sentences"
    done = call(*files, copy_run, "--ensemble", "--json")
    row = json.loads(done.out)
    assert row["length_penalty"] is None and row["step"] == [1, 1]
    assert row["checkpoint"] == f"{path} and {copy_run}/step-00000001"
    replace_file(path, EMA, (path / MODEL).read_bytes())
    shown = call(*files).out.decode()
    assert "(step 1), moving average, greedy" in shown and "raw" not in shown
    shown = call(*files, "--raw").out.decode()
    assert "moving average" not in shown and "fp32, raw weights" in shown


def test_a_length_penalty_of_greedy_search_is_a_warning(copy_run, texts, call):
    """Its default says nothing. Sabotage: raise an error; let `translate --scores` warn."""
    files = "--src", texts / "ref", "--ref", texts / "ref"
    message = "warning: --length-penalty has no effect on greedy search: add --beam-size 4\n"
    evaluates, translates = ("evaluate", copy_run, *files), ("translate", copy_run)
    for words, alpha, warned in (
        (evaluates, 0.6, True),
        (evaluates, 1, False),
        (translates, 0.6, True),
        ((*translates, "--scores"), 0.6, False),
        (("evaluate", "--hypotheses", texts / "ref", *files[2:]), 0.6, False),
    ):
        done = call(*words, "--length-penalty", alpha, stdin=texts / "ref")
        assert done.code == 0 and done.out and done.err.count(message) == warned
    words = "evaluate", "--hypotheses", texts / "ref", *files, "--beam-size", 2
    file, run = (("--baseline", each) for each in (texts / "hyp", copy_run))
    for more, warned in (((), True), (file, True), (run, False), ((copy_run,), True)):
        assert call(*words, *more).err.count("--beam-size has no effect on --hyp") == warned
    others = "--length-penalty", 0.6, "--precision", "bf16", "--max-length", 9, "--raw"
    done = call(*words[:-2], *others, "--ensemble")
    names = [line.split()[1] for line in done.err.splitlines() if "no effect on --hyp" in line]
    assert names == ["--length-penalty", "--precision", "--max-length", "--raw"]


def test_languages_without_a_run(texts, call, copy_run, monkeypatch):
    """A set of sacreBLEU has several directions; the tokenizer is that of the language."""
    taken = []
    monkeypatch.setattr(dataset := DATASETS["wmt14"], "source", lambda pair: ["x"] * 12)
    references = [(line,) for line in (texts / "hyp").read_text().splitlines()]
    monkeypatch.setattr(dataset, "references", lambda pair: taken.append(pair) or references)
    hypotheses, files = ("--hypotheses", texts / "hyp"), ("--ref", texts / "ref")
    test_set, both = ("--test-set", "wmt14"), ("--src-lang", "en", "--tgt-lang", "de")
    for words in ((), both[:2], both[2:]):
        done = call("evaluate", *hypotheses, *test_set, *words)
        assert_one_error(done, "--test-set wmt14 without a run needs --src-lang and --tgt-lang")
    assert b" = 100.00 " in call("evaluate", *hypotheses, *test_set, *both).out
    assert taken == ["en-de"]
    done = call("evaluate", *hypotheses, *test_set, *both[:3], "xx")
    assert_one_error(done, "--test-set wmt14: has ")
    for words, tokenizer in (((), b"|tok:13a|"), (("--tgt-lang", "zh"), b"|tok:zh|")):
        assert tokenizer in call("evaluate", *hypotheses, *files, *words).out
    done = call("evaluate", copy_run, *test_set, *both)
    assert_one_error(done, "--src-lang and --tgt-lang: leave them out; a run has its own languages")


CODE = "import sys; sys.modules['torch'] = None; import transformer_mt.cli.program as p; p.main()"


def test_an_exported_model_is_evaluated_without_pytorch(exported_run, texts):
    """Also against a translation. Sabotage: import torch in `evaluation/evaluate.py`."""
    exported = shutil.copytree(exported_run, texts / "exported")  # scores are recorded in it
    words = "evaluate", exported, "--src", texts / "ref", "--ref", texts / "ref"
    for more in (("--baseline", texts / "hyp"), ("--device", "cuda")):
        program = [sys.executable, "-c", CODE, *map(str, (*words, *more))]
        done = subprocess.run(program, capture_output=True, text=True, timeout=120)
        if "cuda" not in more:
            assert done.returncode == 0 and "BLEU" in done.stdout, done.stderr
        elif done.returncode:
            message = "error: device cuda: CTranslate2 finds no CUDA device; use cpu or auto\n"
            assert done.stderr == message


def test_several_runs_are_rows(copy_run, texts, tmp_path):
    """Of one table and lines of JSON; each is recorded, and compared with a baseline."""
    runs = [shutil.copytree(copy_run, tmp_path / name) for name in ("one", "two")]
    average = shutil.copytree(runs[0] / "step-00000001", tmp_path / "copy")
    reports = evaluate_all(texts, *([path] for path in (*runs, average)), hyp=None)
    single = evaluate(texts, runs[1], hyp=None)
    assert [report.system.lines for report in reports] == [single.system.lines] * 3
    names = [f"{run}/step-00000001" for run in runs] + [str(average)]
    rows = [json.loads(line) for line in format_as_json(reports).splitlines()]
    assert [row["checkpoint"] for row in rows] == names
    assert rows[1].keys() == single.to_dict().keys() and rows[1]["bleu"] == single.to_dict()["bleu"]
    names = [f"{name} (step 1), greedy, fp32" for name in names]
    values, width = "".join(f"{score.value:8.2f}" for score in single.scores), max(map(len, names))
    assert format_reports(reports).splitlines() == [
        f"{single.test_set.name}, 12 sentences",
        "",
        f"{'run':{width}}    BLEU   chrF2",
        *(f"{name:{width}}{values}" for name in names),
        "",
        *(f"{score.title}|{score.signature}" for score in single.scores),
    ]
    shown = format_reports(reports, samples=1).splitlines()
    names = [name.split()[0] for name in names]
    assert [line.split()[0] for line in shown[:6]] == ["line", "source", "reference", *names]
    for folder in (*runs, average):
        assert any(record.test_set.startswith("ref (") for record in read_evaluations(folder))
    compared = evaluate_all(texts, *([run] for run in runs), hyp=None, baseline="hyp")
    assert [str(run) in format_reports(compared) for run in runs] == [True, True]


def test_several_runs_have_the_same_languages(copy_run, texts, tmp_path):
    other = shutil.copytree(copy_run / "step-00000001", tmp_path / "other")
    replace_file(other, CONFIG, (other / CONFIG).read_bytes().replace(b'"en"', b'"zh"'))
    one = [copy_run]
    runs = ([one, [other]], {}), ([[*one, other]], {}), ([one], {"baseline": other})
    for named, more in (*runs, ([one], {"baseline": other, "hyp": "hyp"})):
        with pytest.raises(ConfigError, match="the runs translate de to en, de to zh: "):
            evaluate_all(texts, *named, **{"hyp": None, **more})
    assert evaluate(texts, other, hyp=None).scores[0].tokenizer == "zh"


def test_saving_comes_first(texts, monkeypatch):
    """Sabotage: write after scoring."""
    monkeypatch.setattr(BLEU, "corpus_score", None)
    with pytest.raises(TypeError):
        evaluate(texts, save=check_output(texts / "saved"))
    assert (texts / "saved").read_bytes() == (texts / "hyp").read_bytes()
    with check_output(texts / "saved").lock(), pytest.raises(OutputError, match=" is writing it;"):
        evaluate(texts, save=check_output(texts / "saved"))


def test_a_checkpoint_that_training_deletes_meanwhile(texts, copy_run, tmp_path, monkeypatch):
    """Before the scores are recorded. Sabotage: read it again then."""
    run, score = shutil.copytree(copy_run, tmp_path / "run"), BLEU.corpus_score

    def delete(*given):
        shutil.rmtree(run / "step-00000001")
        return score(*given)

    monkeypatch.setattr(BLEU, "corpus_score", delete)
    assert evaluate(texts, run, hyp=None).scores[0].value > 0


@pytest.mark.parametrize(
    ("choice", "error", "message"),
    [
        ({"src": "short"}, DataError, "{}/short has 11 lines and {}/ref has 12"),
        ({"hyp": "short"}, DataError, r"{}/short has 11 lines, but ref \(.*\) has 12"),
        ({"hyp": None, "baseline": "short"}, DataError, r"{}/short has 11 lines, but ref \("),
        ({"refs": ("nope",)}, DataError, "{}/nope: no such file"),
        ({"hyp": None, "baseline": "nope"}, CheckpointError, "{}/nope: no such run"),
        ({"hyp": None, "src": None}, ConfigError, "to translate with it, name --src"),
        ({"baseline": "run", "src": None}, ConfigError, "{}/run/step-.*, name --src"),
    ],
)
def test_a_mistake_shows_first(texts, copy_run, caplog, choice, error, message):
    """Sabotage: translate before the baseline or the reference is read."""
    caplog.set_level("INFO")
    shutil.copytree(copy_run, texts / "run")
    refuses(error, message.format(texts, texts), evaluate, texts, copy_run, **choice)
    assert "sentences in" not in caplog.text


def test_a_baseline_trained_with_other_source_is_reported(texts, copy_run, caplog, monkeypatch):
    """Like any checkpoint that is used; a translation in a file is not a checkpoint."""
    monkeypatch.setattr(checkpoint_module, "source_digest", lambda package: 32 * "0")
    for runs, count in (((), 1), ((copy_run,), 2)):
        caplog.clear()
        evaluate(texts, *runs, baseline=copy_run, hyp=None if runs else "hyp")
        messages = [text for text in caplog.messages if "source of model/ has changed" in text]
        assert len(messages) == count
        assert all(text.startswith(f"{copy_run}/step-00000001: ") for text in messages)
