"""A checkpoint as a CTranslate2 model; model cards, here mostly of an average."""

import contextlib
import json
import re
import shutil
import textwrap
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml
from conftest import copy_lines, learn_elsewhere, records, refuses, tiny_config

import transformer_mt
from transformer_mt.checkpoints.averaging import average
from transformer_mt.checkpoints.checkpoint import Progress, RunState, load_checkpoint
from transformer_mt.checkpoints.exported import load_exported
from transformer_mt.checkpoints.layout import EMA, METRICS
from transformer_mt.checkpoints.run_description import read_description, write_description
from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.config.keys import OptimConfig
from transformer_mt.errors import CheckpointError, ConfigError
from transformer_mt.evaluation.evaluate import EvaluationReport, evaluate_systems
from transformer_mt.evaluation.scoring import choose_metrics
from transformer_mt.model.transformer import FeedForward
from transformer_mt.text.normalization import INVISIBLE, LIGATURES
from transformer_mt.text.splitting import SourceStatistics
from transformer_mt.text.test_sets import load_test_set
from transformer_mt.training.run import train
from transformer_mt.translation.export import export
from transformer_mt.translation.model_card import model_card
from transformer_mt.translation.options import LoadOptions, SearchOptions, TranslateOptions
from transformer_mt.translation.runtime import EXTRA_LENGTH

LINES = [*copy_lines(100, 11), "b".join(INVISIBLE), "b".join(LIGATURES), "a b\u0308"]


def translate(folder) -> list[str]:
    """Translates by the code of the model card, but greedily, with the limit of transformer-mt."""
    card = (folder / "README.md").read_text()
    code = card.split("## How to use it\n\n")[1].split("\n\n`transformer-mt")[0]
    loading, _, translating = textwrap.dedent(code).partition("text = ")
    greedily = f"beam_size=1, max_decoding_length=len(src.encode(text)) + {EXTRA_LENGTH}"
    changes = {'"..."': "line", "beam_size=4": greedily, "print(": "texts.append("}
    for old, new in changes.items():
        translating = translating.replace(old, new)
    names: dict[str, object] = {"texts": (texts := list[str]())}
    with contextlib.chdir(folder):
        exec(loading, names)
    for names["line"] in LINES:
        exec(f"text = {translating}", names)
    return [text.translate(str.maketrans("\n\r\t", "   ")) for text in texts]


@pytest.mark.parametrize(("norm", "tied"), [("post", True), ("pre", False)])
def test_every_model_it_can_express(corpus_dir, tmp_path, norm, tied):
    """Untrained, so that a slip anywhere shows; vocabularies from elsewhere have other ids."""
    for side, special in (
        ("src", {"unk_id": 1, "bos_id": -1, "eos_id": 0}),
        ("tgt", {"pad_id": 9, "bos_piece": "<start>", "eos_piece": "<end>"}),
    ):
        model = learn_elsewhere(copy_lines(500, 1), vocab_size=100, minloglevel=2, **special)
        (tmp_path / f"{side}.model").write_bytes(model)
    changes = {"model__norm": norm, "model__tie_embeddings": tied, "model__attention_bias": tied}
    changes |= {"vocab__shared": tied, "vocab__path": None if tied else str(tmp_path)}
    config = tiny_config(corpus_dir, model__encoder_layers=2, train__max_steps=0, **changes)
    train(config, tmp_path / "run")
    checkpoint = find_checkpoint(tmp_path / "run")
    expected = transformer_mt.load(checkpoint.path).translate(LINES)
    assert len(set(expected)) > 1
    folder = export(checkpoint, tmp_path / "exported", "float32")
    assert translate(folder) == expected == transformer_mt.load(folder).translate(LINES)


def test_what_it_refuses(corpus_dir, copy_run, tmp_path, monkeypatch):
    """By name, leaving nothing behind."""
    config = tiny_config(corpus_dir, model__norm="sublayer", train__max_steps=1)
    train(config, tmp_path / "run")
    checkpoint = find_checkpoint(tmp_path / "run")
    refuses(ConfigError, "model.norm = sublayer", export, checkpoint, tmp_path / "out", "int8")
    other = find_checkpoint(copy_run)
    refuses(CheckpointError, "run: already exists", export, other, tmp_path / "run", "int8")
    refuses(CheckpointError, "a\udcff: not UTF-8; name", export, other, tmp_path / "a\udcff")
    refuses(CheckpointError, "run.json: not a directory", export, other, copy_run / "run.json/out")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    message = r"pip install -c constraints.txt -e '.\[ctranslate2\]'"
    refuses(ConfigError, message, export, checkpoint, tmp_path / "out", "int8")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_export_that_knows_no_change_is_refused(untrained_run, tmp_path, monkeypatch):
    """And leaves no directory, as for CTranslate2 (test_docs.py). Sabotage: do not compare."""
    checkpoint, message = find_checkpoint(untrained_run), "gives other scores than the checkpoint"
    monkeypatch.setattr(FeedForward, "forward", lambda self, x: self.outer(self.inner(x).abs()))
    refuses(ConfigError, message, export, checkpoint, tmp_path / "out", format="transformers")
    assert not list(tmp_path.iterdir())


