"""The training loop: when it stops, validates, saves and logs, with scores and a clock by hand."""

import itertools
import math
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import around_steps, records, refuses, tiny_values

from transformer_mt.checkpoints.checkpoint import save_checkpoint
from transformer_mt.checkpoints.evaluations import read_evaluations
from transformer_mt.checkpoints.metrics import read_runs
from transformer_mt.checkpoints.run_directory import find_checkpoint, list_checkpoints, load_newest
from transformer_mt.config.keys import Config
from transformer_mt.config.loading import parse_config
from transformer_mt.errors import TrainingError
from transformer_mt.system.processes import ALONE, Processes
from transformer_mt.text.batching import plan_epoch
from transformer_mt.text.prepared import prepare
from transformer_mt.training import engine, saving, trainer, validation
from transformer_mt.training.engine import LogWindow
from transformer_mt.training.fit import StepFitter
from transformer_mt.training.optimizer import noam_rate
from transformer_mt.training.run import build_trainer, train
from transformer_mt.training.saving import CheckpointSaver
from transformer_mt.training.trainer import Trainer, is_log_step


def logged_steps(run_dir: Path, kind: str) -> list[int]:
    return [line["step"] for line in records(run_dir, kind)]


def saved_steps(run_dir: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in list_checkpoints(run_dir)][::-1]


def log_text(run_dir: Path) -> str:
    return (run_dir / "train.log").read_text()


@pytest.fixture
def scores(monkeypatch):
    """Gives a list of the BLEU scores that validations will have."""
    values: list[float] = []

    def translate(self, *_) -> tuple[list[str], float]:
        return [f"hypothesis of {line}" for line in self._pairs.src], values.pop(0)

    monkeypatch.setattr(validation.Validator, "_translate", translate)
    return values


@pytest.fixture
def nlls(monkeypatch):
    """Gives a list of the losses that validations will have; once it is empty, 1 each."""
    values: list[float] = []
    monkeypatch.setattr(validation, "mean_nll", lambda *_: values.pop(0) if values else 1.0)
    return values


@pytest.fixture
def clock(monkeypatch):
    """Gives a clock that each step moves by thirty seconds, and nothing else."""
    now = SimpleNamespace(seconds=1000.0)
    around_steps(monkeypatch, after=lambda *_: setattr(now, "seconds", now.seconds + 30.0))
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


@pytest.fixture
def bad_steps(monkeypatch):
    """Gives the set of the steps whose gradients will not be finite."""
    numbers, counter = set(), itertools.count(1)

    def clip(parameters, max_norm):
        parameters = list(parameters)
        if next(counter) in numbers:
            for parameter in parameters:
                parameter.grad.fill_(math.inf)
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    monkeypatch.setattr(engine, "clip_grad_norm_", clip)
    return numbers


def build_values(corpus_dir: Path, **changes: object) -> dict[str, dict[str, object]]:
    """Gives a run that logs, saves and validates only when a test says so."""
    never = dict.fromkeys(("train__log_every", "train__save_every", "valid__every"), 1000)
    sizes = {"train__max_steps": 100, "train__batch_tokens": 60, "train__keep_last": 100}
    return tiny_values(corpus_dir, **{**never, **sizes, **changes})


def build_config(corpus_dir: Path, **changes: object) -> Config:
    return parse_config(build_values(corpus_dir, **changes), "tests")


@pytest.mark.parametrize("stops", [[], [2, 4, 8], [11]])
def test_patience(corpus_dir, tmp_path, scores, nlls, stops):
    """Sabotage: count the one at 11; keep the first of equal BLEU; take equal NLL for better."""
    extra = 11 in stops
    scores += [0.0, -0.5, 2.0, 2.0, 2.0, *([1.0] * extra), 2.0, 1.9]
    nlls += [3.0, 3.0, 2.5, 2.0, 2.0, *([3.5] * extra), 2.1, 1.0]
    changes = {"valid__every": 2, "valid__patience": 3, "optim__warmup_steps": 1}
    for stop in stops:
        config = build_config(corpus_dir, train__max_steps=stop, **changes)
        assert train(config, tmp_path / "a run").step == stop
    progress = train(build_config(corpus_dir, **changes), tmp_path / "a run")
    best = progress.best_step, progress.best_bleu, progress.best_nll
    assert (progress.step, *best) == (14, 8, 2.0, 2.0) and scores == []
    assert progress.validations_since_best == 3 and progress.valid_step == 14
    assert logged_steps(tmp_path / "a run", "valid") == [2, 4, 6, 8, 10, *([11] * extra), 12, 14]
    run = shlex.quote(str(tmp_path / "a run"))
    following = f"; next: transformer-mt evaluate {run}, or transformer-mt translate {run} < FILE\n"
    assert f"done: valid.patience = 3, at step 14{following}" in log_text(tmp_path / "a run")
    assert find_checkpoint(tmp_path / "a run").progress.step == 8
    [metrics] = read_runs([tmp_path / "a run"])
    assert metrics.best_validation()["step"] == 8
    assert train(build_config(corpus_dir, **changes), tmp_path / "a run").step == 14
    message = "nothing to do: valid.patience = 3, and the run is at step 14"
    assert log_text(tmp_path / "a run").endswith(message + following)


