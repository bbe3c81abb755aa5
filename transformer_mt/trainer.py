"""The training loop: a step on one screen, validation, checkpoints, resume."""

import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import numpy as np
import torch
from torch import Tensor

from transformer_mt.batching import Batch, cut_micro_batches, plan_epoch
from transformer_mt.checkpoint import Checkpoint, TrainState, load_newest, prune, save_checkpoint
from transformer_mt.config import Config
from transformer_mt.corpus import IdPairs, RawPairs, encode_pairs, encode_training_pairs, load_split
from transformer_mt.device import choose_device, choose_precision
from transformer_mt.errors import (
    CheckpointError,
    ConfigError,
    DeviceError,
    Interrupted,
    TrainingError,
)
from transformer_mt.evaluator import Evaluation, evaluate, mean_nll, perplexity
from transformer_mt.loss import smoothed_loss
from transformer_mt.model import Transformer
from transformer_mt.optim import build_adam, noam_rate
from transformer_mt.run_log import RunLog, environment
from transformer_mt.translator import Translator
from transformer_mt.vocab import PAD_ID, Vocabulary, train_vocabulary

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_SAMPLES = 3


def train(config: Config, run_dir: Path) -> TrainState:
    """Trains a run to its end, from wherever its newest checkpoint left it.

    Args:
        config: What to train; must agree with the run's own if the run exists.
        run_dir: Where logs and checkpoints go.

    Returns:
        The state at the end.

    Raises:
        ConfigError: If the corpus does not fit the configuration.
        CheckpointError: If the run is of another configuration, or all its checkpoints are damaged.
        DeviceError: If the device or precision asked for is absent.
        TrainingError: If the numbers stay non-finite.
        Interrupted: After SIGINT or SIGTERM, once the step is finished and saved.
    """
    checkpoint = load_newest(run_dir, lambda text: print(f"warning: {text}", file=sys.stderr))
    if checkpoint:
        checkpoint.require_config(config)
    device = choose_device(config.train.device)
    kept = checkpoint.state.precision if checkpoint else None
    precision = choose_precision(config.train.precision, device, kept)
    corpus = load_split(config.data, config.data.train)
    valid = load_split(config.data, config.data.valid)
    vocab = checkpoint.vocab if checkpoint else _first_vocabulary(config, corpus)
    pairs = encode_training_pairs(corpus, vocab, config.data)
    state = _first_state(checkpoint, precision, pairs)
    run_dir.mkdir(parents=True, exist_ok=True)
    with RunLog(run_dir, state.step, config.train.max_steps) as log:
        _introduce(log, config, device, precision, pairs, len(corpus), state)
        trainer = Trainer(config, run_dir, vocab, pairs, valid, state, device, log)
        if checkpoint:
            trainer.restore(checkpoint)
        trainer.run()
        return trainer.state


@dataclass
class Window:
    """Sums since the last log line, on the device until they are read."""

    loss: Tensor
    tokens: int = 0
    seconds: float = 0.0


