"""The model card of averaged weights."""

import pytest
import yaml
from conftest import tiny_config
from test_cli_errors import call

from transformer_mt.checkpoints.averaging import average
from transformer_mt.checkpoints.checkpoint import load_checkpoint
from transformer_mt.training.run import train


@pytest.fixture
def averaged(corpus_dir, tmp_path):
    """Gives the average of two checkpoints."""
    sizes = {"model__d_model": 16, "model__d_ff": 32, "data__train": "train[:600]"}
    config = tiny_config(
        corpus_dir,
        train__max_steps=4,
        train__save_every=2,
        valid__every=4,
        data__max_length=10,
        **sizes,
    )
    train(config, tmp_path / "run")
    return average(tmp_path / "run", 2, None)


def header(card: str) -> dict:
    return yaml.safe_load(card.split("---\n")[1])


def evaluate(averaged, tmp_path, monkeypatch, capsys) -> str:
    (tmp_path / "text | x").write_text("ab cd\nef\n")
    text = ["--src", tmp_path / "text | x", "--ref", tmp_path / "text | x", "--quiet"]
    code, out, err = call(monkeypatch, capsys, "evaluate", averaged, *text)
    assert code == 0 and not err
    return out


def test_an_average_has_a_card_with_what_is_known(averaged):
    """Data, recipe, no scores of the run's, no licence. Sabotage: take the run's best BLEU."""
    card = (averaged / "README.md").read_text()
    values = header(card)
    assert values == {
        "language": ["de", "en"],
        "library_name": "transformer-mt",
        "pipeline_tag": "translation",
    }
    assert "mean of the checkpoints of steps 4, 2." in card
    assert "None were measured on these weights." in card and "BLEU" not in card
    assert "of 600 pairs (dropped: " in card and " over 10 pieces), " in card
    assert "license" not in card


def test_an_evaluation_adds_its_scores(averaged, tmp_path, monkeypatch, capsys):
    """With their signatures, in the text and in the header; the checkpoint stays whole.

    Sabotage: list the card in the manifest; write it once.
    """
    before = load_checkpoint(averaged).digest
    out = evaluate(averaged, tmp_path, monkeypatch, capsys)
    assert load_checkpoint(averaged).digest == before
    card = (averaged / "README.md").read_text()
    [result] = header(card)["model-index"][0]["results"]
    assert result["dataset"]["name"].endswith("text | x")
    assert [metric["type"] for metric in result["metrics"]] == ["bleu", "chrf"]
    for line, metric in zip(out.splitlines(), result["metrics"], strict=True):
        signature = line.split("|", 1)[1].split(" = ")[0]
        assert f" {metric['value']:.2f}" in line and signature in metric["name"]
        assert f"{metric['value']:.2f}, `{signature}`" in card
    assert "\n- text | x, 2 sentences, greedy, fp32:\n  - BLEU " in card
    assert "mean of the checkpoints of steps 4, 2." in card
    assert not (averaged.parent / "evaluations").exists() or all(
        "text" not in path.name for path in (averaged.parent / "evaluations").iterdir()
    )


def test_a_card_that_was_edited_stays(averaged, tmp_path, monkeypatch, capsys):
    """Sabotage: write it anew in any case."""
    card = averaged / "README.md"
    own = "\n".join(line for line in card.read_text().splitlines() if "<!--" not in line)
    card.write_text(own)
    evaluate(averaged, tmp_path, monkeypatch, capsys)
    assert card.read_text() == own
