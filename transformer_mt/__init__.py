"""The Transformer of "Attention Is All You Need": translate with it, look inside it.

    import transformer_mt

    model = transformer_mt.load("checkpoints/wmt16-base")
    model.translate(["Ein Satz."])
    model.n_best(["Ein Satz."], n=4)
    model.score(["Ein Satz."], ["A sentence."])
    model.attention("Ein Satz.", "A sentence.")
    transformer_mt.plot_attention(model.attention("Ein Satz."))
    transformer_mt.read_metrics("checkpoints/wmt16-base")

Every mistake that a caller can correct is a `TransformerMTError`; a wrong type is a TypeError.

Importing the package is quick: torch is imported when a model is loaded. The library changes no
settings of the process (but threads started while it translates on a CPU get fewer PyTorch threads)
and prints nothing; its messages go to `logging`.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from transformer_mt.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DeviceError,
    FailedFilesError,
    ForkError,
    FullDiskError,
    Interrupted,
    LostProcessError,
    NotTextError,
    OutputError,
    TrainingError,
    TransformerMTError,
)
from transformer_mt.translation.options import Device, LoadOptions, Precision, Split
from transformer_mt.version import __version__ as __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from transformer_mt.translation.translation_model import PairAttention, TranslationModel
    from transformer_mt.translation.translator import Translation

__all__ = ["CheckpointError", "ConfigError", "DataError", "DeviceError", "FailedFilesError"]
__all__ += ["ForkError", "FullDiskError", "Interrupted", "LostProcessError", "NotTextError"]
__all__ += ["OutputError", "TrainingError", "TransformerMTError"]
__all__ += ["PairAttention", "Translation", "TranslationModel"]
__all__ += ["load", "plot_attention", "read_metrics"]


def load(
    path: str | Path,
    *others: str | Path,
    device: Device = LoadOptions.device,
    precision: Precision | None = LoadOptions.precision,
    max_length: int | None = LoadOptions.max_length,
    raw: bool = LoadOptions.raw,
    split: Split = LoadOptions.split,
) -> "TranslationModel":
    """Loads a trained model, several as an ensemble, or an exported one.

    Args:
        path: A run (its best checkpoint), a checkpoint, or what `export` wrote for CTranslate2,
            which needs no torch and has no `sample`, `attention`, `encoder_output`, `logits` and
            `model`.
        others: More runs or checkpoints with the same vocabulary; together they form an ensemble.
        device: `auto`, `cpu` or `cuda`.
        precision: `fp32`, `bf16` or `fp16`; the weights are rounded to it. None is `fp32`, and
            the only choice for an exported model, which has its own.
        max_length: Source pieces after which a line is split; None is the length of nearly all
            training lines.
        raw: Whether to use the trained weights even if the checkpoint has their moving average.
        split: Which lines are translated in parts: `auto`, those of several sentences if the
            training lines were single ones, and long lines; `long`, those longer than nearly all
            training lines; `never`, those longer than `max_length`, by default `data.max_length`.

    Returns:
        A model with the methods `translate`, `n_best`, `sample`, `score`, `attention`,
        `encoder_output` and `logits`.

    Raises:
        CheckpointError: If a checkpoint is missing or damaged, or the vocabularies differ.
        ConfigError: If an option is wrong, or does not suit an exported model.
        DeviceError: If the device is absent or does not support the precision.
    """
    from transformer_mt.translation.translation_model import build_translation_model, find_models

    chosen = {"device": (device, Device), "precision": (precision or "fp32", Precision)}
    for name, (value, choices) in {**chosen, "split": (split, Split)}.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} {value!r}: pass a str, {' or '.join(get_args(choices))}")
        if value not in get_args(choices):
            raise ConfigError(f"{name} {value}: choose {', '.join(get_args(choices))}")
    models = find_models([Path(item) for item in (path, *others)])
    return build_translation_model(models, LoadOptions(device, precision, max_length, raw, split))


def plot_attention(
    attention: "PairAttention",
    kind: Literal["cross", "encoder", "decoder"] = "cross",
    layer: int | None = None,
    heads: bool = False,
) -> "Figure":
    """Draws the attention weights of one layer; needs the extra `plots`.

    Args:
        attention: From the method `attention` of a model.
        kind: Attention of the decoder to the source, or self-attention of either.
        layer: Number of the layer, from 1; None is the last.
        heads: Whether to draw each head by itself, not their mean.

    Returns:
        A Matplotlib figure, which a notebook shows; `figure.savefig(name, bbox_inches="tight")`
        writes it.

    Raises:
        ConfigError: If there is no such layer, or Matplotlib is not installed.
    """
    from transformer_mt.system.extras import require_package

    require_package("Matplotlib", "plots", "plot_attention")
    from transformer_mt.figures.attention import attention_figure

    return attention_figure(attention, kind, layer, heads)


def read_metrics(run: str | Path) -> list[dict[str, Any]]:
    """Reads what a run has logged so far, oldest first, as for `pandas.DataFrame(records)`.

    Args:
        run: A run directory; the run may be in training.

    Returns:
        A record for each line of metrics.jsonl, with `minutes` beside `seconds`. Its `kind` is
        `train` or `valid`, and a number that was not finite is NaN.

    Raises:
        CheckpointError: If there is no such run, or its metrics are missing or damaged.
    """
    from transformer_mt.checkpoints import metrics

    return metrics.read_metrics(Path(run))


def __dir__() -> list[str]:
    """Lists the public classes, too, before they are imported, so that they can be completed."""
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # a type checker would take a misspelt name for one of these

    def __getattr__(name: str) -> Any:
        """Imports a public class when it is first used, which takes longer than the package."""
        if name in __all__:
            return getattr(import_module("transformer_mt.translation.translation_model"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
