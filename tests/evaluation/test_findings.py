"""Each check, on small records made by hand: what it finds, and what it does not."""

import math
from collections.abc import Iterable

import pytest

from transformer_mt.checkpoints.metrics import RunMetrics
from transformer_mt.evaluation import findings

GERMAN = ["Die Katze sitzt auf der Matte.", "Morgen kaufen wir frisches Gemüse auf dem Markt."] * 10
ENGLISH = ["The cat sits on the mat.", "Tomorrow we will go to the market."] * 10
RUSSIAN = ["Кошка сидит на коврике и смотрит на улицу."] * 20
CHINESE = ["猫坐在垫子上看着外面。"] * 20


def text(found: Iterable[str]) -> str:
    """Gives the finding of a check, or an empty text."""
    return "".join(found)


RISEN = {95: 3.5, 96: 9.0, 97: 3.5, 98: 3.5, 99: 3.6}
DIVERGED, FEW, OVERFITTED = findings.divergence, findings.too_few_steps, findings.overfitting


@pytest.mark.parametrize(
    ("check", "kind", "losses", "figures"),
    [
        (DIVERGED, "train", {}, None),
        (DIVERGED, "train", {9: 6.0, 50: 3.0, **RISEN}, "from 3.00 at step 50 to 3.60 at step 99;"),
        (DIVERGED, "train", {9: 6.0, 50: 3.0, **RISEN, 97: 3.49}, None),  # noise of single losses
        (DIVERGED, "train", {50: 3.0, 99: 4.2}, None),
        (DIVERGED, "train", {10: 6.0, 50: math.nan, 100: 5.0}, None),
        (DIVERGED, "train", {10: 6.0, 50: math.nan}, "training loss is not finite at step 50;"),
        (FEW, "valid", {}, None),
        (FEW, "valid", {100: 6.0}, None),
        (FEW, "valid", {1000: 2.0, 2000: 1.9, 2800: math.nan}, None),
        (FEW, "valid", {99: 6.0}, "too few steps: 99, fewer than optim.warmup_steps = 100;"),
        (FEW, "valid", {500: 3.0, 750: 2.0, 1000: 1.9}, None),
        (FEW, "valid", {500: 2.0, 750: 3.0, 1000: 4.0}, None),
        (FEW, "valid", {750: 2.0, 1000: 1.89}, "validation perplexity still fell from 7.39 at s"),
        (FEW, "valid", {750: 2.0, 1000: 1.89}, "fell from 7.39 at step 750 to 6.62 at step 1000;"),
        (FEW, "train", {500: 2.0, 750: 1.7, 1000: 1.7}, "training perplexity still fell from 7.3"),
        (FEW, "train", {50: 2.0, 75: 1.7, 100: 1.7}, "fell from 7.39 at step 50 to 5.47 at step 1"),
        (FEW, "train", {500: 2.0, 1000: 1.8}, None),
        (FEW, "valid", {0: 9.0, 1000: 1.9}, "training perplexity still fell from"),
        (OVERFITTED, "valid", {}, None),
        (OVERFITTED, "valid", {100: 3.0, 200: 2.0, 300: 2.24}, None),
        (OVERFITTED, "valid", {1: 3.0, 2: 2.0, 3: 2.25}, "from 7.39 at step 2 to 9.49 at step 3;"),
        (OVERFITTED, "valid", {100: 3.0, 200: 900.0}, "to over 1e+304 at step 200;"),
        (OVERFITTED, "valid", {100: 2.0, 200: 4.0, 300: 1.9, 400: math.nan}, None),
    ],
)
def test_curves(check, kind, losses, figures):
    """The last loss counts, by the lowest or by one shortly before; one line with the figures."""
    records = [{"kind": kind, "step": step, "nll": loss} for step, loss in losses.items()]
    if kind == "valid" and len(losses) > 1:  # training is not looked at then
        records += [{"kind": "train", "step": 500 * i, "nll": -float(i)} for i in (1, 2)]
    metrics = RunMetrics("run", records)
    found = text(check(metrics, 100) if check is FEW else check(metrics))
    assert not found if figures is None else figures in found and "\n" not in found


