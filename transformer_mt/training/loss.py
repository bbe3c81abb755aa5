"""The training loss and the unsmoothed one that perplexity is made of."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from transformer_mt.model.cpu_kernels import product

CHUNK_ROWS = {"cpu": 384, "cuda": 2048}
"""Rows of logits that exist at once: few enough for a CPU's cache, enough for fast products."""


def smoothed_loss(
    logits: torch.Tensor, targets: torch.Tensor, label_smoothing: float, pad_id: int
) -> torch.Tensor:
    """Sums the label-smoothed cross-entropy over the target tokens.

    The smoothing mass is spread evenly over the whole vocabulary, the true token included
    (some implementations leave that token or the padding out).

    Args:
        logits: Unnormalised scores, (B, T, V).
        targets: Token ids, (B, T); positions holding `pad_id` do not count.
        label_smoothing: Share of the mass that is spread.
        pad_id: Id of padding.

    Returns:
        The sum in nats, a float32 scalar. Divide it by the tokens of the whole step.

    Reference:
        Attention Is All You Need, section 5.4.
    """
    return F.cross_entropy(
        logits.float().flatten(0, 1),
        targets.flatten(),
        ignore_index=pad_id,
        reduction="sum",
        label_smoothing=label_smoothing,
    )


def projected_loss(
    hidden: torch.Tensor,
    matrix: torch.Tensor,
    targets: torch.Tensor,
    label_smoothing: float,
    pad_id: int,
    fused: bool = False,
) -> torch.Tensor:
    """Computes `smoothed_loss` of hidden @ matrix^T without holding all the logits.

    They are made, and turned into gradients, some rows at a time; in the precision of autocast,
    the sums in float32.

    Args:
        hidden: The decoder's output, (B, T, D).
        matrix: What makes logits of it, (V, D).
        targets: Token ids, (B, T); positions holding `pad_id` do not count.
        label_smoothing: Share of the mass that is spread.
        pad_id: Id of padding.
        fused: Whether torch.compile makes the softmax and its gradient in one pass or two.

    Returns:
        The sum in nats, a float32 scalar that can be differentiated once.
    """
    loss: torch.Tensor = _ProjectedLoss.apply(  # type: ignore[no-untyped-call]
        hidden, matrix, targets, label_smoothing, pad_id, fused
    )
    return loss


def _gradients(
    logits: torch.Tensor, right: torch.Tensor, smoothing: float, boost: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gives the nats of some rows, (C, 1), and boosted softmax less smoothing, (C, V)."""
    # float16 would lose a share of 1 / V; bfloat16 has float32's range, and half its memory.
    wide = logits.dtype if logits.dtype == torch.bfloat16 else torch.float32
    shares = F.softmax(logits, -1, dtype=wide)
    norm = logits.amax(-1, True).float() - shares.amax(-1, True).float().log()  # log-sum-exp
    mean = logits.mean(-1, True, dtype=torch.float32)
    nats = norm - (1 - smoothing) * logits.gather(1, right).float() - smoothing * mean
    shares = shares.sub_(smoothing / logits.size(1))
    shares = shares.mul_(boost) if boost > 1 else shares
    return nats, shares.to(logits.dtype)


def _fused_gradients(
    logits: torch.Tensor, right: torch.Tensor, smoothing: float, boost: float
) -> tuple[torch.Tensor, torch.Tensor]:
    for tensor in (logits, right):  # one kernel for any number of rows
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
    return _compiled_gradients()(logits, right, smoothing, boost)


@functools.cache
def _compiled_gradients() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    return torch.compile(_gradients)


class _ProjectedLoss(torch.autograd.Function):
    """The gradient of a softmax is known with the softmax, so one pass makes both."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        matrix: torch.Tensor,
        targets: torch.Tensor,
        smoothing: float,
        pad_id: int,
        fused: bool,
    ) -> torch.Tensor:
        gradients = _fused_gradients if fused else _gradients
        device = hidden.device.type
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else hidden.dtype
        with torch.autocast(device, enabled=False):
            rows, weights = hidden.flatten(0, 1).to(dtype), matrix.to(dtype)
            ids, real = targets.flatten(), (targets.flatten() != pad_id)[:, None]
            loss = torch.zeros((), device=hidden.device)
            grad_rows = torch.empty_like(rows, dtype=torch.float32)
            grad_matrix = torch.zeros_like(matrix)
            boost = 16.0 if dtype == torch.float16 else 1.0
            for start in range(0, len(rows), CHUNK_ROWS[device]):
                some = slice(start, start + CHUNK_ROWS[device])
                logits, right = product(rows[some], weights), ids[some, None]
                nats, grads = gradients(logits, right, smoothing, boost)
                loss += (nats * real[some]).sum()
                grads.scatter_add_(1, right, grads.new_full(right.shape, boost * (smoothing - 1)))
                grad_rows[some] = product(grads, weights.t()) * real[some]
                grad_matrix += product(grads.t(), (rows[some] * real[some]).t())
        ctx.save_for_backward(grad_rows.div_(boost).view(hidden.shape), grad_matrix.div_(boost))
        return loss

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad_hidden, grad_matrix = ctx.saved_tensors
        return grad_hidden * grad, grad_matrix * grad, None, None, None, None


def nll(logits: torch.Tensor, targets: torch.Tensor, pad_id: int) -> torch.Tensor:
    """Sums the negative log-likelihood of the target tokens, in nats, without smoothing.

    Args:
        logits: Unnormalised scores, (B, T, V).
        targets: Token ids, (B, T); positions holding `pad_id` do not count.
        pad_id: Id of padding.

    Returns:
        A float32 scalar.
    """
    return smoothed_loss(logits, targets, 0.0, pad_id)
