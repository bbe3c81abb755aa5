"""The table of runs that `compare` prints, from small run directories made by hand."""

import csv
import json
import shutil
import statistics
from pathlib import Path

import pytest
from checkpoints.small_checkpoint import describe, small_config
from conftest import assert_one_error

from transformer_mt.checkpoints import evaluations
from transformer_mt.checkpoints import run_description as stored
from transformer_mt.checkpoints.layout import checkpoint_digest
from transformer_mt.checkpoints.metrics import run_names
from transformer_mt.evaluation.run_comparison import format_rows, read_rows
from transformer_mt.system.manifest import MANIFEST

BLEU, PERPLEXITY = "validation: BLEU (average)", "validation: perplexity (weights)"
COLUMNS = ["parameters", "steps", "minutes", "tokens/s", BLEU, PERPLEXITY]
TEST, GREEDY, BEAM = "own, split test: BLEU", "greedy, fp32", "beam 4, alpha 0.6, fp32"
SIGNATURES = {TEST: "BLEU|nrefs:1|tok:13a"}


def write_run(path: Path, bleu: float, described=None, **changes) -> Path:
    """Writes a run of 30 steps, best at 20, with two scores; `described` goes to run.json, too."""
    path.mkdir(parents=True)
    stored.write_description(path, describe(small_config(**changes), **(described or {})))
    lines = []
    for step, speed in zip((10, 20, 30), (1000.0, 2000.0, 1600.0), strict=True):
        position = {"step": step, "epoch": 0, "seconds": 9.0 * step}
        lines.append({"kind": "train", **position, "loss": 2.0, "tokens_per_second": speed})
        scores = {"bleu": 50.0 - bleu, "ema_bleu": bleu - abs(step - 20)}
        valid = {"kind": "valid", **position, **scores, "perplexity": step / 10, "nll": 1.0}
        lines.append(valid)
    lines.append({"kind": "train", **position, "loss": None, "tokens_per_second": None})
    lines.append({**valid, "ema_bleu": bleu, "nll": 2.0})
    lines.append({**lines[-1], "step": 40, "ema_bleu": 99.0, "perplexity": None})  # diverged
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_score(path, bleu + 1)
    write_score(path, bleu + 2, evaluations.SearchSetting(4, 0.6))
    write_score(path, bleu, test_set="validation")
    return path


def write_score(
    run: Path, value: float, search=None, checkpoint="step-00000020", digest="", **changes
) -> None:
    names = {"test_set": "own, split test", "tokenizer": "13a", **changes}
    scores = [evaluations.Score("bleu", value, f"nrefs:1|bs:1000|seed:1|tok:{names['tokenizer']}")]
    search = search or evaluations.SearchSetting()
    values = checkpoint, digest, search, scores, ["a"], [["a"]], ["a"]
    record = evaluations.EvaluationRecord(names["test_set"], *values)
    (run / checkpoint).mkdir(exist_ok=True)
    evaluations.write_evaluation(run / checkpoint, record)


@pytest.fixture
def groups(tmp_path):
    paths = [
        write_run(tmp_path / f"pre-{seed}", bleu, model__norm="pre", train__seed=seed)
        for seed, bleu in ((1, 30.0), (2, 32.0), (3, 37.0))
    ]
    other = write_run(tmp_path / "post-1", 20.0, model__norm="post", train__seed=1)
    return read_rows([paths[0], other, *paths[1:], paths[0]])


def read_greedy(paths):
    return [group for group in read_rows(paths) if group[0]["search"] == GREEDY]


def with_means(groups, file_format="markdown"):
    """Gives the rows of a table for people, by column."""
    lines = format_rows(groups, file_format).splitlines()
    titles, _, *rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    return [dict(zip(titles, row, strict=True)) for row in rows]


def test_runs_that_differ_in_the_seed_are_a_group(groups):
    """A run that is named twice counts once, in each setting of search."""
    names = [[row["run"] for row in group] for group in groups]
    assert names == [*2 * [["pre-1", "pre-2", "pre-3"]], *2 * [["post-1"]]]
    assert [{row["search"] for row in group} for group in groups] == 2 * [{GREEDY}, {BEAM}]
    titles = ["run", "model.norm", "train.seed", *COLUMNS, "search", "signatures", TEST]
    values = ["post-1", "post", 1, 7_065_600, 40, 4.5, 1600.0, 20.0, 2.0, GREEDY, SIGNATURES, 21.0]
    assert groups[2] == [dict(zip(titles, values, strict=True))]
    pre = with_means(groups)[:4]
    assert pre[3]["run"] == "mean ± std. dev. of 3"
    assert [row["train.seed"] for row in pre] == ["1", "2", "3", ""]
    assert {(row["model.norm"], row["search"]) for row in pre} == {("pre", GREEDY)}
    assert pre[3][TEST] == f"34.00 ± {statistics.stdev([30, 32, 37]):.2f}"
    assert pre[3]["steps"] == "40"
    assert run_names([Path("/a/x"), Path("/b/x"), Path("/b/y")]) == ["a/x", "b/x", "b/y"]