class Trainer:
    """One run in progress.

    Args:
        config: The whole configuration.
        run_dir: Where checkpoints go.
        vocab: The run's vocabulary.
        pairs: Training pairs.
        valid: Raw validation text.
        state: Where to begin.
        device: Where to compute.
        log: Where to tell.

    Raises:
        ConfigError: If a training pair is longer than a micro-batch may be.
    """

    def __init__(
        self,
        config: Config,
        run_dir: Path,
        vocab: Vocabulary,
        pairs: IdPairs,
        valid: RawPairs,
        state: TrainState,
        device: torch.device,
        log: RunLog,
    ) -> None:
        self.config, self.run_dir, self.vocab, self.log = config, run_dir, vocab, log
        self.pairs, self.valid, self.state, self.device = pairs, valid, state, device
        self.src_lengths, self.tgt_lengths = pairs.src_lengths, pairs.tgt_lengths
        longest = int(max(self.src_lengths.max(), self.tgt_lengths.max()))
        if longest > config.train.micro_batch_tokens:
            raise ConfigError(
                f"train.micro_batch_tokens = {config.train.micro_batch_tokens} is less than the"
                f" longest training pair, {longest} tokens"
            )
        self.valid_ids = encode_pairs(valid, vocab)
        torch.manual_seed(config.train.seed)
        self.model = Transformer(config.model, vocab.src_size, vocab.tgt_size, PAD_ID).to(device)
        self.optimizer = build_adam(self.model, config.optim)
        self.scaler = torch.amp.GradScaler(device.type, enabled=state.precision == "fp16")
        self.translator = Translator(self.model, vocab, config.data.max_length)
        self.skipped, self.bad_in_row = torch.zeros(2, device=device).unbind()
        self.window = Window(torch.zeros((), device=device))
        self.signum = 0
        self.saved_step = -1

    def restore(self, checkpoint: Checkpoint) -> None:
        """Takes weights, moments and loss scale from a checkpoint."""
        checkpoint.load_weights(self.model)
        checkpoint.load_moments(self.model, self.optimizer)
        if self.scaler.is_enabled() and self.state.scaler:
            self.scaler.load_state_dict(self.state.scaler)
        self.skipped.fill_(self.state.skipped)
        self.saved_step = checkpoint.state.step

    def run(self) -> None:
        """Trains until a limit is reached, then validates and saves."""
        handlers = {s: signal.signal(s, self._stop) for s in (signal.SIGINT, signal.SIGTERM)}
        self.started = time.monotonic() - self.state.seconds
        try:
            if reason := self._limit():
                self.log.say(f"nothing to do: {reason}, and the run is at step {self.state.step}")
            else:
                self.log.say(f"done: {self._loop()}, at step {self.state.step}")
        except torch.OutOfMemoryError:
            raise DeviceError(
                f"step {self.state.step + 1}: out of memory on {self.device}: lower"
                f" train.micro_batch_tokens = {self.config.train.micro_batch_tokens}"
            ) from None
        finally:
            for signum, handler in handlers.items():
                signal.signal(signum, handler)

    def _loop(self) -> str:
        config = self.config.train
        lengths = self.src_lengths, self.tgt_lengths
        while True:
            steps = plan_epoch(*lengths, config.batch_tokens, config.seed, self.state.epoch)
            for step in steps[self.state.index :]:
                parts = cut_micro_batches(step, *lengths, config.micro_batch_tokens)
                self.train_step([self.pairs.batch(part) for part in parts])
                if self.state.index == len(steps):
                    self.state = self.state.with_(epoch=self.state.epoch + 1, index=0)
                if reason := self._after_step():
                    return reason

    def _after_step(self) -> str | None:
        """Logs, validates and saves when it is time; names the limit that ends training."""
        config, step, reason = self.config, self.state.step, self._limit()
        self.log.advance()
        if step % config.train.log_every == 0 or reason:
            self._log_training()
        if self.signum:
            self._save(final=True)
            self.log.say(
                f"interrupted and saved at step {step}; the same command goes on from there"
            )
            raise Interrupted(self.signum)
        if step % config.valid.every == 0 or reason:
            self._validate()
            reason = self._limit()
        if step % config.train.save_every == 0 or reason:
            self._save(final=reason is not None)
        return reason

    def train_step(self, micro_batches: list[Batch]) -> None:
        """Takes one optimizer step on the pairs of its micro-batches.

        Nothing here waits for the device: a step whose gradient is not finite is skipped there.
        """
        config, step = self.config.optim, self.state.step + 1
        began = time.monotonic()
        # Dropout is a pure function of (seed, step), so there is no generator state to save.
        torch.manual_seed(self.config.train.seed * 2**31 + step)
        for group in self.optimizer.param_groups:
            group["lr"] = noam_rate(
                step, self.config.model.d_model, config.warmup_steps, config.lr_scale
            )
        tokens = sum(batch.tgt_tokens for batch in micro_batches)
        total = torch.zeros((), device=self.device)
        for micro_batch in micro_batches:
            batch = micro_batch.to(self.device)
            with torch.autocast(
                self.device.type,
                _AUTOCAST[self.state.precision],
                enabled=self.state.precision != "fp32",
            ):
                logits = self.model(batch.src, batch.tgt_in)
                loss = smoothed_loss(logits, batch.tgt_out, config.label_smoothing, PAD_ID)
            # The sum over the tokens of the whole step: how it is cut does not change the gradient.
            self.scaler.scale(loss / tokens).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        self.scaler.unscale_(self.optimizer)  # before clipping, or the scale would be clipped
        self.norm = self._clip(config.max_grad_norm)
        finite = self.norm.isfinite()
        # Fused Adam leaves the weights alone where found_inf is 1; a scaler sets its own.
        self.optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self._count_bad(finite, total)
        self.window.loss += torch.where(total.isfinite(), total, 0.0)
        self.window.tokens += tokens
        self.window.seconds += time.monotonic() - began
        self.state = self.state.with_(step=step, index=self.state.index + 1)

    def _clip(self, max_norm: float) -> Tensor:
        """Scales gradients down to a norm and gives the norm they had, all on the device."""
        parameters = list(self.model.parameters())
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if max_norm:
            torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
        return norm

    def _count_bad(self, finite: Tensor, loss: Tensor) -> None:
        """Counts a skipped step; one that only overflowed the loss scale is not a bad one."""
        bad = ~finite
        if self.scaler.is_enabled():
            bad = bad & (~loss.isfinite() | (self.scaler._get_scale_async() <= 1.0))  # type: ignore[operator]
        self.skipped += bad
        self.bad_in_row = (self.bad_in_row + bad) * bad

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
        state, window = self.state, self.window
        if (bad := int(self.bad_in_row)) >= self.config.train.max_bad_steps:
            raise TrainingError(
                f"step {state.step}: {bad} steps in a row had non-finite gradients (rate"
                f" {self._rate():.3g}, loss scale {self.scaler.get_scale():g}); the weights are"
                " unharmed: lower optim.lr_scale, or use train.precision = fp32"
            )
        skipped, self.state = int(self.skipped), state.with_(skipped=int(self.skipped))
        loss, speed = float(window.loss) / window.tokens, window.tokens / max(window.seconds, 1e-9)
        self.log.record(
            "train",
            step=state.step,
            epoch=state.epoch,
            seconds=round(self._seconds(), 3),
            loss=round(loss, 6),
            rate=self._rate(),
            tokens_per_second=round(speed, 1),
            grad_norm=round(float(self.norm), 6) if self.norm.isfinite() else None,
            skipped=skipped,
        )
        self.log.show(
            step=str(state.step),
            loss=f"{loss:.3f}",
            rate=f"{self._rate():.2e}",
            tok_s=f"{speed:.0f}",
        )
        self.window = Window(torch.zeros((), device=self.device))

    def _rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def _seconds(self) -> float:
        return time.monotonic() - self.started

    def _validate(self) -> None:
        state = self.state
        nats = mean_nll(self.model, self.valid_ids, self.config.train.micro_batch_tokens)
        found = evaluate(self.translator, self.valid)
        value = found.bleu.value
        better = value > state.best_bleu
        self.state = state.with_(
            best_bleu=value if better else state.best_bleu,
            best_step=state.step if better else state.best_step,
            bad_validations=0 if better else state.bad_validations + 1,
            valid_step=state.step,
        )
        self.log.record(
            "valid",
            step=state.step,
            epoch=state.epoch,
            seconds=round(self._seconds(), 3),
            nll=round(nats, 6),
            perplexity=round(perplexity(nats), 4),
            bleu=round(value, 4),
        )
        self.log.say(
            f"step {state.step}: validation BLEU {value:.2f}, perplexity {perplexity(nats):.2f}"
            + (" (best)" if better else f" (best {state.best_bleu:.2f})")
        )
        self._show_samples(found)
        if better:
            self._save()

    def _show_samples(self, found: Evaluation) -> None:
        # The same few sentences each time, so that one can watch them improve.
        for i in np.linspace(0, len(self.valid) - 1, _SAMPLES, dtype=int):
            self.log.say(f"  source     {self.valid.src[i]}")
            self.log.say(f"  reference  {self.valid.tgt[i]}")
            self.log.say(f"  hypothesis {found.hypotheses[i]}")

    def _save(self, final: bool = False) -> None:
        """Saves a checkpoint; a periodic save that fails is reported and training goes on."""
        if self.state.step == self.saved_step:
            return
        state = self.state.with_(
            seconds=self._seconds(),
            skipped=int(self.skipped),
            scaler=self.scaler.state_dict() or None,
        )
        try:
            save_checkpoint(
                self.run_dir, self.model, self.optimizer, self.config, self.vocab, state
            )
            prune(self.run_dir, self.config.train.keep_last, state.best_step)
        except OSError as error:
            reason = (
                f"{error.filename or self.run_dir}: cannot save step {state.step}: {error.strerror}"
            )
            if final:
                raise CheckpointError(reason) from None
            self.log.say(f"warning: {reason}; training goes on")
            return
        self.saved_step = state.step

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        if self.signum:  # the second time the user means it: checkpoints are atomic anyway
            raise Interrupted(signum)
        self.signum = signum


