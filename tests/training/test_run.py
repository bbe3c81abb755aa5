"""A run's beginning and its resumption: what is taken from where, and what is refused."""

import copy
import json
import os
import re
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy
import pytest
import sacrebleu
import sentencepiece
import torch
from conftest import assert_one_error, equal, records, tiny_config, weights, write_config
from sacrebleu.metrics.bleu import BLEU

from transformer_mt.checkpoints.checkpoint import Progress
from transformer_mt.checkpoints.layout import EMA
from transformer_mt.checkpoints.run_description import (
    InitialWeights,
    RunDescription,
    SentenceLengths,
    ValidationText,
    VocabularySizes,
    read_description,
    write_description,
)
from transformer_mt.checkpoints.run_directory import find_checkpoint, list_checkpoints, load_newest
from transformer_mt.config.keys import Config
from transformer_mt.config.loading import load_config
from transformer_mt.config.splits import SplitFiles
from transformer_mt.errors import CheckpointError, ConfigError, DataError, DeviceError
from transformer_mt.system.files import locked
from transformer_mt.system.processes import Processes
from transformer_mt.text.corpus import load_split
from transformer_mt.training import environment as environment_module
from transformer_mt.training import run as run_module
from transformer_mt.training.dry_run import dry_run
from transformer_mt.training.environment import describe_software
from transformer_mt.training.fit import StepFitter
from transformer_mt.training.run import build_trainer, require_writable, train
from transformer_mt.training.trainer import Trainer
from transformer_mt.translation.options import LoadOptions
from transformer_mt.translation.translation_model import build_translation_model

SMALL = {"valid__every": 1000}


def small_config(corpus_dir, **changes):
    return tiny_config(corpus_dir, **{**SMALL, "train__max_steps": 8, **changes})


@pytest.fixture(scope="module")
def first(corpus_dir, tmp_path_factory) -> Path:
    """Gives a run of eight steps with checkpoints at 2, 4, 6 and 8."""
    run_dir = tmp_path_factory.mktemp("runs") / "first"
    train(small_config(corpus_dir, train__keep_last=4, train__save_every=2), run_dir)
    return run_dir


@pytest.fixture
def run_dir(first, tmp_path) -> Path:
    return shutil.copytree(first, tmp_path / "run")


# --- The beginning ------------------------------------------------------------------------------


def test_fine_tuning_goes_on_without_its_origin(corpus_dir, first, tmp_path, caplog):
    """It begins at step 0 with the checkpoint's weights and vocabulary, and resumes as any run.

    What it began with is printed and stays recorded; lines are split by all text that the weights
    have seen. Sabotage: take the limits of its own text.
    """
    origin = shutil.copytree(first, tmp_path / "origin")
    changes = {"train__seed": 7, "train__ema_decay": 0.9, "data__max_length": 6}
    small = partial(small_config, corpus_dir, **{"train__init_from": str(origin), **changes})
    begun = find_checkpoint(origin)
    expected = {"step": begun.progress.step, "digest": begun.digest, "name": "origin"}
    expected |= {"text": corpus_dir.name, "text_digest": begun.progress.corpus_digest}
    with caplog.at_level("INFO"):
        train(small(train__max_steps=0), tmp_path / "run")
    message = f"starting from {origin} at step {expected['step']} (digest {begun.digest})"
    assert message in caplog.messages and expected["step"] > 0
    start = find_checkpoint(tmp_path / "run")
    assert start.progress.step == 0 and equal(weights(start.path), weights(begun.path))
    assert equal(weights(start.path, EMA), weights(begun.path))
    assert start.vocab.src_model == begun.vocab.src_model
    shutil.rmtree(origin)
    for step, path in ((3, str(origin)), (4, None)):
        changed = small(train__init_from=path, train__max_steps=step)
        assert train(changed, tmp_path / "run").step == step
    assert "is not used" not in caplog.text
    assert load_newest(tmp_path / "run").progress.init_digest == begun.digest
    assert read_description(tmp_path / "run").init_from == InitialWeights(**expected)
    assert read_description(first).init_from is None
    tuned, known = find_checkpoint(tmp_path / "run"), begun.sources
    corpus = build_trainer(small_config(corpus_dir, data__max_length=6), tmp_path / "other").corpus
    assert corpus.sources.longest == 6 < known.longest
    sources = tuned.sources
    assert (sources.longest, sources.percentile) == (known.longest, known.percentile)
    splitter = build_translation_model([tuned], LoadOptions()).splitter
    assert splitter.max_length == known.longest