def test_validations_within_the_warm_up_do_not_count(corpus_dir, tmp_path, scores, nlls):
    """The first one after it does. Sabotage: count all; count from 0 steps after the warm-up."""
    scores += [3.0, 2.0, 2.0, 2.0, 2.0]
    changes = {"valid__every": 2, "valid__patience": 2, "optim__warmup_steps": 6}
    progress = train(build_config(corpus_dir, **changes), tmp_path / "run")
    assert (progress.step, progress.best_step) == (10, 2) and scores == []


def test_another_metric_decides_which_is_best(corpus_dir, tmp_path, monkeypatch, nlls):
    """By chrF2 the copies win, by NLL the lowest. Sabotage: compare BLEU whatever it is."""
    given = itertools.cycle([9.0, 1.0, 5.0])

    def translate(self, *_) -> tuple[list[str], float]:
        bleu = next(given)
        return [line if bleu == 1 else "?" for line in self._pairs.tgt], bleu

    monkeypatch.setattr(validation.Validator, "_translate", translate)
    nlls += [3.0, 3.0, 3.0, 3.0, 2.0, 1.0]
    for metric, step, bests in (("chrf", 4, ["", "", " at step 4"]), ("nll", 6, ["", "", ""])):
        changes = {"valid__every": 2, "valid__metric": metric, "train__max_steps": 6}
        progress = train(build_config(corpus_dir, **changes), tmp_path / metric)
        assert progress.best_step == step and find_checkpoint(tmp_path / metric).step == step
        [metrics] = read_runs([tmp_path / metric])
        assert metrics.best_validation(metric)["step"] == step
        assert metrics.best_validation()["step"] == 2
        log = log_text(tmp_path / metric)
        assert re.findall(r"validation BLEU .* \(best(.*)\)\n", log) == bests
        recorded = [f"{r['chrf']:.2f}" for r in records(tmp_path / metric) if "chrf" in r]
        assert re.findall(r"validation BLEU .*, chrF2 (.*), perp", log) == recorded
        assert recorded[1:2] == ["100.00"] * (metric == "chrf")
    assert load_newest(tmp_path / "nll").progress.best_nll == 1.0


def test_if_the_best_cannot_be_saved_that_before_stays(corpus_dir, tmp_path, scores, monkeypatch):
    """A later one need only be better than that. Sabotage: keep that step; keep the count."""
    scores += [1.0, 0.5, 4.0, 0.7, 3.0, 2.0]

    def save(path: Path, *arguments: object) -> None:
        if path.name == "step-00000006":
            raise OSError(28, "No space left on device")
        save_checkpoint(path, *arguments)

    monkeypatch.setattr(saving, "save_checkpoint", save)
    changes = {"train__keep_last": 1, "train__max_steps": 12, "valid__patience": 2}
    changes |= {"optim__warmup_steps": 1}
    progress = train(build_config(corpus_dir, valid__every=2, **changes), tmp_path / "run")
    assert (progress.best_step, progress.best_bleu, progress.validations_since_best) == (10, 3.0, 1)
    assert find_checkpoint(tmp_path / "run").progress.step == 10
    assert "run/step-00000006: cannot save step 6: No space left" in log_text(tmp_path / "run")
    [record] = read_evaluations(tmp_path / "run")
    assert record.checkpoint == "step-00000010"


