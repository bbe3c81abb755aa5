"""Each check, on small records made by hand: what it finds, and what it does not."""

import math

import pytest

from transformer_mt.checkpoints.metrics import RunMetrics
from transformer_mt.evaluation import findings

GERMAN = [
    "Die Katze sitzt auf der Matte und schaut nach draußen.",
    "Morgen gehen wir auf den Markt, um frisches Gemüse zu kaufen.",
] * 10
ENGLISH = [
    "The cat sits on the mat and looks outside.",
    "Tomorrow we will go to the market to buy fresh vegetables.",
] * 10
RUSSIAN = ["Кошка сидит на коврике и смотрит на улицу."] * 20
CHINESE, MORE_CHINESE = ["猫坐在垫子上看着外面。"] * 20, ["明天我们去市场买新鲜的蔬菜。"] * 20


@pytest.mark.parametrize(
    ("check", "kind", "losses", "figures"),
    [
        (findings.divergence, "train", {}, []),
        (findings.divergence, "train", {10: 6.0, 100: 3.0, 150: 4.2, 200: 3.2}, []),
        (findings.divergence, "train", {10: 6.0, 100: 3.0, 150: 4.5}, ["3.00 at step 100", "4.50"]),
        (findings.divergence, "train", {10: 6.0, 50: math.nan, 100: 5.0}, []),
        (findings.divergence, "train", {10: 6.0, 50: math.nan}, ["not finite at step 50"]),
        (findings.too_few_steps, "valid", {}, []),
        (findings.too_few_steps, "valid", {30: 6.0}, ["30 steps", "optim.warmup_steps = 100"]),
        (findings.too_few_steps, "valid", {500: 3.0, 750: 2.0, 1000: 1.92}, []),
        (findings.too_few_steps, "valid", {500: 2.0, 750: 3.0, 1000: 4.0}, []),
        (findings.too_few_steps, "valid", {750: 2.0, 1000: 1.85}, ["7.39 at step 750", "6.36"]),
        (findings.too_few_steps, "train", {500: 2.0, 750: 1.7, 1000: 1.4}, ["7.39 at step 500"]),
        (findings.too_few_steps, "train", {500: 2.0, 1000: 1.8}, []),
        (findings.overfitting, "valid", {}, []),
        (findings.overfitting, "valid", {100: 3.0, 200: 2.0, 300: 2.2}, []),
        (
            findings.overfitting,
            "valid",
            {100: 3.0, 200: 2.0, 300: 2.3},
            ["7.39 at step 200", "9.97"],
        ),
        (findings.overfitting, "valid", {100: 3.0, 200: 900.0}, ["at step 200"]),
        (findings.overfitting, "valid", {100: 2.0, 200: 4.0, 300: 1.9, 400: math.nan}, []),
    ],
)
def test_curves(check, kind, losses, figures):
    """The last loss counts, by the lowest or by one shortly before; one line with the figures.

    Sabotage: compare with the first loss; count nats and not nats per doubling of the steps.
    """
    records = [{"kind": kind, "step": step, "nll": loss} for step, loss in losses.items()]
    metrics = RunMetrics("run", records)
    found = check(metrics, 100) if check is findings.too_few_steps else check(metrics)
    assert bool(found) == bool(figures)
    assert all(figure in (found or "") for figure in figures) and "\n" not in (found or "")


def test_scripts_and_languages():
    """Of a side, by the training text of both; too little text, or no alphabet, says nothing.

    Sabotage: exchange the sides; count lines that have no letters.
    """
    script, language = findings.wrong_script, findings.wrong_language
    assert script("it", [*GERMAN, "", "1 + 2", RUSSIAN[0]], ENGLISH) is None
    assert "20.0%" in (script("it", [*GERMAN, *RUSSIAN[:5]], GERMAN) or "")
    assert script("it", [], GERMAN) is None
    assert language("it", GERMAN, GERMAN, ENGLISH) is None
    assert language("it", GERMAN, GERMAN, GERMAN) is None  # a task of one language
    assert "other side by 1.00" in (language("it", ENGLISH, GERMAN, ENGLISH) or "")
    assert language("it", ENGLISH[:19], GERMAN, ENGLISH) is None
    assert language("it", GERMAN, RUSSIAN, CHINESE)  # like neither side
    assert language("it", CHINESE, MORE_CHINESE, GERMAN) is None


def test_shares():
    """Sabotage: `copied_pairs` without the held-out share refuses tasks of one language."""
    assert findings.unknown_pieces("it", 0.009) is None and findings.unknown_pieces("it", 0.01)
    assert findings.known_pairs("it", 1, 101) is None and findings.known_pairs("it", 0, 0) is None
    assert "2 of 100" in (findings.known_pairs("it", 2, 100) or "")
    assert findings.copied_pairs(0.05, 0.0) is None and findings.copied_pairs(1.0, 1.0) is None
    assert "30.0%" in (findings.copied_pairs(0.3, 0.01) or "")


def test_translations():
    """Repetition and copies count only where references are without. Sabotage: leave them out."""
    good, bad = ["a good line of words"] * 40, ["the old the old the old man", "的的的的的的"]
    assert findings.wrong_length("it", ["abcdefghijkl"], ["abcdefghijk"]) is None
    assert "too short" in (findings.wrong_length("it", ["abcdefgh"], ["abcdef"]) or "")
    assert "too long" in (findings.wrong_length("it", ["abcdefgh"], ["abcdefghi"]) or "")
    assert findings.repeated_words("it", [*good, *bad], [*good * 2, *bad, bad[0]]) is None
    assert "2 of 42" in (findings.repeated_words("it", [*good, "x", "y"], [*good, *bad]) or "")
    texts, copies = ["ein Satz", "Berlin", "noch ein Satz"], ["ein Satz", "Berlin", "b"]
    assert findings.untranslated("it", texts, ["a", "Berlin", "b"], ["c", "Berlin", "d"]) is None
    assert "1 of 3" in (findings.untranslated("it", texts, ["a", "Berlin", "b"], copies) or "")


def test_sides_that_do_not_match():
    """The worst pairs are shown, the worst first, each on one line whatever it holds.

    Sabotage: show the best; count gains below zero only.
    """
    src = [f"Zeile {i}\u2028und {i}" for i in range(20)]
    gains = [0.0, -2.0, *[3.0] * 18]
    found = findings.mismatched_sides("the text", gains, src, ["w " * 99, *src[1:]]) or ""
    assert "2 of 20" in found and found.index('"Zeile 1 und 1"') < found.index('"Zeile 0 und 0"')
    assert ' ..."' in found and len(found.splitlines()) == 1
    assert findings.mismatched_sides("the text", [-1.0, *[3.0] * 19], src, src) is None
