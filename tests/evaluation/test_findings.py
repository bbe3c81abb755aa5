"""Each check, on small records made by hand: what it finds, and what it does not."""

import math
import unicodedata

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
        (DIVERGED, "train", {10: 6.0, 50: math.nan}, "loss is not finite at step 50;"),
        (FEW, "valid", {}, None),
        (FEW, "valid", {100: 6.0}, None),
        (FEW, "valid", {1000: 2.0, 2000: 1.9, 2800: math.nan}, None),
        (FEW, "valid", {99: 6.0}, "99 steps are fewer than optim.warmup_steps = 100;"),
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
        (OVERFITTED, "valid", {100: 3.0, 200: 900.0}, "to 1.01e+304 at step 200;"),
        (OVERFITTED, "valid", {100: 2.0, 200: 4.0, 300: 1.9, 400: math.nan}, None),
    ],
)
def test_curves(check, kind, losses, figures):
    """The last loss counts, by the lowest or by one shortly before; one line with the figures."""
    records = [{"kind": kind, "step": step, "nll": loss} for step, loss in losses.items()]
    if kind == "valid" and len(losses) > 1:  # training is not looked at then
        records += [{"kind": "train", "step": 500 * i, "nll": -float(i)} for i in (1, 2)]
    metrics = RunMetrics("run", records)
    found = check(metrics, 100) if check is FEW else check(metrics)
    assert found is None if figures is None else figures in found and "\n" not in found


def test_the_perplexity_of_the_moving_average_comes_first():
    """Since that of the weights goes up and down. Sabotage: look at the weights alone."""
    for average, few in ((1.98, False), (1.80, True)):
        lines = [{"kind": "valid", "step": 750, "nll": 2.0, "ema_nll": 2.0}]
        lines.append({"kind": "valid", "step": 1000, "nll": 3.78 - average, "ema_nll": average})
        assert bool(FEW(RunMetrics("run", lines), 100)) == few


def test_overfitting_while_the_bleu_rises():
    """Patience would not end it."""
    records = [
        {"kind": "valid", "step": i, "nll": 2.0 + i, "bleu": bleu, "perplexity": 9.0}
        for i, bleu in enumerate((30.0, 31.0), 1)
    ]
    found = findings.overfitting(RunMetrics("run", records)) or ""
    assert "; start a new run with more text" in found
    records[1]["bleu"] = 29.0
    found = findings.overfitting(RunMetrics("run", records)) or ""
    assert "; stop earlier with valid.patience, or start" in found


def test_scripts_and_languages():
    """Of a side, by the training text of both; too little text, or no alphabet, says nothing."""
    script, language = findings.wrong_script, findings.wrong_language
    assert script("it", [*GERMAN, "", "1 + 2", RUSSIAN[0]], ENGLISH) is None
    found = script("it", [*GERMAN, *RUSSIAN[:5]], [RUSSIAN[0], *GERMAN]) or ""
    assert "20.0% of the lines of it are not in Latin script, as" in found
    names = ["iPhone und Microsoft 中", *GERMAN]
    assert script("it", ["iPhone 15 Pro Max正式发布"] * 9, CHINESE) is None  # mostly Latin letters
    assert script("it", names, CHINESE)
    assert script("it", [], GERMAN) is None and script("it", GERMAN, ["1"]) is None
    assert language("it", GERMAN, GERMAN, ENGLISH) is None
    assert language("it", GERMAN, GERMAN, GERMAN) is None  # a task of one language
    assert language("it", GERMAN, [*GERMAN, "Ein anderer Satz."], GERMAN) is None
    found = language("it", ENGLISH, GERMAN, ENGLISH) or ""
    assert "similarity of 0.37 to the training text of their side and of 1.00 to" in found
    assert findings.similarity(["aB"], ["", "ab", "ab"]) == pytest.approx(6 / 39**0.5)
    # As SentencePiece cuts text, and as macOS decomposes it, against what a vocabulary decodes.
    cut = [f"▁{line.replace(' ', ' ▁').replace('tz', 't z')}" for line in GERMAN]
    decoded = [line.replace("tz", "t z").replace(" ", "  ") for line in GERMAN]
    for text in (cut, [unicodedata.normalize("NFD", line) for line in decoded]):
        assert findings.similarity(text, decoded) == pytest.approx(1)
    assert language("it", ENGLISH[:19], GERMAN, ENGLISH) is None
    assert language("it", GERMAN, RUSSIAN, CHINESE)  # like neither side
    assert language("it", CHINESE, MORE_CHINESE, GERMAN) is None
    assert language("it", ["고양이가 앉아 있다"] * 20, ["내일 시장에 간다"] * 20, GERMAN) is None