def test_the_moving_average_decides_which_is_best(corpus_dir, tmp_path, scores, nlls):
    """Unless the weights have diverged. Sabotage: ask the average alone whether they have."""
    # Of the weights and of their average, four times.
    scores += [5.0, 1.0, 4.0, 2.0, 6.0, 1.5, 9.0, 9.0]
    nlls += [1.0] * 6 + [1000.0, 1.0]
    changes = {"train__ema_decay": 0.9, "train__max_steps": 8, "train__keep_last": 1}
    progress = train(build_config(corpus_dir, valid__every=2, **changes), tmp_path / "run")
    assert (progress.best_step, progress.best_bleu) == (4, 2.0)
    assert saved_steps(tmp_path / "run") == [4, 8]
    message = "step 4: validation BLEU 4.00, of the moving average 2.00, perplexity "
    assert message in log_text(tmp_path / "run")


def test_when_a_run_logs_validates_and_saves(corpus_dir, tmp_path, scores):
    """At multiples, at the end, at a new best, and at the beginning at growing intervals."""
    scores += [3.0, 1.0, 4.0, 2.0]
    changes = {"train__log_every": 8, "train__save_every": 5, "valid__every": 3}
    train(build_config(corpus_dir, train__max_steps=11, **changes), tmp_path / "run")
    assert logged_steps(tmp_path / "run", "train") == [1, 2, 5, 8, 11]
    assert logged_steps(tmp_path / "run", "valid") == [3, 6, 9, 11]
    assert saved_steps(tmp_path / "run") == [3, 5, 9, 10, 11]
    scored = re.findall(r"validation BLEU (.*?), perp.* \((.*)\)\n", log_text(tmp_path / "run"))
    bests = ["best", "best 3.00", "best", "best 4.00"]
    assert scored == list(zip(["3.00", "1.00", "4.00", "2.00"], bests, strict=True))
    growing = [step for step in range(1, 1000) if is_log_step(step, 300)]
    assert growing == [1, 2, 5, 10, 20, 50, 100, 200, 300, 600, 900]


def test_epochs_are_a_limit(corpus_dir, tmp_path, scores):
    """Training ends with the last step of the last epoch, wherever it was resumed."""
    scores += [1.0] * 4
    changes = {"data__train": "train[:40]", "vocab__size": 288}
    config = build_config(corpus_dir, train__max_epochs=3, **changes)
    lengths = prepare(config).pairs.lengths
    sizes = [len(plan_epoch(lengths, 60, config.train.seed, epoch)) for epoch in range(3)]
    for stop in (sizes[0] - 1, sizes[0], sizes[0] + 2):
        part = build_config(corpus_dir, train__max_epochs=3, train__max_steps=stop, **changes)
        progress = train(part, tmp_path / "run")
        expected = (0, stop) if stop < sizes[0] else (1, stop - sizes[0])
        assert (progress.epoch, progress.epoch_step) == expected and progress.step == stop
    progress = train(config, tmp_path / "run")
    assert (progress.step, progress.epoch, progress.epoch_step) == (sum(sizes), 3, 0)
    lines = records(tmp_path / "run", "train")
    assert all(line["lr"] == noam_rate(line["step"], 16, 100) for line in lines)
    assert "done: train.max_epochs = 3" in log_text(tmp_path / "run")


def test_minutes_are_a_limit(corpus_dir, tmp_path, scores, clock):
    """They count training time over all resumptions; periodic saves by time work too."""
    scores += [1.0] * 3
    config = build_config(corpus_dir, train__max_minutes=2.0, train__save_every_minutes=1.0)
    assert train(config, tmp_path / "run").step == 4 and saved_steps(tmp_path / "run") == [2, 4]
    assert load_newest(tmp_path / "run").progress.seconds == 120.0
    assert train(config, tmp_path / "run").step == 4
    clock.seconds += 5000
    longer = build_config(corpus_dir, train__max_minutes=3.5, train__save_every_minutes=1.0)
    assert train(longer, tmp_path / "run").step == 7
    assert saved_steps(tmp_path / "run") == [2, 4, 6, 7]
    assert "done: train.max_minutes = 2, at step 4" in log_text(tmp_path / "run")
    seconds = [line["seconds"] for line in records(tmp_path / "run", "train")]
    assert seconds == [30.0, 60.0, 120.0, 150.0, 210.0]


