"""Checkpoints of earlier versions still load, translate and resume.

Each folder format-N has a corpus, a configuration and a run that the first version with this format
of `state.json` made from them, with paths relative to the folder. They are never made again.
"""

import shutil
from pathlib import Path

import pytest

import transformer_mt
from transformer_mt.checkpoints.run_directory import load_newest
from transformer_mt.config.loading import load_config
from transformer_mt.errors import CheckpointError
from transformer_mt.training.run import train

FORMATS = sorted(Path(__file__).parent.glob("format-*"))
SOURCES, HYPOTHESES = ["g ehe ne", "ab"], ["g ehe ne", "cd e"]
SCORES = {
    "format-2": {"averaged": [-29.57798, -16.18222], "raw": [-29.46689, -16.54550]},
}


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
    expected = SCORES[folder.name][weights]
    assert model.score(SOURCES, HYPOTHESES) == pytest.approx(expected, abs=1e-3)
    assert len(model.translate(SOURCES)) == 2


def test_it_resumes(folder):
    """Training continues from its step; text is not normalised, and asking for it is refused."""
    before = load_newest(folder / "run").progress
    config = load_config(folder / "tiny.toml", [f"train.max_steps={before.step + 3}"])
    after = train(config, folder / "run")
    assert after.step == before.step + 3
    assert after.best_step == before.best_step and after.seconds > before.seconds
    assert load_newest(folder / "run").config.data.normalize == "none"
    normalized = load_config(folder / "tiny.toml", ["data.normalize=nfc"])
    with pytest.raises(CheckpointError, match=r"data.normalize \(was none, is nfc\)"):
        train(normalized, folder / "run")
