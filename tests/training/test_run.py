"""A run's beginning: fine-tuning, foreign vocabularies, the moving average, dry runs."""

import json
import os
import shutil
from dataclasses import asdict

import pytest
import safetensors.torch
import torch
from conftest import tiny_config, tiny_values, write_toml
from tqdm import tqdm

from transformer_mt.checkpoints.checkpoint import EMA, MODEL, load_checkpoint
from transformer_mt.checkpoints.run_directory import find_checkpoint, list_checkpoints
from transformer_mt.config import load_config
from transformer_mt.errors import CheckpointError, ConfigError, DataError, DeviceError
from transformer_mt.evaluation.evaluator import evaluate
from transformer_mt.training import run as runs
from transformer_mt.training.dry_run import dry_run
from transformer_mt.training.engine import Engine
from transformer_mt.training.run import restore_engine, train
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


def test_fine_tuning_needs_the_same_shapes(corpus_dir, first, tmp_path):
    """The keys that differ are named with both values; dropout is free."""
    config = tiny_config(
        corpus_dir, train__init_from=str(first), model__d_ff=64, model__dropout=0.3
    )
    with pytest.raises(ConfigError, match=r"it has model.d_ff = 128, not 64$"):
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
        assert round(evaluate(translator, pairs).bleu.value, 4) == valid[key]
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