def test_weights_are_named_only_where_there_is_an_average(tmp_path):
    run = write_run(tmp_path / "run", 20.0)
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text.replace("ema_bleu", "other"))
    shutil.rmtree(run / "evaluations")
    row = read_rows([run])[0][0]
    assert row["validation: BLEU"] == 30.0 and row["validation: perplexity"] == 1.0


def test_the_best_validation_is_that_of_the_key(tmp_path):
    row = read_rows([write_run(tmp_path / "run", 20.0, valid__metric="nll")])[0][0]
    assert (row[BLEU], row[PERPLEXITY]) == (10.0, 1.0)


@pytest.mark.parametrize(
    ("description", "title"),
    [
        (lambda digest: {"corpus_digest": digest}, "encoded text"),
        (lambda digest: {"validation": stored.ValidationText(2, digest)}, "validation text"),
        (lambda digest: {"init_from": stored.InitialWeights(1, digest, *3 * [""])}, "started from"),
        (lambda digest: {"environment": {"source of training/": digest}}, "source of training/"),
    ],
)
def test_seeds_of_other_text_or_source_are_another_group(tmp_path, description, title):
    """Their digests are shown. Sabotage: leave out one of the four."""
    digests = {"a": "a" * 64, "b": "b" * 64, "c": "a" * 64, "d": ""}
    runs = [
        write_run(tmp_path / name, 20.0, description(digest), train__seed=seed)
        for seed, (name, digest) in enumerate(digests.items())
    ]
    groups = read_greedy(runs)
    assert [[row["run"] for row in group] for group in groups] == [["a", "c"], ["b"], ["d"]]
    assert [group[0][title] for group in groups] == ["a" * 8, "b" * 8, ""]
    assert format_rows(groups, "csv").startswith(f"run,train.seed,{title},search,")


def test_unfinished_runs_are_no_part_of_the_mean(tmp_path):
    """Where they stand is said. Sabotage: take all runs; take the number of steps for all."""
    runs = []
    for seed, end in enumerate((True, False, True, False), 1):
        changes = {"train__seed": seed, "train__max_steps": 1000, "valid__patience": 3}
        path, ended = tmp_path / str(seed), {"complete": end}
        runs.append(write_run(path, 10.0 * seed, ended, **changes))
    groups = read_greedy(runs)
    *rows, mean = with_means(groups)
    assert [row["unfinished"] for row in rows] == ["", *2 * ["step 40 of 1,000", ""]][:4]
    assert (mean["run"], mean[BLEU]) == ("mean ± std. dev. of 2", "20.00 ± 14.14")
    assert not mean["unfinished"]
    assert format_rows(groups, "csv").startswith("run,train.seed,unfinished,search,parameters,")
    latex = format_rows(groups, "latex", ["run", TEST]).splitlines()
    rows = [line.split(" & ") for line in latex if line.endswith(r"\\")][1:]
    assert [row[1] for row in rows] == [*2 * ["step 40 of 1,000"], ""]
    assert [row["run"] for row in with_means(read_greedy(runs[1:3]))] == ["2", "3"]


def test_the_vocabulary_is_the_one_in_use(tmp_path):
    """Not the keys that vocab.path overrides."""
    sizes = {"a": (90, 99, "char"), "b": (90, 80, "bpe")}
    changes = {name: {"vocabulary": stored.VocabularySizes(*sizes[name])} for name in sizes}
    runs = [write_run(tmp_path / name, 20.0, changes[name]) for name in sizes]
    rows = [row for [row] in read_greedy(runs)]
    assert [row["vocab.size"] for row in rows] == [99, 90]
    assert [row["vocab.kind"] for row in rows] == ["char", "bpe"]


