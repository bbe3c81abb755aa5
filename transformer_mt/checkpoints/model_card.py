"""The model card of averaged or exported weights: README.md with the header that the hub reads.

It reports only what was measured on exactly these weights. In an averaged directory the manifest
does not list it, so that `evaluate` can add scores. `model_card.md` is its text.
"""

import logging
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from transformer_mt.checkpoints.checkpoint import Checkpoint
from transformer_mt.checkpoints.evaluations import EvaluationRecord, read_evaluations, record_folder
from transformer_mt.checkpoints.layout import MODEL
from transformer_mt.checkpoints.run_directory import read_description
from transformer_mt.config.changes import without_folder
from transformer_mt.config.keys import Config
from transformer_mt.errors import CheckpointError
from transformer_mt.system.files import atomic_file
from transformer_mt.text.splitting import LineSplitter
from transformer_mt.version import __version__

logger = logging.getLogger(__name__)

CARD = "README.md"
_MARK = "<!-- `evaluate` writes this file anew; delete this line to keep your own changes. -->"


def model_card(
    checkpoint: Checkpoint,
    name: str,
    made_by: str,
    library: str,
    usage: str,
    stored: str = "float32",
    raw: bool = False,
    license: str | None = None,
) -> str:
    """Writes the card of a model, with the scores that were measured on its weights.

    Args:
        checkpoint: The weights, with their configuration.
        name: Name of the model.
        made_by: Completes the sentence "A Transformer ..., `made_by` by transformer-mt".
        library: The program that loads it, as the hub names it.
        usage: How to use it, in Markdown.
        stored: Type in which the weights are stored.
        raw: Whether they are the raw weights although there is a moving average.
        license: The hub's id of the licence; None names none.
    """
    description, records = describe_run(checkpoint.path), _measured(checkpoint, raw)
    template = resources.files(__package__).joinpath("model_card.md").read_text(encoding="utf-8")
    # Scores measured before the weights were rounded do not belong in the header for the hub.
    claims = records if stored == "float32" else []
    return template.format(
        header=_header(checkpoint.config, name, library, license, claims),
        name=name,
        config=checkpoint.config,
        progress=checkpoint.progress,
        made_by=made_by,
        version=__version__,
        parameters=sum(tensor.numel() for tensor in checkpoint.load_tensors(MODEL).values()),
        stored=stored,
        vocab=checkpoint.vocab,
        pieces=checkpoint.vocab.describe(),
        data=_data(checkpoint.config, description),
        optimizer="Muon and Adam" if checkpoint.config.optim.muon else "Adam",
        weights=_weights(checkpoint, description, raw),
        scores=_scores(records, stored),
        usage=usage,
        limits=_limits(checkpoint),
    )


def describe_run(checkpoint: Path) -> dict[str, Any]:
    """Reads run.json in an average, or above a training checkpoint; warns if it is damaged."""
    path = checkpoint.resolve()
    try:
        return read_description(path) or read_description(path.parent)
    except CheckpointError as error:
        logger.warning("%s; the model card does not describe the training text", error)
        return {}


def write_average_card(checkpoint: Checkpoint, name: str) -> None:
    """Writes the card of averaged weights of this name; logs a warning if that fails."""
    path = checkpoint.path / CARD
    usage = f"    transformer-mt translate {name} --beam-size 4 < in > out"
    card = model_card(checkpoint, name, "averaged", "transformer-mt", usage)
    try:
        with atomic_file(path) as file:
            file.write(f"{card}\n{_MARK}\n".encode())
    except OSError as error:
        logger.warning("%s: cannot be written: %s", path, error.strerror)


def refresh_average_card(checkpoint: Checkpoint) -> None:
    """Writes the card of averaged weights anew, unless it was edited or there is none."""
    try:
        is_ours = _MARK in (checkpoint.path / CARD).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return
    if is_ours:
        write_average_card(checkpoint, checkpoint.path.resolve().name)


def _measured(checkpoint: Checkpoint, raw: bool) -> list[EvaluationRecord]:
    """Reads the evaluations of exactly these weights."""
    folder = record_folder(checkpoint.path)
    return [
        record
        for record in (read_evaluations(folder.parent) if folder else [])
        if record.digest == checkpoint.digest and record.search.raw == checkpoint.is_raw(raw)
    ]