def _first_vocabulary(config: Config, corpus: RawPairs) -> Vocabulary:
    print(f"learning a vocabulary of {config.vocab.size} pieces", file=sys.stderr)
    return train_vocabulary(corpus.src, corpus.tgt, config.vocab, config.train.seed)


def _first_state(checkpoint: Checkpoint | None, precision: str, pairs: IdPairs) -> TrainState:
    digest = pairs.digest()
    if checkpoint is None:
        return TrainState(precision=precision, corpus=digest)
    if checkpoint.state.corpus != digest:
        raise CheckpointError(
            f"{checkpoint.path.parent}: the training text has changed since; train it as a new"
            " run with another --run directory"
        )
    return checkpoint.state


def _introduce(
    log: RunLog,
    config: Config,
    device: torch.device,
    precision: str,
    pairs: IdPairs,
    raw: int,
    state: TrainState,
) -> None:
    log.note(f"command: {' '.join(sys.argv)}")
    log.note(f"configuration: {config.model_dump_json()}")
    log.note(f"made with: {environment()}")
    dropped = ", ".join(f"{count} {why}" for why, count in sorted(pairs.dropped.items())) or "none"
    log.say(
        f"{len(pairs)} training pairs of {raw} (dropped: {dropped}); {device.type}, {precision}"
    )
    if state.step:
        log.say(f"resuming at step {state.step}, epoch {state.epoch}")