def test_a_run_of_an_earlier_version_has_no_configuration(tmp_path, call):
    """Nor does an average, which has a run.json, too. Sabotage: read the missing config.toml."""
    (tmp_path / "run.json").write_text("{}")
    message = f"{tmp_path}: a run of an earlier version; name its configuration file"
    assert_one_error(call("train", tmp_path), message)
    (tmp_path / "manifest.json").write_text("{}")
    message = f"{tmp_path}: is a checkpoint; name its run, or a configuration with train.init_from"
    assert_one_error(call("train", tmp_path), message)


def test_what_a_run_records_of_itself(corpus_dir, first, prepared):
    config = small_config(corpus_dir, train__keep_last=4, train__save_every=2)
    described, newest = read_description(first), load_newest(first)
    cut = described.environment["cut of a step"]
    src, tgt = (round(float(side.mean()), 2) for side in prepared.pairs.lengths)
    assert described == RunDescription(
        config=config,
        corpus=prepared.report,
        corpus_digest=prepared.digest,
        lengths=SentenceLengths({"src": src, "tgt": tgt}),
        validation=ValidationText(12, load_split(config.data, config.data.valid).digest()),
        init_from=None,
        vocabulary=VocabularySizes(292, 292, "bpe"),
        complete=True,
        parameters=sum(parameter.numel() for parameter in newest.build_model().parameters()),
        software=describe_software(),
        environment={**newest.state.environment, "cut of a step": cut},
    )
    assert f" {newest.progress.micro_batch_tokens:,} positions; " in cut
    log = (first / "train.log").read_text()
    noted = dict(re.findall(r" (command|software|numeric environment): (.*)\n", log))
    assert noted.pop("numeric environment").startswith("{'program version': ")
    assert f" {prepared.summary}; cpu, fp32\n" in log
    assert noted == {"command": " ".join(sys.argv), "software": describe_software()}
    libraries = torch, numpy, sentencepiece, sacrebleu
    versions = {f"{each.__name__} version": each.__version__ for each in libraries}
    assert versions.items() <= described.environment.items()


def test_a_run_is_trained_again_from_its_directory(corpus_dir, tmp_path, monkeypatch, call):
    """Bit by bit; its own directory resumes it. Paths have no home, comments say what set a key.

    Sabotage: write the defaults of the keys; load the TOML file of the command in the comments.
    """
    monkeypatch.chdir(tmp_path)
    shutil.copytree(corpus_dir, "text")
    config = write_config(tmp_path, corpus_dir, data__path="text", data__prepared_dir="prepared")
    sets = "--set", "train.max_steps=3", "--set", "train.seed=7"
    assert call("train", config, *sets, "--run", "first", "-q")[::2] == (0, "")
    config.unlink()
    toml = Path("first/config.toml").read_text()
    command = f"#     transformer-mt train {config} {' '.join(sets)} --run first -q\n"
    assert toml.count("#  ") == toml.count(command) == toml.count(str(tmp_path)) == 1
    for line in ('path = "text"', "seed = 7  # --set", "d_model = 16", "keep_last = 5  # default"):
        assert f"\n{line}\n" in toml
    assert call("train", "first/config.toml", "--run", "again", "-q")[::2] == (0, "")
    assert equal(*(weights(Path(run, "step-00000003")) for run in ("first", "again")))
    assert call("train", "first", "--set", "train.max_steps=4", "-q")[::2] == (0, "")
    resumed = Path("first/config.toml").read_text()
    assert "max_steps = 4  # --set" in resumed and "seed = 7  # --set" in resumed
    assert resumed.count("#  ") == 2
    Path("first/run.json").unlink()
    assert call("train", "first", "--set", "train.max_steps=5", "-q")[::2] == (0, "")
    assert Path("first/step-00000005").exists() and not Path("checkpoints").exists()


