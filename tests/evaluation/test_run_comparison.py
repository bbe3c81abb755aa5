"""The table of runs that `compare` prints, from small run directories made by hand."""

import csv
import json
import shutil
import statistics
from pathlib import Path

import pytest
from checkpoints.small_checkpoint import describe
from conftest import assert_one_error, tiny_config

from transformer_mt.checkpoints.evaluations import (
    EvaluationRecord,
    Score,
    SearchSetting,
    write_evaluation,
)
from transformer_mt.checkpoints.layout import checkpoint_digest
from transformer_mt.checkpoints.run_description import (
    InitialWeights,
    ValidationText,
    VocabularySizes,
    write_description,
)
from transformer_mt.evaluation.run_comparison import format_rows, read_rows

COLUMNS = ["parameters", "steps", "minutes", "tokens/s", "validation BLEU", "perplexity"]
GREEDY, BEAM = "own, split test BLEU, greedy, fp32", "own, split test BLEU, beam 4, alpha 0.6, fp32"
GREEDY_SEARCH = SearchSetting()
SPEEDS = 1000.0, 2000.0, 1600.0


def write_run(
    path: Path,
    corpus_dir: Path,
    bleu: float,
    described: dict[str, object] | None = None,
    **changes: object,
) -> Path:
    """Writes a run of 30 steps that was best at step 20, with two scores of that checkpoint.

    `described` goes to run.json in addition.
    """
    path.mkdir(parents=True)
    write_description(path, describe(tiny_config(corpus_dir, **changes), **(described or {})))
    lines = []
    for step, speed in zip((10, 20, 30), SPEEDS, strict=True):
        position = {"step": step, "epoch": 0, "seconds": 9.0 * step}
        lines.append({"kind": "train", **position, "loss": 2.0, "tokens_per_second": speed})
        valid = {
            "bleu": 50.0 - bleu,
            "ema_bleu": bleu - abs(step - 20),
            "perplexity": step / 10,
            "nll": 1.0,
        }
        lines.append({"kind": "valid", **position, **valid})
    lines.append({"kind": "train", **position, "loss": None, "tokens_per_second": None})
    lines.append({"kind": "valid", **position, **valid, "ema_bleu": bleu, "nll": 2.0})
    lines.append({**lines[-1], "step": 40, "ema_bleu": 99.0, "perplexity": None})  # diverged
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_score(path, bleu + 1)
    write_score(path, bleu + 2, SearchSetting(4, 0.6))
    write_score(path, bleu, test_set="validation")
    return path


def write_score(
    run: Path,
    value: float,
    search: SearchSetting = GREEDY_SEARCH,
    checkpoint: str = "step-00000020",
    test_set: str = "own, split test",
    tokenizer: str = "13a",
    digest: str = "",
) -> None:
    score = Score("bleu", value, f"nrefs:1|tok:{tokenizer}")
    record = EvaluationRecord(test_set, checkpoint, digest, search, [score], ["a"], [["a"]], ["a"])
    (run / checkpoint).mkdir(exist_ok=True)
    write_evaluation(run / checkpoint, record)


@pytest.fixture
def groups(corpus_dir, tmp_path):
    paths = [
        write_run(tmp_path / f"pre-{seed}", corpus_dir, bleu, model__norm="pre", train__seed=seed)
        for seed, bleu in ((1, 30.0), (2, 32.0), (3, 37.0))
    ]
    other = write_run(tmp_path / "post-1", corpus_dir, 20.0, model__norm="post", train__seed=1)
    return read_rows([paths[0], other, *paths[1:], paths[0]])


def test_runs_that_differ_in_the_seed_are_a_group(groups):
    """A run that is named twice counts once; BLEU is that of the moving average."""
    pre, [post] = groups
    names = [row["run"] for row in pre]
    assert names == ["pre-1", "pre-2", "pre-3", "mean of 3", "std. dev. of 3"]
    titles = ["run", "model.norm", "train.seed", *COLUMNS, GREEDY, BEAM]
    values = ["post-1", "post", 1, 7_065_600, 40, 4.5, 1600.0, 20.0, 2.0, 21.0, 22.0]
    assert post == dict(zip(titles, values, strict=True))
    assert [row.get("train.seed") for row in pre] == [1, 2, 3, None, None]
    assert {row["model.norm"] for row in pre} == {"pre"}
    assert pre[3][GREEDY] == pytest.approx(34.0)
    assert pre[4][GREEDY] == pytest.approx(statistics.stdev([30, 32, 37]))
    assert pre[4]["steps"] == 0


