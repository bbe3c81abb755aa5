"""`diagnose` on runs in any state: findings on stdout, what could not be checked on stderr."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import Called, assert_one_error, write_copy_corpus

from transformer_mt.checkpoints.run_directory import (
    list_checkpoints,
    read_description,
    write_description,
)

STEPS = {1: 3.0, 1_500_000: 2.1, 2_000_000: 2.0}
"""Losses of a run beyond its warm-up; the weights of `copy_run` have only one step."""


@pytest.fixture
def run(copy_run, tmp_path) -> Path:
    """Gives a copy of a run whose model copies lines, with the records of a long training."""
    folder = shutil.copytree(copy_run, tmp_path / "run")
    write_metrics(folder, STEPS)
    return folder


def write_metrics(run: Path, losses: dict[int, float]) -> None:
    records = [
        {"kind": kind, "step": step, "seconds": 1.0, "nll": loss}
        for step, loss in losses.items()
        for kind in ("train", "valid")
    ]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))


def change_data(run: Path, **keys: object) -> None:
    """Changes keys of [data] in run.json, as resuming with them would."""
    description = read_description(run)
    description["config"]["data"] |= keys
    write_description(run, description)


def warnings(called: Called) -> list[str]:
    """Gives what could not be checked; checks that nothing else went wrong."""
    assert called.code == 0
    lines = called.err.splitlines()
    assert all(line.startswith("warning: not checked: ") for line in lines)
    return [line.removeprefix("warning: not checked: ") for line in lines]


def test_a_good_run_has_no_finding(run, call):
    """Nothing on stdout. Its task is one of one language, with copies.

    Sabotage: count copies whatever the references are; take the scores of given pairs alone.
    """
    assert call("diagnose", run, "-q") == Called(0, b"", "")


def test_findings_are_lines_on_stdout(run, call):
    """Of training, of translations, and of text; the same exit code."""
    write_metrics(run, {1: 3.0})
    change_data(run, test="train[:60]")
    for path in (run / "evaluations").iterdir():
        record = json.loads(path.read_text())
        record["hypotheses"] = ["a b a b a b a b a b a b a b"] * len(record["sources"])
        path.write_text(json.dumps(record))
    called = call("diagnose", run, "-q")
    assert [line.split(b":")[0] for line in called.out.splitlines()] == [
        b"known text",
        b"too few steps",
        b"too long",
        b"repeated words",
    ]
    assert warnings(called) == ["whether sides match, since the model has not learned enough"]


def test_pairs_that_do_not_match(run, corpus_dir, tmp_path, call):
    """By the scores of the run's model; the worst pairs are shown. Sabotage: do not shuffle."""
    lines = (corpus_dir / "test.de").read_text().splitlines()
    for name, side in (("x.de", lines), ("x.en", lines[1:] + lines[:1])):
        (tmp_path / name).write_text("\n".join(side) + "\n")
    change_data(run, test={"src": f"{tmp_path}/x.de", "tgt": f"{tmp_path}/x.en"})
    called = call("diagnose", run, "-q")
    [finding] = called.out.decode().splitlines()
    assert finding.startswith("sides do not match: ") and "of 60 pairs of the test text" in finding
    pairs = dict(zip(lines, lines[1:], strict=False))
    assert any(f'"{src}" = "{tgt}"' in finding for src, tgt in pairs.items())


def test_text_that_has_moved_or_changed(run, tmp_path, call):
    """The rest is still checked, without the prepared corpus too. Sabotage: skip the digests."""
    write_metrics(run, {1: 3.0})
    change_data(run, path=str(tmp_path / "moved"), prepared_dir=str(tmp_path / "prepared"))
    called = call("diagnose", run, "-q")
    assert called.out.startswith(b"too few steps") and len(called.out.splitlines()) == 1
    training, valid, test, _ = warnings(called)
    for line, name in ((training, "training"), (valid, "validation"), (test, "test")):
        assert line.startswith(f"the {name} text: ") and str(tmp_path / "moved") in line
    write_copy_corpus(tmp_path / "moved", {"validation": 60, "train": 4000, "test": 60})
    training, valid, _ = warnings(call("diagnose", run, "-q"))
    assert "data.train = train: has changed" in training
    assert "data.valid = validation: has changed" in valid
    assert not (tmp_path / "prepared").exists()


def test_a_run_that_has_just_begun(run, call):
    """Without checkpoint, validation and metrics: its text is checked."""
    for path in list_checkpoints(run):
        shutil.rmtree(path)
    shutil.rmtree(run / "evaluations")
    (run / "metrics.jsonl").unlink()
    change_data(run, test="train[:60]")
    called = call("diagnose", run, "-q")
    assert [line.split(b":")[0] for line in called.out.splitlines()] == [b"known text"]
    assert warnings(called) == [
        "whether sides match, since the run has no checkpoint yet",
        "translations, since the run has no validation yet",
    ]


def test_what_is_not_a_run_or_damaged(run, copy_run, exported_run, tmp_path, call):
    """One line and exit code 2."""
    for path, culprit in (
        (tmp_path / "nowhere", "nowhere: no such run"),
        (tmp_path, "is no run directory"),
        (list_checkpoints(run)[0], "is a checkpoint; name the run directory"),
        (exported_run, "is a checkpoint; name the run directory"),
    ):
        assert_one_error(call("diagnose", path), culprit)
    (run / "metrics.jsonl").write_text("{}\n")
    assert_one_error(call("diagnose", run), "metrics.jsonl, line 1: damaged")
