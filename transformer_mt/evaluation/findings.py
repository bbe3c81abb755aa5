"""What may be wrong with a run whose BLEU is low: one check per cause, of values already read.

A check yields its finding, one line with the figure and what to do, or nothing.
"""

import math
from collections.abc import Iterator, Sequence
from operator import itemgetter

from transformer_mt.checkpoints.metrics import RunMetrics
from transformer_mt.text.cleaning import has_script, script_of, usual_script

PERPLEXITY_CHANGE = 0.25
"""Nats per token by which a loss has clearly changed: perplexity by a fifth. When the steps double,
it falls by 0.10 at the end of the sample recipe, and by 0.7 after 1,500 steps on Multi30k."""
DIVERGENCE = 0.5
"""Nats per token above the lowest training loss at which it has diverged, if all of the last five
are. Single ones differ by up to 0.6, since the pairs of a step have similar lengths."""
LAST_LOSSES = 5
MANY_LINES = 0.1
"""Share of lines in another script that is more than names."""
LENGTH_CHANGE = 0.1
"""Relative difference in length at which BLEU's brevity penalty, or its precision, loses 10%."""
BAD_LINES = 0.02
"""Share of translations that are copies: good models have 0 to 0.2%."""
MISMATCHED = 0.1
"""Share of pairs that another source explains as well. Good models have 0 to 0.1% on text that
matches, and one that has overfitted 300 pairs 6%; pairs that do not match count by half, since
either source is then as likely to be better."""
SHOWN = 3
"""Worst pairs that a finding shows."""
_SHORT = 60
"""Characters of each of their texts."""


def divergence(metrics: RunMetrics) -> Iterator[str]:
    """Finds a loss or perplexity that is no longer finite, or a loss that has risen for good."""
    points = metrics.finite_points("train", "nll")
    advice = (
        "start a new run with a lower optim.lr_scale, a longer optim.warmup_steps, or"
        " optim.max_grad_norm = 1.0"
    )
    for kind, key, name in (
        ("train", "nll", "training loss"),
        ("valid", "perplexity", "validation perplexity"),
    ):
        steps, values = metrics.series(kind, key)
        if values and math.isnan(values[-1]):
            yield f"divergence: the {name} is not finite at step {steps[-1]}; {advice}"
            return
    if points:
        (best, lowest), (last, loss) = min(points, key=itemgetter(1)), points[-1]
        if min(value for _, value in points[-LAST_LOSSES:]) >= lowest + DIVERGENCE:
            yield (
                f"divergence: the training loss rose from {lowest:.2f} at step {best} to {loss:.2f}"
                f" at step {last}; {advice}"
            )


def too_few_steps(metrics: RunMetrics, warmup_steps: int) -> Iterator[str]:
    """Finds a run that ended in its warm-up, or while its perplexity was falling fast.

    The perplexity is that of validation over the last quarter of the steps: of the moving average,
    if there is one, since that of the weights goes up and down. If there is one validation alone,
    it is that of training, which is less regular, over the last half.
    """
    last = metrics.end("step")
    advice = (
        "raise whichever of train.max_steps, train.max_epochs, train.max_minutes and valid.patience"
        " ended the run, and train on"
    )
    if metrics.records and last < warmup_steps:
        yield (
            f"too few steps: {last:,}, fewer than optim.warmup_steps = {warmup_steps:,};"
            f" {advice}, or start a new run with a shorter warm-up"
        )
        return
    for kind, key, name, part in (
        ("valid", "ema_nll", "validation", 3 / 4),
        ("valid", "nll", "validation", 3 / 4),
        ("train", "nll", "training", 1 / 2),
    ):
        points = metrics.finite_points(kind, key)
        early = [point for point in points[:-1] if 0 < point[0] <= part * points[-1][0]]
        if early:
            (first, before), (end, after) = early[-1], points[-1]
            if before - after >= PERPLEXITY_CHANGE * math.log2(end / first):
                yield (
                    f"too few steps: {name} perplexity still fell from {_perplexity(before)} at"
                    f" step {first} to {_perplexity(after)} at step {end}; {advice}"
                )
            return


