"""The training loop of a run: steps, validation, checkpoints, until a limit is reached."""

import math
import shlex
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from transformer_mt.checkpoints.checkpoint import Progress
from transformer_mt.checkpoints.layout import STATE, checkpoint_path
from transformer_mt.errors import CheckpointError, Interrupted, TrainingError
from transformer_mt.system.console import logger
from transformer_mt.system.device import compute_settings
from transformer_mt.system.signals import StopRequest, catch_stop_signals
from transformer_mt.text.batching import Indices, plan_epoch
from transformer_mt.text.corpus import RawPairs
from transformer_mt.text.epoch_pairs import EpochPairs
from transformer_mt.text.prepared import PreparedCorpus
from transformer_mt.training.engine import LogWindow
from transformer_mt.training.fit import StepFitter
from transformer_mt.training.flops import measure_peak_flops
from transformer_mt.training.limits import StepDisplay, reached_limit
from transformer_mt.training.run_log import RunLog
from transformer_mt.training.saving import CheckpointSaver
from transformer_mt.training.validation import Validation, Validator


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
        fitter: Takes the steps of the model in training, whose state belongs to `progress`.
        progress: Where the run stands.
        is_saved: Whether there is a checkpoint of this progress.
        old_text: That of `valid.old_text`, if it is set.

    Attributes:
        pairs: Those of the current epoch, after `start_epoch`.
    """

    def __init__(
        self,
        run_dir: Path,
        corpus: PreparedCorpus,
        valid: RawPairs,
        fitter: StepFitter,
        progress: Progress,
        is_saved: bool,
        old_text: RawPairs | None = None,
    ) -> None:
        self.run_dir, self.corpus, self.valid, self.pairs = run_dir, corpus, valid, corpus.pairs
        self.fitter, self.engine, self.progress = fitter, fitter.engine, progress
        self.config, self._processes = self.engine.config, self.engine.processes
        on_gpu = self.engine.device.type == "cuda"
        self._epoch_pairs = EpochPairs(corpus, self.config, beside_gpu=on_gpu)
        self._validator = Validator(self.engine, valid, corpus, old_text)
        self._saver = CheckpointSaver(run_dir, fitter, corpus, progress if is_saved else None)
        self._stop, self._peak_flops = StopRequest(), math.nan
        self._log: RunLog | None = None
        # What all processes agree on: a signal's number or 0, and the training time.
        self._signum, self._agreed_seconds = 0, progress.seconds
        self._saved_at = time.monotonic()
        self._started = self._saved_at - progress.seconds
        # The line being logged: when it began, and what an earlier process has done for it.
        self._line_began, self._earlier = self._saved_at, self.engine.read_window()

    @property
    def _is_validated(self) -> bool:
        """Whether the weights are validated; at step 0 only `valid.old_text` needs that."""
        if self.progress.step == 0 and self.config.valid.old_text:
            return self.progress.best_bleu >= 0
        return self.progress.valid_step == self.progress.step

    def _warn_of_reversed_pairs(self) -> None:
        epochs = self.config.train.bidirectional_epochs
        if epochs and (self.progress.epoch, self.progress.epoch_step) <= (epochs, 0):
            logger.warning(
                "train.bidirectional_epochs = %d: all epochs had reversed pairs; train longer, or"
                " BLEU is lower than without",
                epochs,
            )

    @property
    def is_finished(self) -> bool:
        """Whether a limit is reached, and the weights are validated and saved."""
        return bool(self._reached_limit() and self._is_validated and self._saver.saved)

    def run(self, log: RunLog | None) -> None:
        """Trains until a limit is reached, then validates and saves; raises as `run.train`.

        SIGINT and SIGTERM are caught during training. Only the main process has a log.
        """
        self._log = log
        run = shlex.quote(str(self.run_dir))
        following = f"next: transformer-mt evaluate {run}, or transformer-mt translate {run} < FILE"
        with (
            catch_stop_signals(hides_errors=not self._processes.is_main) as self._stop,
            compute_settings(self.engine.device, tf32=True),
            self._saver,
        ):
            reason, step = self._reached_limit(), self.progress.step
            if self.is_finished:
                logger.info(f"nothing to do: {reason}, and the run is at step {step}; {following}")
                self._processes.finish()
                return
            try:
                with closing(self._epoch_pairs):
                    # An interrupted run has missed the validation that was due.
                    if reason or (step % self.config.valid.every == 0 and not self._is_validated):
                        self._validate()
                        reason = self._reached_limit()
                        self._save(final=reason is not None)
                    reason = reason or self._train_epochs()
                self._warn_of_reversed_pairs()
                logger.info(f"done: {reason}, at step {self.progress.step}; {following}")
            except _Stopped:
                self._save(final=True)
                step = self.progress.step
                logger.info(f"interrupted and saved at step {step}; run the same command to resume")
                self._processes.finish()
                raise Interrupted(self._signum) from None
            self._processes.finish()

    def _train_epochs(self) -> str:
        """Trains epoch after epoch; returns the limit that ends training."""
        steps = self.start_epoch()
        self.progress = self.fitter.check_memory(self.progress, self.pairs, steps)
        logger.info(self.fitter.describe(self.progress))
        engine = self.engine
        self._peak_flops = measure_peak_flops(engine.device, engine.precision, self._processes)
        self._line_began = time.monotonic()
        with StepDisplay(self.config, self.progress, self._seconds()) as display:
            while True:
                self._epoch_pairs.start(self.progress.epoch + 1)
                for step_pairs in steps[self.progress.epoch_step :]:
                    self.take_step(step_pairs)
                    if self.progress.epoch_step == len(steps):
                        epoch = self.progress.epoch + 1
                        self.progress = replace(self.progress, epoch=epoch, epoch_step=0)
                    self._synchronize()
                    display.advance(self.progress, self._seconds(), len(steps))
                    if reason := self._after_step(display):
                        return reason
                steps = self.start_epoch()

    def start_epoch(self) -> list[Indices]:
        """Plans the steps of the current epoch, whose `pairs` are made: for each, their indices."""
        self.corpus.require_unchanged()
        train, progress = self.config.train, self.progress
        self.pairs = self.corpus.pairs  # frees those of the epoch before, which may be copies
        self.pairs = self._epoch_pairs.of_epoch(progress.epoch)
        steps = plan_epoch(self.pairs.lengths, train.batch_tokens, train.seed, progress.epoch)
        if progress.epoch_step >= len(steps):
            raise CheckpointError(
                f"{checkpoint_path(self.run_dir, progress.step) / STATE}: damaged (epoch_step ="
                f" {progress.epoch_step}, but the epoch has {len(steps)} steps)"
            )
        return steps

    def take_step(self, step_pairs: Indices) -> None:
        """Takes the next optimizer step on the given pairs, which the processes share."""
        fitted = self.fitter.fit_step(self.progress, self.pairs, step_pairs)
        self.progress = replace(fitted, step=fitted.step + 1, epoch_step=fitted.epoch_step + 1)

    def _after_step(self, display: StepDisplay) -> str | None:
        """Logs, validates and saves when due; returns the limit that ends training."""
        train, step, reason = self.config.train, self.progress.step, self._reached_limit()
        if is_log_step(step, train.log_every) or reason:
            self._log_training(display)
        elif display.is_due():
            display.show(step, self._read_metrics())
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

    @contextmanager
    def _untimed(self) -> Iterator[None]:
        """Leaves the time of a block out of the speed that is logged."""
        self.engine.read_window()  # waits for pending steps, which are not part of the block
        began = time.monotonic()
        yield
        self._line_began += time.monotonic() - began

    def _log_training(self, display: StepDisplay) -> None:
        metrics = self._read_metrics()
        self._stop_if_nonfinite()
        if self._log:
            self._log.record("train", self.progress, self._seconds(), metrics)
        display.show(self.progress.step, metrics)
        self.engine.start_window()
        self._line_began, self._earlier = time.monotonic(), LogWindow()

    def _read_metrics(self) -> dict[str, float]:
        """Computes the metrics of the steps since the last log line, without resetting the sums."""
        engine, window = self.engine, self.engine.read_window()
        seconds = max(time.monotonic() - self._line_began, 1e-9)
        return {
            "loss": window.per_token(window.loss),
            "nll": window.per_token(window.nll),
            "lr": engine.lr,
            "tokens_per_second": (window.tokens - self._earlier.tokens) / seconds,
            "mfu": (window.flops - self._earlier.flops) / seconds / self._peak_flops,
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
        with self._untimed():
            result = self._validator.validate(self._raise_if_stopping)
        step, previous = self.progress.step, self.progress
        # A validation made only because training ends does not count: training may be continued.
        # Nor does one within the warm-up, when the score may not have begun to rise.
        counts = step % self.config.valid.every == 0 and step > self.config.optim.warmup_steps
        since_best = previous.validations_since_best + counts
        is_best = result.is_better(previous)
        self.progress = replace(previous, valid_step=step, validations_since_best=since_best)
        if is_best:
            best = replace(self.progress, best_bleu=result.score, best_nll=result.nll)
            self.progress = replace(best, best_step=step, validations_since_best=0)
        if self._log:
            self._log.record("valid", self.progress, self._seconds(), result.metrics)
        self._validator.log(result, step, previous)
        if is_best:
            self._save_best(result, previous)

    def _raise_if_stopping(self, lines: int) -> None:
        """Stops if any process has received a signal; all call this, as `advance`, together."""
        self._synchronize()
        if self._signum:
            raise _Stopped

    def _save_best(self, result: Validation, previous: Progress) -> None:
        """Saves the best checkpoint so far; if that fails, the one before it stays the best."""
        self._save()
        self._saver.wait()  # the record holds the digest of the checkpoint
        saved, step = self._processes.broadcast(self._saver.saved), self.progress.step
        if saved is None or saved.step != step:
            self.progress = replace(previous, valid_step=step, validations_since_best=0)
        elif self._processes.is_main:
            self._validator.record(result, checkpoint_path(self.run_dir, step))

    def _save(self, final: bool = False) -> None:
        """Saves a checkpoint while training continues, or to the end if it is the final one.

        If a periodic save fails, training continues with a warning.

        Raises:
            CheckpointError: If the run was deleted, which this would make again, or replaced.
        """
        if not self._processes.is_main:
            return
        with self._untimed():
            self._saver.wait()
            if self.progress != self._saver.saved:
                if self._log and not self._log.is_own():
                    raise CheckpointError(
                        f"{self.run_dir}: the directory or its .lock was deleted, moved or"
                        " replaced, so training ends; a moved run can be resumed at its new place"
                    )
                self.progress = replace(self.progress, seconds=self._seconds())
                self._saved_at = time.monotonic()  # a failed save is retried when the next is due
                self._saver.start(self.progress)
            if final:
                self._saver.wait(final=True)