def test_runs_of_another_source_are_another_group(corpus_dir, tmp_path):
    """Of the model or of what else decides the weights."""
    runs = [
        write_run(
            tmp_path / name,
            corpus_dir,
            20.0,
            {"environment": {"source of training/": name * 64}},
            train__seed=seed,
        )
        for seed, name in enumerate("ab")
    ]
    [first], [second] = read_rows(runs)
    assert [row["source of training/"] for row in (first, second)] == ["a" * 8, "b" * 8]


@pytest.mark.parametrize(
    ("description", "title"),
    [
        (lambda digest: {"corpus_digest": digest}, "training text"),
        (lambda digest: {"validation": ValidationText(2, digest)}, "validation text"),
        (lambda digest: {"init_from": InitialWeights(1, digest, "", "", "")}, "started from"),
    ],
)
def test_seeds_of_other_text_are_another_group(corpus_dir, tmp_path, description, title):
    """Their digests are shown. Sabotage: leave out one of the three."""
    digests = {"a": "a" * 64, "b": "b" * 64, "c": "a" * 64, "d": ""}
    runs = [
        write_run(tmp_path / name, corpus_dir, 20.0, description(digest), train__seed=seed)
        for seed, (name, digest) in enumerate(digests.items())
    ]
    groups = read_rows(runs)
    names = [[row["run"] for row in group] for group in groups]
    assert names == [["a", "c", "mean of 2", "std. dev. of 2"], ["b"], ["d"]]
    assert [group[0][title] for group in groups] == ["a" * 8, "b" * 8, ""]
    assert format_rows(groups, "csv").startswith(f"run,train.seed,{title},parameters,")


def test_unfinished_runs_are_no_part_of_the_mean(corpus_dir, tmp_path):
    """Where they stand is said. Sabotage: take all runs; take the number of steps for all."""
    steps = {"train__max_steps": 1000, "valid__patience": 3}
    ends = {"1": True, "2": False, "3": True, "4": False}
    runs = [
        write_run(
            tmp_path / name,
            corpus_dir,
            10.0 * int(name),
            {"complete": end},
            train__seed=int(name),
            **steps,
        )
        for name, end in ends.items()
    ]
    [[*rows, mean, deviation]] = groups = read_rows(runs)
    assert [row.get("unfinished") for row in rows] == [None, *2 * ["step 40 of 1,000", None]][:4]
    assert (mean["run"], mean["validation BLEU"], deviation["run"]) == (
        "mean of 2",
        20.0,
        "std. dev. of 2",
    )
    assert "unfinished" not in mean
    assert format_rows(groups, "csv").startswith("run,train.seed,unfinished,parameters,")
    [rows] = read_rows(runs[1:3])
    assert [row["run"] for row in rows] == ["2", "3"]


def test_the_vocabulary_is_the_one_in_use(corpus_dir, tmp_path):
    """Not the keys that vocab.path overrides."""
    runs = [
        write_run(tmp_path / name, corpus_dir, 20.0, {"vocabulary": VocabularySizes(*sizes)})
        for name, sizes in (("a", (90, 99, "char")), ("b", (90, 80, "bpe")))
    ]
    rows = [row for [row] in read_rows(runs)]
    assert [row["vocab.size"] for row in rows] == [99, 90]
    assert [row["vocab.kind"] for row in rows] == ["char", "bpe"]


