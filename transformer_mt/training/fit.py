"""How a step is made to fit the machine: cut as its memory allows, compiled where that works."""

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch.nn.utils import parameters_to_vector

from transformer_mt.checkpoints.checkpoint import Progress
from transformer_mt.config.keys import ModelConfig
from transformer_mt.errors import DeviceError
from transformer_mt.system.console import logger
from transformer_mt.system.device import OUT_OF_MEMORY_ADVICE, is_out_of_memory, total_memory
from transformer_mt.system.private_torch import skip_step_if
from transformer_mt.text.batching import (
    EncodedPairs,
    Indices,
    Lengths,
    cut_micro_batches,
    deal_micro_batches,
    padded_size,
)
from transformer_mt.text.packing import BLOCK, cut_into_packs, pack_capacity, pack_pairs
from transformer_mt.training.engine import Engine
from transformer_mt.training.flops import FLOPS_PER_WEIGHT, flops_per_token
from transformer_mt.training.loss import CHUNK_ROWS
from transformer_mt.training.packed_step import PackedStep

_BYTES_PER_PARAMETER = {"cpu": 4 * 7, "cuda": 4 * 4}
"""Weight, gradient and Adam's two moments in float32; on a CPU also the copies of a weight and its
moments that are written as a checkpoint, which a GPU's memory does not hold."""
_MORE_BYTES_PER_PARAMETER = 4 * 2
"""The moving average, and a buffer for sums over processes or weights in half precision."""
_BYTES_PER_LOGIT = 12
"""A logit, its probability and its gradient, for a chunk of positions."""
_USED_SHARE = {"cpu": 0.25, "cuda": 0.6}
"""Part of the memory that is planned for. Other programs use a CPU's memory too, and if it runs out
Linux ends a process and reports no error; on CUDA, PyTorch itself and fragments need some.
"""
_TRIED_STEPS = 100
_LEAST_HEAD_WIDTH = 16


def require_memory(config: ModelConfig, device: torch.device) -> None:
    """Refuses a model whose layers alone need too much memory, before anything is allocated."""
    # Each weight of a layer takes part in the same number of operations per token.
    parameters = sum(flops_per_token(config, tgt_size=0)) // FLOPS_PER_WEIGHT
    needed, available = _BYTES_PER_PARAMETER[device.type] * parameters, total_memory(device)
    if needed > available:
        keys = ("d_model", "d_ff", "encoder_layers", "decoder_layers")
        sizes = ", ".join(f"model.{key} = {getattr(config, key)}" for key in keys)
        raise DeviceError(
            f"{sizes}: the model needs at least {needed / 1e9:,.0f} GB to be trained, and this"
            f" {device.type} device has {available / 1e9:,.0f} GB; choose smaller sizes"
        )


def bytes_per_position(config: ModelConfig) -> int:
    """Estimates what a source and a target position keep in memory for the backward pass.

    Residual streams are float32 in every precision, so that half precision saves little.
    """
    encoder = 9 * config.d_model + 2 * config.d_ff
    decoder = 15 * config.d_model + 2 * config.d_ff
    return 4 * (config.encoder_layers * encoder + config.decoder_layers * decoder)


class _OutOfMemory(Exception):
    """Memory has run out, in some process."""


class _CompilationFailed(Exception):
    """torch.compile has failed, in some process."""


