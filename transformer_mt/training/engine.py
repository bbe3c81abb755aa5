"""One optimizer step and the training state that it changes, independent of files and runs."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import ConfigDict, TypeAdapter
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, parameters_to_vector

from transformer_mt.checkpoints.checkpoint import MOMENTS
from transformer_mt.config.keys import Config
from transformer_mt.model.kernels import seeded_dropout
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.device import DTYPES
from transformer_mt.system.private_torch import copy_all_, loss_scale, skip_step_if
from transformer_mt.system.processes import ALONE, Processes
from transformer_mt.system.worker_threads import MAX_WORKERS, WorkerThreads
from transformer_mt.text.batching import Batch, TokenCounts
from transformer_mt.text.packing import Pack
from transformer_mt.text.vocabulary import PAD_ID
from transformer_mt.training.flops import flops_per_token
from transformer_mt.training.loss import projected_loss
from transformer_mt.training.optimizer import ExponentialMovingAverage, build_optimizer, noam_rate
from transformer_mt.training.packed_step import PackedStep

MicroBatch = Batch | Pack | TokenCounts


@dataclass(frozen=True)
class LogWindow:
    """Sums since the last log line.

    Attributes:
        loss: Label-smoothed loss of the steps where it was finite, in nats.
        nll: Their loss without label smoothing.
        tokens: Target tokens, including the `nonfinite_tokens` of steps whose loss was not finite.
        flops: Floating-point operations that training on them needed.
    """

    # Earlier versions also summed seconds.
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="ignore", strict=True)

    loss: float = 0.0
    nll: float = 0.0
    tokens: int = 0
    flops: float = 0.0
    nonfinite_tokens: int = 0

    def per_token(self, nats: float) -> float:
        """Divides one of the losses by its target tokens; NaN if no step had a finite loss."""
        tokens = self.tokens - self.nonfinite_tokens
        return nats / tokens if tokens else math.nan


@dataclass(frozen=True)
class _Counters:
    """What a checkpoint keeps of an engine besides tensors."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    skipped_steps: int = 0
    nonfinite_in_row: int = 0
    loss_scaler: dict[str, int | float] = field(default_factory=dict)
    window: LogWindow = LogWindow()


def dropout_seed(seed: int, step: int, micro_batch: int) -> int:
    """Computes the seed of the random numbers for the dropout of one micro-batch.

    They depend on nothing else: there is no generator state to save, and neither the process that
    computes the micro-batch nor the order of micro-batches matters. Steps are counted from 1,
    micro-batches of a step from 0; a CPU's generator uses the lower 32 of the 64 bits.
    """
    return int(np.random.SeedSequence((seed, step, micro_batch)).generate_state(1, np.uint64)[0])


