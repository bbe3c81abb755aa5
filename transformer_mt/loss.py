"""The training loss and the unsmoothed one that perplexity is made of."""

import torch
import torch.nn.functional as F


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
