"""The training loop of a run: steps, validation, checkpoints, until a limit is reached."""

import logging
import math
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from transformer_mt.checkpoints.checkpoint import Progress
from transformer_mt.checkpoints.layout import STATE, checkpoint_path
from transformer_mt.errors import (
    CheckpointError,
    CompileError,
    DataError,
    DeviceError,
    Interrupted,
    OutOfMemoryError,
    TrainingError,
)
from transformer_mt.system.device import OUT_OF_MEMORY_ADVICE, compute_settings
from transformer_mt.system.signals import StopRequest, catch_stop_signals
from transformer_mt.text.batching import (
    Batch,
    Indices,
    TokenCounts,
    cut_micro_batches,
    deal_micro_batches,
    most_demanding,
    padded_size,
    plan_epoch,
)
from transformer_mt.text.corpus import RawPairs
from transformer_mt.text.epoch_pairs import EpochPairs
from transformer_mt.text.prepared import PreparedCorpus
from transformer_mt.training.engine import Engine
from transformer_mt.training.run_log import RunLog
from transformer_mt.training.saving import CheckpointSaver
from transformer_mt.training.time_left import StepDisplay, reached_limit
from transformer_mt.training.validation import Validation, Validator

logger = logging.getLogger(__name__)


class _Stopped(Exception):
    """A signal has asked training to stop."""


def is_log_step(step: int, log_every: int) -> bool:
    """Tells whether a step ends a log line: every `log_every`, and before, 1, 2, 5, 10, 20, 50 ...

    So a run that is stopped early has a curve.
    """
    return step % log_every == 0 or (step < log_every and str(step).rstrip("0") in ("1", "2", "5"))


