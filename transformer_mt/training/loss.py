"""The label-smoothed training loss: as a formula, and without all logits in memory.

Shapes: B batch, T target length, D model width, V target vocabulary, N = B * T target positions,
padded as in `pad_rows`, C positions of one chunk.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_mt.model.kernels import linear, pad_rows, weight_gradient

CHUNK_ROWS = {"cpu": 384, "cuda": 8192}
"""Target positions whose logits exist at once: few enough for a CPU's cache; on CUDA enough that
launching a chunk takes less time than computing it."""


def label_smoothed_loss(
    logits: Tensor, targets: Tensor, label_smoothing: float, pad_id: int
) -> tuple[Tensor, Tensor]:
    """Sums the label-smoothed cross-entropy over the target tokens, and the unsmoothed one.

    Smoothing takes its probability mass from the true token and spreads it evenly over the whole
    vocabulary, that token included (some implementations exclude it or the padding).

    Args:
        logits: Logits, (..., V).
        targets: Token ids, (...); positions holding `pad_id` do not count.
        label_smoothing: Probability mass that is spread.
        pad_id: Id of padding.

    Returns:
        Two sums in nats: the label-smoothed loss, and the negative log-likelihood (NLL), which
        cannot be differentiated.

    Reference:
        Attention Is All You Need, section 5.4; Szegedy et al. 2016, Rethinking the Inception
        Architecture for Computer Vision, section 7.
    """
    rows, ids = logits.flatten(0, -2).float(), targets.flatten()  # (N, V), (N,)
    loss = F.cross_entropy(
        rows, ids, ignore_index=pad_id, reduction="sum", label_smoothing=label_smoothing
    )
    nll = F.cross_entropy(rows.detach(), ids, ignore_index=pad_id, reduction="sum")
    return loss, nll


def projected_loss(
    decoder_output: Tensor,
    output_weight: Tensor,
    targets: Tensor,
    label_smoothing: float,
    pad_id: int,
) -> tuple[Tensor, Tensor]:
    """Computes `label_smoothed_loss` of a decoder's output, in the precision of autocast.

    Logits are computed and turned into gradients in chunks of `CHUNK_ROWS` positions, so that they
    never exist all at once; sums are float32.

    Args:
        decoder_output: The decoder's output, (B, T, D).
        output_weight: Weight of the projection to logits, (V, D).
        targets: Token ids, (B, T); positions holding `pad_id` do not count.
        label_smoothing: Probability mass that is spread.
        pad_id: Id of padding.

    Returns:
        Two sums in nats, float32 scalars: the label-smoothed loss, which can be differentiated
        once, and the negative log-likelihood (NLL), which cannot. Divide them by the tokens of the
        whole step. A token's NLL counts as at most 87 nats, the limit of float32, and its loss is
        too low then.
    """
    sums: tuple[Tensor, Tensor] = _ProjectedLoss.apply(  # type: ignore[no-untyped-call]
        decoder_output, output_weight, targets, label_smoothing, pad_id
    )
    return sums


def _losses_and_gradients(
    logits: Tensor, target_ids: Tensor, mean_logits: Tensor, smoothing: float, grad_scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes losses and their gradient with respect to the logits, times `grad_scale`.

    Logits are (C, V), target ids and the mean logit of each position (C, 1). Returns label-smoothed
    losses and NLLs in nats, each (C, 1), and the gradient, softmax - smoothing / V, at the target
    also - (1 - smoothing), (C, V), in the type of the logits.
    """
    # float16 would round smoothing / V to 0; bfloat16 has the range of float32 in half the memory.
    softmax_dtype = logits.dtype if logits.dtype == torch.bfloat16 else torch.float32
    probabilities = F.softmax(logits, -1, dtype=softmax_dtype)  # (C, V)
    target_probabilities = probabilities.gather(1, target_ids).float()  # (C, 1)
    nlls = -target_probabilities.clamp_min(torch.finfo(torch.float32).tiny).log()
    # (1 - smoothing) * NLL + smoothing * (log Z - mean logit), where log Z = NLL + target's logit.
    losses = nlls + smoothing * (logits.gather(1, target_ids).float() - mean_logits)
    # Where an NLL is cut to its limit, the sum is too low, and may be negative.
    losses = losses.maximum((1 - smoothing) * nlls)
    grads = probabilities.sub_(smoothing / logits.size(1))
    grads = (grads.mul_(grad_scale) if grad_scale > 1 else grads).to(logits.dtype)
    # At the target in float32, since a CPU would first round the number to bf16; `scatter_add_`
    # would copy the whole matrix in bf16 on a CPU.
    targets = torch.arange(len(logits), device=logits.device), target_ids[:, 0]
    grads[targets] = (grads[targets].float() + grad_scale * (smoothing - 1)).to(logits.dtype)
    return losses, nlls, grads


