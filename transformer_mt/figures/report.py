"""The report of a run: the contents of its directory as one page."""

import math
import re
import statistics
from datetime import timedelta
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from transformer_mt.checkpoints.evaluations import VALIDATION, EvaluationRecord, read_evaluations
from transformer_mt.checkpoints.metrics import PANELS
from transformer_mt.checkpoints.run_directory import read_run
from transformer_mt.config.changes import without_folder
from transformer_mt.config.keys import DEFAULTS, flat_values
from transformer_mt.config.loading import format_value
from transformer_mt.evaluation.scoring import sentence_chrf
from transformer_mt.figures.canvas import ACCENT, FOREGROUND, GRID, render
from transformer_mt.figures.training import training_figure
from transformer_mt.system.manifest import read_manifest
from transformer_mt.version import __version__

_SENTENCES = 3
"""Number of translations shown from the best, from the middle and from the worst."""
_TEMPLATES = Environment(
    loader=PackageLoader("transformer_mt.figures", "."),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_PAGE_COLORS = {FOREGROUND: "currentColor", GRID: "var(--line)", ACCENT: "var(--accent)"}


def build_report(run_dir: Path) -> str:
    """Builds the report of a run as one HTML page that needs no network.

    The run may be in training, and may lack parts.

    Raises:
        CheckpointError: If there is no such run, or all its checkpoints are damaged.
    """
    run = read_run(run_dir)
    # At once, since its trainer may delete the checkpoint.
    files = read_manifest(run.checkpoint.path) if run.checkpoint else {}
    config, checkpoint, metrics = run.config, run.checkpoint, run.metrics
    evaluations = read_evaluations(run_dir)  # oldest first
    corpus_name = without_folder(config.data.path)
    tests = [record for record in evaluations if record.test_set != VALIDATION]
    of_corpus = f"{corpus_name}, split "
    own = [each for each in tests if f"{each.test_set} (".startswith(f"{of_corpus}test (")]
    tests = own or [each for each in tests if not each.test_set.startswith(of_corpus)]
    translated = next(reversed(tests or evaluations), None)
    groups = _rank(translated) if translated else {}
    seconds = max(run.progress.seconds, 60 * metrics.end("minutes"))
    values = flat_values(config)
    # The folders of this machine mean nothing to readers elsewhere.
    folder = re.compile(r'"/(\\.|[^"\\])*/')
    return _TEMPLATES.get_template("report.html").render(
        version=__version__,
        config=config,
        metrics=metrics,
        about=run.description,
        checkpoint=checkpoint,
        evaluations=evaluations,
        corpus_name=corpus_name,
        tests=tests,
        steps=max(run.progress.step, metrics.end("step")),
        duration=timedelta(seconds=round(seconds)),
        median=statistics.median,
        charts=[
            inline(training_figure([metrics], panels=[name], title=""), panel.title)
            for name, panel in PANELS.items()
        ],
        has_diverged=any(map(math.isnan, metrics.series("train", "loss")[1][-1:])),
        translated=translated,
        groups=groups,
        keys={key: folder.sub('"', format_value(value)) for key, value in values.items()},
        default_keys=[key for key, value in values.items() if value == DEFAULTS[key]],
        files=files,
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
    return Markup(f'<svg role="img" aria-label="{description}"{text.removeprefix("<svg")}')


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