def overfitting(metrics: RunMetrics) -> Iterator[str]:
    """Finds a validation perplexity that has risen again."""
    if points := metrics.finite_points("valid", "nll"):
        (best, lowest), (last, loss) = min(points, key=itemgetter(1)), points[-1]
        if loss >= lowest + PERPLEXITY_CHANGE:
            yield (
                f"overfitting: validation perplexity rose from {_perplexity(lowest)} at step {best}"
                f" to {_perplexity(loss)} at step {last}; start a new run with more text, more"
                " model.dropout or smaller sizes"
            )


def _perplexity(nll: float) -> str:
    return f"{math.exp(nll):.3g}" if nll < 700 else "over 1e+304"  # the range of a float


def wrong_script(name: str, lines: Sequence[str], training: Sequence[str]) -> Iterator[str]:
    """Finds lines without words of the script of most training lines of their side."""
    written, expected = list(filter(script_of, lines)), usual_script(training)
    if not written or not expected:
        return
    share = 1 - sum(has_script(line, expected) for line in written) / len(written)
    if share >= MANY_LINES:
        yield (
            f"wrong script: {share:.1%} of the lines of {name} are not in {expected} script,"
            " the most frequent in the training text; remove them, or correct the file or"
            " data.src_lang and data.tgt_lang"
        )


def untranslated(
    name: str, sources: Sequence[str], references: Sequence[str], hypotheses: Sequence[str]
) -> Iterator[str]:
    """Finds translations that copy their source where the reference does not."""
    texts = zip(sources, references, hypotheses, strict=True)
    # The translation of an empty line must be empty.
    copies = sum(bool(src) and src == copy != reference for src, reference, copy in texts)
    if copies and copies >= BAD_LINES * len(hypotheses):
        yield (
            f"untranslated copies: {copies:,} of {len(hypotheses):,} translations of {name} are"
            " their source; look for source text in the target files, and start a new run with"
            " data.drop_identical = true"
        )


def wrong_length(name: str, references: Sequence[str], hypotheses: Sequence[str]) -> Iterator[str]:
    """Compares the length of all translations in characters with that of the references."""
    ratio = sum(map(len, hypotheses)) / max(1, sum(map(len, references)))
    figures = f"translations of {name} are {ratio:.0%} as long as the references"
    if ratio <= 1 - LENGTH_CHANGE:
        yield (
            f"too short: {figures}; decode with a beam (--beam-size 4) and a higher"
            " --length-penalty, train longer, and look for targets that lack a part"
        )
    elif ratio >= 1 + LENGTH_CHANGE:
        yield (
            f"too long: {figures}; look for repeated words, and for targets that say more than the"
            " source"
        )


def mismatched_sides(
    name: str, gains: Sequence[float], sources: Sequence[str], targets: Sequence[str]
) -> Iterator[str]:
    """Finds text whose sides do not match, by the scores of given and of shuffled pairs.

    Args:
        name: Where the pairs are from.
        gains: For each pair, by how many nats per token its target is more probable with its own
            source than with another's.
        sources: The source texts.
        targets: The target texts.
    """
    wrong = sum(gain <= 0 for gain in gains)
    if wrong and wrong >= MISMATCHED * len(gains):
        worst = sorted(range(len(gains)), key=lambda i: gains[i])[:SHOWN]
        shown = ", ".join(f"{_short(sources[i])} = {_short(targets[i])}" for i in worst)
        yield (
            f"sides do not match: in {wrong:,} of {len(gains):,} pairs of {name} the target is as"
            f" probable given another pair's source, such as {shown}; align the files again from"
            " the first line that does not match (if all match, the model has not learned to use"
            " the source)"
        )


def _short(text: str) -> str:
    """Quotes the beginning of a text on one line."""
    line = " ".join(text.split())  # it may have no spaces, so it is cut within a word
    return f'"{line}"' if len(line) <= _SHORT else f'"{line[: _SHORT - 4].rstrip()} ..."'
