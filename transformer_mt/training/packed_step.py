"""Gradients of packs on CUDA: one compiled function, captured as one CUDA graph.

The processor copies a pack to fixed addresses and launches the graph, whatever the model's size;
kernel by kernel it would take longer to launch a step than the GPU takes to compute it.
"""

import gc
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_mt.model.packed_attention import PackMask
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.device import DTYPES
from transformer_mt.system.private_torch import add_all_
from transformer_mt.text.packing import BLOCK, Pack
from transformer_mt.text.vocabulary import PAD_ID
from transformer_mt.training.loss import label_smoothed_loss

_WARM_UPS = 2
"""Runs before the capture: the first compiles, and libraries allocate what they keep."""


class PackedStep:
    """Computes gradients of packs of one capacity; parameters keep the same `grad` tensors.

    Args:
        model: The model, in training mode and without attention dropout.
        capacity: Tokens of a side in a pack, N.
        label_smoothing: Probability mass that the loss spreads.
        precision: `fp32`, `bf16` or `fp16`.

    Attributes:
        capacity: That of the packs.

    Raises:
        RuntimeError: If memory runs out, or compiling or capturing fails.
    """

    def __init__(
        self, model: Transformer, capacity: int, label_smoothing: float, precision: str
    ) -> None:
        self._model, self._label_smoothing, self._precision = model, label_smoothing, precision
        self._parameters, self.capacity = list(model.parameters()), capacity
        # Zeros are a valid pack, in which no token counts.
        shapes = ((3, capacity), (2, capacity), (2, capacity), (3, capacity // BLOCK, 2))
        self._inputs = [
            torch.zeros(shape, dtype=torch.int32, device=model.device) for shape in shapes
        ]
        # The model may replace its table by a longer one; the graph reads this one.
        self._encodings = model.encodings_up_to(capacity)
        self._scale = torch.ones((), device=model.device)
        self._losses = torch.zeros(2, device=model.device)
        self._graph = torch.cuda.CUDAGraph()
        self._capture()

    def add_gradients(self, pack: Pack, seed: int, scale: Tensor) -> Tensor:
        """Adds the gradient of a pack's loss, times a scale, to the gradients of the parameters.

        Args:
            pack: On the CPU; it is copied asynchronously.
            seed: Seed of the random numbers for dropout.
            scale: A scalar on the device.

        Returns:
            Sums in nats of the label-smoothed loss and the NLL, (2,), until the next call.
        """
        for fixed, tensor in zip(self._inputs, pack.tensors, strict=True):
            fixed.copy_(tensor.pin_memory(), non_blocking=True)
        self._scale.copy_(scale)
        torch.manual_seed(seed)  # a replay draws from the generator as it is then
        self._graph.replay()
        return self._losses

    def _capture(self) -> None:
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)
        torch.compiler.reset()  # a process may compile a function for only eight shapes
        # Not an attribute, which would refer to its object: memory would outlive the last use.
        compiled = torch.compile(self._sum_losses, dynamic=False, fullgraph=True)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        # One stream for both, as autograd needs. If capturing fails, only this block leaves it.
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                self._run(compiled)
            gc.collect()  # garbage with kernels or graphs, freed during a capture, would end it
            # Other threads may use the device meanwhile.
            with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                self._run(compiled)
        torch.cuda.current_stream().wait_stream(stream)

    def _run(self, compiled: Callable[..., Sequence[Tensor]]) -> None:
        """Adds the gradient of what the fixed inputs hold; this is what the graph repeats."""
        loss, nll = compiled(*self._inputs)
        gradients = torch.autograd.grad(loss * self._scale, self._parameters)
        add_all_([p.grad for p in self._parameters if p.grad is not None], list(gradients))
        self._losses.copy_(torch.stack((loss.detach(), nll)))

    def _sum_losses(
        self, ids: Tensor, positions: Tensor, segments: Tensor, key_blocks: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Sums the label-smoothed loss and the NLL over the target tokens of a `Pack`'s tensors."""
        src, tgt_in, tgt_out = ids  # (N,) each
        src_encodings, tgt_encodings = F.embedding(positions, self._encodings)  # (N, D) each
        src_segments, tgt_segments = segments  # (N,) each
        encoder_blocks, decoder_blocks, cross_blocks = key_blocks  # (Q, 2) each
        encoder_mask = PackMask(src_segments, src_segments, encoder_blocks, causal=False)
        decoder_mask = PackMask(tgt_segments, tgt_segments, decoder_blocks, causal=True)
        cross_mask = PackMask(tgt_segments, src_segments, cross_blocks, causal=False)
        model, device = self._model, ids.device.type
        with torch.autocast(device, DTYPES[self._precision], self._precision != "fp32"):
            memory = model.encode(src[None], encoder_mask, src_encodings)  # (1, N, D)
            output = model.decode(tgt_in[None], memory, cross_mask, tgt_encodings, decoder_mask)
            logits = model.logits(output)[0]  # (N, V)
        # The compiler fuses each sum into one pass over the logits, its gradient into another.
        return label_smoothed_loss(logits, tgt_out.long(), self._label_smoothing, PAD_ID)
