"""One optimizer step and the training state that it changes, independent of files and runs."""

import gc
import json
import logging
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import ConfigDict, TypeAdapter
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from transformer_mt.checkpoints.checkpoint import MOMENTS
from transformer_mt.config.keys import Config
from transformer_mt.errors import CompileError, OutOfMemoryError
from transformer_mt.model.kernels import seeded_dropout
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.device import DTYPES, is_out_of_memory
from transformer_mt.system.private_torch import is_compile_error, loss_scale, skip_step_if
from transformer_mt.system.processes import ALONE, Processes
from transformer_mt.system.worker_threads import MAX_WORKERS, WorkerThreads, count_workers
from transformer_mt.text.batching import Batch, TokenCounts
from transformer_mt.text.vocabulary import PAD_ID
from transformer_mt.training.compilation import (
    compile_layers,
    pad_single_sizes,
    restore_layers,
)
from transformer_mt.training.flops import flops_per_token, measure_peak_flops
from transformer_mt.training.loss import projected_loss
from transformer_mt.training.optimizer import (
    ExponentialMovingAverage,
    build_optimizer,
    clip_gradients,
    noam_rate,
)
from transformer_mt.training.run_log import LogWindow

logger = logging.getLogger(__name__)

_LossesAndGradients = tuple[Tensor, tuple[Tensor, ...]]
"""The label-smoothed loss and the NLL, (2,), and the gradients of the parameters."""