def test_the_command(copy_run, exported_run, tmp_path, call):
    """It prints the directory, which holds a model card and, in int8, a smaller model."""
    done = call("export", copy_run, "-o", tmp_path / "out", "--quantization", "int8")
    assert done.code == 0 and done.out.decode() == f"{tmp_path / 'out'}\n"
    card = (tmp_path / "out" / "README.md").read_text()
    assert "\n# out\n" in card and "stored in int8" in card
    assert "copies lines without words, and gives an empty line for an empty one" in card
    assert "translates from de to en, exported from `step-00000001` by" in card.replace("\n", " ")
    checkpoint, record = find_checkpoint(copy_run), load_exported(tmp_path / "out").record
    assert (record.checkpoint, record.step) == ("step-00000001", 1)
    assert record.checkpoint_digest == checkpoint.digest
    assert record.sources == checkpoint.sources is not None
    eight, whole = (each / "model.bin" for each in (tmp_path / "out", exported_run))
    assert eight.stat().st_size < 0.6 * whole.stat().st_size  # the positions stay as they are


def test_a_model_has_positions_for_all_text_it_has_seen(copy_run, tmp_path):
    """Also for earlier text with longer lines. Sabotage: count from data.max_length alone."""
    checkpoint = find_checkpoint(copy_run)
    sources = replace(checkpoint.sources, longest=2000, percentile=2000)
    longer = replace(checkpoint, state=replace(checkpoint.state, sources=sources))
    folder = export(longer, tmp_path / "out")
    model = transformer_mt.load(folder)
    [text] = model.translate(["ab " * 900])
    assert load_exported(folder).record.positions > 4000 and text


def test_a_link_to_a_checkpoint(copy_run, tmp_path):
    """Card and record name what it points to, and the card knows the text of its run."""
    (tmp_path / "link").symlink_to(find_checkpoint(copy_run).path)
    folder = export(find_checkpoint(tmp_path / "link"), tmp_path / "out")
    card = (folder / "README.md").read_text().replace("\n", " ")
    assert "exported from `step-00000001` by" in card and "(dropped: none)" in card
    assert load_exported(folder).record.checkpoint == "step-00000001"
    own = json.loads((folder / "config.json").read_text())
    assert (own["layer_norm_epsilon"], own["add_source_eos"]) == (1e-5, True)
    names = [own[f"{name}_token"] for name in ("unk", "bos", "eos", "decoder_start")]
    assert names == ["<unk>", "<s>", "</s>", "<s>"]


def test_the_card_names_only_a_bleu_of_the_exported_weights(corpus_dir, tmp_path):
    """The moving average's: not that of the raw weights; of rounded ones only with a note."""
    config = tiny_config(corpus_dir, train__max_steps=3, train__ema_decay=0.5, valid__every=3)
    train(config, tmp_path / "run")
    checkpoint, cards, models = find_checkpoint(tmp_path / "run"), [], []
    for stored, raw in (("float32", False), ("float32", True), ("int8", False)):
        folder = export(checkpoint, tmp_path / f"{stored}-{raw}", stored, raw)
        cards.append((folder / "README.md").read_text())
        models.append((folder / "model.bin").read_bytes())
        exported = load_exported(folder)
        assert (exported.is_raw(False), exported.is_averaged(False)) == (raw, not raw)
    bleu = checkpoint.progress.best_bleu
    assert f"BLEU {bleu:.2f}, `nrefs:1|case:mixed" in cards[0]
    assert "BLEU" not in cards[1] and models[0] != models[1]
    assert "before they were rounded to int8" in cards[2] and f"{bleu:.2f}" in cards[2]


@pytest.fixture(scope="module")
def trained(corpus_dir, tmp_path_factory) -> Path:
    """Gives the average of two checkpoints, in its run."""
    sizes = {"data__train": "train[:600]"}
    steps = {"train__max_steps": 4, "train__save_every": 2, "valid__every": 4}
    run_dir = tmp_path_factory.mktemp("card") / "run"
    train(tiny_config(corpus_dir, data__max_length=10, **steps, **sizes), run_dir)
    return average(run_dir, 2, None)


@pytest.fixture
def averaged(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained.parent, tmp_path / "run")) / trained.name


def section(card: str, title: str) -> str:
    return card.split(f"\n## {title}\n\n")[1].split("\n\n## ")[0]


def evaluate(averaged: Path, beam_size: int = 1) -> EvaluationReport:
    text = averaged.parent.parent / "text: x"
    text.write_text("ab cd\nef\n")
    load = partial(load_test_set, src=text, refs=[text])
    options = TranslateOptions(LoadOptions(), SearchOptions(beam_size))
    [report] = evaluate_systems([[averaged]], None, None, load, choose_metrics, options, {})
    return report


card_of = partial(model_card, name="m", library="transformers", usage={"extra": 50, "default": 9})
NAMES = {"name": "both", "text": "pairs", "text_digest": "f" * 64}


