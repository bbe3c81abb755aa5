"""A run's beginning: fine-tuning, given vocabularies, the moving average."""

import json
import os
import shutil
from dataclasses import asdict

import pytest
import safetensors.torch
import torch
from conftest import tiny_config, tiny_values, write_toml

from transformer_mt.checkpoints.checkpoint import EMA, MODEL, load_checkpoint
from transformer_mt.checkpoints.run_directory import find_checkpoint, list_checkpoints
from transformer_mt.config.loading import load_config
from transformer_mt.errors import CheckpointError, ConfigError, DataError, DeviceError
from transformer_mt.evaluation.evaluator import evaluate
from transformer_mt.system.files import locked
from transformer_mt.training import run as runs
from transformer_mt.training.dry_run import dry_run
from transformer_mt.training.engine import Engine
from transformer_mt.training.run import build_trainer, restore_engine, train
from transformer_mt.translation.translator import Translator


def weights(path, name=MODEL) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(path / name)


def losses(run_dir) -> list[float]:
    records = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if record["kind"] == "train"]


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


@pytest.fixture(scope="module")
def first(corpus_dir, tmp_path_factory):
    """Gives a run to begin another one from."""
    run_dir = tmp_path_factory.mktemp("runs") / "first"
    train(tiny_config(corpus_dir), run_dir)
    return run_dir


def test_fine_tuning_on_no_steps_is_the_start(corpus_dir, first, tmp_path):
    """Weights and vocabulary are the checkpoint's, whatever vocab.size says.

    Sabotage: initialise the model after loading.
    """
    origin = find_checkpoint(first)
    config = tiny_config(
        corpus_dir, train__init_from=str(first), train__max_steps=0, vocab__size=300, train__seed=7
    )
    train(config, tmp_path / "run")
    [path] = list_checkpoints(tmp_path / "run")
    assert path.name == "step-00000000" and equal(weights(path), weights(origin.path))
    assert load_checkpoint(path).vocab.src_model == origin.vocab.src_model


def test_fine_tuning_goes_on_without_its_origin(corpus_dir, first, tmp_path):
    """It begins at step 0 with fresh moments, learns, and resumes as any run."""
    changes = {"train__init_from": str(first), "optim__warmup_steps": 50}
    train(tiny_config(corpus_dir, train__max_steps=5, **changes), tmp_path / "run")
    state = train(tiny_config(corpus_dir, train__max_steps=8, **changes), tmp_path / "run")
    assert state.step == 8
    found, fresh = losses(tmp_path / "run"), losses(first)
    assert len(found) == 8 and found[0] < fresh[0] - 0.3


def test_the_origin_of_fine_tuning_may_be_moved_or_deleted(corpus_dir, first, tmp_path):
    """On resume `train.init_from` is not read. Sabotage: refuse a change of it, or read it."""
    origin = shutil.copytree(first, tmp_path / "origin")
    config = tiny_config(corpus_dir, train__init_from=str(origin), train__max_steps=2)
    train(config, tmp_path / "run")
    shutil.rmtree(origin)
    for step, path in ((3, str(origin)), (4, str(first)), (5, None)):
        changed = tiny_config(corpus_dir, train__init_from=path, train__max_steps=step)
        assert train(changed, tmp_path / "run").step == step


