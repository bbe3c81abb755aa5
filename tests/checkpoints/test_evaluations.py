"""Records of evaluations beside a checkpoint."""

import json
import shutil
from dataclasses import replace
from threading import Thread

import pytest
from conftest import HOSTILE_JSON
from pydantic import TypeAdapter
from small_checkpoint import save_step

from transformer_mt.checkpoints import evaluations
from transformer_mt.checkpoints.evaluations import Score, read_evaluations, write_evaluation
from transformer_mt.checkpoints.layout import METRICS, checkpoint_digest
from transformer_mt.system.manifest import MANIFEST, write_manifest

SEARCH = dict(beam_size=4, length_penalty=0.6, precision="bf16", max_length=60, raw=True)
SCORE = {"name": "chrf", "value": 31.25, "signature": "nrefs:1", "confidence": 0.5}
VALUES = {"test_set": "a/b c", "checkpoint": "step-00000001", "digest": "abc", "search": SEARCH}
VALUES |= {"scores": [SCORE], "sources": ["ein"], "references": [["one"], ["an"]]}
VALUES |= {"hypotheses": ["a"], "seconds": 1.5, "time": 2.0}
RECORD = TypeAdapter(evaluations.EvaluationRecord).validate_json(json.dumps(VALUES))


def test_a_record_comes_back(tmp_path):
    """Its JSON has fixed keys; the printed line of a score is not stored."""
    path = tmp_path / "step-00000001"  # has been deleted
    (tmp_path / METRICS).touch()
    printed = replace(RECORD.scores[0], text="chrF2|nrefs:1 = 31.25")
    write_evaluation(path, replace(RECORD, scores=[printed]))
    [file] = (tmp_path / "evaluations").iterdir()
    assert file.name == "a-b-c-6418ac35.json"  # another name would not replace older records
    usual = replace(RECORD, scores=[Score("bleu", 1.0, "nrefs:1|tok:13a")])
    assert usual.file_name == file.name and json.loads(file.read_text()) == VALUES
    file.with_name(".hidden.json").write_bytes(file.read_bytes())  # is being written
    [record] = read_evaluations(tmp_path)
    assert record == RECORD
    setting = "beam 4, alpha 0.6, bf16, raw weights, lines split after 60 pieces"
    assert str(record.search) == setting  # the title of its column
    write_evaluation(path, replace(RECORD, hypotheses=["a" * 3_000_000]))  # as of many lines
    assert len(read_evaluations(tmp_path)) == 1


def test_two_processes_that_score_one_translation(tmp_path, monkeypatch):
    """Both scores are kept. Sabotage: hold no lock."""
    (tmp_path / METRICS).touch()
    path, real = tmp_path / "step-00000001", evaluations.replace_file
    other = replace(RECORD, scores=[Score("ter", 60.0, "nrefs:1")])
    second = Thread(target=write_evaluation, args=(path, other))

    def replace_file(*arguments) -> None:
        monkeypatch.undo()
        second.start()
        second.join(0.3)  # it waits for this one
        real(*arguments)

    monkeypatch.setattr(evaluations, "replace_file", replace_file)
    write_evaluation(path, RECORD)
    second.join()
    [record] = read_evaluations(tmp_path)
    assert {score.name for score in record.scores} == {"chrf", "ter"}
    assert len(list((tmp_path / "evaluations").iterdir())) == 1


def test_scores_of_weights_that_were_replaced_are_left_out(tmp_path, caplog):
    """Those of a deleted or damaged checkpoint are kept. Sabotage: compare no digests."""
    path = save_step(tmp_path, 1)
    (tmp_path / METRICS).touch()
    write_evaluation(path, replace(RECORD, digest=checkpoint_digest(path)))
    assert len(read_evaluations(tmp_path)) == 1 and not caplog.messages
    [file] = (tmp_path / "evaluations").iterdir()
    (path / MANIFEST).write_text("")
    assert len(read_evaluations(tmp_path)) == 1 and not caplog.messages
    shutil.rmtree(path)
    assert len(read_evaluations(tmp_path)) == 1
    write_manifest(save_step(tmp_path, 1), {"other": "weights"})
    assert not read_evaluations(tmp_path)
    message = f"{file}: {path.name} was saved again since; evaluate it again; left out"
    assert caplog.messages == [message]
    average = path.rename(tmp_path / "averaged-2")
    write_evaluation(average, replace(RECORD, checkpoint=average.name))
    assert not read_evaluations(average)


