"""The model card of exported weights: README.md with the header that the hub reads.

It reports what was measured on exactly these weights before the export. `model_card.md` is its
text, `usage_LIBRARY.md` that on how to use it.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from transformer_mt.checkpoints.checkpoint import Checkpoint
from transformer_mt.checkpoints.evaluations import EvaluationRecord, read_evaluations, record_folder
from transformer_mt.checkpoints.layout import MODEL, RUN_FILE
from transformer_mt.checkpoints.metrics import read_metrics
from transformer_mt.checkpoints.run_description import RunDescription
from transformer_mt.checkpoints.run_directory import description_if_sound
from transformer_mt.config.changes import without_folder
from transformer_mt.config.keys import Config
from transformer_mt.errors import CheckpointError
from transformer_mt.system.files import read_packaged
from transformer_mt.text.cleaning import describe_dropped
from transformer_mt.text.languages import language_code
from transformer_mt.text.splitting import LineSplitter
from transformer_mt.version import __version__

CARD = "README.md"


def model_card(
    checkpoint: Checkpoint,
    name: str,
    library: str,
    usage: Mapping[str, object],
    stored: str = "float32",
    raw: bool = False,
    license: str | None = None,
) -> str:
    """Writes the card of a model, with the scores that were measured on its weights.

    Args:
        checkpoint: The weights, with their configuration.
        name: Name of the model.
        library: The program that loads it, as the hub names it.
        usage: Values to fill in `usage_LIBRARY.md`.
        stored: Type in which the weights are stored.
        raw: Whether they are the raw weights although there is a moving average.
        license: The hub's id of the licence; None names none.
    """
    from huggingface_hub import ModelCardData

    place, data = checkpoint.path.resolve(), checkpoint.config.data
    header = ModelCardData(
        # Not as files name it: the hub refuses a card with DE or zh-Hans.
        language=[language_code(data.src_lang), language_code(data.tgt_lang)],
        license=license,
        library_name=library,
        pipeline_tag="translation",
    )
    has_own = (place / RUN_FILE).exists()  # as an average has
    description = description_if_sound(place if has_own else place.parent)
    return read_packaged(__package__, "model_card.md").format(
        header=header.to_yaml(),
        name=name,
        config=checkpoint.config,
        progress=checkpoint.progress,
        checkpoint=place.name,
        version=__version__,
        parameters=sum(tensor.numel() for tensor in checkpoint.load_tensors(MODEL).values()),
        stored=stored,
        vocab=checkpoint.vocab,
        pieces=checkpoint.vocab.describe(),
        data=_data(checkpoint.config, description),
        optimizer="Muon and Adam" if checkpoint.config.optim.muon else "Adam",
        weights=_weights(checkpoint, description, raw),
        scores=_scores(_measured(checkpoint, raw), stored),
        usage=read_packaged(__package__, f"usage_{library}.md").rstrip().format(**usage),
        splitting=LineSplitter(checkpoint.vocab.src, data, checkpoint.sources).describe(),
    )


def _measured(checkpoint: Checkpoint, raw: bool) -> list[EvaluationRecord]:
    """Reads the evaluations of exactly these weights."""
    folder = record_folder(checkpoint.path)
    return [
        record
        for record in (read_evaluations(folder.parent) if folder else [])
        if record.digest == checkpoint.digest and record.search.raw == checkpoint.is_raw(raw)
    ]


def _data(config: Config, description: RunDescription | None) -> str:
    data = config.data
    text = f"Trained on `{without_folder(data.path)}`, {data.src_lang} to {data.tgt_lang}"
    if not description:
        return f"{text}."
    corpus = description.corpus
    return (
        f"{text}: {corpus.kept:,} of {corpus.pairs:,} pairs"
        f" (dropped: {describe_dropped(corpus.dropped)}), {corpus.pieces:,} pieces per epoch.\n"
        f"The SHA-256 digest of the encoded text is `{description.corpus_digest}`."
    )


def _weights(checkpoint: Checkpoint, description: RunDescription | None, raw: bool) -> str:
    """Says what the weights began with and of what they are the mean, if that is so."""
    progress, text = checkpoint.progress, ""
    averaged = description.averaged_steps if description else []
    if names := progress.init_names:
        text = (
            f"\nTraining began with the weights of `{names['name']}` after"
            f" {progress.init_step:,} steps on `{names['text']}`.\nThe SHA-256 digest of that"
            f" checkpoint is `{progress.init_digest}`,\nthat of its encoded text"
            f" `{names['text_digest']}`."
        )
        text += "" if averaged else _forgotten(checkpoint, raw)
    if averaged:
        steps = ", ".join(map(str, averaged))
        text += f"\nThe weights are the mean of the checkpoints of steps {steps}."
    if checkpoint.is_averaged(raw):
        decay = checkpoint.config.train.ema_decay
        text += f"\nThe weights are a moving average with decay {decay:g}."
    return text


def _forgotten(checkpoint: Checkpoint, raw: bool) -> str:
    """Says how well the text of the run before is translated, if `valid.old_text` measured it."""
    key = "old_ema_bleu" if checkpoint.is_averaged(raw) else "old_bleu"
    with suppress(CheckpointError):
        metrics = read_metrics(checkpoint.path.resolve().parent)
        scores = {line["step"]: line[key] for line in metrics if key in line}
        if {0, checkpoint.step} <= scores.keys():
            before, now = scores[0], scores[checkpoint.step]
            return f"\nBLEU of its validation text was {before:.2f} then, and is {now:.2f} now."
    return ""


def _scores(records: Sequence[EvaluationRecord], stored: str) -> str:
    if not records:
        return (
            "None were measured on these weights before the export; `transformer-mt evaluate` does"
            " that."
        )
    before = "" if stored == "float32" else f", before they were rounded to {stored}"
    lines = [f"Measured by transformer-mt on these weights{before}.\n"]
    for record in records:
        lines.append(f"- {record.test_set}, {len(record.sources):,} sentences, {record.search}:")
        lines += [f"  - {s.title} {s}, `{s.signature}`" for s in record.scores]
    return "\n".join(lines)
