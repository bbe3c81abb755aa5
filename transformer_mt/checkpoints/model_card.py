"""The model card of averaged or exported weights: README.md with the header that the hub reads.

It reports only what was measured on exactly these weights. In an averaged directory the manifest
does not list it, so that `evaluate` can add scores.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_mt.checkpoints.checkpoint import EMA, MODEL, Checkpoint
from transformer_mt.checkpoints.evaluations import (
    EvaluationRecord,
    read_evaluations,
    record_folder,
)
from transformer_mt.checkpoints.run_directory import RUN_FILE, is_step_name, read_description
from transformer_mt.config.loading import without_folder
from transformer_mt.errors import CheckpointError
from transformer_mt.system.files import atomic_file
from transformer_mt.version import __version__

logger = logging.getLogger(__name__)

CARD = "README.md"
_MARK = "<!-- `evaluate` writes this file anew; delete this line to keep your own changes. -->"

_USAGE = """\
    transformer-mt translate {name} --beam-size 4 < in > out"""
_BODY = """\
# {name}

A Transformer that translates from {src} to {tgt}, {made_by} by transformer-mt {version}. It has
{model.encoder_layers} encoder layers and {model.decoder_layers} decoder layers of width
{model.d_model}, and {parameters:,} parameters{stored}.

## Data

{data}

## Recipe

{steps:,} steps of about {train.batch_tokens:,} tokens, Adam with a warm-up of
{optim.warmup_steps:,} steps, label smoothing {optim.label_smoothing:g}, dropout {model.dropout:g},
{model.norm}-norm, {precision}.{weights}

## Scores

{scores}

## How to use it

{usage}

## Limits

