"""torch.compile for training: one graph for the layers of a kind, for batches of every shape.

On CUDA, PyTorch compiles a few more, for instance for target lengths that are a multiple of 8 and
for activations of fewer than 5,242,880 elements; each takes some seconds, once.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_mt.model.transformer import Transformer
from transformer_mt.system.private_torch import mark_dynamic
from transformer_mt.text.batching import Batch
from transformer_mt.text.vocabulary import PAD_ID


def compile_layers(model: Transformer, backend: str | Callable[..., object]) -> None:
    """Compiles the encoder layer and the decoder layer, which all layers of their kind share.

    In evaluation layers stay as they are, so that validation computes what `evaluate` does.
    """
    for layers in (model.encoder, model.decoder):
        eager = type(layers[0]).forward
        compiled = torch.compile(eager, backend=backend)
        for layer in layers:
            layer.forward = partial(_forward, compiled, eager, layer)


def restore_layers(model: Transformer) -> None:
    """Undoes `compile_layers`."""
    for layer in (*model.encoder, *model.decoder):
        del layer.forward


def _forward(
    compiled: Callable[..., Tensor],
    eager: Callable[..., Tensor],
    layer: nn.Module,
    *inputs: Tensor,
) -> Tensor:
    """Computes a layer of vectors, (B, L, D), and masks, (B, 1, 1, L)."""
    if not layer.training:
        return eager(layer, *inputs)
    for tensor in inputs:
        mark_dynamic(tensor, 0)
        mark_dynamic(tensor, 1 if tensor.dim() == 3 else 3)
    return compiled(layer, *inputs)


def pad_single_sizes(batch: Batch) -> Batch:
    """Pads a batch to two sentences and two positions: a size of 1 would need its own graph.

    The second sentence is a copy of the first without target tokens, so the loss is the same.
    """
    is_single = len(batch.src) == 1
    src, tgt_in, tgt_out = (
        F.pad(ids.repeat(1 + is_single, 1), (0, max(0, 2 - ids.size(1))), value=PAD_ID)
        for ids in (batch.src, batch.tgt_in, batch.tgt_out)
    )
    if is_single:
        tgt_out[1] = PAD_ID
    return replace(batch, src=src, tgt_in=tgt_in, tgt_out=tgt_out)
