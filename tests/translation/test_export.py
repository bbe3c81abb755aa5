"""A checkpoint as a CTranslate2 model."""

import contextlib
import json
import textwrap
from dataclasses import replace

import pytest
from conftest import copy_lines, learn_elsewhere, tiny_config

import transformer_mt
from transformer_mt.checkpoints.exported import load_exported
from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.errors import ConfigError
from transformer_mt.text.normalization import INVISIBLE, LIGATURES
from transformer_mt.training.run import train
from transformer_mt.translation.export import export
from transformer_mt.translation.runtime import EXTRA_LENGTH

LINES = [*copy_lines(100, 11), "b".join(INVISIBLE), "b".join(LIGATURES), "a b\u0308"]


def translate(folder) -> list[str]:
    """Translates by the code of the model card, but greedily, with the limit of transformer-mt."""
    card = (folder / "README.md").read_text()
    code = card.split("## How to use it\n\n")[1].split("\n\n`transformer-mt")[0]
    loading, _, translating = textwrap.dedent(code).partition("text = ")
    limit = f"max_decoding_length=len(src.encode(text)) + {EXTRA_LENGTH}"
    translating = translating.replace('"..."', "line").replace(
        "beam_size=4", f"beam_size=1, {limit}"
    )
    translating = "text = " + translating.replace("print(", "texts.append(")
    texts: list[str] = []
    names: dict[str, object] = {"texts": texts}
    with contextlib.chdir(folder):
        exec(loading, names)
    for names["line"] in LINES:
        exec(translating, names)
    return [text.translate(str.maketrans("\n\r\t", "   ")) for text in texts]


@pytest.mark.parametrize(("norm", "tied"), [("post", True), ("pre", False)])
def test_every_model_it_can_express(corpus_dir, tmp_path, norm, tied):
    """Either norm, tied or with a vocabulary a language, with biases or without, uneven stacks.

    A model that has learned nothing writes long nonsense: a slip anywhere would show. Two
    vocabularies come from elsewhere, with special pieces of other ids and names.
    """
    vocab_path = None if tied else str(tmp_path)
    for side, special in (
        ("src", {"unk_id": 1, "bos_id": -1, "eos_id": 0}),
        ("tgt", {"pad_id": 9, "bos_piece": "<start>", "eos_piece": "<end>"}),
    ):
        model = learn_elsewhere(copy_lines(500, 1), vocab_size=100, minloglevel=2, **special)
        (tmp_path / f"{side}.model").write_bytes(model)
    config = tiny_config(
        corpus_dir,
        model__norm=norm,
        model__tie_embeddings=tied,
        model__attention_bias=tied,
        model__encoder_layers=2,
        model__decoder_layers=1,
        vocab__shared=tied,
        vocab__path=vocab_path,
        train__max_steps=0,
        valid__every=1000,
    )
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
    with pytest.raises(ConfigError, match=r"model\.norm = sublayer"):
        export(checkpoint, tmp_path / "out", "int8")
    with pytest.raises(ConfigError, match="run: already exists"):
        export(find_checkpoint(copy_run), tmp_path / "run", "int8")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install -c constraints.txt -e '.\[ctranslate2\]'"):
        export(checkpoint, tmp_path / "out", "int8")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_command(copy_run, exported_run, tmp_path, call):
    """It prints the directory, which holds a model card and, in int8, a smaller model."""
    done = call("export", copy_run, "-o", tmp_path / "out", "--quantization", "int8")
    assert done.code == 0 and done.out.decode() == f"{tmp_path / 'out'}\n"
    card = (tmp_path / "out" / "README.md").read_text()
    assert "\n# out\n" in card and "stored in int8" in card
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