It translates each line independently of the others. Lines of more than {max_length} pieces are
longer than any that it was trained on. {unmeasured}
"""


@dataclass(frozen=True)
class CardSubject:
    """The model that a card describes.

    Attributes:
        name: Its name.
        checkpoint: The weights, with their configuration.
        parameters: Number of parameters.
        made_by: How they were made, such as `averaged` or `exported`.
        library: The program that loads them, as the hub names it.
        usage: How to use them, in Markdown.
        weights: A sentence that describes the weights; may be empty.
        stored: Type in which they are stored, if it is not float32; else empty.
        raw: Whether the raw weights are used although there is a moving average.
    """

    name: str
    checkpoint: Checkpoint
    parameters: int
    made_by: str
    library: str
    usage: str
    weights: str = ""
    stored: str = ""
    raw: bool = False


def model_card(subject: CardSubject) -> str:
    """Writes the card of a model, with the scores that were measured on its weights.

    Args:
        subject: The model.
    """
    checkpoint = subject.checkpoint
    config, description = checkpoint.config, _description(checkpoint.path)
    records = _measured(checkpoint, subject.raw)
    sets = list(dict.fromkeys(record.test_set for record in records))
    body = _BODY.format(
        name=subject.name,
        src=config.data.src_lang,
        tgt=config.data.tgt_lang,
        made_by=subject.made_by,
        version=__version__,
        parameters=subject.parameters,
        model=config.model,
        train=config.train,
        optim=config.optim,
        stored=f"; its weights are stored in {subject.stored}" if subject.stored else "",
        data=_data(checkpoint, description),
        steps=checkpoint.progress.step,
        precision=checkpoint.progress.precision,
        weights=f" {subject.weights}" if subject.weights else "",
        scores=_scores(records, subject.stored),
        usage=subject.usage,
        max_length=config.data.max_length,
        unmeasured=f"Nothing was measured on text other than {', '.join(sets)}."
        if sets
        else "Its quality was not measured.",
    )
    # Scores measured before the weights were rounded do not belong in the header for the hub.
    return _header(subject, [] if subject.stored else records) + "\n" + body


def write_average_card(checkpoint: Checkpoint) -> None:
    """Writes the card of averaged weights; logs a warning if that fails.

    Args:
        checkpoint: The weights.
    """
    directory = checkpoint.path
    steps = _description(directory).get("averaged_steps")
    count = f"{len(steps)} checkpoints, of steps {', '.join(map(str, steps))}" if steps else ""
    tensors = checkpoint.load_tensors(MODEL).values()
    subject = CardSubject(
        name=directory.resolve().name,
        checkpoint=checkpoint,
        parameters=sum(tensor.numel() for tensor in tensors),
        made_by="averaged",
        library="transformer-mt",
        usage=_USAGE.format(name=directory.resolve().name),
        weights=f"The weights are the mean of {count or 'several checkpoints of one run'}.",
    )
    try:
        with atomic_file(directory / CARD) as file:
            file.write(f"{model_card(subject)}\n{_MARK}\n".encode())
    except OSError as error:
        logger.warning("%s: cannot be written: %s", directory / CARD, error.strerror or error)


def refresh_average_card(checkpoint: Checkpoint) -> None:
    """Rewrites the card of averaged weights after an evaluation of them.

    Args:
        checkpoint: The weights; nothing is written unless their card still contains `_MARK`.
    """
    try:
        is_ours = _MARK in (checkpoint.path / CARD).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return
    if is_ours and not is_step_name(checkpoint.path.resolve().name):
        write_average_card(checkpoint)


def _description(checkpoint: Path) -> dict[str, Any]:
    """Reads the description of the run: beside an average, or above a training checkpoint."""
    path = checkpoint.resolve()
    for folder in (path, path.parent):
        try:
            if (folder / RUN_FILE).exists():
                return read_description(folder)
        except CheckpointError as error:
            logger.warning("%s; the model card says nothing of the text", error)
    return {}


def _measured(checkpoint: Checkpoint, raw: bool) -> list[EvaluationRecord]:
    """Reads the evaluations of exactly these weights."""
    folder, is_raw = record_folder(checkpoint.path), raw and EMA in checkpoint.files
    digest = checkpoint.digest
    return [
        record
        for record in read_evaluations([folder] if folder else [])
        if record.digest == digest and record.search.raw == is_raw
    ]


def _data(checkpoint: Checkpoint, description: dict[str, Any]) -> str:
    data = checkpoint.config.data
    text = f"Trained on `{without_folder(data.path)}`, {data.src_lang} to {data.tgt_lang}"
    if not description:
        return f"{text}."
    report = description["corpus"]
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in report["dropped"].items())
    return (
        f"{text}: {report['kept']:,} of {report['pairs']:,} pairs"
        f" (dropped: {dropped or 'none'}), {report['pieces']:,} pieces.\nThe SHA-256 digest of the"
        f" encoded text is `{report['digest']}`."
    )


def _scores(records: Sequence[EvaluationRecord], stored: str) -> str:
    if not records:
        return "None were measured on these weights."
    rows = [
        f"| {_escape(record.test_set)} | {len(record.sources):,} | {record.search} |"
        f" {score.title} | {score.value:.2f} |"
        f" `{score.signature.replace('|', ' ')}` |"
        for record in records
        for score in record.scores
    ]
    before = f", before they were rounded to {stored}" if stored else ""
    head = "| text | sentences | search | metric | value | signature |\n|---|---|---|---|---|---|"
    return f"Measured by transformer-mt on these weights{before}.\n\n" + "\n".join([head, *rows])


def _escape(text: str) -> str:
    """Writes text for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", r"\|")


def _header(subject: CardSubject, records: Sequence[EvaluationRecord]) -> str:
    """Writes the YAML header, with values in JSON, which is valid YAML."""
    data = subject.checkpoint.config.data
    languages = [data.src_lang, data.tgt_lang]
    lines = [
        "---",
        f"language: {json.dumps(languages)}",
        f"library_name: {json.dumps(subject.library)}",
        "pipeline_tag: translation",
    ]
    results = [
        {
            "task": {"type": "translation", "name": "-".join(languages)},
            "dataset": {"type": record.test_set, "name": record.test_set},
            "metrics": [
                {
                    "type": score.name,
                    "value": round(score.value, 2),
                    "name": f"{score.title} ({record.search}; {score.signature})",
                }
                for score in record.scores
            ],
        }
        for record in records
    ]
    if results:
        index = [{"name": subject.name, "results": results}]
        lines.append(f"model-index: {json.dumps(index, ensure_ascii=False)}")
    return "\n".join([*lines, "---"]) + "\n"