def test_the_formats(groups):
    lines = format_rows(groups, "text").splitlines()
    assert len({len(line) for line in lines[5:] if line}) == 1 and lines.count("") == 4
    assert "\r" not in format_rows(groups, "csv")
    table = list(csv.reader(format_rows(groups, "csv").splitlines()))
    assert table[0] == ["run", "model.norm", "train.seed", "search", *COLUMNS, TEST]
    assert table[-1][1:4] == ["post", "1", BEAM] and table[-1][4:7] == ["7065600", "40", "4.5"]
    markdown = format_rows(groups, "markdown").splitlines()
    assert markdown[0] == f"| {' | '.join(table[0])} |" and len(markdown) == len(table) + 3
    assert markdown[1] == f"| {' | '.join(['---'] * 4 + ['---:'] * 7)} |"
    mean = f"| mean ± std. dev. of 3 | pre |  | {GREEDY} | 7,065,600 | 40 | 4.5 | 1,600 | 33.00 ± "
    assert markdown[5].startswith(mean)
    objects = json.loads(format_rows(groups, "json"))
    assert [row["run"] for row in objects] == [row[0] for row in table[1:]]
    assert objects[-1]["model.norm"] == "post" and objects[-1][TEST] == 22.0
    assert format_rows([[{"run": "a", "BLEU": -0.001}]], "markdown").endswith("| a | 0.00 |")
    rows = [[{"run": "a|\x1b", "model.attention_bias": False}], [{"run": "b"}]]
    assert format_rows(rows, "markdown").splitlines()[2] == "| a\\|\x1b | false |"
    row = {"run": "a", "vocab.symbols": '["<bt>"]'}  # else a tag, which is not shown
    assert format_rows([[row]], "markdown").endswith(r'| a | ["\<bt>"] |')
    row = {"run": "a", "x|y: BLEU": 1.0, "p": 0.00002}
    assert format_rows([[row]], "markdown").startswith("| run | x\\|y: BLEU | p |\n")
    assert format_rows([[row]], "markdown", ["X|Y*", "p"]).endswith("| 1.00 | <0.0001 |")
    row = {"run": "a", "s, split t[:20] (0123abcd): BLEU": 1.0}
    assert "1.00" in format_rows([[row]], "text", ["S, split t[:20]: *"])
    assert '"ä"' in format_rows([[{"run": "ä"}]], "json")
    assert format_rows(rows, "text") == "run  model.attention_bias\na|\\x1b  false\nb"


def test_a_score_of_another_checkpoint_has_its_own_row(tmp_path):
    run = write_run(tmp_path / "run", 20.0)
    write_score(run, 11.0, checkpoint="step-00000010")
    write_score(run, 12.0, checkpoint="averaged-2")
    write_score(run, 13.0, tokenizer="ja-mecab")
    rows = [row for [row] in read_rows([run])]
    searches = [GREEDY, BEAM, f"{GREEDY}, step-00000010", f"{GREEDY}, averaged-2"]
    assert [row["search"] for row in rows] == searches
    assert [row[TEST] for row in rows] == [21.0, 22.0, 11.0, 12.0]
    assert rows[0]["own, split test: BLEU (ja-mecab)"] == 13.0
    assert rows[1].keys() == {"run", *COLUMNS, "search", "signatures", TEST}
    assert not any(BLEU in row or PERPLEXITY in row for row in rows[2:])  # those of the best


def test_the_validation_of_a_best_that_was_not_scored_has_its_own_row(tmp_path):
    """As where an average alone was evaluated. Sabotage: show the rows of scores alone."""
    run = write_run(tmp_path / "run", 20.0)
    shutil.rmtree(run / "evaluations")
    write_score(run, 12.0, checkpoint="averaged-2")
    [[best], [average]] = read_rows([run])
    assert best.keys() == {"run", *COLUMNS} and (best[BLEU], best[PERPLEXITY]) == (20.0, 2.0)
    assert average["search"] == f"{GREEDY}, averaged-2" and BLEU not in average
    assert read_rows([run], ["own*"]) == [[average]]


def test_averages_of_any_name_are_seeds_of_one_setting(tmp_path):
    """Copied, linked, or named by `average -o`. Sabotage: look for their own names alone."""
    paths = [tmp_path / name for name in ("averaged-2", "copy", "link")]
    for seed, path in enumerate(paths):
        (tmp_path / f"run-{seed}").mkdir()
        write_score(tmp_path / f"run-{seed}", 12.0, checkpoint="averaged-2")
        place = tmp_path / f"run-{seed}" / "averaged-2"
        stored.write_description(place, describe(small_config(train__seed=seed)))
        (place / MANIFEST).touch()
        path.symlink_to(place) if path.name == "link" else shutil.copytree(place, path)
    [group] = read_rows(paths)
    assert [row["search"] for row in group] == [GREEDY] * 3
    three = describe(small_config(train__seed=1), averaged_steps=[1, 2, 3])
    stored.write_description(paths[1], three)
    assert [len(group) for group in read_rows(paths)] == [2, 1]