def test_what_differs_from_the_run_that_is_repeated(first, corpus_dir, tmp_path, monkeypatch, call):
    """By name, with texts, source and the cut of a step, on which memory has an influence.

    Sabotage: compare the environments alone.
    """
    cut = read_description(first).environment["cut of a step"]
    other = re.sub("[0-9,]+ pos", "77 pos", cut)
    monkeypatch.setattr(StepFitter, "find_micro_batch_tokens", lambda fitter: 77)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(corpus_dir, "text")
    Path("text/validation.de").write_text("other\n" * 60)
    monkeypatch.setitem(environment_module._SOURCES, "source of model/", "other")
    place = "--set", "data.path=text", "--set", "train.seed=3", "--set", "train.max_steps=1"
    _, _, err = call("train", first, "--run", "new", *place, "-q")
    assert err == (
        f"warning: differs from {first}: the validation text, train.seed (was 1, is 3), the source"
        f" of model/ has changed, cut of a step (was {cut}, is {other})\n"
    )
    Path("mine").mkdir()  # with a file of the user's, which is kept
    own = (first / "config.toml").read_text().replace("# `", "# Mine. `")
    Path("mine/config.toml").write_text(own)
    assert call("train", "mine/config.toml", "--run", "mine", *place, "-q").code == 0
    assert Path("mine/config.toml").read_text() == own


def test_fine_tuning_scores_the_old_text(corpus_dir, first, tmp_path, caplog):
    """From before the first step, of the weights and their average, also in a resumed run.

    Sabotage: score the new text twice; do not validate before the first step.
    """
    for language in ("de", "en"):
        (tmp_path / f"validation.{language}").write_text("zzz\n")
        shutil.copy(corpus_dir / f"train.{language}", tmp_path)
    keys = {"train__init_from": str(first), "train__ema_decay": 0.9, "valid__every": 2}
    keys |= {"data__path": str(tmp_path), "data__valid": "validation", "valid__old_text": True}
    with caplog.at_level("INFO"):
        for steps in (2, 4):
            train(small_config(corpus_dir, **keys, train__max_steps=steps), tmp_path / "run")
    lines = records(tmp_path / "run", "valid")
    assert [line["step"] for line in lines] == [0, 2, 4]
    before = records(first, "valid")[-1]
    assert lines[0]["old_nll"] == lines[0]["old_ema_nll"] == before["nll"] != lines[0]["nll"]
    assert lines[0]["old_bleu"] == before["bleu"] and lines[2]["old_nll"] != before["nll"]
    told = f"step 0: validation BLEU {lines[0]['bleu']:.2f}, of the moving average"
    assert any(text.startswith(told) and "of the old text" in text for text in caplog.messages)
    gone = first.rename(tmp_path / "gone")
    with pytest.raises(CheckpointError, match="; or set valid.old_text = false$"):
        train(small_config(corpus_dir, **keys, train__max_steps=6), tmp_path / "run")
    keys["train__init_from"], end = str(gone), "is not the checkpoint that the run began with; "
    train(small_config(corpus_dir, **keys, train__max_steps=5), tmp_path / "run")
    assert "is not used" not in caplog.text and end not in caplog.text
    keys["train__init_from"] = str(tmp_path / "run")
    train(small_config(corpus_dir, **keys, train__max_steps=6), tmp_path / "run")
    assert "is not used" not in caplog.text and caplog.text.count(end) == 1
    small = small_config(corpus_dir, train__max_steps=0, model__d_ff=16)
    train(small, tmp_path / "small")
    keys["train__init_from"] = str(tmp_path / "small")
    with pytest.raises(ConfigError, match="d_ff = 16, not 32; .*; or set valid.old_text = false$"):
        train(small_config(corpus_dir, **keys, train__max_steps=7), tmp_path / "run")
    gone.rename(first)
    with pytest.raises(ConfigError, match=r"^valid.old_text requires train.init_from$"):
        train(small_config(corpus_dir, valid__old_text=True), tmp_path / "other")


