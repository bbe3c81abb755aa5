"""The charts of training curves; without Matplotlib, since the command line names them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Panel:
    """One chart of training curves.

    A curve has the kind and the name of its metric in metrics.jsonl, and a label if there are two;
    the second is dashed.
    """

    title: str
    unit: str
    curves: tuple[tuple[str, str, str], ...]


LOSS_UNIT = "nats per target token"
PANELS: dict[str, Panel] = {
    "loss": Panel("Training loss, label-smoothed", LOSS_UNIT, (("train", "loss", ""),)),
    "nll": Panel(
        "Loss without label smoothing (NLL)",
        LOSS_UNIT,
        (("train", "nll", "training"), ("valid", "nll", "validation")),
    ),
    "bleu": Panel(
        "Validation BLEU",
        "BLEU",
        (("valid", "bleu", "weights"), ("valid", "ema_bleu", "moving average")),
    ),
    "lr": Panel("Learning rate", "rate", (("train", "lr", ""),)),
    "grad_norm": Panel("Gradient norm before clipping", "norm", (("train", "grad_norm", ""),)),
    "speed": Panel("Speed", "target tokens per second", (("train", "tokens_per_second", ""),)),
}
