"""The training loop of a run: steps, limits, validation, checkpoints."""

import logging
import math
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType

import numpy as np

from transformer_mt.checkpoints.checkpoint import TrainState, prune, save_checkpoint
from transformer_mt.config import Config
from transformer_mt.errors import CheckpointError, Interrupted, TrainingError
from transformer_mt.evaluation.evaluator import Evaluation, evaluate
from transformer_mt.evaluation.perplexity import mean_nll, perplexity
from transformer_mt.text.batching import Batch, cut_micro_batches, largest_micro_batch, plan_epoch
from transformer_mt.text.corpus import RawPairs
from transformer_mt.text.encoded_pairs import encode_pairs
from transformer_mt.text.prepared import PreparedCorpus
from transformer_mt.training.engine import Engine
from transformer_mt.training.flops import measure_peak_flops
from transformer_mt.training.run_log import RunLog
from transformer_mt.translation.translator import Translator

logger = logging.getLogger(__name__)

_SAMPLES = 3


class Trainer:
    """One run in progress.

    Args:
        config: The whole configuration.
        run_dir: Where checkpoints go.
        corpus: The run's vocabulary and training pairs.
        valid: Raw validation text.
        state: Where to begin.
        engine: The model in training, as it was there.
        log: Where to tell.
    """

    def __init__(
        self,
        config: Config,
        run_dir: Path,
        corpus: PreparedCorpus,
        valid: RawPairs,
        state: TrainState,
        engine: Engine,
        log: RunLog,
    ) -> None:
        self.config, self.run_dir, self.vocab, self.log = config, run_dir, corpus.vocab, log
        self.pairs, self.lengths = corpus.pairs, corpus.pairs.lengths
        self.valid, self.state, self.engine = valid, state, engine
        self.valid_ids = encode_pairs(valid, corpus.vocab)
        self.translator = Translator(engine.model, corpus.vocab, config.data.max_length)
        self.signum, self.peak = 0, math.inf
        self.saved_step, self.saved_at = -1, time.monotonic()

    def run(self, saved_step: int = -1) -> None:
        """Trains until a limit is reached, then validates and saves.

        Args:
            saved_step: Step whose checkpoint exists already.
        """
        self.saved_step = saved_step
        handlers = {s: signal.signal(s, self._stop) for s in (signal.SIGINT, signal.SIGTERM)}
        self.started = time.monotonic() - self.state.seconds
        try:
            reason = self._limit()
            if reason and saved_step == self.state.step:
                logger.info(f"nothing to do: {reason}, and the run is at step {self.state.step}")
                return
            # Interrupted just before it was due, or nothing is trained at all.
            due = self.state.step and self.state.step % self.config.valid.every == 0
            if reason or (due and self.state.valid_step != self.state.step):
                self._validate()
                self._save(final=bool(reason))
            logger.info(f"done: {reason or self._loop()}, at step {self.state.step}")
        finally:
            for signum, handler in handlers.items():
                signal.signal(signum, handler)

    def _loop(self) -> str:
        config, tried = self.config.train, False
        while True:
            steps = plan_epoch(*self.lengths, config.batch_tokens, config.seed, self.state.epoch)
            if not tried:  # memory that does not suffice is found out now, not in hour three
                tried = True
                largest = largest_micro_batch(steps, *self.lengths, config.micro_batch_tokens)
                self.engine.try_memory(self.pairs.batch(largest))
                self.peak = measure_peak_flops(self.engine.device, self.engine.precision)
            for step in steps[self.state.index :]:
                parts = cut_micro_batches(step, *self.lengths, config.micro_batch_tokens)
                self._train_step([self.pairs.batch(part) for part in parts])
                if self.state.index == len(steps):
                    self.state = self.state.with_(epoch=self.state.epoch + 1, index=0)
                if reason := self._after_step():
                    return reason

    def _train_step(self, micro_batches: list[Batch]) -> None:
        state = self.state.with_(step=self.state.step + 1, index=self.state.index + 1)
        self.engine.train_step(state.step, micro_batches)
        self.state = state

    def _after_step(self) -> str | None:
        """Logs, validates and saves when it is time; names the limit that ends training."""
        config, step, reason = self.config, self.state.step, self._limit()
        self.log.advance()
        if step % config.train.log_every == 0 or reason:
            self._log_training()
        if self.signum:
            self._save(final=True)
            logger.info(
                f"interrupted and saved at step {step}; the same command goes on from there"
            )
            raise Interrupted(self.signum)
        if step % config.valid.every == 0 or reason:
            self._validate()
            reason = self._limit()
        if step % config.train.save_every == 0 or reason or self._save_is_due():
            self._save(final=reason is not None)
        return reason

    def _save_is_due(self) -> bool:
        minutes = self.config.train.save_every_minutes
        return bool(minutes) and time.monotonic() - self.saved_at >= 60 * minutes

    def _limit(self) -> str | None:
        """Names the limit that ends training, if one is reached."""
        config, state = self.config.train, self.state
        if state.step >= config.max_steps:
            return f"train.max_steps = {config.max_steps}"
        if config.max_epochs and state.epoch >= config.max_epochs:
            return f"train.max_epochs = {config.max_epochs}"
        if config.max_minutes and self._seconds() >= 60 * config.max_minutes:
            return f"train.max_minutes = {config.max_minutes:g}"
        patience = self.config.valid.patience
        if patience and state.bad_validations >= patience:
            return f"valid.patience = {patience}"
        return None

    def _log_training(self) -> None:
        state, engine, window = self.state, self.engine, self.engine.read_window()
        if (bad := int(engine.bad_in_row)) >= self.config.train.max_bad_steps:
            raise TrainingError(
                f"step {state.step} (number {state.index} of epoch {state.epoch}): {bad} steps in a"
                f" row had non-finite gradients (rate {engine.lr:.3g}, loss scale"
                f" {engine.scaler.get_scale():g}); the weights are unharmed: lower optim.lr_scale,"
                " or use train.precision = fp32"
            )
        skipped, norm = int(engine.skipped), float(engine.norm)
        self.state = state.with_(skipped=skipped)
        loss, seconds = window.loss / window.tokens, max(window.seconds, 1e-9)
        speed, share = window.tokens / seconds, window.flops / seconds / self.peak
        self._record(
            "train",
            loss=round(loss, 6),
            lr=engine.lr,
            tokens_per_second=round(speed, 1),
            mfu=round(share, 4),
            grad_norm=round(norm, 6) if math.isfinite(norm) else None,
            skipped=skipped,
        )
        self.log.show(state.step, loss, engine.lr, speed, share)
        engine.new_window()

    def _record(self, kind: str, **figures: float | None) -> None:
        at = {"step": self.state.step, "epoch": self.state.epoch}
        self.log.record(kind, **at, seconds=round(self._seconds(), 3), **figures)

    def _seconds(self) -> float:
        return time.monotonic() - self.started

    def _validate(self) -> None:
        """Scores the weights, and their moving average if there is one; that then counts."""
        state = self.state
        nats = mean_nll(self.engine.model, self.valid_ids, self.config.train.micro_batch_tokens)
        found = evaluate(self.translator, self.valid)
        figures = {"bleu": found.bleu.value}
        if self.engine.ema:
            with self.engine.ema.in_place():
                found = evaluate(self.translator, self.valid)
            figures["ema_bleu"] = found.bleu.value
        value = found.bleu.value
        better = value > state.best_bleu
        self.state = state.with_(
            best_bleu=value if better else state.best_bleu,
            best_step=state.step if better else state.best_step,
            bad_validations=0 if better else state.bad_validations + 1,
            valid_step=state.step,
        )
        self._record(
            "valid",
            nll=round(nats, 6),
            perplexity=round(perplexity(nats), 4),
            **{name: round(figure, 4) for name, figure in figures.items()},
        )
        average = f", of the moving average {value:.2f}" if self.engine.ema else ""
        logger.info(
            f"step {state.step}: validation BLEU {figures['bleu']:.2f}{average},"
            f" perplexity {perplexity(nats):.2f}"
            + (" (best)" if better else f" (best {state.best_bleu:.2f})")
        )
        self._show_samples(found)
        if better:
            self._save()

    def _show_samples(self, found: Evaluation) -> None:
        # The same few sentences each time, so that one can watch them improve.
        for i in np.linspace(0, len(self.valid) - 1, _SAMPLES, dtype=int):
            logger.info(f"  source     {self.valid.src[i]}")
            logger.info(f"  reference  {self.valid.tgt[i]}")
            logger.info(f"  hypothesis {found.hypotheses[i]}")

    def _save(self, final: bool = False) -> None:
        """Saves a checkpoint; a periodic save that fails is reported and training goes on."""
        if self.state.step == self.saved_step:
            return
        state = self.state.with_(
            seconds=self._seconds(),
            skipped=int(self.engine.skipped),
            scaler=self.engine.scaler.state_dict() or None,
            bad_in_row=int(self.engine.bad_in_row),
            window=replace(self.engine.read_window()),
        )
        try:
            save_checkpoint(self.run_dir, self.engine, self.config, self.vocab, state)
            prune(self.run_dir, self.config.train.keep_last, state.best_step)
        except OSError as error:
            reason = (
                f"{error.filename or self.run_dir}: cannot save step {state.step}: {error.strerror}"
            )
            if final:
                raise CheckpointError(reason) from None
            logger.warning(f"{reason}; training goes on")
            return
        self.saved_step, self.saved_at = state.step, time.monotonic()

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        if self.signum:  # the second time the user means it: checkpoints are atomic anyway
            raise Interrupted(signum)
        self.signum = signum