class Trainer:
    """One run in progress.

    The processes all take the same steps and make the same decisions; the main one logs and saves.

    Args:
        run_dir: Where checkpoints go.
        corpus: Vocabulary and encoded training pairs.
        valid: Raw validation text.
        engine: The model in training, in the state that belongs to `progress`.
        progress: Where the run stands.
        is_saved: Whether there is a checkpoint of this progress.
    """

    def __init__(
        self,
        run_dir: Path,
        corpus: PreparedCorpus,
        valid: RawPairs,
        engine: Engine,
        progress: Progress,
        is_saved: bool,
    ) -> None:
        self.config, self.run_dir, self.corpus, self.valid = engine.config, run_dir, corpus, valid
        self.engine, self.progress, self._processes = engine, progress, engine.processes
        self.pairs, self.lengths = corpus.pairs, corpus.pairs.lengths
        on_gpu = engine.device.type == "cuda"
        self._epoch_pairs = EpochPairs(corpus, self.config, beside_gpu=on_gpu)
        self._validator = Validator(engine, valid, corpus)
        self._saver = CheckpointSaver(run_dir, engine, corpus, progress if is_saved else None)
        self._stop = StopRequest()
        # What all processes agree on: a signal's number or 0, and the training time.
        self._signum, self._agreed_seconds = 0, progress.seconds

    def run(self, log: RunLog | None, is_own: Callable[[], bool] = lambda: True) -> None:
        """Trains until a limit is reached, then validates and saves; raises as `run.train`.

        SIGINT and SIGTERM are caught during training. Only the main process has a log.

        Args:
            log: The log files.
            is_own: Tells whether the run directory still is the one that was locked.
        """
        self._log, self._is_own = log, is_own
        self._saved_at = time.monotonic()
        self._started = self._saved_at - self.progress.seconds
        self._interval = self.progress.step, self._saved_at
        run = shlex.quote(str(self.run_dir))
        following = f"next: transformer-mt evaluate {run}, or transformer-mt translate {run} < FILE"
        with (
            catch_stop_signals() as self._stop,
            compute_settings(self.engine.device, tf32=True),
            self._saver,
        ):
            reason, step = self._reached_limit(), self.progress.step
            is_validated = self.progress.valid_step == step
            if reason and is_validated and self._saver.saved:
                logger.info(f"nothing to do: {reason}, and the run is at step {step}; {following}")
                self._processes.finish()
                return
            try:
                with closing(self._epoch_pairs):
                    # An interrupted run has missed the validation that was due.
                    if reason or (step % self.config.valid.every == 0 and not is_validated):
                        self._validate()
                        reason = self._reached_limit()
                        self._save(final=reason is not None)
                    reason = reason or self._train_epochs()
                logger.info(f"done: {reason}, at step {self.progress.step}; {following}")
            except DataError:  # the prepared text was damaged before the next step read it
                self._save(final=True)
                raise
            except _Stopped:
                self._save(final=True)
                step = self.progress.step
                logger.info(f"interrupted and saved at step {step}; run the same command to resume")
                self._processes.finish()
                raise Interrupted(self._signum) from None
            self._processes.finish()

    def plan_epoch(self) -> list[Indices]:
        """Plans the steps of the current epoch: for each, the indices of its pairs.

        From here on, `pairs` and `lengths` are those of this epoch.
        """
        self.corpus.require_unchanged()
        train = self.config.train
        self.pairs = self.corpus.pairs  # frees those of the epoch before, which may be copies
        self.pairs = self._epoch_pairs.of_epoch(self.progress.epoch)
        self.lengths = self.pairs.lengths
        progress = self.progress
        steps = plan_epoch(*self.lengths, train.batch_tokens, train.seed, progress.epoch)
        if progress.epoch_step >= len(steps):
            raise CheckpointError(
                f"{checkpoint_path(self.run_dir, progress.step) / STATE}: damaged (epoch_step ="
                f" {progress.epoch_step}, but the epoch has {len(steps)} steps)"
            )
        return steps

    def describe_micro_batches(self) -> str:
        """Tells how steps are cut."""
        tokens, workers = self.progress.micro_batch_tokens, self.engine.workers
        unit = "GPU" if self.engine.device.type == "cuda" else "CPU thread"
        lowered = f", lowered at step {step}" if (step := self.progress.finer_step) else ""
        return (
            f"micro-batches of at most {tokens:,} positions{lowered}; {workers}"
            f" {unit}{'s' * (workers != 1)}"
        )

    def cut_step(self, step_pairs: Indices) -> list[Indices]:
        """Cuts the pairs of a step into those of its micro-batches."""
        limit, workers = self.progress.micro_batch_tokens, self.engine.workers
        return cut_micro_batches(step_pairs, *self.lengths, limit, workers)

    def train_step(self, step_pairs: Indices) -> None:
        """Takes the next optimizer step on the given pairs, which the processes share.

        If memory runs out, the step is cut finer and repeated, and so are all that follow. It is
        repeated without torch.compile if that fails for a new shape.
        """
        while True:
            try:
                self.engine.train_step(self.progress.step + 1, self._micro_batches(step_pairs))
                break
            except CompileError as error:
                self.engine.continue_uncompiled(error)
                continue
            except OutOfMemoryError as error:
                reason = str(error)
            self._cut_finer(self.cut_step(step_pairs), reason)
        self.progress = replace(
            self.progress, step=self.progress.step + 1, epoch_step=self.progress.epoch_step + 1
        )

    def _micro_batches(self, step_pairs: Indices) -> Iterator[Batch | TokenCounts]:
        """Builds this process's micro-batches, and counts the tokens of the others'."""
        self.corpus.require_unchanged()
        parts = self.cut_step(step_pairs)
        sizes = [padded_size(indices, *self.lengths) for indices in parts]
        own = deal_micro_batches(sizes, self._processes.world_size)[self._processes.rank]
        for number, indices in enumerate(parts):
            if number in own:
                yield self.pairs.batch(indices)
            else:
                yield self.pairs.count_tokens(indices)
        self.corpus.require_unchanged()  # the engine computes nothing before all are built

    def check_memory(self, steps: list[Indices]) -> None:
        """Tries the micro-batches of an epoch that need the most memory; cuts finer until they fit.

        Raises DeviceError if a single pair does not fit.
        """
        count = math.ceil(len(self.cut_step(steps[0])) / self._processes.world_size)
        while True:
            limit, workers = self.progress.micro_batch_tokens, self.engine.workers
            trials = most_demanding(steps, *self.lengths, limit, workers)
            try:
                self.engine.check_memory([self.pairs.batch(trial) for trial in trials], count)
                return
            except OutOfMemoryError as error:
                reason = str(error)
            self._cut_finer(trials, reason)

    def _cut_finer(self, micro_batches: list[Indices], reason: str) -> None:
        """Lowers the bound on micro-batches, of which these need too much memory."""
        src, tgt = self.lengths
        sizes = [
            len(pairs) * int(max(src[pairs].max(), tgt[pairs].max()))
            for pairs in micro_batches
            if len(pairs) > 1
        ]
        if not sizes:
            raise DeviceError(f"{reason}: {OUT_OF_MEMORY_ADVICE}")
        limit, step = 1 << (max(sizes) // 2).bit_length() - 1, self.progress.step
        # A run that begins has not taken a step with other micro-batches.
        finer_step = step + 1 if step else 0
        self.progress = replace(self.progress, micro_batch_tokens=limit, finer_step=finer_step)
        since = f" from step {finer_step} on, which ends bit-equality" if finer_step else ""
        logger.warning(f"{reason}; micro-batches have at most {limit:,} positions{since}")

    def _train_epochs(self) -> str:
        """Trains epoch after epoch; returns the limit that ends training."""
        steps = self.plan_epoch()
        self.check_memory(steps)
        logger.info(self.describe_micro_batches())
        self._peak_flops = self.engine.measure_peak_flops()
        with StepDisplay(self.config, self.progress, self._seconds()) as self._display:
            while True:
                self._epoch_pairs.start(self.progress.epoch + 1)
                for step_pairs in steps[self.progress.epoch_step :]:
                    self.train_step(step_pairs)
                    if self.progress.epoch_step == len(steps):
                        self.progress = replace(
                            self.progress, epoch=self.progress.epoch + 1, epoch_step=0
                        )
                    self._synchronize()
                    self._display.advance(self.progress, self._seconds(), len(steps))
                    if reason := self._after_step():
                        return reason
                steps = self.plan_epoch()

    def _after_step(self) -> str | None:
        """Logs, validates and saves when due; returns the limit that ends training."""
        train, step, reason = self.config.train, self.progress.step, self._reached_limit()
        if is_log_step(step, train.log_every) or reason:
            self._log_training()
        elif self._display.is_due():
            self._display.show(step, self._read_metrics())
        if step % train.max_bad_steps == 0:  # may be much smaller than log_every
            self._stop_if_nonfinite()
        if self._signum:
            raise _Stopped
        if step % self.config.valid.every == 0 or reason:
            self._validate()
            reason = self._reached_limit()
        is_due = 0 < 60 * train.save_every_minutes <= time.monotonic() - self._saved_at
        if step % train.save_every == 0 or is_due or reason:
            self._save(final=reason is not None)
        return reason

    def _synchronize(self) -> None:
        """Makes all processes decide alike: by one clock, and by the signals that any received."""
        seconds = self._seconds() if self._processes.is_main else 0.0
        signum, self._agreed_seconds = self._processes.max(self._stop.signum, seconds)
        self._signum = int(signum)

    def _reached_limit(self) -> str | None:
        return reached_limit(self.config, self.progress, self._agreed_seconds)

    def _seconds(self) -> float:
        """Returns the training time so far, over all resumptions."""
        return time.monotonic() - self._started

    def _log_training(self) -> None:
        metrics = self._read_metrics()
        self._stop_if_nonfinite()
        self._require_own()
        if self._log:
            self._log.record("train", self.progress, self._seconds(), metrics)
        self._display.show(self.progress.step, metrics)
        self.engine.start_window()

    def _require_own(self) -> None:
        """Ends training before it would make a deleted run again, or write to another run."""
        if not self._is_own():
            raise CheckpointError(
                f"{self.run_dir}: the directory or its .lock was deleted, moved or replaced, so"
                " training ends; a moved run can be resumed at its new place"
            )

    def _read_metrics(self) -> dict[str, float]:
        """Computes the metrics of the steps since the last log line, without resetting the sums."""
        engine, window = self.engine, self.engine.read_window()
        seconds = max(window.seconds, 1e-9)
        return {
            "loss": window.per_token(window.loss),
            "nll": window.per_token(window.nll),
            "lr": engine.lr,
            "tokens_per_second": window.tokens / seconds,
            "mfu": window.flops / seconds / self._peak_flops,
            "grad_norm": float(engine.grad_norm),
            "skipped": int(engine.skipped_steps),
        }

    def _stop_if_nonfinite(self) -> None:
        engine, progress = self.engine, self.progress
        in_row = int(engine.nonfinite_in_row)
        if in_row >= self.config.train.max_bad_steps:
            advice = "" if engine.precision == "fp32" else ", or with train.precision = fp32"
            raise TrainingError(
                f"step {progress.step} (step {progress.epoch_step} of epoch {progress.epoch}):"
                f" {in_row} steps in a row had non-finite gradients and were skipped (lr"
                f" {engine.lr:.3g}, loss scale {engine.scaler.get_scale():g});"
                f" start a new run with a lower optim.lr_scale{advice}"
            )

    def _validate(self) -> None:
        """Scores the weights; if a signal interrupts this, it is repeated on resuming."""
        self.engine.read_window()  # waits for pending steps, which are not part of validation
        (first, since), began = self._interval, time.monotonic()
        result = self._validator.validate(self._raise_if_stopping)
        step, previous = self.progress.step, self.progress
        self._interval = step, time.monotonic()
        self._validator.warn_if_long(step - first, began - since, self._interval[1] - began)
        # A validation made only because training ends does not count: training may be continued.
        # Nor does one within the warm-up, when the score may not have begun to rise.
        counts = step % self.config.valid.every == 0 and step > self.config.optim.warmup_steps
        count, is_best = previous.validations_since_best + counts, result.is_better(previous)
        self.progress = replace(previous, valid_step=step, validations_since_best=count)
        if is_best:
            best = replace(self.progress, best_bleu=result.score, best_nll=result.nll)
            self.progress = replace(best, best_step=step, validations_since_best=0)
        if self._log:
            self._log.record("valid", self.progress, self._seconds(), result.metrics)
        self._validator.log(result, step, previous)
        if is_best:
            self._save_best(result, previous)

    def _save_best(self, result: Validation, previous: Progress) -> None:
        """Saves the best checkpoint so far; if that fails, the one before it stays the best."""
        self._save()
        if self._processes.is_main:
            self._saver.wait()  # the record holds the digest of the checkpoint
        saved, step = self._processes.broadcast(self._saver.saved), self.progress.step
        if saved is None or saved.step != step:
            self.progress = replace(previous, valid_step=step, validations_since_best=0)
        elif self._processes.is_main:
            self._validator.record(result, checkpoint_path(self.run_dir, step))

    def _raise_if_stopping(self, lines: int) -> None:
        """Stops if any process has received a signal; all call this at the same time."""
        self._synchronize()
        if self._signum:
            raise _Stopped

    def _save(self, final: bool = False) -> None:
        """Saves a checkpoint while training continues, or to the end if it is the final one.

        If a periodic save fails, training continues with a warning.
        """
        if not self._processes.is_main:
            return
        self._saver.wait()
        if self.progress != self._saver.saved:
            self._require_own()
            self.progress = replace(self.progress, seconds=self._seconds())
            self._saved_at = time.monotonic()  # a failed save is retried when the next one is due
            self._saver.start(self.progress)
        if final:
            self._saver.wait(final=True)
