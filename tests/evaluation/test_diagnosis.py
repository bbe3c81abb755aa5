"""`diagnose` on runs in any state: findings on stdout, what could not be checked on stderr."""

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from checkpoints.small_checkpoint import change_config
from conftest import ALPHABET, assert_one_error, copy_lines, write_copy_corpus, write_lines

from transformer_mt.checkpoints.run_description import read_description, write_description
from transformer_mt.checkpoints.run_directory import list_checkpoints
from transformer_mt.evaluation.diagnosis import _check_scripts
from transformer_mt.text.corpus import RawPairs
from transformer_mt.text.trained_here import remember_text


@pytest.fixture
def run(copy_run, tmp_path) -> Path:
    """Gives a copy of a run whose model copies lines, with the records of a long training."""
    folder = shutil.copytree(copy_run, tmp_path / "run")
    for record in (folder / "evaluations").iterdir():
        if not record.name.startswith("validation-"):  # of another test with the same run
            record.unlink()
    write_metrics(folder, {1: 3.0, 1_500_000: 2.1, 2_000_000: 2.0})
    return folder


def write_metrics(run: Path, losses: dict[int, float]) -> None:
    kinds = [(kind, step) for step in losses for kind in ("train", "valid")]
    records = [{"kind": k, "step": step, "seconds": 1.0, "nll": losses[step]} for k, step in kinds]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))


def change_data(run: Path, **keys: object) -> None:
    remember_text(change_config(run, "data", **keys).data)


@pytest.fixture
def diagnose(run, call):
    """Diagnoses the run; gives its findings, and what could not be checked."""

    def diagnose() -> tuple[list[str], list[str]]:
        code, out, err = call("diagnose", run, "-q")
        before, prefix = err.splitlines(), "warning: not checked: "
        assert code == 0 and all(line.startswith(prefix) for line in before)
        return out.decode().splitlines(), [line.removeprefix(prefix) for line in before]

    return diagnose


def test_a_good_run_has_no_finding(run, diagnose, call):
    """Its task is one of one language, with copies; the sides of all text are looked at."""
    assert diagnose() == ([], [])
    messages = call("diagnose", run).err.splitlines()
    for name in ("training", "validation", "test"):
        assert f"scoring given and shuffled pairs of the {name} text" in messages