def test_fine_tuning_needs_the_same_shapes(corpus_dir, first, tmp_path):
    """The keys that differ are named with both values; dropout is free."""
    config = tiny_config(
        corpus_dir, train__init_from=str(first), model__d_ff=64, model__dropout=0.3
    )
    with pytest.raises(ConfigError, match=r"it has model.d_ff = 128, not 64; give"):
        train(config, tmp_path / "run")
    nowhere = tiny_config(corpus_dir, train__init_from="nowhere")
    with pytest.raises(CheckpointError, match="nowhere: no such run or checkpoint"):
        train(nowhere, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_vocabulary_made_elsewhere(corpus_dir, first, tmp_path):
    """A file or a checkpoint's folder gives its pieces; what is none is refused by name."""
    origin = find_checkpoint(first)
    for name in ("vocab.model", ""):
        config = tiny_config(corpus_dir, train__max_steps=0, vocab__path=str(origin.path / name))
        train(config, tmp_path / f"run{name}")
        vocab = find_checkpoint(tmp_path / f"run{name}").vocab
        assert vocab.src_model == origin.vocab.src_model
    wrong = [(str(origin.path / "config.json"), "not a SentencePiece model"), ("nope", "nope")]
    for path, message in wrong:
        with pytest.raises(DataError, match=message):
            train(tiny_config(corpus_dir, vocab__path=path), tmp_path / "none")
    values = tiny_values(corpus_dir, vocab__path=str(origin.path), vocab__shared=False)
    values["model"]["tie_embeddings"] = False
    with pytest.raises(ConfigError, match=r"one shared vocabulary; set vocab.shared"):
        train(load_config(write_toml(tmp_path / "two.toml", values)), tmp_path / "none")


def test_the_moving_average_is_kept_scored_and_used(corpus_dir, tmp_path, caplog):
    """Validation scores both; a checkpoint holds both; commands take the average unless told."""
    config = tiny_config(corpus_dir, train__ema_decay=0.9, train__max_steps=10)
    train(config, tmp_path / "run")
    checkpoint = find_checkpoint(tmp_path / "run")
    assert not equal(weights(checkpoint.path), weights(checkpoint.path, EMA))
    valid = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    pairs = runs.load_split(config.data, config.data.valid)
    for raw, key in ((True, "bleu"), (False, "ema_bleu")):
        translator = Translator(checkpoint.build_model(raw), checkpoint.vocab, 60)
        assert round(evaluate(translator, pairs)[1].value, 4) == valid[key]
    assert checkpoint.progress.best_bleu == pytest.approx(valid["ema_bleu"], abs=1e-4)
    assert "of the moving average" in caplog.text


def test_the_moving_average_resumes_exactly(corpus_dir, tmp_path):
    """Stopped and resumed, both sets of weights are bit-equal. Sabotage: do not load ema."""
    changes = {"train__ema_decay": 0.9}
    train(tiny_config(corpus_dir, train__max_steps=10, **changes), tmp_path / "whole")
    train(tiny_config(corpus_dir, train__max_steps=5, **changes), tmp_path / "parts")
    train(tiny_config(corpus_dir, train__max_steps=10, **changes), tmp_path / "parts")
    left, right = (list_checkpoints(tmp_path / name)[0] for name in ("whole", "parts"))
    assert left.name == right.name == "step-00000010"
    for name in (MODEL, EMA):
        assert equal(weights(left, name), weights(right, name))


def test_what_a_run_logs_at_its_start(corpus_dir, first, tmp_path):
    """train.log has the command, the configuration and versions, and the step it resumes at."""
    shutil.copytree(first, tmp_path / "run")
    train(tiny_config(corpus_dir, train__max_steps=21), tmp_path / "run")
    log = (tmp_path / "run" / "train.log").read_text()
    assert log.count(" command: ") == log.count(" software: transformer-mt ") == 2
    assert log.count(" numeric environment: {'program version'") == 2
    assert '"max_steps":21' in log and log.count("(dropped: none); cpu, fp32") == 2
    assert "resuming at step 20, epoch 0" in log and log.count("resuming") == 1


def test_one_trainer_per_run(corpus_dir, first, tmp_path):
    """A second one is refused with the id of the first process; an unlocked run is trained.

    Sabotage: take no lock.
    """
    shutil.copytree(first, tmp_path / "run")
    with locked(tmp_path / "run" / ".lock", pytest.fail):
        message = f"process {os.getpid()} is training this run; stop it"
        with pytest.raises(CheckpointError, match=message):
            train(tiny_config(corpus_dir), tmp_path / "run")
    assert train(tiny_config(corpus_dir), tmp_path / "run").step == 20


def test_a_checkpoint_that_was_being_replaced_is_restored(corpus_dir, first, tmp_path):
    """If the process was killed between two renames. Sabotage: resume without looking for it."""
    shutil.copytree(first, tmp_path / "run")
    newest = list_checkpoints(tmp_path / "run")[0]
    newest.rename(newest.with_name(f".{newest.name}.replaced"))
    train(tiny_config(corpus_dir), tmp_path / "run")
    assert "nothing to do" in (tmp_path / "run" / "train.log").read_text()
    assert list_checkpoints(tmp_path / "run")[0] == newest


@pytest.mark.parametrize("command", [train, dry_run])
def test_where_a_run_cannot_be(corpus_dir, tmp_path, command):
    """A file in the way is named before anything is read or written."""
    (tmp_path / "file").write_text("")
    without_text = tiny_config(tmp_path / "nowhere")
    for run_dir in (tmp_path / "file", tmp_path / "file" / "deep" / "run"):
        with pytest.raises(CheckpointError, match="file: not a directory; name another --run"):
            command(without_text, run_dir)
    with pytest.raises(DataError):
        command(without_text, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_missing_directories_are_made(corpus_dir, tmp_path):
    """Those above the run too."""
    run_dir = tmp_path / "two" / "levels" / "run"
    progress = train(tiny_config(corpus_dir, train__max_steps=1), run_dir)
    assert progress.step == 1 and progress.precision == "fp32"
    assert [path.name for path in list_checkpoints(run_dir)] == ["step-00000001"]


def test_a_precision_that_the_machine_cannot_keep(corpus_dir, tmp_path, monkeypatch):
    """Asked for, or kept from the hardware a run began on."""
    has = {"bf16": True}
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: has["bf16"])
    config = tiny_config(corpus_dir, train__precision="auto", train__max_steps=2)
    assert train(config, tmp_path / "run").precision == "bf16"
    has["bf16"] = False
    longer = tiny_config(corpus_dir, train__precision="auto", train__max_steps=4)
    with pytest.raises(DeviceError, match="the run was trained in bf16, which this cpu"):
        train(longer, tmp_path / "run")
    wanted = tiny_config(corpus_dir, train__precision="bf16")
    with pytest.raises(DeviceError, match="train.precision = bf16: this cpu device does not"):
        train(wanted, tmp_path / "other")
    assert train(longer, tmp_path / "other").precision == "fp32"


def test_train_prints_nothing_unless_asked(corpus_dir, tmp_path, capsys):
    """Called from another program it is silent; train.log holds the messages all the same."""
    train(tiny_config(corpus_dir, train__max_steps=2), tmp_path / "run")
    assert capsys.readouterr() == ("", "")
    assert "4000 training pairs" in (tmp_path / "run" / "train.log").read_text()


def test_sums_of_an_unfinished_log_line_are_restored(corpus_dir, tmp_path):
    """Loss, tokens, FLOPs and seconds. Sabotage: leave the FLOPs out of `LogWindow`."""
    changes = {"train__log_every": 5, "train__save_every": 7, "train__max_steps": 10}
    config = tiny_config(corpus_dir, **changes)
    train(config, tmp_path / "run")
    saved = load_checkpoint(tmp_path / "run" / "step-00000007")
    sizes = saved.vocab.src_size, saved.vocab.tgt_size
    engine = Engine(config, *sizes, torch.device("cpu"), "fp32")
    restore_engine(engine, saved)
    window = saved.state.counters["window"]
    assert (
        asdict(engine.read_window()) == pytest.approx(window, abs=0.1)
        and window.pop("nonfinite_tokens") == 0
    )
    assert min(window.values()) > 0
    assert engine.read_window().loss == window["loss"]


def test_keys_that_a_resumed_run_does_not_read_are_named(corpus_dir, tmp_path, caplog):
    """Only if they are new: the same command again says nothing. Sabotage: always warn."""
    train(tiny_config(corpus_dir, train__max_steps=1), tmp_path / "run")
    train(tiny_config(corpus_dir, train__max_steps=2), tmp_path / "run")
    assert "is not used" not in caplog.text
    config = tiny_config(corpus_dir, train__max_steps=3, train__init_from="elsewhere")
    train(config, tmp_path / "run")
    assert "train.init_from = elsewhere is not used: the run is resumed" in caplog.text


def test_a_run_that_went_on_without_compilation_stays_so(corpus_dir, tmp_path, monkeypatch):
    """The two kinds of kernels round differently. Sabotage: try again."""

    def fail(engine, batch) -> None:
        engine.compile_failed = True

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "check_compilation", fail)
        train(tiny_config(corpus_dir, train__max_steps=5), tmp_path / "run")
    config = tiny_config(corpus_dir, train__max_steps=10)
    assert build_trainer(config, tmp_path / "run").engine.compile_failed
    assert not build_trainer(config, tmp_path / "other").engine.compile_failed
