"""The report of a run: the contents of its directory as one page."""

import logging
import math
import statistics
from typing import Any

from transformer_mt.checkpoints.evaluations import VALIDATION, EvaluationRecord
from transformer_mt.config.keys import Config, SplitFiles, flat_values
from transformer_mt.config.loading import without_folder
from transformer_mt.config.reference import format_value
from transformer_mt.errors import TransformerMTError
from transformer_mt.evaluation.scoring import sentence_chrf
from transformer_mt.figures.attention import MAX_PIECES, attention_figure
from transformer_mt.figures.lengths import lengths_figure
from transformer_mt.figures.page import PAGE_STYLE, InlineFigures, fill_template
from transformer_mt.figures.recorded_run import RecordedRun
from transformer_mt.figures.training import PANELS, panel_figure
from transformer_mt.system.files import read_manifest
from transformer_mt.translation.options import LoadOptions
from transformer_mt.translation.translation_model import build_translation_model
from transformer_mt.version import __version__

logger = logging.getLogger(__name__)

Rows = list[tuple[str, str]]

_SENTENCES = 3
"""Number of translations shown from the best, from the middle and from the worst."""


def build_report(run: RecordedRun) -> str:
    """Builds the report of a run as one HTML page that needs no network.

    Args:
        run: The run; the page says what is missing from it.
    """
    figures = InlineFigures()
    translated = _translated(run.evaluations)
    ranked = _rank(translated) if translated else []
    attention, attention_note = _attention(run, ranked, figures)
    data, corpus = run.config.data, run.description.get("corpus")
    languages = (data.src_lang, data.tgt_lang)
    changed, default = _keys(run.config)
    return fill_template(
        name=run.name,
        version=__version__,
        summary=_summary(run),
        facts=_facts(run),
        evaluations=[_scores(record) for record in reversed(run.evaluations)],
        no_scores=_no_scores(run),
        charts=[
            figures.inline(panel_figure(panel, run.metrics, PAGE_STYLE), panel.title)
            for panel in PANELS
            if run.metrics.records
        ],
        training=_training(run),
        corpus=_corpus(run.description) if corpus else [],
        lengths=figures.inline(
            lengths_figure(run.description["lengths"], languages, PAGE_STYLE),
            "Training sentences by length",
        )
        if corpus
        else "",
        ranked_title=_ranked_title(translated) if translated else "",
        ranked=ranked,
        attention=attention,
        attention_note=attention_note,
        changed_keys=changed,
        default_keys=default,
        environment=_environment(run),
        digests=_digests(run),
    )


def _summary(run: RecordedRun) -> str:
    model, data = run.config.model, run.config.data
    return (
        f"A Transformer from {data.src_lang} to {data.tgt_lang}, trained on"
        f" {without_folder(data.path)}: {model.encoder_layers} encoder and {model.decoder_layers}"
        f" decoder layers of width {model.d_model}, {model.n_heads} heads, {model.norm}-norm."
    )


def _facts(run: RecordedRun) -> Rows:
    """Returns the figures at the top of the page."""
    facts: Rows = []
    if run.checkpoint and run.checkpoint.progress.best_bleu >= 0:
        best = run.checkpoint.progress
        facts.append(("best validation BLEU", f"{best.best_bleu:.2f}"))
    tests = [record for record in run.evaluations if record.test_set != VALIDATION]
    if tests:
        facts.append((f"BLEU, {tests[-1].test_set}", f"{tests[-1].scores[0].value:.2f}"))
    if parameters := run.description.get("parameters"):
        facts.append(("parameters", f"{parameters / 1e6:.1f} M"))
    if corpus := run.description.get("corpus"):
        facts.append(("training pairs", f"{corpus['kept']:,}"))
    step = max(run.progress.step, run.metrics.end("step"))
    seconds = max(run.progress.seconds, 60 * run.metrics.end("minutes"))
    facts += [("steps", f"{step:,.0f}"), ("training time", _duration(seconds))]
    return facts


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _scores(record: EvaluationRecord) -> dict[str, Any]:
    words = sum(len(line.split()) for line in record.sources)
    speed = f", {words / record.seconds:,.0f} source words/s" if record.seconds else ""
    return {
        "test_set": record.test_set,
        "sentences": f"{len(record.sources):,}",
        "checkpoint": record.checkpoint,
        "search": str(record.search),
        "speed": speed,
        "scores": [
            {
                "title": score.title,
                "value": f"{score.value:.2f}",
                "signature": score.signature,
            }
            for score in record.scores
        ],
    }


def _no_scores(run: RecordedRun) -> str:
    bleu = run.metrics.last("valid", "bleu")
    validated = "" if bleu is None else f" The last validation BLEU of training is {bleu:.2f}."
    return (
        "None are recorded with a signature; transformer-mt evaluate measures and records them."
        f"{validated}"
    )


def _training(run: RecordedRun) -> Rows:
    """Returns the speed and any problems."""
    rows: Rows = []
    for label, key, form in (
        ("median speed, target tokens per second", "tokens_per_second", "{:,.0f}"),
        ("median share of the device's measured peak", "mfu", "{:.1%}"),
    ):
        values = [v for v in run.metrics.series("train", key)[1] if math.isfinite(v)]
        if values:
            rows.append((label, form.format(statistics.median(values))))
    losses = run.metrics.series("train", "loss")[1]
    if losses and not math.isfinite(losses[-1]):
        rows.append(("diverged", "the last logged loss is not finite"))
    if skipped := run.metrics.last("train", "skipped"):
        rows.append(("steps skipped, not finite", f"{skipped:,.0f}"))
    return rows