def test_a_temporary_folder_on_a_network(run, diagnose, tmp_path, monkeypatch):
    """It keeps files that are mapped, and so the folder. Sabotage: fail if it stays."""
    change_data(run, prepared_dir=str(tmp_path / "prepared"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("os.rmdir", Mock(side_effect=OSError(errno.ENOTEMPTY, "not empty")))
    assert diagnose() == ([], [])


def test_findings_of_training_and_translations(run, diagnose):
    """A line each, in this order: those that may have caused the others come first."""
    write_metrics(run, {1: 3.0, 50: 2.0, **{60 + i: 4.0 for i in range(5)}})
    [path] = (run / "evaluations").iterdir()
    record = json.loads(path.read_text())
    record["hypotheses"] = ["a b a b a b a b a b a b a b"] * len(record["sources"])
    path.write_text(json.dumps(record))
    copies = dict.fromkeys(("sources", "hypotheses"), ["a"] * len(record["sources"]))
    short = {**record, "test_set": "own\x1b", **copies}
    for name, other in (("a", {**record, "test_set": "own\x1b", "time": 0.0}), ("b", short)):
        path.with_name(f"{name}.json").write_text(json.dumps(other))
    found, unchecked = diagnose()
    causes = ["divergence", "overfitting"]  # not too few steps: it is not to be trained on
    causes += ["too short: translations of own\\x1b by step-", "untranslated copies: 60 of 60"]
    causes += ["too long: translations of the validation text"]
    for finding, cause in zip(found, causes, strict=True):
        assert finding.startswith(cause)
    assert unchecked == ["whether sides match, since the model has not learned enough"]


def test_pairs_that_do_not_match(run, corpus_dir, tmp_path, diagnose):
    lines = (corpus_dir / "test.de").read_text().splitlines()
    shifted = lines[1:] + lines[:1]
    write_lines(tmp_path, src=lines, tgt=shifted)
    change_data(run, test={"src": f"{tmp_path}/src", "tgt": f"{tmp_path}/tgt"})
    [finding], _ = diagnose()
    assert finding.startswith("sides do not match: ") and "of 60 pairs of the test text" in finding
    pairs = zip(lines, shifted, strict=True)
    assert any(f'"{src}" = "{tgt}"' in finding for src, tgt in pairs)


@pytest.mark.parametrize("count", [1, 60])
def test_several_translations_of_a_source(run, corpus_dir, tmp_path, diagnose, count):
    """Its other translation is not another source. Sabotage: keep all pairs."""
    lines = (corpus_dir / "test.de").read_text().splitlines()[:count]
    (tmp_path / "x").write_text("\n".join(line for line in lines for _ in range(2)))
    change_data(run, test={"src": f"{tmp_path}/x", "tgt": f"{tmp_path}/x"})
    assert diagnose() == ([], [])


def test_a_share_of_a_text_in_another_script(run, tmp_path, diagnose):
    """It is that of the whole text, though a sample is looked at; its side is named.

    Sabotage: compare a side with the other one of the training text.
    """
    two = {"the training text": RawPairs(["привет"], ["hello"])}
    assert not list(_check_scripts(two))
    lines, script = copy_lines(1500, 9), str.maketrans(ALPHABET, "абцдефгхийклмнопярстувщхыз")
    src = [*lines, *(line.translate(script) for line in lines)]
    write_lines(tmp_path, src=src, tgt=lines * 2)
    for path in list_checkpoints(run):
        shutil.rmtree(path)
    change_data(run, test={"src": f"{tmp_path}/src", "tgt": f"{tmp_path}/tgt"})
    found, _ = diagnose()
    expected = "wrong script: 50.0% of the lines of the sources of the test text"
    assert [finding.partition(" are ")[0] for finding in found] == [expected]


def test_text_that_has_moved_or_changed(run, tmp_path, diagnose):
    moved, prepared = tmp_path / "moved", tmp_path / "prepared"
    change_data(run, path=str(moved), prepared_dir=str(prepared))
    found, unchecked = diagnose()
    names = ["training text", "validation text", "test text"]
    assert not found and [line.split(": ")[0] for line in unchecked] == [f"the {n}" for n in names]
    assert all(str(moved) in line for line in unchecked)
    write_copy_corpus(moved, {"validation": 60, "train": 4000, "test": 60})
    _, [training, valid] = diagnose()
    assert "data.train = train: has changed" in training
    assert "data.valid = validation: has changed" in valid and not prepared.exists()


def test_the_text_that_a_strangers_run_names_is_not_read(run, tmp_path, diagnose):
    """What else can be checked, is. Sabotage: read it."""
    change_config(run, "data", test={"src": f"{tmp_path}/none", "tgt": f"{tmp_path}/none"})
    found, unchecked = diagnose()
    assert not found and len(unchecked) == 3
    for name, line in zip(("training", "validation", "test"), unchecked, strict=True):
        assert line.startswith(f"the {name} text: data.path = ") and "not read" in line


def test_a_run_that_has_just_begun(run, diagnose):
    for path in (*list_checkpoints(run), run / "evaluations"):
        shutil.rmtree(path)
    (run / "metrics.jsonl").unlink()
    found, unchecked = diagnose()
    assert not found and "checkpoint" in unchecked[0]
    assert unchecked[1] == "translations, since the run has recorded none"
    description = read_description(run)
    valid = replace(description.validation, digest="other")
    write_description(run, replace(description, corpus_digest="other", validation=valid))
    _, [training, valid, *_] = diagnose()
    assert training.endswith("data.train = train: has changed since the run read it")
    assert valid.endswith("data.valid = validation: has changed since the run read it")


def test_a_run_that_is_fine_tuned(run, diagnose):
    """Fewer steps than the warm-up are enough; without a checkpoint its vocabulary is unknown."""
    write_metrics(run, {1: 2.0, 50: 2.0})
    assert diagnose()[0][0].startswith("too few steps: 50, fewer than")
    change_config(run, "train", init_from="other")
    assert diagnose() == ([], [])
    for path in list_checkpoints(run):
        shutil.rmtree(path)
    _, [training, *_] = diagnose()
    assert training.startswith("the training text: the run, whose vocabulary is another's, has no")


def test_what_is_not_a_run_or_damaged(run, exported_run, tmp_path, call):
    (run / "metrics.jsonl").write_text("{}\n")
    for path, culprit in (
        (tmp_path / "nowhere", "nowhere: no such run"),
        (tmp_path, "is no run directory: it has no run.json and no checkpoint"),
        (list_checkpoints(run)[0], "is a checkpoint; name the run directory"),
        (exported_run, "is an exported model; name the run directory"),
        (run, "metrics.jsonl, line 1: damaged"),
    ):
        assert_one_error(call("diagnose", path), culprit)