class Engine:
    """A model in training with its optimizer, loss scaler, moving average and counters.

    Args:
        config: The whole configuration.
        src_size, tgt_size: Sizes of the vocabularies.
        device: Where to compute; on CUDA within `compute_settings`.
        precision: `fp32`, `bf16` or `fp16`.
        processes: The processes that train together, each with an engine in the same state.

    Attributes:
        model: The model; its weights are initialised from `train.seed`.
        packed: Computes the gradients of packs, set by `StepFitter`; None for padded micro-batches.
        ema: Moving average of the weights; None without `train.ema_decay`.
        grad_norm: Norm of the last step's gradient before clipping, a scalar on the device.
        lr: Learning rate of the last step.
        skipped_steps: Steps skipped for a non-finite gradient, except for finding fp16's scale.
        nonfinite_in_row: Such steps since the last good one, on the device.
    """

    def __init__(
        self,
        config: Config,
        src_size: int,
        tgt_size: int,
        device: torch.device,
        precision: str,
        processes: Processes = ALONE,
    ) -> None:
        self.config, self.device, self.precision = config, device, precision
        self.processes = processes
        self.packed: PackedStep | None = None
        torch.manual_seed(config.train.seed)
        self.model = Transformer(config.model, src_size, tgt_size, PAD_ID).to(device)
        self._flops_per_token = flops_per_token(config.model, tgt_size)
        self.optimizer = build_optimizer(
            self.model, config.optim, torch.bfloat16 if precision == "bf16" else torch.float32
        )
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        decay = config.train.ema_decay
        self.ema = ExponentialMovingAverage(self.model, decay) if decay else None
        self.grad_norm, self.lr = torch.zeros((), device=device), 0.0
        self.skipped_steps = torch.zeros((), device=device)
        self.nonfinite_in_row = torch.zeros((), device=device)
        # The sums of a log line. Losses stay on the device until they are read: no step waits.
        self._tokens, self._flops = 0, 0.0
        self._losses = torch.zeros(2, device=device)
        self._nonfinite_tokens = torch.zeros((), dtype=torch.int64, device=device)
        # A GPU computes one micro-batch at a time.
        self.threads = WorkerThreads(MAX_WORKERS if device.type == "cpu" else 1)

    def train_step(
        self,
        step: int,
        micro_batches: Sequence[MicroBatch],
        guard: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Takes one optimizer step on the pairs of its micro-batches.

        This never waits for the device, which itself skips a step with a non-finite gradient.

        Args:
            step: Its number, from 1.
            micro_batches: The step's pairs, on the CPU; only the token counts of a micro-batch
                that another process computes.
            guard: Entered while gradients are computed: the last moment at which a process can
                fail, for lack of memory for instance, without the others waiting for it.
        """
        optim, tokens = self.config.optim, sum(batch.tgt_tokens for batch in micro_batches)
        self.lr = noam_rate(step, self.config.model.d_model, optim.warmup_steps, optim.lr_scale)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr
        with guard():
            # Per token of the whole step, so how it is cut does not change the gradient.
            losses = self.add_gradients(step, micro_batches, tokens)
        self.sum_over_processes(losses)
        self.scaler.unscale_(self.optimizer)  # before clipping, or the scale would be clipped
        self.grad_norm = clip_grad_norm_(self.model.parameters(), optim.max_grad_norm or math.inf)
        is_finite = self.grad_norm.isfinite()
        skip_step_if(self.optimizer, ~is_finite)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.zero_gradients()
        if self.ema:
            self.ema.update(step)
        self._count(losses, ~is_finite, micro_batches)

    def add_gradients(self, step: int, micro_batches: Iterable[MicroBatch], tokens: int) -> Tensor:
        """Computes the gradients of this process's micro-batches, divided by a number of tokens.

        They are added to those of the parameters. A CPU computes several micro-batches at once.

        Returns:
            Sums of the label-smoothed loss and of the NLL, in nats, (2,).
        """
        scale = self.scaler.scale(torch.ones((), device=self.device)) / tokens
        seeded = [
            (dropout_seed(self.config.train.seed, step, number), batch)
            for number, batch in enumerate(micro_batches)
        ]
        losses = torch.zeros(2, device=self.device)
        for seed, pack in seeded:
            if isinstance(pack, Pack):
                assert self.packed
                losses += self.packed.add_gradients(pack, seed, scale)
        padded = [(seed, batch) for seed, batch in seeded if isinstance(batch, Batch)]

        def compute(
            seed_and_batch: tuple[int, Batch], raise_if_cancelled: Callable[[], None]
        ) -> tuple[Tensor, tuple[Tensor, ...]]:
            seed, batch = seed_and_batch
            # Each thread has an autocast of its own.
            with self._autocast(), seeded_dropout(self.device, seed):
                loss, nll = self._loss(batch.to(self.device))
                raise_if_cancelled()
            # Not within a CPU's autocast, which would compute attention's gradients in bf16.
            gradients = torch.autograd.grad(loss * scale, list(self.model.parameters()))
            return torch.stack((loss.detach(), nll)), gradients

        # On CUDA an autocast around all micro-batches casts each weight once.
        with nullcontext() if self.device.type == "cpu" else self._autocast():
            with closing(self.threads.map(compute, padded)) as results:
                for micro_batch_losses, gradients in results:
                    losses += micro_batch_losses
                    for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
                        if parameter.grad is None:
                            parameter.grad = gradient.contiguous()
                        else:
                            parameter.grad += gradient
                    del gradients  # before the next ones are computed
        return losses

    def zero_gradients(self) -> None:
        """Clears the gradients; those of packs in place, since a CUDA graph has their addresses."""
        self.optimizer.zero_grad(set_to_none=self.packed is None)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(
            self.device.type, DTYPES[self.precision], enabled=self.precision != "fp32"
        )

    def _loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Sums the label-smoothed loss and the NLL over a micro-batch's target tokens."""
        return projected_loss(
            self.model.decoder_output(batch.src, batch.tgt_in),
            self.model.output_weight,
            batch.tgt_out,
            self.config.optim.label_smoothing,
            PAD_ID,
        )

    def sum_over_processes(self, losses: Tensor) -> None:
        """Sums the gradients and the losses, (2,), over all processes, in one message."""
        if self.processes.world_size == 1:
            return
        tensors: list[Tensor] = []
        for parameter in self.model.parameters():
            if parameter.grad is None:  # this process had no micro-batch
                parameter.grad = torch.zeros_like(parameter)
            tensors.append(parameter.grad)
        tensors.append(losses)
        flat = parameters_to_vector(tensors)
        self.processes.sum(flat)
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        copy_all_(tensors, [part.view_as(t) for part, t in zip(parts, tensors, strict=True)])

    def _count(self, losses: Tensor, skipped: Tensor, micro_batches: Sequence[MicroBatch]) -> None:
        """Adds a step to the sums of a log line and to the skipped steps, if it was skipped."""
        is_finite = losses.isfinite().all()
        per_src_token, per_tgt_token = self._flops_per_token
        src_tokens = sum(batch.src_tokens for batch in micro_batches)
        tokens = sum(batch.tgt_tokens for batch in micro_batches)
        self._tokens += tokens
        self._flops += src_tokens * per_src_token + tokens * per_tgt_token
        self._losses += torch.where(is_finite, losses, 0.0)
        self._nonfinite_tokens += torch.where(is_finite, 0, tokens)
        if self.scaler.is_enabled():  # a scaler that is still finding its scale skips steps too
            at_smallest_scale = loss_scale(self.scaler) <= 1.0
            skipped = skipped & (~is_finite | at_smallest_scale)
        self.skipped_steps += skipped
        self.nonfinite_in_row = (self.nonfinite_in_row + skipped) * skipped

    def start_window(self, window: LogWindow | None = None) -> None:
        """Starts the sums of a log line at zero, or at those of an interrupted run."""
        window = window or LogWindow()
        self._tokens, self._flops = window.tokens, window.flops
        self._losses = torch.tensor((window.loss, window.nll), device=self.device)
        self._nonfinite_tokens.fill_(window.nonfinite_tokens)

    def read_window(self) -> LogWindow:
        """Waits for the device and returns the sums since the last log line; they are kept."""
        loss, nll = self._losses.tolist()
        return LogWindow(loss, nll, self._tokens, self._flops, int(self._nonfinite_tokens))

    def state_dict(self) -> dict[str, Any]:
        """Returns what keeps a resumed run bit-equal: the tensors in use by name, and counters."""
        skipped, in_row = int(self.skipped_steps), int(self.nonfinite_in_row)
        counters = _Counters(skipped, in_row, self.scaler.state_dict(), self.read_window())
        state: dict[str, Any] = {
            "model": self.model.state_dict(),
            "optimizer": {
                f"{key}.{name}": moment
                for name, parameter in self.model.named_parameters()
                for key, moment in self.optimizer.state.get(parameter, {}).items()
            },
            "counters": asdict(counters),
        }
        if self.ema:
            state["ema"] = self.ema.model.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads what `state_dict` returned; raises KeyError, RuntimeError or ValueError."""
        counters = TypeAdapter(_Counters).validate_json(json.dumps(state["counters"]))
        self.model.load_state_dict(state["model"])
        if state["optimizer"]:  # before the first step there are no moments
            for name, parameter in self.model.named_parameters():
                self.optimizer.state[parameter] = {
                    key: state["optimizer"][f"{key}.{name}"].to(self.device) for key in MOMENTS
                }
        if self.ema:
            self.ema.model.load_state_dict(state["ema"])
        if counters.loss_scaler:
            self.scaler.load_state_dict(counters.loss_scaler)
        self.skipped_steps.fill_(counters.skipped_steps)
        self.nonfinite_in_row.fill_(counters.nonfinite_in_row)
        self.start_window(counters.window)