def test_a_newer_record_of_the_same_kind_replaces_it(tmp_path):
    """The same text, checkpoint, search, tokenizer, case; of validation whatever checkpoint."""
    (tmp_path / METRICS).touch()
    path = tmp_path / "step-00000001"
    others = [
        replace(RECORD, time=1.0, test_set="d"),
        replace(RECORD, time=4.0, checkpoint="step-00000002"),
        replace(RECORD, time=5.0, search=evaluations.SearchSetting()),
        replace(RECORD, time=7.0, test_set="validation", checkpoint="step-00000002"),
        replace(RECORD, time=8.0, scores=[Score("bleu", 1.0, "nrefs:1|tok:zh|smooth:exp")]),
        replace(RECORD, time=9.0, scores=[Score("bleu", 1.0, "nrefs:1|case:lc|tok:13a")]),
    ]
    for record in (RECORD, replace(RECORD, time=6.0, test_set="validation"), *others):
        write_evaluation(path, record)
    write_evaluation(path, replace(RECORD, time=3.0))
    times = [record.time for record in read_evaluations(tmp_path)]
    assert times == [1.0, 3.0, 4.0, 5.0, 7.0, 8.0, 9.0]


def test_other_scores_of_the_same_translation_are_kept(tmp_path):
    """As of an evaluation with more metrics. Sabotage: keep those of another translation."""
    (tmp_path / METRICS).touch()
    values = ("chrf", 1.0), ("ter", 2.0), ("ter", 3.0)
    scored = [replace(RECORD, scores=[Score(name, value, "nrefs:1")]) for name, value in values]
    for record in scored:
        write_evaluation(tmp_path / "step-00000001", record)
    [record] = read_evaluations(tmp_path)
    assert [(score.name, score.value) for score in record.scores] == [("ter", 3.0), ("chrf", 1.0)]
    write_evaluation(tmp_path / "step-00000001", replace(scored[0], hypotheses=["b"]))
    [record] = read_evaluations(tmp_path)
    assert [score.name for score in record.scores] == ["chrf"]


@pytest.mark.parametrize("key", VALUES)
def test_an_edited_record_is_left_out(tmp_path, caplog, key):
    """With one line that names the file, whatever is in it."""
    path = tmp_path / "evaluations" / "x.json"
    path.parent.mkdir()
    good = json.dumps({**VALUES, key: "HERE"})
    for value in HOSTILE_JSON:
        path.write_text(good.replace('"HERE"', value))
        assert read_evaluations(tmp_path) == [], value[:9]
        assert caplog.messages.pop().startswith(f"{path}: damaged")
        caplog.clear()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hypotheses": ["a", "b"]}, "damaged (content: Value error, numbers of lines differ)"),
        ({"references": [["a", "b"]]}, "damaged (content: Value error, numbers of lines differ)"),
        ({"domain": "news"}, "unknown key domain; use a newer transformer-mt"),
    ],
)
def test_a_record_of_other_lines_or_a_newer_version_is_left_out(tmp_path, caplog, changes, message):
    path = tmp_path / "evaluations" / "x.json"
    path.parent.mkdir()
    path.write_text(json.dumps({**VALUES, **changes}))
    assert read_evaluations(tmp_path) == [] and caplog.messages == [f"{path}: {message}; left out"]


def test_where_records_are(tmp_path, caplog):
    """In the run for its steps, inside an average; nowhere for a step outside its run."""
    step, average = tmp_path / "step-00000001", tmp_path / "averaged-2"
    assert evaluations.record_folder(step) is None
    write_evaluation(step, RECORD)
    assert not list(tmp_path.iterdir())
    (tmp_path / METRICS).touch()
    average.mkdir()
    assert evaluations.record_folder(step) == tmp_path / "evaluations"
    write_evaluation(average, RECORD)
    assert [path.parent for path in average.glob("*/*")] == [evaluations.record_folder(average)]
    assert read_evaluations(tmp_path) == read_evaluations(average) == [RECORD]
    (average / METRICS).touch()  # another run
    assert not read_evaluations(tmp_path)
    (average / METRICS).unlink()
    (tmp_path / "evaluations").write_text("in the way")
    write_evaluation(step, RECORD)
    assert caplog.messages == [f"{tmp_path}/evaluations: the scores are not recorded: File exists"]