def test_the_clock_of_the_main_process_decides(corpus_dir, tmp_path, scores, clock, monkeypatch):
    """It has counted ten seconds for each step, and this process thirty."""
    scores += [1.0]
    monkeypatch.setattr(validation, "mean_nll", lambda *arguments: 1.0)
    main_clock = iter(range(10, 1000, 10))

    class Second(Processes):
        def max(self, *values: float) -> list[float]:
            signum, *seconds = values  # or whether an engine's memory has run out
            return [signum, *(max(value, next(main_clock)) for value in seconds)]

    alone = build_trainer(build_config(corpus_dir, train__max_minutes=1.0), tmp_path / "run")
    alone.engine.processes = Second(rank=1, world_size=2)
    parts = alone.run_dir, alone.corpus, alone.valid, StepFitter(alone.engine), alone.progress
    trainer = Trainer(*parts, is_saved=False)
    trainer.run(log=None)
    assert trainer.progress.step == 6
    assert not (tmp_path / "run").exists()  # the main process saves


def test_metrics_of_a_log_line(corpus_dir, tmp_path, scores, clock, monkeypatch):
    """Since the line before. Sabotage: count the 100 seconds of validating or saving at step 3."""

    def taking(seconds: float, function):
        def call(*arguments: object) -> object:
            clock.seconds += seconds
            return function(*arguments)

        return call

    monkeypatch.setattr(CheckpointSaver, "start", taking(100, CheckpointSaver.start))
    monkeypatch.setattr(validation, "mean_nll", taking(100, lambda *_: 1.0))
    scores += [1.0, 1.0]
    peaks = {(torch.device("cpu"), "fp32", ALONE): 1e6}
    monkeypatch.setattr(trainer, "measure_peak_flops", taking(1000, lambda *given: peaks[given]))
    sums: list[LogWindow] = []
    around_steps(monkeypatch, *2 * [lambda engine, _: sums.append(engine.read_window())])
    changes = {"train__max_steps": 5, "train__log_every": 2, "valid__every": 3}
    train(build_config(corpus_dir, **changes, train__save_every=3), tmp_path / "run")
    lines = records(tmp_path / "run", "train")
    assert [line["step"] for line in lines] == [1, 2, 4, 5]
    names = "tokens", "loss", "nll", "flops"
    pairs = zip(sums[::2], sums[1::2], strict=True)
    step_sums = [[getattr(after, n) - getattr(before, n) for n in names] for before, after in pairs]
    windows = step_sums[:1], step_sums[1:2], step_sums[2:4], step_sums[4:]
    for line, steps in zip(lines, windows, strict=True):
        tokens, loss, nll, flops = map(sum, zip(*steps, strict=True))
        seconds = 30 * len(steps)
        assert line["loss"] == pytest.approx(loss / tokens, abs=1e-5)
        assert line["nll"] == pytest.approx(nll / tokens, abs=1e-5)
        assert line["tokens_per_second"] == pytest.approx(tokens / seconds, abs=0.06)
        assert line["mfu"] == pytest.approx(flops / seconds / 1e6, abs=1e-3)
        assert line["lr"] == noam_rate(line["step"], 16, 100) and line["skipped"] == 0
        assert line["grad_norm"] > 0 and line["epoch"] == 0
        assert line["seconds"] == 1000 + 30 * line["step"] + 200 * (line["step"] > 3)


def test_metrics_of_a_validation(corpus_dir, tmp_path, scores):
    """BLEU and perplexity in metrics.jsonl and train.log, and the same samples every time."""
    scores += [1.0]
    valid = {"src": "validation.de", "tgt": "test.en"}
    train(build_config(corpus_dir, train__max_steps=5, data__valid=valid), tmp_path / "run")
    [valid] = records(tmp_path / "run", "valid")
    assert valid["perplexity"] == pytest.approx(math.exp(valid["nll"]), rel=1e-4)
    assert valid["bleu"] == 1.0 and valid["step"] == 5 and "ema_bleu" not in valid
    log = log_text(tmp_path / "run")
    [shown] = re.findall(r" step 5: validation BLEU 1.00, perplexity (\d+\.\d\d) \(best\)\n", log)
    assert float(shown) == pytest.approx(valid["perplexity"], abs=0.011)
    names = "validation.de", "test.en"
    sources, references = ((corpus_dir / name).read_text().splitlines() for name in names)
    shown = re.findall(r"  (?:source|reference|hypothesis) +(.*)\n", log)
    samples = [(sources[i], references[i], f"hypothesis of {sources[i]}") for i in (0, 29, 59)]
    assert shown == [text for sample in samples for text in sample]