def _scales(rows: Tensor) -> tuple[float, Tensor]:
    """Chooses scales of the logits' gradients and of rows, (N, D); both are 1 but in float16.

    Gradients near 1 / V would lose precision in float16, so they are multiplied by the first scale.
    Rows are divided by the second, a float32 scalar of at least 1, so that their products with
    these gradients, sums over the positions of a chunk, stay finite. The loss scaler cannot help,
    since it is applied later.
    """
    if rows.dtype != torch.float16:
        return 1.0, torch.ones((), device=rows.device)
    grad_scale = 16.0
    largest_sum = CHUNK_ROWS[rows.device.type] * grad_scale * rows.abs().amax().float()
    return grad_scale, (largest_sum / torch.finfo(torch.float16).max).clamp(min=1.0)


class _ProjectedLoss(torch.autograd.Function):
    """Computes the gradient along with the loss, since both need the softmax."""

    @staticmethod
    def forward(
        ctx: Any,
        decoder_output: Tensor,
        output_weight: Tensor,
        targets: Tensor,
        smoothing: float,
        pad_id: int,
    ) -> tuple[Tensor, Tensor]:
        device = decoder_output.device.type
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else decoder_output.dtype
        with torch.autocast(device, enabled=False):
            rows = pad_rows(decoder_output.flatten(0, 1), dtype)  # (N, D)
            weight = output_weight.to(dtype)  # (V, D)
            # The mean over the vocabulary, without reading all logits again.
            mean_logits = (rows.float() @ output_weight.float().mean(0))[:, None]  # (N, 1)
            n_padding = len(rows) - targets.numel()
            ids = F.pad(targets.flatten(), (0, n_padding), value=pad_id)  # (N,)
            not_padding = (ids != pad_id)[:, None]  # (N, 1)
            loss, nll = (decoder_output.new_zeros((), dtype=torch.float32) for _ in range(2))
            grad_rows = torch.empty_like(rows, dtype=torch.float32)  # (N, D)
            grad_weight = torch.zeros_like(output_weight)  # (V, D)
            grad_scale, row_scale = _scales(rows)
            scaled_rows = rows / row_scale  # (N, D)
            for start in range(0, len(rows), CHUNK_ROWS[device]):
                chunk = slice(start, start + CHUNK_ROWS[device])
                logits = linear(rows[chunk], weight)  # (C, V)
                losses, nlls, grads = _losses_and_gradients(
                    logits, ids[chunk, None], mean_logits[chunk], smoothing, grad_scale
                )
                loss += (losses * not_padding[chunk]).sum()
                nll += (nlls * not_padding[chunk]).sum()
                grad_rows[chunk] = linear(grads, weight.t()) * not_padding[chunk]
                grad_weight += weight_gradient(grads, scaled_rows[chunk] * not_padding[chunk])
        grad_output = grad_rows[: targets.numel()].div_(grad_scale).view_as(decoder_output)
        grad_weight.mul_(row_scale / grad_scale)
        ctx.save_for_backward(grad_output, grad_weight)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grad_output, grad_weight = ctx.saved_tensors
        return grad_output * grad, grad_weight * grad, None, None, None