def test_shares():
    """Just below the limit nothing is found; copies count only beyond those of held-out text."""
    unknown, known, copied = findings.unknown_pieces, findings.known_pairs, findings.copied_pairs
    assert unknown("it", 0.009, True) is None and known("it", 1, 101) is None
    assert "1.0% of the pieces of it are unknown" in (unknown("it", 0.01, False) or "")
    assert "vocab.kind = bpe" in (unknown("it", 0.01, False) or "")
    assert "add text that has them" in (unknown("it", 0.01, True) or "")
    assert "known text: 1 of 100 longer pairs of it are also" in (known("it", 1, 100) or "")
    assert known("it", 0, 0) is None and copied(0.09, 0.0) is None and copied(1.0, 1.0) is None
    assert "in 35.0% of the training pairs both" in (copied(0.35, 0.2) or "")


def test_translations():
    """Repetition and copies count only where references are without, from 2% on."""
    length, repeated, copies = findings.wrong_length, findings.repeated_words, findings.untranslated
    references = ["a" * 60, "b" * 40]
    assert length("it", references, ["x" * 91]) is length("it", references, ["x" * 109]) is None
    assert "translations of it are 89% as" in (length("it", references, ["x" * 89]) or "")
    assert "decode with --beam-size 4 and a" in (length("it", references, ["x"]) or "")
    assert "decode with a higher" in (length("it", references, ["x"], greedy=False) or "")
    found = length("it", references, ["x" * 100, "x" * 11]) or ""
    assert found.startswith("too long: translations of it are 111% as long as the references;")
    good, bad = ["a good line of words"] * 98, ["the old the old the old man", "的的的的的的"]
    assert repeated("it", [*good, *bad], [*good, *bad, bad[0]]) is repeated("it", [], []) is None
    found = repeated("it", [*good[1:], *bad, bad[0]], [*good[:95], *bad, *bad, bad[0]]) or ""
    assert "5 of 100 translations of it, but 3 references, repeat something" in found
    assert repeated("it", good, [*good[:49], bad[0]])
    assert repeated("it", good, [*good[:50], bad[0]]) is None
    assert repeated("it", good, [*good[:49], "a phrase of just under 40 characters - " * 3])
    texts, names = ["ein Satz", "Berlin", *good[:48]], ["a", "Berlin", *good[:48]]
    assert copies("it", texts, names, ["c", "Berlin", *good[:48]]) is None
    assert "1 of 50 translations of it are their" in (copies("it", texts, names, texts) or "")
    assert copies("it", [*texts, "x"], [*names, "y"], [*texts, "z"]) is None
    assert copies("it", [], [], []) is None
    assert copies("it", ["", *good[:48]], ["a line", *good[:48]], ["", *good[:48]]) is None


def test_sides_that_do_not_match():
    """The three worst pairs are shown, the worst first, each on one line whatever it holds."""
    src = [f"Zeile {i}\u2028und {i}" for i in range(20)]
    gains = [0.0, -2.0, *[3.0] * 18]
    found = findings.mismatched_sides("the text", gains, src, ["w " * 99, *src[1:]]) or ""
    long = f'"{" ".join("w" * 28)} ..."'
    shown = f'"Zeile 1 und 1" = "Zeile 1 und 1", "Zeile 0 und 0" = {long}, "Zeile 2 und 2" = "Zeile'
    assert (
        "in 2 of 20 pairs of the text the" in found and f'such as {shown} 2 und 2"; align' in found
    )
    assert findings.mismatched_sides("the text", [], [], []) is None
    assert findings.mismatched_sides("the text", [-1.0, *[3.0] * 19], src, src) is None