def test_nonfinite_steps_are_logged(corpus_dir, tmp_path, scores, bad_steps):
    """Two in a row, and two again, do not end a run that three would end."""
    scores += [1.0]
    bad_steps |= {2, 3, 5, 6}
    limits = {"train__max_steps": 7, "train__max_bad_steps": 3, "train__log_every": 1}
    train(build_config(corpus_dir, **limits), tmp_path / "run")
    lines = records(tmp_path / "run", "train")
    assert [line["skipped"] for line in lines] == [0, 1, 2, 2, 3, 4, 4]
    assert [line["grad_norm"] is None for line in lines] == [i in (2, 3, 5, 6) for i in range(1, 8)]
    assert load_newest(tmp_path / "run").state.counters["skipped_steps"] == 4


@pytest.mark.parametrize(
    ("bad", "step", "more"),
    [({10, 11, 12}, 12, ""), ({1, 8, 9, 10}, 10, ", or with train.precision = fp32")],
)
def test_too_many_bad_steps(corpus_dir, tmp_path, scores, monkeypatch, bad_steps, bad, step, more):
    """They are looked for every three steps, as at 12, and when logging, as at 10."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    bad_steps |= bad
    changes = {"data__train": "train[:40]", "vocab__size": 288, "train__max_bad_steps": 3}
    changes |= {"train__precision": "bf16" if more else "fp32"}
    config = build_config(corpus_dir, **changes)
    message = (
        f"step {step} (step {step - 7} of epoch 1): 3 steps in a row had non-finite gradients and"
        f" were skipped (lr {noam_rate(step, 16, 100):.3g}, loss scale 1);"
        " start a new run with a lower optim.lr_scale"
    )
    refuses(TrainingError, f"^{re.escape(message + more)}$", train, config, tmp_path / "run")


def test_weights_that_are_not_finite_are_never_saved(corpus_dir, tmp_path, scores, monkeypatch):
    """Training says that it has diverged, and ends; the last finite checkpoint stays the newest."""
    scores += [1.0]

    def rate(step, *arguments):
        return noam_rate(step, *arguments) if step < 6 else 1e300

    monkeypatch.setattr(engine, "noam_rate", rate)
    limits = {"train__max_steps": 20, "train__save_every": 2, "train__keep_last": 1}
    config = build_config(corpus_dir, **limits)
    message = r"step 6: src_embedding of model\.safetensors is not finite: training has diverged"
    message += "; this step is not saved; start a new run"  # there may be no earlier one
    for _ in range(2):  # the same command resumes from it
        refuses(TrainingError, message, train, config, tmp_path / "run")
        assert load_newest(tmp_path / "run").progress.step == 4
    trainer = build_trainer(config, tmp_path / "run")
    state = trainer.engine.optimizer.state[trainer.engine.model.src_embedding]
    state["exp_avg_sq"][-1, -1] = math.nan
    message = r"exp_avg_sq.src_embedding of training\.safetensors is not finite"
    with pytest.raises(TrainingError, match=message):
        CheckpointSaver(tmp_path, trainer.fitter, trainer.corpus, None).start(trainer.progress)


def test_a_run_that_diverges(corpus_dir, tmp_path, monkeypatch):
    """It is stopped and resumed once. Sabotage: compare decoding with `forward` all the same."""
    compared = list[object]()
    monkeypatch.setattr(validation, "warn_of_decoding", lambda *_: compared.append(_))
    # Steps 1 to 5 share a log line; the first makes the weights absurd.
    monkeypatch.setattr(trainer, "is_log_step", lambda step, every: step % every == 0)
    recipe = {"optim__lr_scale": 1e30, "optim__warmup_steps": 1, "data__valid": "validation[:5]"}
    for max_steps in (7, 20):
        every = {"train__log_every": 5, "valid__every": 10, "train__max_steps": max_steps}
        progress = train(build_config(corpus_dir, **recipe, **every), tmp_path / "run")
    valid = {line["step"]: line["perplexity"] for line in records(tmp_path / "run", "valid")}
    assert valid == {7: None, 10: None, 20: None}
    lines = {line["step"]: line for line in records(tmp_path / "run", "train")}
    # Of the first step alone; there are 292 pieces.
    assert lines[5]["loss"] > math.log(100) and lines[5]["nll"] > math.log(100)
    assert lines[10]["loss"] is None and lines[15]["loss"] is None
    # That of step 7 was not due.
    assert (progress.best_step, progress.validations_since_best) == (0, 2)
    log = log_text(tmp_path / "run")
    assert "(best" not in log and "perplexity inf" not in log and not compared
    warning = "warning: step 20: validation BLEU 0.00, which cannot be the best: perplexity is not"
    assert log.count(warning) == 1
