"""What the program wrote in an earlier version is still read, translates and resumes.

Each folder format-N has a corpus, a configuration, a run and its export for CTranslate2, as the
program wrote them while N was the format of `state.json`. They are made anew only when a format is
given up; these lines made format-2 in its folder, on one thread:

    config = load_config(Path("tiny.toml"))
    data = config.data.model_copy(update={"path": "corpus"})  # no folder of the machine
    train(config.model_copy(update={"data": data}), Path("run"))
    export(find_checkpoint(Path("run")), Path("exported"), "int8")

Then prepared/, exported/README.md, run/train.log and run/.lock were deleted.
"""

import shutil
from pathlib import Path

import pytest

import transformer_mt
from transformer_mt.checkpoints.evaluations import VALIDATION, read_evaluations
from transformer_mt.checkpoints.run_directory import load_newest, read_run
from transformer_mt.config.loading import load_config
from transformer_mt.training.run import train

FORMATS = sorted(Path(__file__).parent.glob("format-*"))
SOURCES, HYPOTHESES = ["g ehe ne", "ab"], ["g ehe ne", "cd e"]
SCORES = {"format-2": {"averaged": [-29.47463, -16.14185], "raw": [-29.06527, -16.42296]}}


@pytest.fixture(params=FORMATS, ids=lambda path: path.name)
def folder(request, tmp_path, monkeypatch) -> Path:
    """Gives a copy of a format's folder, as the working directory."""
    copy = shutil.copytree(request.param, tmp_path / request.param.name)
    monkeypatch.chdir(copy)
    return copy


@pytest.mark.parametrize("weights", ["averaged", "raw"])
def test_it_loads_and_translates(folder, weights):
    """It gives translations the log-probabilities that it gave when it was made."""
    model = transformer_mt.load("run", raw=weights == "raw", device="cpu")
    assert model.score(SOURCES, HYPOTHESES) == pytest.approx(SCORES[folder.name][weights], abs=1e-3)
    assert len(model.translate(SOURCES)) == 2


def test_its_export_translates(folder):
    """With weights that were rounded. On CPUs without VNNI, sums of int8 products overflow."""
    model, expected = transformer_mt.load("exported"), SCORES[folder.name]["averaged"]
    assert model.score(SOURCES, HYPOTHESES) == pytest.approx(expected, abs=2.0)
    assert len(model.translate(SOURCES)) == 2


def test_its_records_are_read(folder, caplog):
    """run.json, the metrics and the evaluation; the checkpoint is that of the run."""
    run = read_run(folder / "run")
    assert run.checkpoint and run.description and run.description.complete
    assert run.description.digests["corpus_digest"] == run.progress.corpus_digest
    assert run.metrics.end("step") == run.progress.step == 30
    [record] = read_evaluations(folder / "run")
    assert record.test_set == VALIDATION and not caplog.messages


def test_it_resumes(folder):
    before = load_newest(folder / "run").progress
    config = load_config(folder / "tiny.toml", [f"train.max_steps={before.step + 3}"])
    after = train(config, folder / "run")
    assert after.step == before.step + 3 and after.seconds > before.seconds
    assert (after.epoch, after.epoch_step) > (before.epoch, before.epoch_step)