def test_the_formats(groups):
    lines = format_rows(groups, "text").splitlines()
    assert len({len(line) for line in lines if line}) == 1 and lines.count("") == 2
    table = list(csv.reader(format_rows(groups, "csv").splitlines()))
    assert table[0] == ["run", "model.norm", "train.seed", *COLUMNS, GREEDY, BEAM]
    assert table[-1][1:3] == ["post", "1"] and table[-1][3:7] == ["7065600", "40", "4.5", "1600.0"]
    markdown = format_rows(groups, "markdown").splitlines()
    assert markdown[0] == f"| {' | '.join(table[0])} |" and len(markdown) == len(table) + 1
    assert markdown[1] == f"| {' | '.join(['---'] * 3 + ['---:'] * 8)} |"
    assert markdown[5].startswith("| mean of 3 | pre |  | 7,065,600 | 40 | 4.5 | 1,600 | 33.00 |")
    objects = json.loads(format_rows(groups, "json"))
    assert [row["run"] for row in objects] == [row[0] for row in table[1:]]
    assert objects[-1]["model.norm"] == "post" and objects[-1][BEAM] == 22.0
    assert format_rows([[{"run": "a", "BLEU": -0.001}]], "markdown").endswith("| a | 0.00 |")
    rows = [[{"run": "a|\x1b", "model.attention_bias": False}], [{"run": "b"}]]
    assert format_rows(rows, "markdown").splitlines()[2] == "| a\\|\x1b | false |"
    assert '"ä"' in format_rows([[{"run": "ä"}]], "json")
    assert format_rows(rows, "text") == "run  model.attention_bias\na|\\x1b  false\nb"


def test_a_score_of_another_checkpoint_has_its_own_column(corpus_dir, tmp_path):
    run = write_run(tmp_path / "run", corpus_dir, 20.0)
    write_score(run, 11.0, checkpoint="step-00000010")
    write_score(run, 12.0, checkpoint="averaged-2")
    write_score(run, 13.0, tokenizer="zh")
    [[row]] = read_rows([run])
    scores = {title: value for title, value in row.items() if "split test" in title}
    others = {f"{GREEDY}, step-00000010": 11.0, f"{GREEDY}, averaged-2": 12.0}
    others[GREEDY.replace("BLEU", "BLEU (zh)")] = 13.0
    assert scores == {GREEDY: 21.0, BEAM: 22.0, **others}
    assert row.keys() == {"run", *COLUMNS, *scores}


def test_an_exported_model_has_the_scores_of_itself(exported_run, corpus_dir, tmp_path):
    """And the step that it was exported at; it is no seed of the run."""
    exported = shutil.copytree(exported_run, tmp_path / "exported")
    write_score(tmp_path, 15.0, checkpoint="exported", digest=checkpoint_digest(exported))
    run = write_run(tmp_path / "run", corpus_dir, 20.0)
    _, [row] = read_rows([run, exported])
    assert row == {"run": "exported", "steps": 1, GREEDY: 15.0}


def test_runs_of_one_seed_have_no_mean(corpus_dir, tmp_path, caplog):
    """A copy of a run is not another sample. Sabotage: count all runs of a group."""
    runs = [
        write_run(tmp_path / name, corpus_dir, 20.0, train__seed=seed)
        for name, seed in (("a", 1), ("b", 2), ("copy", 2))
    ]
    for paths in (runs, runs[1:]):
        assert [len(group) for group in read_rows(paths)] == [len(paths)]
    assert "a, b, copy: some have the same seed, so there is no mean" in caplog.messages


def test_what_is_missing_is_blank(corpus_dir, tmp_path, caplog):
    """Damaged parts too, with a warning; a mean needs a number of every run."""
    ended = {"complete": True}
    runs = [
        write_run(tmp_path / str(s), corpus_dir, 20.0, ended, train__seed=s) for s in (1, 2, 3, 4)
    ]
    (runs[0] / "run.json").write_text("{}")
    (runs[1] / "metrics.jsonl").write_text("damaged\n")
    (runs[2] / "metrics.jsonl").unlink()
    for path in (runs[2] / "evaluations").iterdir():
        path.write_text("damaged")
    groups = read_rows(runs)
    [[first], [second, third, _, mean, _]] = groups
    assert first.keys() == {"run", *COLUMNS[1:], GREEDY, BEAM}
    scores = {f"{GREEDY}, step-00000020", f"{BEAM}, step-00000020"}
    assert second.keys() == {"run", "train.seed", "parameters", *scores}
    assert third == {"run": "3", "train.seed": 3, "parameters": 7_065_600}
    assert mean == {"run": "mean of 3", "parameters": 7_065_600}
    assert caplog.text.count("left out") == 5
    assert format_rows(groups, "csv").splitlines()[1].startswith("1,,40,4.5,")


def test_a_path_that_is_no_run(tmp_path, call):
    message = f"{tmp_path}: is no run directory: it has no run.json and no metrics.jsonl"
    assert_one_error(call("compare", tmp_path), message)
    assert_one_error(call("compare", tmp_path / "none"), f"{tmp_path}/none: no such run")