@dataclass(frozen=True)
class _Counters:
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
        compile_failed: Whether torch.compile has failed in this run and is not tried again.

    Attributes:
        model: The model; its weights are initialised from `train.seed`.
        workers: GPUs or CPU threads, of all processes together, that compute micro-batches at the
            same time.
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
        compile_failed: bool = False,
    ) -> None:
        self.config, self.device, self.precision = config, device, precision
        self.processes, self.compiled, self.compile_failed = processes, False, compile_failed
        own_workers = count_workers(MAX_WORKERS) if device.type == "cpu" else 1
        # All processes must cut steps alike, even if one has fewer threads.
        self.workers = processes.world_size * -int(*processes.max(-own_workers))
        torch.manual_seed(config.train.seed)
        self.model = Transformer(config.model, src_size, tgt_size, PAD_ID).to(device)
        self._flops_per_token = flops_per_token(config.model, tgt_size)
        if config.train.compile and device.type == "cuda" and not compile_failed:
            self.compile()
        self.optimizer = build_optimizer(
            self.model, config.optim, torch.bfloat16 if precision == "bf16" else torch.float32
        )
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        decay = config.train.ema_decay
        self.ema = ExponentialMovingAverage(self.model, decay) if decay else None
        self.skipped_steps, self.nonfinite_in_row = torch.zeros(2, device=device).unbind()
        self.grad_norm, self.lr = torch.zeros((), device=device), 0.0
        self._workers = WorkerThreads()
        self.start_window()

    def compile(self, backend: str | Callable[..., object] = "inductor") -> None:
        """Uses torch.compile for training from now on."""
        self.compiled = True
        compile_layers(self.model, backend)

    def state_dict(self) -> dict[str, Any]:
        """Returns what keeps a resumed run bit-equal: the tensors in use by name, and counters."""
        state: dict[str, Any] = {
            "model": self.model.state_dict(),
            "optimizer": {
                f"{key}.{name}": moment
                for name, parameter in self.model.named_parameters()
                for key, moment in self.optimizer.state.get(parameter, {}).items()
            },
            "counters": {
                "skipped_steps": int(self.skipped_steps),
                "nonfinite_in_row": int(self.nonfinite_in_row),
                "loss_scaler": self.scaler.state_dict(),
                "window": asdict(self.read_window()),
            },
        }
        if self.ema:
            names = (name for name, _ in self.model.named_parameters())
            state["ema"] = dict(zip(names, self.ema.averages, strict=True))
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
            with self.ema.in_place():
                self.model.load_state_dict(state["ema"])
        if self.scaler.is_enabled() and counters.loss_scaler:
            self.scaler.load_state_dict(counters.loss_scaler)
        self.skipped_steps.fill_(counters.skipped_steps)
        self.nonfinite_in_row.fill_(counters.nonfinite_in_row)
        # An older version did not sum the NLL; its unfinished log line is not continued.
        has_nll = "nll" in state["counters"].get("window", ())
        self.start_window(counters.window if has_nll else LogWindow())

    def start_window(self, window: LogWindow | None = None) -> None:
        """Starts the sums of a log line at zero, or at those of an interrupted run."""
        window = window or LogWindow()
        self._tokens, self._flops, self._seconds = window.tokens, window.flops, window.seconds
        # Kept on the device until they are read, so that no step waits.
        self._losses = torch.tensor((window.loss, window.nll), device=self.device)
        self._nonfinite_tokens = torch.full((), window.nonfinite_tokens, device=self.device)

    def read_window(self) -> LogWindow:
        """Waits for the device and returns the sums since the last log line; they are kept."""
        start = time.monotonic()
        loss, nll = self._losses.tolist()
        nonfinite_tokens = int(self._nonfinite_tokens)
        self._seconds += time.monotonic() - start
        return LogWindow(loss, nll, self._tokens, self._flops, self._seconds, nonfinite_tokens)

    def measure_peak_flops(self) -> float:
        """Measures the peak of the devices of all processes together; all must call it."""
        return sum(self.processes.gather(measure_peak_flops(self.device, self.precision)))

    def train_step(self, step: int, micro_batches: Iterable[Batch | TokenCounts]) -> None:
        """Takes one optimizer step on the pairs of its micro-batches.

        This never waits for the device, which itself skips a step with a non-finite gradient.

        Args:
            step: Its number, from 1.
            micro_batches: The step's pairs, on the CPU; only the token counts of a micro-batch
                that another process computes. Building them here counts as time of the step.

        Raises:
            OutOfMemoryError: If memory runs out, here or in another process; nothing is changed.
            CompileError: If the model cannot be compiled, likewise.
        """
        began = time.monotonic()
        micro_batches = list(micro_batches)
        optim = self.config.optim
        self.lr = noam_rate(step, self.config.model.d_model, optim.warmup_steps, optim.lr_scale)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr
        src_tokens = sum(batch.src_tokens for batch in micro_batches)
        tokens = sum(batch.tgt_tokens for batch in micro_batches)
        losses = self._sum_over_processes(self._accumulate(step, micro_batches, tokens))
        is_finite = losses.isfinite().all()
        self._update_weights(step, is_finite)
        self._losses += torch.where(is_finite, losses, 0.0)
        self._nonfinite_tokens += torch.where(is_finite, 0, tokens)
        self._tokens += tokens
        per_src_token, per_tgt_token = self._flops_per_token
        self._flops += src_tokens * per_src_token + tokens * per_tgt_token
        self._seconds += time.monotonic() - began

    def _accumulate(
        self, step: int, micro_batches: Sequence[Batch | TokenCounts], tokens: int
    ) -> Tensor:
        """Adds up the gradients of this process's micro-batches; returns their losses, (2,)."""
        losses, failure = torch.zeros(2, device=self.device), None
        try:
            with closing(self._gradients(step, micro_batches, tokens)) as parts:
                for micro_batch_losses, gradients in parts:
                    losses += micro_batch_losses
                    self._add_gradients(gradients)
                    del gradients  # before the next ones are computed
        except (OutOfMemoryError, CompileError) as error:
            failure = type(error), str(error)
        # On CUDA this does not wait for the device: memory is allocated before kernels run.
        if any(self.processes.max(failure is not None)):
            self.model.zero_grad()
            gc.collect()  # errors and the frames that they passed refer to each other
            if self.device.type == "cuda":
                torch.cuda.empty_cache()  # its blocks have the sizes of the larger micro-batches
            failures = enumerate(self.processes.gather(failure))
            rank, (kind, reason) = next((rank, each) for rank, each in failures if each)
            where = f"process {rank}: " if self.processes.world_size > 1 else ""
            raise kind(where + reason)
        return losses

    def _gradients(
        self, step: int, micro_batches: Sequence[Batch | TokenCounts], tokens: int
    ) -> Generator[_LossesAndGradients]:
        """Computes the gradients of this process's micro-batches; on a CPU several at once."""
        # Per token of the whole step, so how it is cut does not change the gradient.
        scale = self.scaler.scale(torch.ones((), device=self.device)) / tokens
        dtype, enabled = DTYPES[self.precision], self.precision != "fp32"
        device = self.device.type
        own = [
            (dropout_seed(self.config.train.seed, step, number), batch)
            for number, batch in enumerate(micro_batches)
            if isinstance(batch, Batch)
        ]

        def compute(
            seeded: tuple[int, Batch], raise_if_cancelled: Callable[[], None]
        ) -> _LossesAndGradients:
            seed, micro_batch = seeded
            # Each thread of a CPU has an autocast of its own.
            with torch.autocast(device, dtype, enabled), seeded_dropout(self.device, seed):
                return self._gradient(micro_batch, scale, raise_if_cancelled)

        if device == "cpu":
            return (yield from self._workers.map(compute, own))
        # Around all micro-batches, so that it casts each weight once.
        with torch.autocast(device, dtype, enabled):
            yield from (compute(seeded, lambda: None) for seeded in own)

    def _add_gradients(self, gradients: Sequence[Tensor]) -> None:
        for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
            if parameter.grad is None:
                parameter.grad = gradient.contiguous()
            else:
                parameter.grad += gradient

    def _sum_over_processes(self, losses: Tensor) -> Tensor:
        """Sums the gradients and losses over all processes in one message; returns the losses."""
        if self.processes.world_size == 1:
            return losses
        tensors: list[Tensor] = []
        for parameter in self.model.parameters():
            if parameter.grad is None:  # this process had no micro-batch
                parameter.grad = torch.zeros_like(parameter)
            tensors.append(parameter.grad)
        tensors.append(losses)
        flat = parameters_to_vector(tensors)
        self.processes.sum(flat)
        vector_to_parameters(flat, tensors)
        return losses

    def _update_weights(self, step: int, is_loss_finite: Tensor) -> None:
        """Applies the gradients, or counts the step as skipped if they are not finite."""
        self.scaler.unscale_(self.optimizer)  # before clipping, or the scale would be clipped
        self.grad_norm = clip_gradients(self.model.parameters(), self.config.optim.max_grad_norm)
        finite = self.grad_norm.isfinite()
        skip_step_if(self.optimizer, ~finite)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.model.zero_grad()
        if self.ema:
            self.ema.update(step)
        skipped = ~finite
        if self.scaler.is_enabled():  # a scaler that is still finding its scale skips steps too
            at_smallest_scale = loss_scale(self.scaler) <= 1.0
            skipped = skipped & (~is_loss_finite | at_smallest_scale)
        self.skipped_steps += skipped
        self.nonfinite_in_row = (self.nonfinite_in_row + skipped) * skipped

    def check_memory(self, micro_batches: Sequence[Batch], count: int) -> None:
        """Computes gradients with everything in memory that training needs; changes no weight.

        If torch.compile fails in any process, all continue without it.

        Args:
            micro_batches: Those that need the most memory.
            count: Micro-batches of a step in this process; a CPU computes several at once.

        Raises:
            OutOfMemoryError: If memory runs out, here or in another process.
        """
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        skip_step_if(self.optimizer, torch.ones((), device=self.device))
        self.optimizer.step()  # allocates the moments, and changes nothing
        at_once = count_workers(count) if self.device.type == "cpu" else 1
        try:
            for micro_batch in micro_batches:
                self._sum_over_processes(self._accumulate(1, [micro_batch] * at_once, 1))
        except CompileError as error:
            self.continue_uncompiled(error)
            self.check_memory(micro_batches, count)
        self.model.zero_grad()

    def continue_uncompiled(self, error: CompileError) -> None:
        """Goes on without torch.compile, which has failed in some process; all must call this."""
        logger.warning("%s; this run continues without it, more slowly", error)
        self.compiled, self.compile_failed = False, True
        restore_layers(self.model)

    def _gradient(
        self, micro_batch: Batch, scale: Tensor, raise_if_cancelled: Callable[[], None]
    ) -> _LossesAndGradients:
        """Computes the sums of a micro-batch's losses, and their gradient times a scale."""
        try:
            batch = pad_single_sizes(micro_batch) if self.compiled else micro_batch
            loss, nll = self._loss(batch.to(self.device))
            raise_if_cancelled()
            gradients = torch.autograd.grad(loss * scale, list(self.model.parameters()))
        except (RuntimeError, MemoryError) as error:
            raise self._to_user_error(error, micro_batch) from None
        return torch.stack((loss.detach(), nll)), gradients

    def _loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Sums the label-smoothed loss and the NLL over a micro-batch's target tokens."""
        return projected_loss(
            self.model.decoder_output(batch.src, batch.tgt_in),
            self.model.output_weight,
            batch.tgt_out,
            self.config.optim.label_smoothing,
            PAD_ID,
            self.compiled,
        )

    def _to_user_error(self, error: Exception, micro_batch: Batch) -> Exception:
        """Converts errors that the user can fix to DeviceError; returns any other unchanged."""
        if self.compiled and is_compile_error(error):
            reason, *_ = str(error).split("\n\n")  # what follows is advice to PyTorch's authors
            return CompileError(
                f"torch.compile failed ({reason}): install a C compiler and Python's headers, or"
                " set train.compile = false"
            )
        if not is_out_of_memory(error):
            return error
        (rows, src), tgt = micro_batch.src.shape, micro_batch.tgt_in.size(1)
        return OutOfMemoryError(
            f"out of memory on {self.device.type} with a micro-batch of {rows} x {src} source and"
            f" {rows} x {tgt} target tokens"
        )