class StepFitter:
    """Takes the steps of an engine so that they fit the memory and the compiler of the machine.

    If memory runs out, a step is cut finer and repeated, and so are all that follow. If compiling
    fails, it is repeated without, likewise. The processes call the methods together, and what fails
    in one of them counts as failed in all.

    Args:
        engine: The engine.

    Attributes:
        packs: Whether micro-batches are packs, as on CUDA with `train.compile`, not padded batches.
        workers: GPUs or CPU threads, of all processes together, that compute micro-batches at the
            same time.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine, self._processes = engine, engine.processes
        # All processes must cut steps alike, even if one has fewer threads.
        self.workers = self._processes.world_size * self._processes.min(engine.threads.count())
        config, model = engine.config, engine.config.model
        is_compiled = engine.device.type == "cuda" and config.train.compile
        # What flex attention's kernels cannot do.
        is_unusual = model.attention_dropout or model.d_model // model.n_heads < _LEAST_HEAD_WIDTH
        self.packs = is_compiled and not is_unusual
        self._longest = config.data.max_length + 1  # with EOS or BOS

    def find_micro_batch_tokens(self) -> int:
        """Finds a bound on micro-batches for the total memory, which is the same at every start.

        It is a power of two and holds a pair of `data.max_length`; all processes get the smallest.
        The processes of a CPU are taken to be on one machine: more of them also get smaller
        micro-batches.
        """
        model, config, device = self.engine.model, self.engine.config, self.engine.device.type
        copies, workers = (self._processes.world_size, self.workers) if device == "cpu" else (1, 1)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        left = _USED_SHARE[device] * total_memory(self.engine.device)
        left -= copies * (_BYTES_PER_PARAMETER[device] + _MORE_BYTES_PER_PARAMETER) * parameters
        left -= workers * 4 * parameters  # each worker's own gradient

        def fits(tokens: int) -> bool:
            rows = tokens if self.packs else min(tokens, CHUNK_ROWS[device])
            logits = rows * model.output_weight.size(0)
            activations = tokens * bytes_per_position(config.model)
            return workers * (_BYTES_PER_LOGIT * logits + activations) <= left

        tokens = 1 << config.data.max_length.bit_length()
        while fits(2 * tokens):
            tokens *= 2
        return self._processes.min(tokens)

    def describe(self, progress: Progress) -> str:
        """Tells how steps are cut."""
        unit = "GPU" if self.engine.device.type == "cuda" else "CPU thread"
        lowered = f", lowered at step {step}" if (step := progress.finer_step) else ""
        return (
            f"{self._describe_size(progress)}{lowered};"
            f" {self.workers} {unit}{'s' * (self.workers != 1)}"
        )

    def _describe_size(self, progress: Progress) -> str:
        if self.packs:
            return f"packs of {self._pack_capacity(progress):,} tokens a side"
        return f"micro-batches of at most {progress.micro_batch_tokens:,} positions"

    def cut_step(
        self, progress: Progress, pairs: EncodedPairs, step_pairs: Indices
    ) -> list[Indices]:
        """Cuts the pairs of a step into those of its micro-batches."""
        if self.packs:
            capacity = self._pack_capacity(progress)
            return cut_into_packs(step_pairs, pairs.lengths, capacity, self.workers)
        limit = progress.micro_batch_tokens
        return cut_micro_batches(step_pairs, pairs.lengths, limit, self.workers)

    def count_positions(self, progress: Progress, pairs: EncodedPairs, indices: Indices) -> int:
        """Counts the source and target positions of a micro-batch, including padding."""
        if self.packs:
            return 2 * self._pack_capacity(progress)
        return padded_size(indices, pairs.lengths)

    def _pack_capacity(self, progress: Progress) -> int:
        """Returns the capacity that holds an equal share of every step, at the limit if it can.

        It is a function of the configuration, the processes and the limit, so that a resumed run
        has the same packs.
        """
        tokens, limit = self.engine.config.train.batch_tokens, progress.micro_batch_tokens
        share = max(1, limit - limit % BLOCK - self._longest - 1)  # as `pack_capacity` has it
        packs = self.workers * math.ceil(tokens / (self.workers * share))
        return pack_capacity(math.ceil(tokens / packs), self._longest)

    def fit_step(self, progress: Progress, pairs: EncodedPairs, step_pairs: Indices) -> Progress:
        """Takes the step after `progress`, on some of the pairs, which the processes share.

        Returns:
            The progress with the bound on micro-batches that the step had; it is not advanced.
        """
        cut = partial(self.cut_step, pairs=pairs, step_pairs=step_pairs)
        return self._repeat_until_it_fits(progress, pairs, cut, self._take_step)

    def _take_step(self, progress: Progress, pairs: EncodedPairs, parts: list[Indices]) -> None:
        """Takes the step after `progress`, cut into parts, of which this process gets its share."""
        self._capture_packs(progress)
        sizes = [self.count_positions(progress, pairs, indices) for indices in parts]
        own = deal_micro_batches(sizes, self._processes.world_size)[self._processes.rank]
        packed = self.engine.packed
        collect = partial(pack_pairs, pairs, capacity=packed.capacity) if packed else pairs.batch
        micro_batches = [
            collect(indices) if number in own else pairs.count_tokens(indices)
            for number, indices in enumerate(parts)
        ]
        self.engine.train_step(progress.step + 1, micro_batches, self._failing_together)

    def check_memory(
        self, progress: Progress, pairs: EncodedPairs, steps: Sequence[Indices]
    ) -> Progress:
        """Tries the micro-batches of an epoch that need the most memory; changes no weight.

        Returns:
            The progress with a bound on micro-batches that fit.

        Raises:
            DeviceError: If a single pair does not fit.
        """
        count = len(self.cut_step(progress, pairs, steps[0])) / self._processes.world_size
        cut = partial(self._cut_trials, pairs=pairs, steps=steps)
        attempt = partial(self._compute_trials, at_once=self.engine.threads.count(math.ceil(count)))
        return self._repeat_until_it_fits(progress, pairs, cut, attempt)

    def _cut_trials(
        self, progress: Progress, pairs: EncodedPairs, steps: Sequence[Indices]
    ) -> list[Indices]:
        """Finds the micro-batches to try.

        Packs all need the same memory, and the graph of their step holds it: for them, capturing
        that is the trial.
        """
        limit = progress.micro_batch_tokens
        return [] if self.packs else most_demanding(steps, pairs.lengths, limit, self.workers)

    def _compute_trials(
        self, progress: Progress, pairs: EncodedPairs, trials: list[Indices], at_once: int
    ) -> None:
        """Computes gradients, with everything in memory that training needs."""
        engine = self.engine
        for parameter in engine.model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        skip_step_if(engine.optimizer, torch.ones((), device=engine.device))
        engine.optimizer.step()  # allocates the moments, and changes nothing
        self._capture_packs(progress)
        if self._processes.world_size > 1:
            with self._failing_together():
                parameters_to_vector(engine.model.parameters())  # as large as what is summed
        for trial in trials:
            with self._failing_together():
                losses = engine.add_gradients(1, [pairs.batch(trial)] * at_once, 1)
            engine.sum_over_processes(losses)
        engine.zero_gradients()

    def _repeat_until_it_fits(
        self,
        progress: Progress,
        pairs: EncodedPairs,
        cut: Callable[[Progress], list[Indices]],
        attempt: Callable[[Progress, EncodedPairs, list[Indices]], None],
    ) -> Progress:
        """Attempts something with the parts of a step, cut finer each time memory runs out.

        If compiling fails, they become padded batches. Returns the progress with their bound.
        """
        while True:
            parts = cut(progress)
            try:
                attempt(progress, pairs, parts)
                return progress
            except (_OutOfMemory, _CompilationFailed) as error:
                is_memory, reason = isinstance(error, _OutOfMemory), str(error)
            self.engine.packed = None
            self.engine.zero_gradients()
            gc.collect()  # errors and the frames that they passed refer to each other
            if self.engine.device.type == "cuda":
                torch.cuda.empty_cache()  # its blocks have the sizes of the larger micro-batches
            if is_memory:
                progress = self._cut_finer(progress, pairs, parts, reason)
            else:
                logger.warning("%s; training continues without it, more slowly", reason)
                self.packs = False

    def _capture_packs(self, progress: Progress) -> None:
        """Makes the engine compute packs of the capacity that is due, unless it does already."""
        if not self.packs:
            return
        capacity, engine = self._pack_capacity(progress), self.engine
        if engine.packed and engine.packed.capacity == capacity:
            return
        engine.packed = None
        with self._failing_together(is_capturing=True):
            smoothing = engine.config.optim.label_smoothing
            engine.packed = PackedStep(engine.model, capacity, smoothing, engine.precision)

    @contextmanager
    def _failing_together(self, is_capturing: bool = False) -> Iterator[None]:
        """Makes what fails in one process, within the block, fail in all."""
        failure: Exception | None = None
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                failure = _OutOfMemory(f"out of memory on {self.engine.device.type}")
            elif is_capturing:
                reason, *_ = str(error).split("\n\n")  # what follows is advice to PyTorch's authors
                reason = " ".join(reason.split())
                failure = _CompilationFailed(
                    f"torch.compile failed ({reason}): install a C compiler and Python's headers"
                    " if they are missing, or set train.compile = false"
                )
            else:
                raise
        # On CUDA this does not wait for the device: memory is allocated before kernels run.
        if any(self._processes.max(failure is not None)):
            failures = enumerate(self._processes.gather(failure))
            rank, first = next((rank, each) for rank, each in failures if each)
            where = f"process {rank}: " if self._processes.world_size > 1 else ""
            raise type(first)(f"{where}{first}")

    def _cut_finer(
        self, progress: Progress, pairs: EncodedPairs, parts: list[Indices], reason: str
    ) -> Progress:
        """Lowers the bound on micro-batches, of which these parts need too much memory."""
        if self.packs:
            limit = self._pack_capacity(progress) - 1
            limit = limit if limit >= pack_capacity(1, self._longest) else 0
        else:
            lengths = pairs.lengths
            sizes = [len(part) * int(lengths[:, part].max()) for part in parts if len(part) > 1]
            limit = 1 << (max(sizes) // 2).bit_length() - 1 if sizes else 0
        if not limit:
            raise DeviceError(f"{reason} with a single pair: {OUT_OF_MEMORY_ADVICE}")
        # A run that begins has not taken a step with other micro-batches.
        finer_step = progress.step + 1 if progress.step else 0
        progress = replace(progress, micro_batch_tokens=limit, finer_step=finer_step)
        since = f", from step {finer_step} on, which ends bit-equality" if finer_step else ""
        logger.warning(f"{reason}; now {self._describe_size(progress)}{since}")
        return progress


def most_demanding(
    steps: Sequence[Indices], lengths: Lengths, micro_batch_tokens: int, workers: int = 1
) -> list[Indices]:
    """Finds the micro-batches that need the most memory; only the likeliest steps are cut.

    Returns:
        The one with the most positions, the one with the longest side, and that of the most pairs.
    """

    def longest_side(indices: Indices) -> int:
        return int(lengths[:, indices].max())

    def size(indices: Indices) -> int:
        return padded_size(indices, lengths)

    def estimated_size(step: Indices) -> float:
        parts = math.ceil(len(step) * longest_side(step) / micro_batch_tokens)
        return size(step) / (workers * math.ceil(parts / workers))

    likely = sorted(steps, key=estimated_size)[-_TRIED_STEPS:]
    micro_batches = [
        micro_batch
        for step in (*likely, max(steps, key=longest_side), max(steps, key=len))
        for micro_batch in cut_micro_batches(step, lengths, micro_batch_tokens, workers)
    ]
    return [
        max(micro_batches, key=size),
        max(micro_batches, key=lambda indices: (longest_side(indices), size(indices))),
        max(micro_batches, key=lambda indices: (len(indices), size(indices))),
    ]
