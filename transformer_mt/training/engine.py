"""What a step changes: model, optimizer, loss scaler, moving average. Knows no files and no run."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from transformer_mt.config import Config
from transformer_mt.errors import DeviceError
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.device import DTYPES, compute_settings, is_out_of_memory
from transformer_mt.system.private_torch import is_compile_error, loss_scale, skip_step_if
from transformer_mt.text.batching import Batch
from transformer_mt.text.vocabulary import PAD_ID
from transformer_mt.training.flops import training_flops
from transformer_mt.training.loss import projected_loss
from transformer_mt.training.optimizer import ExponentialMovingAverage, build_adam, noam_rate


@dataclass
class LogWindow:
    """Sums since the last log line.

    Attributes:
        loss: Nats; `Engine.read_window` brings it up to date.
        tokens: Target tokens.
        flops: Floating-point operations that they needed.
        seconds: Time.
    """

    loss: float = 0.0
    tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0


def compile_hidden(
    model: Transformer, max_length: int, backend: str | Callable[..., object] = "inductor"
) -> Callable[[Tensor, Tensor], Tensor]:
    """Fuses the operations of `model.hidden`, a few times at most for batches of all shapes.

    Args:
        model: Whose parameters are used.
        max_length: Tokens of the longest side there will be, in validation too.
        backend: What makes code of the graph.
    """
    model.reserve(max_length)  # or the table of positions would grow, and with it a new graph
    return torch.compile(model.hidden, dynamic=True, backend=backend)


class Engine:
    """A model in training, from its seeded start.

    Args:
        config: The whole configuration.
        src_size: Source vocabulary.
        tgt_size: Target vocabulary.
        device: Where to compute.
        precision: `fp32`, `bf16` or `fp16`.
    """

    def __init__(
        self, config: Config, src_size: int, tgt_size: int, device: torch.device, precision: str
    ) -> None:
        self.config, self.device, self.precision = config, device, precision
        self.tgt_size = tgt_size
        torch.manual_seed(config.train.seed)
        self.model = Transformer(config.model, src_size, tgt_size, PAD_ID).to(device)
        self._hidden: Callable[[Tensor, Tensor], Tensor] = self.model.hidden
        self.fused = config.train.compile and device.type == "cuda"
        if self.fused:
            # In validation a translation may be 50 pieces longer than its source.
            self._hidden = compile_hidden(self.model, config.data.max_length + 64)
        self.optimizer = build_adam(self.model, config.optim)
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        decay = config.train.ema_decay
        self.ema = ExponentialMovingAverage(self.model, decay) if decay else None
        self.skipped, self.bad_in_row = torch.zeros(2, device=device).unbind()
        self.norm = torch.zeros((), device=device)
        self.new_window()

    def begin_from(self, model: nn.Module) -> None:
        """Takes the weights of another model of the same shapes, and forgets the random start."""
        self.model.load_state_dict(model.state_dict())
        if self.ema:
            self.ema = ExponentialMovingAverage(self.model, self.ema.decay)

    def new_window(self, window: LogWindow | None = None) -> None:
        """Begins the sums anew, or where they were."""
        self.window = replace(window) if window else LogWindow()
        self.loss = torch.full((), self.window.loss, device=self.device)  # there until it is read

    def read_window(self) -> LogWindow:
        """Waits until the device has done all that it was given; gives the sums."""
        began = time.monotonic()
        self.window.loss = float(self.loss)
        self.window.seconds += time.monotonic() - began
        return self.window

    @property
    def lr(self) -> float:
        """The learning rate of the last step."""
        return float(self.optimizer.param_groups[0]["lr"])

    def train_step(self, step: int, micro_batches: list[Batch]) -> None:
        """Takes one optimizer step on the pairs of its micro-batches.

        Nothing here waits for the device: a step whose gradient is not finite is skipped there.

        Args:
            step: Its number, from 1.
            micro_batches: On the CPU.

        Raises:
            DeviceError: If memory runs out; names the micro-batch's shape.
        """
        config, began = self.config.optim, time.monotonic()
        # Dropout is a pure function of (seed, step), so there is no generator state to save.
        torch.manual_seed(self.config.train.seed * 2**31 + step)
        for group in self.optimizer.param_groups:
            group["lr"] = noam_rate(
                step, self.config.model.d_model, config.warmup_steps, config.lr_scale
            )
        tokens = sum(batch.tgt_tokens for batch in micro_batches)
        total = torch.zeros((), device=self.device)
        for micro_batch in micro_batches:
            # The sum over the tokens of the whole step: how it is cut does not change the gradient.
            total += self._backward(micro_batch, tokens)
        self.scaler.unscale_(self.optimizer)  # before clipping, or the scale would be clipped
        self.norm = self._clip(config.max_grad_norm)
        finite = self.norm.isfinite()
        skip_step_if(self.optimizer, ~finite)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.ema:
            self.ema.update(step)
        self._count_bad(finite, total)
        self.loss += torch.where(total.isfinite(), total, 0.0)
        self.window.tokens += tokens
        self.window.flops += training_flops(
            self.config.model, self.tgt_size, sum(b.src_tokens for b in micro_batches), tokens
        )
        self.window.seconds += time.monotonic() - began

    def try_memory(self, largest: Batch) -> None:
        """Goes through a micro-batch with everything in memory that training needs.

        Weights and moments stay as they are.

        Raises:
            DeviceError: If memory runs out; names the micro-batch's shape.
        """
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        skip_step_if(self.optimizer, torch.ones((), device=self.device))
        self.optimizer.step()  # makes room for the moments, and changes nothing
        self._backward(largest, largest.tgt_tokens)
        self.optimizer.zero_grad(set_to_none=True)

    def _backward(self, micro_batch: Batch, tokens: int) -> Tensor:
        """Adds a micro-batch's share of the step's gradient; gives its loss sum."""
        autocast = torch.autocast(
            self.device.type, DTYPES[self.precision], enabled=self.precision != "fp32"
        )
        try:
            batch = micro_batch.to(self.device)
            with compute_settings(self.device, tf32=True):
                with autocast:
                    hidden = self._hidden(batch.src, batch.tgt_in)
                    wanted = batch.tgt_out, self.config.optim.label_smoothing, PAD_ID
                    loss = projected_loss(hidden, self.model.output_weight, *wanted, self.fused)
                self.scaler.scale(loss / tokens).backward()  # type: ignore[no-untyped-call]
        except (RuntimeError, MemoryError) as error:
            if self.fused and is_compile_error(error):
                reason, *_ = str(error).split("\n\n")  # what follows is advice to PyTorch's authors
                raise DeviceError(
                    f"torch.compile failed ({reason}): install a C compiler and Python's headers,"
                    " or begin the run with train.compile = false"
                ) from None
            if not is_out_of_memory(error):
                raise
            (rows, src), tgt = micro_batch.src.shape, micro_batch.tgt_in.size(1)
            raise DeviceError(
                f"out of memory on {self.device.type} with {rows} sentences of {src} source and"
                f" {tgt} target tokens: lower train.micro_batch_tokens ="
                f" {self.config.train.micro_batch_tokens} (it changes no result) or the model"
            ) from None
        return loss.detach()

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
            bad = bad & (~loss.isfinite() | (loss_scale(self.scaler) <= 1.0))
        self.skipped += bad
        self.bad_in_row = (self.bad_in_row + bad) * bad