def test_a_validation_that_is_not_finite():
    """Before there are enough losses to see a rise. Sabotage: look at the losses alone."""
    [finding] = DIVERGED(RunMetrics("run", [{"kind": "valid", "step": 6, "perplexity": math.nan}]))
    assert finding.startswith("divergence: the validation perplexity is not finite at step 6; ")


def test_the_perplexity_of_the_moving_average_comes_first():
    """Since that of the weights goes up and down. Sabotage: look at the weights alone."""
    for average, few in ((1.98, False), (1.80, True)):
        lines = [{"kind": "valid", "step": 750, "nll": 2.0, "ema_nll": 2.0}]
        lines.append({"kind": "valid", "step": 1000, "nll": 3.78 - average, "ema_nll": average})
        assert bool(text(FEW(RunMetrics("run", lines), 100))) == few


SCRIPT, GOOD = findings.wrong_script, ["a good line of words"] * 48
NAMES, REFERENCES = ["ein Satz", "Berlin", *GOOD], ["a", "Berlin", *GOOD]


@pytest.mark.parametrize(
    ("check", "texts", "figures"),
    [
        (SCRIPT, ([*GERMAN, "", "1 + 2", RUSSIAN[0]], ENGLISH), None),
        (SCRIPT, ([*GERMAN, *RUSSIAN[:5]], [RUSSIAN[0], *GERMAN]), "20.0% of the lines of it are"),
        (SCRIPT, (["iPhone 15 Pro Max正式发布"] * 9, CHINESE), None),  # mostly Latin letters
        (SCRIPT, (["iPhone und Microsoft 中", *GERMAN], CHINESE), "lines of it are not in"),
        (SCRIPT, ([], GERMAN), None),
        (SCRIPT, (GERMAN, ["1"]), None),
        (findings.wrong_length, (["a" * 100], ["x" * 91]), None),
        (findings.wrong_length, (["a" * 100], ["x" * 109]), None),
        (findings.wrong_length, (["a" * 100], ["x" * 89]), "too short: translations of it are 89%"),
        (findings.wrong_length, (["a" * 60, "b" * 40], ["x" * 100, "x" * 11]), "too long: transl"),
        (findings.untranslated, (NAMES, REFERENCES, ["c", "Berlin", *GOOD]), None),
        (findings.untranslated, (NAMES, REFERENCES, NAMES), "1 of 50 translations of it are their"),
        (findings.untranslated, ([*NAMES, "x"], [*REFERENCES, "y"], [*NAMES, "z"]), None),
        (findings.untranslated, ([], [], []), None),
        (findings.untranslated, (["", *GOOD], ["a", *GOOD], ["", *GOOD]), None),
    ],
)
def test_texts(check, texts, figures):
    """Too little text says nothing; copies count where the reference is none, from 2% on."""
    found = text(check("it", *texts))
    assert not found if figures is None else figures in found


def test_sides_that_do_not_match():
    """The three worst pairs are shown, the worst first, each on one line whatever it holds."""
    src, gains = [f"Zeile {i}\u2028und {i}" for i in range(20)], [0.0, -2.0, *[3.0] * 18]
    found = text(findings.mismatched_sides("the text", gains, src, ["w " * 99, *src[1:]]))
    long = f'"{" ".join("w" * 28)} ..."'
    shown = f'"Zeile 1 und 1" = "Zeile 1 und 1", "Zeile 0 und 0" = {long}, "Zeile 2 und 2" = "Zeile'
    assert "in 2 of 20 pairs of the text the" in found
    assert f'such as {shown} 2 und 2"; align' in found
    assert f'"{"猫坐在" * 18}猫坐 ..."' in text(
        findings.mismatched_sides("the text", [0.0], ["猫坐在" * 40], ["A cat sits."])
    )
    assert not text(findings.mismatched_sides("the text", [], [], []))
    assert not text(findings.mismatched_sides("the text", [-1.0, *[3.0] * 19], src, src))