def _corpus(description: dict[str, Any]) -> Rows:
    """Returns the counts of training and validation text."""
    report, lengths = description["corpus"], description["lengths"]
    vocabulary = description["vocabulary"]
    sizes = dict.fromkeys(f"{size:,}" for size in vocabulary.values())
    return [
        ("pairs read", f"{report['pairs']:,}"),
        *((f"dropped: {reason}", f"{n:,}") for reason, n in sorted(report["dropped"].items())),
        ("pairs trained on", f"{report['kept']:,}"),
        ("validation pairs", f"{description['validation']['pairs']:,}"),
        ("vocabulary, pieces", " and ".join(sizes)),
        ("pieces per word", f"{report['pieces_per_word']}"),
        ("unknown pieces", f"{report['unknown']:,}"),
        ("mean length, source and target", "{src} and {tgt} pieces".format(**lengths["mean"])),
        ("longest sentence", f"{report['longest']:,} pieces"),
    ]


def _translated(evaluations: list[EvaluationRecord]) -> EvaluationRecord | None:
    """Chooses the translations to show: from the newest evaluation, or else from validation."""
    tests = [record for record in evaluations if record.test_set != VALIDATION]
    return (tests or evaluations or [None])[-1]  # type: ignore[list-item]


def _ranked_title(record: EvaluationRecord) -> str:
    return f"{record.test_set}, {record.checkpoint}, {record.search}; ranked by sentence chrF2."


def _rank(record: EvaluationRecord) -> list[dict[str, Any]]:
    """Chooses the best, middle and worst translations; of equally good ones, the longest first."""
    scores = sentence_chrf(record.hypotheses, record.references)
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], -len(record.sources[i])))
    count = min(_SENTENCES, len(order))
    middle = max(0, (len(order) - count) // 2)
    groups = {
        "Best": order[:count],
        "Median": order[middle : middle + count],
        "Worst": order[::-1][:count],
    }
    return [
        {
            "title": title,
            "sentences": [
                {
                    "line": i + 1,
                    "chrf": f"{scores[i]:.1f}",
                    "source": record.sources[i],
                    "references": [text[i] for text in record.references],
                    "hypothesis": record.hypotheses[i],
                }
                for i in lines
            ],
        }
        for title, lines in groups.items()
    ]


def _attention(
    run: RecordedRun, ranked: list[dict[str, Any]], figures: InlineFigures
) -> tuple[list[dict[str, Any]], str]:
    """Draws the cross-attention of one sentence of each group; says what could not be drawn."""
    if not ranked:
        return [], "There is no translation to draw it of."
    if run.checkpoint is None:
        return [], "The run has no checkpoint yet."
    try:
        model = build_translation_model([run.checkpoint], LoadOptions("cpu"))
    except TransformerMTError as error:
        return [], f"The checkpoint cannot be used: {error}"
    maps, left_out = [], []
    for group in ranked:
        sentence = group["sentences"][0]
        texts = sentence["source"], sentence["hypothesis"]
        [src_ids], [tgt_ids] = model.vocab.encode_src(texts[:1]), model.vocab.encode_tgt(texts[1:])
        title = f"{group['title']}: line {sentence['line']}"
        if not src_ids or max(len(src_ids), len(tgt_ids)) > MAX_PIECES:
            left_out.append(f"{title}: empty, or too long to draw.")
            continue
        figure = attention_figure(model.attention(*texts), style=PAGE_STYLE, title=False)
        maps.append({"title": title, "figure": figures.inline(figure, f"Attention of {title}")})
    about = f"Cross-attention of {run.checkpoint.path.name}, last layer, mean of the heads."
    return maps, " ".join([about, *left_out])


def _keys(config: Config) -> tuple[Rows, Rows]:
    """Returns the keys that differ from their defaults, and the others."""
    defaults = flat_values(Config.model_validate({"data": {"path": config.data.path}}))
    changed: Rows = []
    default: Rows = []
    for key, value in flat_values(config).items():
        text = format_value(_published(value))
        is_changed = key == "data.path" or value != defaults[key]
        (changed if is_changed else default).append((key, text))
    return changed, default


def _published(value: Any) -> Any:
    """Removes the folders of this machine from a value."""
    if isinstance(value, SplitFiles):
        names = {"src": without_folder(value.src), "tgt": without_folder(value.tgt)}
        return value.model_copy(update=names)
    if isinstance(value, list):
        return [_published(each) for each in value]
    return without_folder(value) if isinstance(value, str) else value


def _environment(run: RecordedRun) -> Rows:
    description = run.description
    rows: Rows = [("software", description["software"])] if description else []
    recorded = description.get("environment") or (
        run.checkpoint.state.environment if run.checkpoint else {}
    )
    rows += [(name, value) for name, value in recorded.items() if value]
    if run.checkpoint:
        rows.append(("precision", run.checkpoint.progress.precision))
    return rows


def _digests(run: RecordedRun) -> Rows:
    rows: Rows = []
    if run.description:
        rows.append(("training text, encoded", run.description["corpus"]["digest"]))
        rows.append(("validation text", run.description["validation"]["digest"]))
    if run.checkpoint:
        name, files = run.checkpoint.path.name, read_manifest(run.checkpoint.path)
        rows += [(f"{name}/{file}", digest) for file, digest in sorted(files.items())]
    return rows