def _data(config: Config, description: dict[str, Any]) -> str:
    data = config.data
    text = f"Trained on `{without_folder(data.path)}`, {data.src_lang} to {data.tgt_lang}"
    if not description:
        return f"{text}."
    report = description["corpus"]
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in report["dropped"].items())
    return (
        f"{text}: {report['kept']:,} of {report['pairs']:,} pairs"
        f" (dropped: {dropped or 'none'}), {report['pieces']:,} pieces per epoch.\nThe SHA-256"
        f" digest of the encoded text is `{report['digest']}`."
    )


def _weights(checkpoint: Checkpoint, description: dict[str, Any], raw: bool) -> str:
    """Says what the weights began with and of what they are the mean, if that is so."""
    progress, text = checkpoint.progress, ""
    if names := progress.init_names:
        name, data, digest = (names.get(key, "unknown") for key in ("name", "text", "text_digest"))
        text = (
            f"\nTraining began with the weights of `{name}` after {progress.init_step:,} steps on"
            f" `{data}`.\nThe SHA-256 digest of that checkpoint is `{progress.init_digest}`,\n"
            f"that of its encoded text `{digest}`."
        )
    if steps := ", ".join(map(str, description.get("averaged_steps", []))):
        text += f"\nThe weights are the mean of the checkpoints of steps {steps}."
    if checkpoint.is_averaged(raw):
        decay = checkpoint.config.train.ema_decay
        text += f"\nThe weights are a moving average with decay {decay:g}."
    return text


def _limits(checkpoint: Checkpoint) -> str:
    data, sources = checkpoint.config.data, checkpoint.state.sources
    splitter = LineSplitter(checkpoint.vocab.src, data, sources)
    seen = f"None of the sources that it was trained on has more than {data.max_length} pieces."
    if sources:
        seen = (
            f"The sources that it was trained on have at\nmost {sources.longest} pieces, 99.9% of"
            f" them at most {sources.percentile}, and {sources.several_sentences:.1%} have several"
            " sentences."
        )
    return (
        f"It translates each line independently of the others. {seen}\ntransformer-mt splits lines"
        f" {splitter.describe()}.\nIts quality on other text was not measured."
    )


def _scores(records: Sequence[EvaluationRecord], stored: str) -> str:
    if not records:
        return "None were measured on these weights."
    before = "" if stored == "float32" else f", before they were rounded to {stored}"
    lines = [f"Measured by transformer-mt on these weights{before}.\n"]
    for record in records:
        lines.append(f"- {record.test_set}, {len(record.sources):,} sentences, {record.search}:")
        lines += [f"  - {s.title} {s.value:.2f}, `{s.signature}`" for s in record.scores]
    return "\n".join(lines)


def _header(
    config: Config,
    name: str,
    library: str,
    license: str | None,
    records: Sequence[EvaluationRecord],
) -> str:
    """Writes what the hub reads, in YAML."""
    from huggingface_hub import EvalResult, ModelCardData

    languages = [config.data.src_lang, config.data.tgt_lang]
    results = [
        EvalResult(
            task_type="translation",
            task_name="-".join(languages),
            dataset_type=dataset_type,
            dataset_name=dataset_name,
            metric_type=score.name,
            metric_value=round(score.value, 2),
            metric_name=f"{score.title} ({record.search}; {score.signature})",
        )
        for record in records
        for dataset_type, dataset_name in [_hub_dataset(record.test_set)]
        for score in record.scores
    ]
    return ModelCardData(
        language=languages,
        license=license,
        library_name=library,
        pipeline_tag="translation",
        model_name=name if results else None,
        eval_results=results or None,
    ).to_yaml()


def _hub_dataset(test_set: str) -> tuple[str, str]:
    """Gives the type and the name that cards on the hub have for a news test of WMT.

    Other test sets keep their name.
    """
    news = re.fullmatch(r"wmt(0[89]|1\d|2[01])|wmt/wmt(1[4-8]), split test", test_set)
    if not news:
        return test_set, test_set
    year = f"20{news[1] or news[2]}"
    return f"wmt-{year}-news", f"newstest{year}"