def test_a_text_has_one_column_though_its_folder_was_renamed(tmp_path):
    """Another text of that name has its own. Sabotage: take the whole name for the text."""
    names = "old, split test (0123abcd)", "new, split test (0123abcd)", "old, split test (99999999)"
    runs = [write_run(tmp_path / str(i), 20.0, train__seed=i) for i in range(3)]
    for run, name in zip(runs, names, strict=True):
        write_score(run, 30.0, test_set=name)
    titles = [[title for title in row if "split test (" in title] for row in read_greedy(runs)[0]]
    assert titles == [[f"{name}: BLEU"] for name in (names[0], names[0], names[2])]


def test_an_exported_model_has_the_scores_of_itself(exported_run, tmp_path):
    """It is no seed of the run."""
    exported = shutil.copytree(exported_run, tmp_path / "exported")
    write_score(tmp_path, 15.0, checkpoint="exported", digest=checkpoint_digest(exported))
    run = write_run(tmp_path / "run", 20.0)
    *_, [row] = read_rows([run, exported])
    assert row == {"run": "exported", "search": GREEDY, "signatures": SIGNATURES, TEST: 15.0}


def test_runs_of_one_seed_have_no_mean(tmp_path, caplog):
    """A copy of a run is not another sample. Sabotage: count all runs of a group."""
    seeds = {"a": 1, "b": 2, "copy": 2}
    runs = [write_run(tmp_path / n, 20.0, train__seed=seeds[n]) for n in seeds]
    for paths in (runs, runs[1:]):
        assert len(with_means(read_greedy(paths))) == len(paths)
    assert "a, b, copy: some have the same seed, so there is no mean" in caplog.messages
    caplog.clear()
    format_rows(read_greedy(runs), "latex")
    assert len(caplog.messages) == 1


def test_what_is_missing_is_blank(tmp_path, caplog):
    """Damaged parts too, with a warning; a mean needs a number of every run.

    Sabotage: take each checkpoint of a run without metrics for the best.
    """
    end, seeds = {"complete": True}, range(1, 5)
    runs = [write_run(tmp_path / f"{s}", 20.0, end, train__seed=s) for s in seeds]
    (runs[0] / "run.json").write_text("{}")
    (runs[1] / "metrics.jsonl").write_text("damaged\n")
    (runs[2] / "metrics.jsonl").unlink()
    for path in (runs[2] / "evaluations").iterdir():
        path.write_text("damaged")
    groups = read_rows(runs)
    [[first], _, [second], _, [third], [fourth], _] = groups
    assert first.keys() == {"run", *COLUMNS[1:], "search", "signatures", TEST}
    assert second.keys() == {"run", "train.seed", "parameters", "search", "signatures", TEST}
    assert second["search"] == f"{GREEDY}, step-00000020"
    assert third == {"run": "3", "train.seed": 3, "parameters": 7_065_600}
    del second["search"], fourth["search"]
    mean = with_means([[fourth, second]])[2]
    assert {title for title in mean if mean[title]} == {"run", "parameters", TEST}
    assert caplog.text.count("left out") == 4 and "1/run.json: damaged" in caplog.text
    assert format_rows(groups, "csv").splitlines()[1].startswith(f'1,,"{GREEDY}",40,4.5,')


def test_a_path_that_is_no_run(tmp_path, call):
    message = f"{tmp_path}: is no run directory: it has no run.json and no metrics.jsonl"
    assert_one_error(call("compare", tmp_path), message)
    assert_one_error(call("compare", tmp_path / "none"), f"{tmp_path}/none: no such run")


@pytest.fixture
def sweep(tmp_path):
    """Gives runs of two settings and four seeds, one of them unfinished, without one of them."""
    scores = {"post": (21.0, 22.5, 23.0, 99.0), "pre": (20.0, 21.0, 22.0, 20.0)}
    for norm, values in scores.items():
        for seed, bleu in enumerate(values, 1):
            changes = {"model__norm": norm, "train__seed": seed}
            ended = {"complete": (norm, seed) != ("post", 4)}
            run = write_run(tmp_path / f"{norm}-{seed}", bleu, ended, **changes)
            write_score(run, 50 - bleu, test_set="wmt16")
    shutil.rmtree(tmp_path / "pre-1")
    return sorted(tmp_path.glob("p*-*"))


