"""Export of a checkpoint to a directory that another library loads, with a model card."""

from pathlib import Path

import torch

from transformer_mt.checkpoints.checkpoint import Checkpoint, warn_of_changed_model
from transformer_mt.errors import ConfigError
from transformer_mt.model.transformer import sinusoid
from transformer_mt.system.files import new_directory, require_new_directory
from transformer_mt.text.splitting import LineSplitter
from transformer_mt.translation.export_ctranslate2 import write_ctranslate2
from transformer_mt.translation.export_transformers import write_transformers
from transformer_mt.translation.model_card import CARD, model_card
from transformer_mt.translation.options import DEFAULT_EXPORT_FORMAT, ExportFormat, Quantization


def export(
    checkpoint: Checkpoint,
    output: Path,
    quantization: Quantization | None = None,
    raw: bool = False,
    format: ExportFormat = DEFAULT_EXPORT_FORMAT,
    license: str | None = None,
) -> Path:
    """Writes a model with its vocabulary and a model card to a new directory.

    Args:
        checkpoint: The checkpoint to export.
        output: The directory to create; also returned.
        quantization: Type in which CTranslate2 stores the weights; None is float32.
        raw: Whether to use the trained weights even if the checkpoint has their moving average.
        format: The library that is to load it.
        license: The hub's id of the licence that the card names; None names none.

    Raises:
        CheckpointError: If the directory exists or cannot be made.
        ConfigError: If the format does not support the model or the quantization, CTranslate2 is
            needed and not installed, or the exported model has other scores.
    """
    if quantization and format != "ctranslate2":
        raise ConfigError(f"--quantization is for CTranslate2: leave it out with --format {format}")
    require_new_directory(output)
    warn_of_changed_model([checkpoint])
    model, stored = checkpoint.build_model(raw), quantization or "float32"
    splitter = LineSplitter(checkpoint.vocab.src, checkpoint.config.data, checkpoint.sources)
    # Longer sequences are refused; the model was not trained on any as long as this.
    positions = sinusoid(torch.arange(2 * splitter.max_length + 1024), model.d_model)
    with new_directory(output) as folder:
        if format == "ctranslate2":
            usage = write_ctranslate2(folder, checkpoint, model, positions, stored, raw)
        else:
            usage = write_transformers(folder, checkpoint, model, positions)
        card = model_card(
            checkpoint,
            name=output.resolve().name,
            library=format,
            usage=usage,
            stored=stored,
            raw=raw,
            license=license,
        )
        (folder / CARD).write_text(card, encoding="utf-8")
    return output