def test_the_card_of_an_average_has_what_is_known(averaged, caplog):
    """Data, recipe, no scores of the run's, no licence; little of its text without run.json."""
    checkpoint, description = load_checkpoint(averaged), read_description(averaged)
    began = replace(checkpoint.progress, init_step=1, init_names=NAMES)
    lines = [{"step": step, "kind": "valid", "old_bleu": 1.0} for step in (0, checkpoint.step)]
    (averaged.parent / METRICS).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    begun = replace(checkpoint, state=replace(checkpoint.state, progress=began))
    assert "BLEU of its validation" not in card_of(begun)  # that was measured on another
    corpus, card = description.corpus, card_of(checkpoint)
    header = {"language": ["de", "en"], "library_name": "transformers"}
    header["pipeline_tag"] = "translation"
    assert yaml.safe_load(card.split("---\n")[1]) == header
    parameters = sum(parameter.numel() for parameter in checkpoint.build_model().parameters())
    for part in (
        f"\n{parameters:,} parameters, stored in float32. Its vocabulary\n(bpe) has 292 pieces.\n",
        "4 steps of about 500 tokens, Adam with",
        "\nThe weights are the mean of the checkpoints of steps 4, 2.\n",
        f"de to en: {corpus.kept} of 600 pairs (dropped: {600 - corpus.kept} over 10 pieces), ",
        f" digest of the encoded text is `{description.corpus_digest}`.",
        "\n\n## Scores\n\nNone were measured on these weights",
        "\n\n## How to use it\n\n    from transformers import ",
        "`max_new_tokens`, 9 by default, is one limit for the whole batch.\n\n## Limits\n",
    ):
        assert part in card
    assert "Training began" not in card and "moving average" not in card
    (averaged / "run.json").write_text("{}")
    assert re.fullmatch("Trained on `corpus[0-9]`, de to en.", section(card_of(checkpoint), "Data"))
    assert caplog.messages[0].startswith(f"{averaged}/run.json: damaged")


def test_a_card_of_other_training(averaged):
    """With Muon, from other weights, a moving average, statistics of the sources."""
    checkpoint = load_checkpoint(averaged)
    write_description(averaged, replace(read_description(averaged), averaged_steps=[]))
    progress = Progress(step=4, init_step=2000, init_digest="e" * 64, init_names=NAMES)
    last = records(averaged.parent, "valid")[-1]
    with (averaged.parent / METRICS).open("a") as file:
        for step, bleu in ((0, 30.0), (4, 20.5), (6, 9.0)):  # of a later one, too
            old = {"step": step, "old_bleu": bleu, "old_ema_bleu": bleu + 1}
            file.write(json.dumps({**last, **old}) + "\n")
    known = SourceStatistics(longest=9, percentile=8, several_sentences=0.25)
    languages = {"src_lang": "DE", "tgt_lang": "zh-Hans"}  # the hub wants de and zh
    changes = {"optim": OptimConfig(muon=True)}
    changes["data"] = checkpoint.config.data.model_copy(update=languages)
    config = checkpoint.config.model_copy(update=changes)
    other = replace(checkpoint, config=config, state=RunState(progress, sources=known))
    other = replace(other, files=checkpoint.files | {EMA})
    card = card_of(other)
    for part in (
        "language:\n- de\n- zh\n",
        ", DE to zh-Hans: ",
        " tokens, Muon and Adam with",
        "\nTraining began with the weights of `both` after 2,000 steps on `pairs`.\nThe SHA-256"
        f" digest of that checkpoint is `{'e' * 64}`,\nthat of its encoded text `{'f' * 64}`."
        "\nBLEU of its validation text was 31.00 then, and is 21.50 now.\n",
        "\nThe weights are a moving average with decay 0.",
        "transformer-mt splits lines of more than 8 pieces into sentences, a",
    ):
        assert part in card
    assert "moving average" not in card_of(other, raw=True)


def test_scores_are_in_the_card_of_an_export(averaged, tmp_path):
    """Not in the card of the run's best. Sabotage: do not compare the digests of records."""
    reports = [evaluate(averaged), evaluate(averaged, beam_size=2)]
    for record in (averaged / "evaluations").iterdir():
        values = json.loads(record.read_text())
        values["scores"] = [{**score, "confidence": 0.5} for score in values["scores"]]
        record.write_text(json.dumps(values))
    checkpoint = load_checkpoint(averaged)
    card = (export(checkpoint, tmp_path / "out") / "README.md").read_text()
    for report, search in zip(reports, ("greedy, fp32", "beam 2, alpha 1, fp32"), strict=True):
        scores = report.scores
        lines = [f"  - {s.title} {s.value:.2f} ± 0.50, `{s.signature}`" for s in scores]
        heading = f"- {report.test_set.name}, 2 sentences, {search}:"
        assert "\n".join([heading, *lines]) in section(card, "Scores")
    assert "mean of the checkpoints of steps 4, 2." in card
    best = section(card_of(find_checkpoint(averaged.parent)), "Scores")
    assert "- validation, " in best and "text: x" not in best