def test_the_baseline_is_paired_by_seed(sweep, call):
    """With the finished runs of its setting. Sabotage: pair in order; take unfinished runs."""
    options = "--metric", "bleu", "--format", "json"
    rows = json.loads(call("compare", *sweep, "--baseline", sweep[-1], *options).out)
    names = [(row["model.norm"], row["train.seed"], row["search"], row["score"]) for row in rows]
    expected = [(GREEDY, TEST), (GREEDY, "wmt16: BLEU"), (BEAM, TEST)]
    assert names == [("post", "2, 3", *each) for each in expected]
    values = [[row[key] for key in ("difference", "std. dev.", "t", "df")] for row in rows]
    assert values[0] == values[2] == pytest.approx([1.25, 0.125**0.5, 5.0, 1])
    assert values[1] == pytest.approx([-1.25, 0.125**0.5, -5.0, 1])
    result = call("compare", *sweep[-2:], "--baseline", sweep[1])
    assert_one_error(result, "--baseline: evaluate two seeds of both settings")
    for run in sweep:
        shutil.rmtree(run / "evaluations")
    result = call("compare", *sweep, "--baseline", sweep[-1])
    assert_one_error(result, "--baseline: evaluate two seeds of both settings")


@pytest.mark.parametrize(
    ("options", "titles"),
    [
        ("--test-set wmt*", ["wmt16: BLEU"]),
        ("--metric Perplexity", [PERPLEXITY]),
        ("--metric bleu --test-set validation --test-set wmt16", [BLEU, "wmt16: BLEU"]),
        ("--columns *bleu --metric perplexity --metric BLEU", [BLEU, TEST, "wmt16: BLEU"]),
    ],
)
def test_scores_are_chosen(sweep, call, options, titles):
    """A run has no row for a search that none of them is of; unfinished runs stay marked."""
    rows = json.loads(call("compare", *sweep, "--format", "json", *options.split()).out)
    shown = {title for row in rows for title in row}
    assert {title for title in shown if ": " in title} == {*titles}
    assert {"run", "unfinished"} <= shown
    assert len(rows) == (14 if TEST in titles else 7)


def test_what_matches_nothing_is_an_error(sweep, call):
    message = "no run has a score that matches 'wmt*: ter'"
    assert_one_error(call("compare", *sweep, "--metric", "ter", "--test-set", "wmt*"), message)
    message = "--columns norm: matches none of: run; model.norm; train.seed; unfinished"
    assert_one_error(call("compare", *sweep, "--columns", "norm"), message)


def test_no_two_rows_look_the_same():
    """Whatever columns are chosen. Sabotage: show nothing but what is chosen."""
    rows = [{"run": "a", "optim.lr_scale": x, "search": y, "x: BLEU": 1.0} for x, y in ("pq", "pr")]
    groups = [[row] for row in rows]
    lines = format_rows(groups, "markdown", ["x*"]).splitlines()
    assert lines[0] == "| run | optim.lr_scale | search | x: BLEU |" and lines[2] != lines[3]
    assert "\noptim.lr\\_scale & search & x: BLEU " in format_rows(groups, "latex", ["x*"])
    assert "0.0005" in format_rows([[{"score": "x: BLEU", "p": 0.0005}]], "latex", ["p"])


def test_latex():
    """Of each text that LaTeX would take for a command. Sabotage: drop one of the escapes."""
    name, betas = '\\ ~ ^ & % $ # _ { } < > | " * \x1b', {"optim.betas": "[0.9]"}
    signed = {"signatures": {"x: BLEU": "BLEU|tok:a_b", "hidden": "TER|tok:c"}}
    seeds = [{"run": str(s), "train.seed": s, "x: BLEU": 999.0 + s, **betas} for s in (1, 2)]
    groups = [[{"run": name, "x: BLEU": -0.5, **signed}], seeds, [{"run": "*"}]]
    escaped = (
        r"\textbackslash{} \textasciitilde{} \textasciicircum{} \& \% \$ \# \_ \{ \} \textless{}"
        r" \textgreater{} \textbar\allowbreak{} {\char34} {*} \textbackslash{}x1b"
    )
    assert format_rows(groups, "latex", ["run", "*betas", "x*"]).splitlines() == [
        r"\begin{table}\centering  % needs \usepackage{booktabs}",
        r"\caption{mean $\pm$ standard deviation over 2 seeds; single runs have no $\pm$,"
        r" BLEU\textbar\allowbreak{}tok:a\_b}",
        r"\begin{tabular}{llr}",
        r"\toprule",
        r"run & optim.betas & x: BLEU \\",
        r"\midrule",
        rf"{escaped} &  & $-$0.50 \\",
        r"mean $\pm$ std. dev. of 2 & {[}0.9] & 1,000.50 $\pm$ 0.71 \\",
        r"{*} &  &  \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