def test_fine_tuning_needs_the_same_shapes(corpus_dir, first, tmp_path):
    """And the same vocabulary. The keys that differ are named with both values; dropout is free.

    Sabotage: compare the sections of the configurations, which vocab.path overrides.
    """
    start = partial(small_config, corpus_dir, train__init_from=str(first))
    model = {"model__d_ff": 64, "model__dropout": 0.3, "model__norm": "post"}
    vocab = {"vocab__kind": "unigram", "vocab__size": 300}
    two = {"vocab__shared": False, "model__tie_embeddings": False}
    for changes, message in (
        (model, r"it has model.d_ff = 32, not 64, model.norm = pre, not post; use its values in"),
        (vocab, r"it has vocab.kind = bpe, not unigram, vocab.size = 292, not 300; use its values"),
        ({"vocab__size": 300}, r"300; use its values in \[vocab\], or leave out train.init_from$"),
        ({"vocab__symbols": ["<bt>"]}, r"it has vocab.symbols = \[\], not \['<bt>'\]; use"),
        (
            two,
            r"tie_embeddings = True, not False, vocab.shared = True, .* in \[model\] and \[vocab",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            train(start(**changes), tmp_path / "run")
    own = str(find_checkpoint(first).path)
    assert build_trainer(start(vocab__path=own, **vocab), tmp_path / "run").progress.init_digest
    nowhere = small_config(corpus_dir, train__init_from="nowhere")
    with pytest.raises(CheckpointError, match="nowhere: no such run or checkpoint"):
        train(nowhere, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_text_is_prepared_with_the_vocabulary_that_training_takes(
    corpus_dir, first, tmp_path, call
):
    """So that `prepare` counts what is unknown to it, every time. Sabotage: learn a new one."""
    text = {"data__path": str(tmp_path), "data__prepared_dir": str(tmp_path / "prepared")}
    for language in ("de", "en"):
        (tmp_path / f"train.{language}").write_text("ขาว ดี\n")
    config = write_config(tmp_path, corpus_dir, train__init_from=str(first), **text)
    for _ in range(2):
        done = call("prepare", config)
        assert "warning: 88.2% of the source pieces are unknown or single bytes: " in done.err
        assert done.code == 0


def test_a_vocabulary_may_have_fewer_characters_than_configured(corpus_dir, tmp_path):
    """So the configured size of its run, or its own, suit it; a smaller one does not."""
    chars = partial(small_config, corpus_dir, vocab__kind="char", train__max_steps=0)
    train(chars(vocab__size=100), tmp_path / "first")
    size = find_checkpoint(tmp_path / "first").vocab.src.size
    start = partial(chars, train__init_from=str(tmp_path / "first"))
    assert size < 50
    for allowed in (100, size, 80):
        assert build_trainer(start(vocab__size=allowed), tmp_path / "run").progress.init_digest
    with pytest.raises(ConfigError, match=f"vocab.size = {size}, not {size - 1}; use"):
        build_trainer(start(vocab__size=size - 1), tmp_path / "run")


def test_what_has_not_reached_its_end_is_not_complete(corpus_dir, tmp_path, monkeypatch):
    """In run.json, for `compare`. Sabotage: record the end when training begins."""
    ends, run = [], tmp_path / "run"

    def step(trainer: Trainer, pairs: object) -> None:
        ends.append(read_description(run).complete)
        raise KeyboardInterrupt

    train(small_config(corpus_dir, train__max_steps=0), run)
    assert read_description(run).complete
    monkeypatch.setattr(Trainer, "take_step", step)
    with pytest.raises(KeyboardInterrupt):
        train(small_config(corpus_dir, train__max_steps=2), run)
    assert ends == [False] and not read_description(run).complete


def test_a_finished_run_keeps_what_it_was_trained_with(corpus_dir, run_dir, tmp_path, monkeypatch):
    """Until it is trained further. Sabotage: describe it as if it were trained again."""
    (run_dir / "source.diff").write_text("kept")
    files = [run_dir / name for name in ("run.json", "config.toml", "source.diff")]
    before = [path.read_text() for path in files]
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    monkeypatch.setattr(sys, "argv", ["/transformer_mt/__main__.py", "train", "x"])
    step = load_newest(run_dir).step
    train(small_config(corpus_dir, train__max_steps=1), run_dir)
    assert [path.read_text() for path in files] == before
    write_description(run_dir, replace(read_description(run_dir), complete=False))  # a kill
    train(small_config(corpus_dir, train__max_steps=1), run_dir)
    assert [path.read_text() for path in files] == before
    train(small_config(corpus_dir, train__max_steps=step + 1), run_dir)
    assert read_description(run_dir).config.train.max_steps == step + 1
    assert "\n#     transformer-mt train x\n" in (run_dir / "config.toml").read_text()


def test_a_vocabulary_made_elsewhere(corpus_dir, first, tmp_path):
    """A file or a checkpoint's folder gives its pieces; what is none is refused by name."""
    origin = find_checkpoint(first)
    for name in ("vocab.model", ""):
        config = small_config(corpus_dir, vocab__path=str(origin.path / name))
        vocab = build_trainer(config, tmp_path / "run").corpus.vocab
        assert vocab.src_model == origin.vocab.src_model
    wrong = str(origin.path / "config.json"), "not a SentencePiece model"
    for path, message in (wrong, ("nope", "vocab.path = nope: no such file")):
        with pytest.raises(DataError, match=message):
            train(small_config(corpus_dir, vocab__path=path), tmp_path / "none")
    two = {"vocab__shared": False, "model__tie_embeddings": False}
    with pytest.raises(ConfigError, match=r"one shared vocabulary; set vocab.shared"):
        train(small_config(corpus_dir, vocab__path=str(origin.path), **two), tmp_path / "none")


def test_a_run_that_another_process_has_just_started(corpus_dir, first, tmp_path, monkeypatch):
    def build(*arguments, **options):
        shutil.copytree(first, tmp_path / "run")
        return build_trainer(*arguments, **options)

    monkeypatch.setattr(run_module, "build_trainer", build)
    with pytest.raises(
        CheckpointError, match="^.*/run: another process has just started this run$"
    ):
        train(small_config(corpus_dir, train__max_steps=1), tmp_path / "run")


@pytest.mark.parametrize("start", [train, dry_run])
def test_a_missing_tokenizer_shows_before_the_text_is_read(
    corpus_dir, tmp_path, monkeypatch, start
):
    """The corpus has no Japanese at all."""
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    with pytest.raises(ConfigError, match=r"data.tgt_lang = ja: .* 'sacrebleu\[ja\]'"):
        start(tiny_config(corpus_dir, data__tgt_lang="ja"), tmp_path / "run")


def test_the_moving_average_is_kept_scored_and_used(corpus_dir, tmp_path, caplog):
    """Validation scores both; a checkpoint holds both; commands take the average unless told."""
    config = small_config(corpus_dir, train__ema_decay=0.9, train__max_steps=4)
    train(config, tmp_path / "run")
    checkpoint = find_checkpoint(tmp_path / "run")
    assert not equal(weights(checkpoint.path), weights(checkpoint.path, EMA))
    [valid] = records(tmp_path / "run", "valid")
    pairs = load_split(config.data, config.data.valid)
    for raw, key in ((True, "bleu"), (False, "ema_bleu")):
        translator = build_translation_model([checkpoint], LoadOptions(raw=raw)).translator()
        bleu = BLEU().corpus_score(translator.translate(pairs.src), [pairs.tgt])
        assert round(bleu.score, 4) == valid[key]
    assert checkpoint.progress.best_bleu == pytest.approx(valid["ema_bleu"], abs=1e-4)
    assert checkpoint.progress.best_nll == pytest.approx(valid["ema_nll"], abs=1e-5)
    assert valid["ema_nll"] != valid["nll"]
    assert "of the moving average" in caplog.text


def test_validation_and_evaluate_choose_the_same_tokenizer(
    corpus_dir, copy_run, tmp_path, call, caplog
):
    """By the script of the references, and each says so once. Sabotage: look at the code alone."""
    caplog.set_level("INFO")
    (tmp_path / "src").write_text("abc de fgh ij\nklm no\n")
    (tmp_path / "tgt").write_text("ครูซื้อหนังสือที่ตลาด abc de fgh ij\nแม่พบปลาวันนี้ klm no\n")
    sizes = {"model__d_model": 64, "model__d_ff": 128, "optim__warmup_steps": 1_000_000}
    config = small_config(
        corpus_dir,
        data__valid={"src": str(tmp_path / "src"), "tgt": str(tmp_path / "tgt")},
        train__init_from=str(copy_run),
        train__max_steps=1,
        **sizes,
    )
    train(config, tmp_path / "run")
    [recorded] = records(tmp_path / "run", "valid")
    assert caplog.text.count("BLEU is by characters") == 1
    done = call("evaluate", tmp_path / "run", "--split", "valid", "--json")
    assert caplog.text.count("BLEU is by characters") == 2
    result = json.loads(done.out)
    assert result["tokenizer"] == "char" and result["bleu"] == recorded["bleu"] > 1


@pytest.mark.parametrize("command", [train, dry_run])
def test_where_a_run_cannot_be(tmp_path, command):
    """A file in the way is named before anything is read or written."""
    (tmp_path / "file").write_text("")
    without_text = tiny_config(tmp_path / "nowhere")
    for run_dir in (tmp_path / "file", tmp_path / "file" / "deep" / "run"):
        with pytest.raises(CheckpointError, match="file: not a directory; name another --run"):
            command(without_text, run_dir)
    with pytest.raises(DataError):
        command(without_text, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_names_that_a_run_cannot_have(corpus_dir, run_dir, tmp_path):
    """In a checkpoint, which is deleted one day; under a name that safetensors cannot open."""
    checkpoint, *_ = list_checkpoints(run_dir)
    (tmp_path / "link").symlink_to(checkpoint)
    require_writable(checkpoint / ".." / ".." / "other")
    for place in (checkpoint, checkpoint / "deep" / "run", tmp_path / "link"):
        with pytest.raises(CheckpointError, match=f"^{checkpoint}: is a checkpoint; name another"):
            train(small_config(corpus_dir), place)
    with pytest.raises(CheckpointError, match="run\udcff: not UTF-8; name another --run"):
        train(small_config(corpus_dir), tmp_path / "run\udcff")


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl", "source.diff"])
def test_files_of_another_program_are_not_replaced(corpus_dir, tmp_path, name):
    """A run that has lost its checkpoints has its lock file. Sabotage: do not look for them."""
    (tmp_path / name).write_text("other")
    with pytest.raises(CheckpointError, match=f"^{tmp_path}/{name}: would be replaced, and there"):
        train(small_config(corpus_dir), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "other"


# --- Resuming -----------------------------------------------------------------------------------


@pytest.mark.parametrize("by_files", [False, True])
def test_moved_text_is_the_same_and_changed_text_is_refused(corpus_dir, tmp_path, by_files):
    """Digests decide, not paths. A finished run records where its text is now, too.

    Sabotage: compare the whole paths of files; leave the description of a finished run as it is.
    """

    def config(folder: Path, steps: int) -> Config:
        changes = {"data__path": str(folder), "train__max_steps": steps}
        if by_files:
            train_files, valid_files = (
                SplitFiles(src=f"{folder}/{split}.de", tgt=f"{folder}/{split}.en")
                for split in ("train", "validation")
            )
            changes |= {"data__train": [train_files], "data__valid": valid_files}
        return small_config(corpus_dir, **changes)

    train(config(corpus_dir, 1), tmp_path / "run")
    moved = shutil.copytree(corpus_dir, tmp_path / "moved")
    assert train(config(moved, 2), tmp_path / "run").step == 2
    again = shutil.copytree(corpus_dir, tmp_path / "again")
    train(config(again, 2), tmp_path / "run")  # nothing is left to train
    assert find_checkpoint(tmp_path / "run").config.data == config(again, 2).data
    assert load_config(tmp_path / "run/config.toml").data == config(again, 2).data
    for split, name in (("validation", "validation"), ("train", "training")):
        text = (moved / f"{split}.en").read_text()
        (moved / f"{split}.en").write_text("x" + text)
        with pytest.raises(CheckpointError, match=f"run: the {name} text has changed"):
            train(config(moved, 3), tmp_path / "run")
        (moved / f"{split}.en").write_text(text)


def test_what_stands_in_the_run_directory(corpus_dir, run_dir):
    """Another trainer, a checkpoint that was being replaced, checkpoints without moments alone."""
    with locked(run_dir / ".lock", pytest.fail):
        message = f"process {os.getpid()} is training this run; stop it"
        with pytest.raises(CheckpointError, match=message):
            train(small_config(corpus_dir), run_dir)
    newest, *_ = list_checkpoints(run_dir)
    newest.rename(newest.with_name(f".{newest.name}.replaced"))
    train(small_config(corpus_dir), run_dir)
    assert "nothing to do" in (run_dir / "train.log").read_text()
    *newer, oldest = list_checkpoints(run_dir)
    assert newer[0] == newest
    for path in newer:
        shutil.rmtree(path)
    message = f"{oldest.name}: has no training.safetensors, so training cannot resume"
    with pytest.raises(CheckpointError, match=message):
        train(small_config(corpus_dir), run_dir)


def test_what_is_said_when_a_run_is_resumed(corpus_dir, run_dir, caplog):
    """Where it stands, that new keys are not used, that run.json cannot be written."""
    (run_dir / "run.json").unlink()
    (run_dir / "run.json").mkdir()
    keys = {"vocab__path": "other.model", "train__init_from": "elsewhere"}
    with caplog.at_level("INFO", "transformer_mt"):
        train(small_config(corpus_dir, **keys), run_dir)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [
        f"{run_dir}/run.json: not a regular file; resume the run, which writes it again",
        "vocab.path = other.model is not used: the run is resumed",
        "train.init_from = elsewhere is not used: the run is resumed",
        f"{run_dir}/run.json: cannot be written: Is a directory",
    ]
    assert "resuming at step 8, epoch 0" in caplog.messages
    for path in list_checkpoints(run_dir):
        shutil.rmtree(path)
    train(small_config(corpus_dir, train__max_steps=1), run_dir)
    message = f"{run_dir}: has no checkpoint, so training starts at step 1 again"
    assert caplog.messages.count(message) == 1
    assert [record["step"] for record in records(run_dir)] == [1, 1]


class Two(Processes):
    """One of two processes: what the first sends, the second receives."""

    sent: ClassVar[list[object]] = []

    def broadcast(self, value: object) -> object:
        if self.is_main:
            self.sent.append(copy.deepcopy(value))
        return value if self.is_main else self.sent.pop(0)


def test_other_processes_get_the_state_of_the_main_one(corpus_dir, tmp_path):
    """Who alone reads the run. Sabotage: restore in the main process alone."""
    config = small_config(corpus_dir, train__max_steps=3, train__ema_decay=0.9)
    train(config, tmp_path / "run")
    main = build_trainer(config, tmp_path / "run", processes=Two(0, 2))
    other = build_trainer(config, tmp_path / "none", processes=Two(1, 2))
    assert main.progress == other.progress and main.progress.step == 3
    states = [trainer.engine.state_dict() for trainer in (main, other)]
    assert all(equal(states[0][part], states[1][part]) for part in ("model", "optimizer", "ema"))


def test_what_ends_bit_equality_is_said_once(corpus_dir, run_dir, caplog, monkeypatch):
    """Also in train.log, which is not yet open; but not what an earlier version did not record.

    Sabotage: record the instructions of the CPU alone, and not its environment variables.
    """
    train(small_config(corpus_dir, train__max_steps=9), run_dir)
    assert "bit-equal" not in caplog.text
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    before = load_newest(run_dir).state.environment["environment variables"]
    same = {"train__device": "cpu", "train__compile": False}  # as before on a machine without a GPU
    smaller = small_config(corpus_dir, train__max_steps=10, train__micro_batch_tokens=300, **same)
    assert train(smaller, run_dir).step == 10
    [message] = [text for text in caplog.messages if "bit-equal" in text]
    assert (run_dir / "train.log").read_text().count(f" warning: {message}\n") == 1
    environment = load_newest(run_dir).state.environment
    assert "MKL_CBWR=COMPATIBLE" in (now := environment["environment variables"])
    assert message.endswith(
        "one: train.micro_batch_tokens (was auto, is 300),"
        f" environment variables (was {before}, is {now}),"
        f" threads (was {threads}, is {threads + 1})"
    )
    assert environment["threads"] == str(threads + 1)
    assert environment["torch version"] == torch.__version__
    caplog.clear()
    monkeypatch.setitem(environment_module._SOURCES, "source of model/", "other")
    monkeypatch.setitem(environment_module._SOURCES, "source of new/", "not recorded")
    for steps in (11, 12):
        longer = {"train__max_steps": steps, "train__micro_batch_tokens": 300}
        train(small_config(corpus_dir, **longer), run_dir)
    [message] = [text for text in caplog.messages if "bit-equal" in text]
    assert message.endswith(" one: the source of model/ has changed")


def test_machines_must_have_the_same_text_and_configuration(corpus_dir):
    """Or none trains; the one that differs is named. Sabotage: leave out the configuration."""
    config, gathered = small_config(corpus_dir), []

    def gather(values: object) -> list[object]:
        gathered.append(values)
        return gathered

    def compare(config, progress) -> None:
        run_module._require_same_everywhere(config, progress, SimpleNamespace(gather=gather))

    compare(config, Progress())
    compare(small_config(corpus_dir, data__path="other"), Progress())  # where it has the same text
    other = small_config(corpus_dir, train__seed=5, valid__patience=3)
    names = "precision, train.seed, valid.patience, validation text"
    message = f"^process 2 differs from process 0 in {names}; all machines need"
    with pytest.raises(ConfigError, match=message):
        compare(other, Progress(valid_digest="other", precision="bf16"))
    gathered[0] = {**gathered[1], "torch version": "other"}
    gathered[1] = {**gathered[1], "key of a later version": "x"}
    with pytest.raises(ConfigError, match="process 1 .* in key of a later version, torch version;"):
        compare(config, Progress())


def test_a_precision_that_the_machine_cannot_keep(corpus_dir, tmp_path, monkeypatch):
    """Asked for, or kept from the hardware a run began on."""
    has = {"bf16": True}
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: has["bf16"])
    changes = {"train__precision": "auto", "data__valid": "validation[:3]"}
    config = small_config(corpus_dir, train__max_steps=1, **changes)
    assert train(config, tmp_path / "run").precision == "bf16"
    has["bf16"] = False
    longer = small_config(corpus_dir, train__max_steps=2, **changes)
    with pytest.raises(DeviceError, match="bf16: .* resume it where it was trained"):
        train(longer, tmp_path / "run")
    wanted = small_config(corpus_dir, train__precision="bf16")
    with pytest.raises(DeviceError, match="train.precision = bf16: this cpu device does not"):
        train(wanted, tmp_path / "other")
    assert build_trainer(longer, tmp_path / "other").progress.precision == "fp32"
