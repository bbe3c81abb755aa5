"""Each check, on small records made by hand: what it finds, and what it does not."""

import math

import pytest

from transformer_mt.checkpoints.metrics import RunMetrics
from transformer_mt.evaluation import findings

GERMAN = [
    "Die Katze sitzt auf der Matte und schaut nach draußen.",
    "Morgen gehen wir auf den Markt, um frisches Gemüse zu kaufen.",
    "Heute ist es sehr kalt, aber die Sonne scheint.",
    "Der Zug kommt erst in zwanzig Minuten an.",
] * 5
ENGLISH = [
    "The cat sits on the mat and looks outside.",
    "Tomorrow we will go to the market to buy fresh vegetables.",
    "It is very cold today, but the sun is shining.",
    "The train will only arrive in twenty minutes.",
] * 5
RUSSIAN = ["Кошка сидит на коврике и смотрит на улицу."] * 20
CHINESE = ["猫坐在垫子上看着外面。"] * 10 + ["明天我们去市场买新鲜的蔬菜。"] * 10


def metrics(kind: str, losses: dict[int, float]) -> RunMetrics:
    """Makes the records of a run, given its losses by step."""
    return RunMetrics("run", [{"kind": kind, "step": s, "nll": x} for s, x in losses.items()])


@pytest.mark.parametrize(
    ("losses", "figures"),
    [
        ({}, []),
        ({10: 6.0, 50: 4.0, 100: 3.0, 150: 3.2, 200: 3.1}, []),
        ({10: 6.0, 50: 4.0, 100: 3.0, 150: 4.5}, ["3.00 at step 100", "4.50 at step 150"]),
        ({10: 6.0, 50: math.nan, 100: 5.0}, []),
        ({10: 6.0, 50: math.nan}, ["not finite at step 50"]),
    ],
)
def test_divergence(losses, figures):
    """The last loss counts, not one in between. Sabotage: compare with the first loss."""
    found = findings.divergence(metrics("train", losses))
    assert_found(found, figures, "optim.lr_scale")


@pytest.mark.parametrize(
    ("kind", "losses", "figures"),
    [
        ("valid", {}, []),
        ("valid", {30: 6.0}, ["30 steps", "optim.warmup_steps = 100"]),
        ("valid", {500: 2.0, 1000: 1.9}, []),
        ("valid", {500: 2.0, 1000: 1.5}, ["7.39 at step 500", "4.48 at step 1000"]),
        ("valid", {500: 3.0, 750: 2.0, 1000: 1.92}, []),
        ("valid", {750: 2.0, 1000: 1.85}, ["7.39 at step 750", "6.36 at step 1000"]),
        ("valid", {500: 2.0, 750: 3.0, 1000: 4.0}, []),
        ("valid", {1000: 2.0}, []),
        ("train", {250: 4.0, 500: 2.0, 750: 1.7, 1000: 1.4}, ["training", "7.39 at step 500"]),
        ("train", {500: 2.0, 1000: 1.8}, []),
    ],
)
def test_too_few_steps(kind, losses, figures):
    """Sabotage: compare with the first record; count nats and not nats per doubling."""
    found = findings.too_few_steps(metrics(kind, losses), warmup_steps=100)
    assert_found(found, figures, "train.max_steps")


@pytest.mark.parametrize(
    ("losses", "figures"),
    [
        ({}, []),
        ({100: 3.0, 200: 2.0, 300: 2.2}, []),
        ({100: 3.0, 200: 2.0, 300: 2.3}, ["7.39 at step 200", "9.97 at step 300"]),
        ({100: 2.0, 200: 4.0, 300: 1.9}, []),
        ({100: 2.0, 200: math.nan}, []),
    ],
)
def test_overfitting(losses, figures):
    """Sabotage: compare with the first validation, or take the last for the lowest."""
    found = findings.overfitting(metrics("valid", losses))
    assert_found(found, figures, "model.dropout")


def assert_found(found: str | None, figures: list[str], advice: str) -> None:
    """Checks that a finding has its figures and advice on one line, or that there is none."""
    assert bool(found) == bool(figures)
    if found:
        assert all(text in found for text in (*figures, advice)) and "\n" not in found


def test_unknown_pieces():
    assert findings.unknown_pieces("the test", 0.009) is None
    assert "4.2% of the pieces of the test" in (findings.unknown_pieces("the test", 0.042) or "")


def test_scripts_and_languages():
    """Of a side, by the training text of both; too little text, or no alphabet, says nothing.

    Sabotage: exchange the sides; count lines that have no letters.
    """
    script, language = findings.wrong_script, findings.wrong_language
    assert script("it", [*GERMAN, "", "1 + 2"], ENGLISH) is None
    assert script("it", [*GERMAN, *RUSSIAN[:1]], GERMAN) is None
    assert "20.0%" in (script("it", [*GERMAN, *RUSSIAN[:5]], GERMAN) or "")
    assert "100.0%" in (script("it", GERMAN, RUSSIAN) or "") and script("it", [], GERMAN) is None
    assert language("it", GERMAN, GERMAN, ENGLISH) is None
    assert language("it", GERMAN, GERMAN, GERMAN) is None  # a task of one language
    assert "by 1.00" in (language("it", ENGLISH, GERMAN, ENGLISH) or "")
    assert language("it", ENGLISH[:19], GERMAN, ENGLISH) is None
    assert language("it", GERMAN[:2] * 10, RUSSIAN, CHINESE)  # like neither side
    assert language("it", CHINESE[:10] * 2, CHINESE[10:] * 2, GERMAN) is None


def test_pairs_that_are_known_or_copies():
    """Sabotage: `copied_pairs` without the held-out share refuses tasks of one language."""
    assert findings.known_pairs("the test", 0, 50) is None
    assert findings.known_pairs("the test", 1, 101) is None
    assert "2 of 100" in (findings.known_pairs("the test", 2, 100) or "")
    assert findings.copied_pairs(0.05, 0.0) is None and findings.copied_pairs(1.0, 1.0) is None
    assert "30.0%" in (findings.copied_pairs(0.3, 0.01) or "")


@pytest.mark.parametrize(
    ("hypotheses", "ratio"), [(["abcd"], ""), (["abcdefghi"], "1.12"), (["abcdef"], "0.75")]
)
def test_lengths(hypotheses, ratio):
    """In characters, since not all languages have spaces. Sabotage: compare without `abs`."""
    references = ["abcdefgh"] if ratio else ["abcd"]
    found = findings.wrong_length("the test", references, hypotheses)
    assert_found(found, [ratio] if ratio else [], "too short" if ratio == "0.75" else "too long")


def test_repetition_and_copies():
    """Counted only where references do not do the same. Sabotage: leave the references out."""
    good, bad = ["a good line of words"] * 40, ["the old the old the old man", "的的的的的的"]
    assert findings.repeated_words("it", good * 2, [*good * 2, bad[0]]) is None
    assert findings.repeated_words("it", [*good, *bad], [*good * 2, *bad, bad[0]]) is None
    assert "2 of 42" in (findings.repeated_words("it", [*good, "x", "y"], [*good, *bad]) or "")
    assert findings.repeated_words("it", bad, bad) is None
    texts = ["ein Satz", "Berlin", "noch ein Satz"]
    assert findings.untranslated("it", texts, ["a", "Berlin", "b"], ["c", "Berlin", "d"]) is None
    assert "1 of 3" in (
        findings.untranslated("it", texts, ["a", "b", "c"], ["ein Satz", *"de"]) or ""
    )


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
    assert findings.mismatched_sides("the text", [], [], []) is None