def test_a_dry_run_reports_and_writes_nothing(corpus_dir, tmp_path):
    """Neither a run directory nor a change to an existing run."""
    config = tiny_config(corpus_dir, train__max_steps=12)
    report = dry_run(config, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    for part in ("optim.warmup_steps = 100", "4000 pairs of 4000 (dropped: none)", "292 pieces"):
        assert part in report
    for part in ("million parameters", "of positions are padding", "target tokens/s", "GB at the"):
        assert part in report
    assert "for 12 steps, until train.max_steps = 12" in report
    train(config, tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    longer = tiny_config(corpus_dir, train__max_steps=15)
    assert "for 3 steps, until train.max_steps = 15" in dry_run(longer, tmp_path / "run")
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}


def figures(report: str, name: str) -> str:
    """Picks the line of a dry run's report that begins with a word."""
    [line] = [line for line in report.splitlines() if line.startswith(f"{name} ")]
    return line


def test_a_dry_runs_figures_by_hand(corpus_dir, tmp_path, monkeypatch):
    """Sizes, tokens, padding and what is left to do are those of the plan.

    Sabotage: count one side; begin at step 0; take the limit that comes last.
    """
    taken: list[int] = []
    real = Learner.train_step

    def train_step(self, step, micro_batches) -> None:
        taken.append(step)
        real(self, step, micro_batches)
        self.window.seconds = 2.0 * self.window.tokens / 100  # fifty target tokens a second

    config = tiny_config(corpus_dir, train__max_epochs=2, train__max_steps=1000)
    state = train(
        tiny_config(corpus_dir, train__max_epochs=2, train__max_steps=5), tmp_path / "run"
    )
    monkeypatch.setattr(Learner, "train_step", train_step)
    monkeypatch.setattr(runs, "measure_peak", lambda device, precision: 1e7)
    report = dry_run(config, tmp_path / "run")
    pairs = prepare(config, Talk(quiet=True)).pairs
    src, tgt = pairs.lengths
    steps = plan_epoch(src, tgt, 500, config.train.seed, 0)
    parts = [p for step in steps for p in cut_micro_batches(step, src, tgt, 600)]
    positions = sum(len(p) * int(src[p].max() + tgt[p].max()) for p in parts)
    padding = 1 - (src.sum() + tgt.sum()) / positions
    assert f"{src.sum()} source and {tgt.sum()} target tokens, end marks included" in report
    expected = f"{len(steps)} steps, {len(parts)} micro-batches, {padding:.1%} of positions"
    assert expected in figures(report, "epoch")
    model = find_checkpoint(tmp_path / "run", print).build_model()
    count = sum(parameter.numel() for parameter in model.parameters())
    assert f"{count / 1e6:.1f} million parameters, {model.matrix.size(0)} pieces" in report
    assert taken == [6] * 5, "two steps to warm up and three that are timed, of the resumed run"
    timed = [int(tgt[step].sum()) for step in steps[2:5]]
    a_step = sum(timed) / 50 / 3
    speed = figures(report, "speed")
    assert f" 50 target tokens/s, {a_step:.3g} s a step," in speed and "(3 steps on cpu" in speed
    left = 2 * len(steps) - state.step
    assert f"for {left} steps, until train.max_epochs = 2," in figures(report, "time")
    assert tqdm.format_interval(left * a_step) in figures(report, "time")
    gigabytes = float(figures(report, "memory").split()[1])
    assert 0.1 < gigabytes < 64
    minutes = tiny_config(corpus_dir, train__max_minutes=7.0, train__max_steps=1000)
    report = dry_run(minutes, tmp_path / "other")
    timed = [int(tgt[step].sum()) for step in plan_epoch(src, tgt, 500, 1, 0)[2:5]]
    left = int(7 * 60 / (sum(timed) / 50 / 3))
    assert f"for {left} steps, until train.max_minutes = 7," in figures(report, "time")
    resumed = tiny_config(corpus_dir, train__max_epochs=2, train__max_steps=5)
    assert "for 0 steps, until train.max_steps = 5" in dry_run(resumed, tmp_path / "run")
    few = tiny_config(corpus_dir, train__batch_tokens=20_000, train__max_steps=9)
    few = few.model_copy(update={"data": few.data.model_copy(update={"train": "train[:900]"})})
    taken.clear()
    report = dry_run(few, tmp_path / "other")
    src, tgt = prepare(few, Talk(quiet=True)).pairs.lengths
    assert taken == [1] * len(plan_epoch(src, tgt, 20_000, 1, 0)) == [1]
    assert "(1 steps on cpu" in report


def test_what_a_run_says_at_its_start(corpus_dir, first, tmp_path):
    """train.log holds the command, the configuration and versions, and where it resumes."""
    shutil.copytree(first, tmp_path / "run")
    train(tiny_config(corpus_dir, train__max_steps=21), tmp_path / "run")
    log = (tmp_path / "run" / "train.log").read_text()
    assert log.count(" command: ") == log.count(" made with: transformer-mt ") == 2
    assert '"max_steps":21' in log and log.count("; cpu, fp32") == 2
    assert "resuming at step 20, epoch 0" in log and log.count("resuming") == 1


def test_one_trainer_a_run(corpus_dir, first, tmp_path):
    """A second one is refused, with the process that holds it, and a free run is trained.

    Sabotage: take no lock.
    """
    shutil.copytree(first, tmp_path / "run")
    with locked(tmp_path / "run" / ".lock", pytest.fail):
        with pytest.raises(CheckpointError, match=f"process {os.getpid()} trains this run; stop"):
            train(tiny_config(corpus_dir), tmp_path / "run")
    assert train(tiny_config(corpus_dir), tmp_path / "run").step == 20


def test_changed_text_is_no_resume(corpus_dir, tmp_path):
    """The digest of the ids decides: files that were written again resume, changed ones do not.

    Sabotage: do not keep the digest of the corpus, or do not compare it.
    """
    other = tmp_path / "corpus"
    shutil.copytree(corpus_dir, other)
    train(tiny_config(other, train__max_steps=2), tmp_path / "run")
    paths = [other / f"train.{language}" for language in ("de", "en")]
    for path in paths:
        path.write_text(path.read_text())
    assert train(tiny_config(other, train__max_steps=3), tmp_path / "run").step == 3
    for path in paths:
        path.write_text(path.read_text().replace("a", "b", 1))
    with pytest.raises(CheckpointError, match="the training text has changed since"):
        train(tiny_config(other, train__max_steps=4), tmp_path / "run")


@pytest.mark.parametrize("command", [train, dry_run])
def test_where_no_run_can_lie(corpus_dir, tmp_path, command):
    """A file in the way is named before anything is read or made."""
    (tmp_path / "file").write_text("")
    missing = tiny_config(tmp_path / "nowhere")
    for run_dir in (tmp_path / "file", tmp_path / "file" / "deep" / "run"):
        with pytest.raises(CheckpointError, match="file: not a folder; name another --run"):
            command(missing, run_dir)
    with pytest.raises(DataError):
        command(missing, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    state = train(tiny_config(corpus_dir, train__max_steps=1), tmp_path / "deep" / "er" / "run")
    assert state.step == 1 and state.precision == "fp32"
    [only] = list_checkpoints(tmp_path / "deep" / "er" / "run")
    assert only.name == "step-00000001"


def test_a_precision_that_the_machine_cannot_keep(corpus_dir, tmp_path, monkeypatch):
    """Asked for, or kept from the hardware a run began on."""
    has = {"bf16": True}
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: has["bf16"])
    config = tiny_config(corpus_dir, train__precision="auto", train__max_steps=2)
    assert train(config, tmp_path / "run").precision == "bf16"
    has["bf16"] = False
    longer = tiny_config(corpus_dir, train__precision="auto", train__max_steps=4)
    with pytest.raises(DeviceError, match="the run computes in bf16, which this cpu does not"):
        train(longer, tmp_path / "run")
    wanted = tiny_config(corpus_dir, train__precision="bf16")
    with pytest.raises(DeviceError, match="train.precision = bf16: this cpu does not"):
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
    assert asdict(engine.window) == window and min(window.values()) > 0
    assert engine.read_window().loss == window["loss"]
