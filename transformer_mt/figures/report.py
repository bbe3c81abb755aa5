"""The report of a run: the contents of its directory as one page."""

import math
import re
import statistics
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from transformer_mt.checkpoints.checkpoint import Checkpoint, Progress
from transformer_mt.checkpoints.evaluations import (
    VALIDATION,
    EvaluationRecord,
    read_evaluations,
    run_folders,
)
from transformer_mt.checkpoints.run_directory import find_checkpoint, load_newest
from transformer_mt.checkpoints.run_files import METRICS, RUN_FILE, read_description
from transformer_mt.config.keys import DEFAULTS, Config, flat_values
from transformer_mt.config.loading import parse_config, without_folder
from transformer_mt.config.reference import format_value
from transformer_mt.errors import CheckpointError
from transformer_mt.evaluation.scoring import sentence_chrf
from transformer_mt.figures.attention import MAX_PIECES, attention_figure
from transformer_mt.figures.canvas import ACCENT, FOREGROUND, GRID, drawable, render
from transformer_mt.figures.metrics import RunMetrics, read_metrics
from transformer_mt.figures.training import PANELS, lengths_figure, panel_figure
from transformer_mt.system.files import MANIFEST, read_manifest
from transformer_mt.translation.options import LoadOptions
from transformer_mt.translation.translation_model import build_translation_model
from transformer_mt.version import __version__

Rows = list[tuple[str, str]]

_SENTENCES = 3
"""Number of translations shown from the best, from the middle and from the worst."""
_SMALLEST = 0.6
"""Smallest share of its size to which the page may shrink a figure."""
_PAGE_COLORS = {FOREGROUND: "currentColor", GRID: "var(--line)", ACCENT: "var(--accent)"}


@dataclass(frozen=True)
class RecordedRun:
    """The contents of a run directory; what it does not have yet is empty or None.

    `description` is the content of run.json, and evaluations are oldest first. `checkpoint` is the
    one that represents the run, but `progress` is that of the newest.
    """

    config: Config
    metrics: RunMetrics
    description: dict[str, Any]
    evaluations: list[EvaluationRecord]
    checkpoint: Checkpoint | None
    progress: Progress


def read_run(run_dir: Path) -> RecordedRun:
    """Reads a run, which may be in training and may lack parts.

    Raises:
        CheckpointError: If there is no such run, or all its checkpoints are damaged.
    """
    if not run_dir.is_dir():
        raise CheckpointError(f"{run_dir}: no such run")
    if (run_dir / MANIFEST).exists():
        raise CheckpointError(f"{run_dir}: is a checkpoint; name the run directory")
    newest = load_newest(run_dir)
    checkpoint = find_checkpoint(run_dir) if newest else None
    description = read_description(run_dir)
    if checkpoint:
        config = checkpoint.config
    elif description:
        config = parse_config(description["config"], str(run_dir / RUN_FILE))
    else:
        raise CheckpointError(f"{run_dir}: has neither {RUN_FILE} nor a checkpoint; name a run")
    has_metrics = (run_dir / METRICS).exists()
    return RecordedRun(
        config=config,
        metrics=read_metrics(run_dir) if has_metrics else RunMetrics(run_dir.resolve().name, []),
        description=description,
        evaluations=read_evaluations(run_folders(run_dir)),
        checkpoint=checkpoint,
        progress=newest.progress if newest else Progress(),
    )


