"""The training loss and the unsmoothed one that perplexity is made of."""

from typing import Any

import torch
import torch.nn.functional as F

from transformer_mt.linear import product

CHUNK_LOGITS = {"cpu": 2**22, "cuda": 2**26}
"""Logits that exist at once, by device."""


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

    Returns:
        The sum in nats, a float32 scalar that can be differentiated once.
    """
    loss: torch.Tensor = _ProjectedLoss.apply(  # type: ignore[no-untyped-call]
        hidden, matrix, targets, label_smoothing, pad_id
    )
    return loss


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
    ) -> torch.Tensor:
        device = hidden.device.type
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else hidden.dtype
        with torch.autocast(device, enabled=False):
            rows, weights = hidden.flatten(0, 1).to(dtype), matrix.to(dtype)
            ids, real = targets.flatten(), (targets.flatten() != pad_id)[:, None]
            loss = torch.zeros((), device=hidden.device)
            grad_rows = torch.empty_like(rows, dtype=torch.float32)
            grad_matrix = torch.zeros_like(matrix)
            # Before the loss scale acts: a probability of 1 / V would be lost in fp16.
            boost = 16.0 if dtype == torch.float16 else 1.0
            size, vocab = max(1, CHUNK_LOGITS[device] // len(matrix)), len(matrix)
            for start in range(0, len(rows), size):
                some = slice(start, start + size)
                logs = F.log_softmax(product(rows[some], weights).float(), -1)  # (C, V)
                right = ids[some, None]
                nats = (1 - smoothing) * logs.gather(1, right) + smoothing * logs.mean(-1, True)
                loss -= (nats * real[some]).sum()
                # Softmax less the smoothed target.
                grads = logs.exp_().sub_(smoothing / vocab)
                grads.scatter_add_(1, right, grads.new_full(right.shape, smoothing - 1))
                narrow = (grads * boost).to(dtype) if boost > 1 else grads.to(dtype)
                grad_rows[some] = product(narrow, weights.t()) * real[some]
                grad_matrix += product(narrow.t(), (rows[some] * real[some]).t())
        ctx.save_for_backward(grad_rows.div_(boost).view(hidden.shape), grad_matrix.div_(boost))
        return loss

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad_hidden, grad_matrix = ctx.saved_tensors
        return grad_hidden * grad, grad_matrix * grad, None, None, None


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