def build_report(run: RecordedRun) -> str:
    """Builds the report of a run as one HTML page that needs no network."""
    tests = [record for record in run.evaluations if record.test_set != VALIDATION]
    translated = next(reversed(tests or run.evaluations), None)
    lengths = run.description.get("lengths")
    languages = (run.config.data.src_lang, run.config.data.tgt_lang)
    groups = _rank(translated) if translated else {}
    attention, attention_note = _draw_attention(run, translated, groups)
    changed, default = _keys(run.config)
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["median"] = statistics.median
    page = resources.files(__package__).joinpath("report.html").read_text(encoding="utf-8")
    return environment.from_string(page).render(
        run=run,
        version=__version__,
        corpus_name=without_folder(run.config.data.path),
        tests=tests,
        steps=max(run.progress.step, run.metrics.end("step")),
        duration=_duration(max(run.progress.seconds, 60 * run.metrics.end("minutes"))),
        charts=[inline(panel_figure(panel, run.metrics), panel.title) for panel in PANELS.values()],
        has_diverged=any(map(math.isnan, run.metrics.series("train", "loss")[1][-1:])),
        lengths_chart=inline(lengths_figure(lengths, languages), "Lengths") if lengths else None,
        translated=translated,
        groups=groups,
        attention=attention,
        attention_note=attention_note,
        changed_keys=changed,
        default_keys=default,
        files=read_manifest(run.checkpoint.path) if run.checkpoint else {},
    )


def inline(figure: Figure, description: str) -> Markup:
    """Renders a figure as a page element that takes on the page's colours.

    The description is for those who cannot see it; no two figures of a page may have the same.
    """
    text = render(figure, "svg", transparent=True).decode()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    prefix = re.sub(r"\W+", "-", description)
    text = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{prefix}-", text)
    for color, name in _PAGE_COLORS.items():
        text = text.replace(color, name)
    # On a phone, a large figure scrolls rather than shrinking until it is unreadable.
    width = _SMALLEST * float(text.split('width="', 1)[1].split("pt", 1)[0])
    start = f'<svg role="img" aria-label="{description}" style="min-width: {width:.0f}pt"'
    return Markup(start + text.removeprefix("<svg"))


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _rank(record: EvaluationRecord) -> dict[str, list[tuple[int, float]]]:
    """Chooses the best, middle and worst sentences, each with its index and its chrF2.

    Of equally good ones, the longest is first.
    """
    scores = sentence_chrf(record.hypotheses, record.references)
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], -len(record.sources[i])))
    ranked = [(i, scores[i]) for i in order]
    middle = max(0, (len(ranked) - _SENTENCES) // 2)
    return {
        "Best": ranked[:_SENTENCES],
        "Median": ranked[middle : middle + _SENTENCES],
        "Worst": ranked[::-1][:_SENTENCES],
    }


def _draw_attention(
    run: RecordedRun,
    translated: EvaluationRecord | None,
    groups: dict[str, list[tuple[int, float]]],
) -> tuple[dict[str, Markup], str]:
    """Draws the cross-attention of one sentence of each group; says what could not be drawn."""
    if not translated or not translated.sources:
        return {}, "There is no translation to draw it of."
    if run.checkpoint is None:
        return {}, "The run has no checkpoint yet."
    model = build_translation_model([run.checkpoint], LoadOptions("cpu"))
    pairs = {
        f"{title}: line {i + 1}": (translated.sources[i], translated.hypotheses[i])
        for title, [(i, _), *_] in groups.items()
    }
    drawable([text for pair in pairs.values() for text in pair])  # one warning for all
    maps, notes = {}, [f"Cross-attention of {run.checkpoint.path.name}."]
    for title, (source, hypothesis) in pairs.items():
        [src_ids] = model.vocab.src.encode([source])
        [tgt_ids] = model.vocab.tgt.encode([hypothesis])
        if not src_ids or max(len(src_ids), len(tgt_ids)) > MAX_PIECES:
            notes.append(f"{title}: empty, or too long to draw.")
            continue
        figure = attention_figure(model.attention(source, hypothesis))
        maps[title] = inline(figure, f"Attention of {title}")
    return maps, " ".join(notes)


def _keys(config: Config) -> tuple[Rows, Rows]:
    """Returns the keys that differ from their defaults, and the others."""
    changed: Rows = []
    default: Rows = []
    for key, value in flat_values(config).items():
        # The folders of this machine mean nothing to readers elsewhere.
        text = re.sub(r'"/(\\.|[^"\\])*/', '"', format_value(value))
        (changed if value != DEFAULTS[key] else default).append((key, text))
    return changed, default
