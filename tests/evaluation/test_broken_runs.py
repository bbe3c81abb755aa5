"""Runs broken on purpose, one or more for each cause of a low BLEU, and two that are healthy."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from transformer_mt.config.loading import load_config
from transformer_mt.evaluation.diagnosis import diagnose
from transformer_mt.training.run import train

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "data" / "sample"
SMALL = ["model.encoder_layers=1", "model.decoder_layers=1", "vocab.size=1500"]
SMALL += ["data.valid=validation[:100]", "data.test=test[:100]"]
EVERY_50 = "valid.every=50"
CYRILLIC = str.maketrans("abcdefghijklmnopqrstuvwxyz", "абцдефгхийклмнопярстувщхыз")
UNTRAINED = {"too few steps", "too short", "too long", "repeated words"}
"""What a training of seconds may have beside its fault."""

Sides = tuple[list[str], list[str]]


def read_sample(split: str) -> Sides:
    src, tgt = ((SAMPLE / f"{split}.{side}").read_text().splitlines() for side in ("de", "en"))
    return src, tgt


def keep(split: str, src: list[str], tgt: list[str]) -> Sides:
    return src, tgt


def shuffle(split: str, src: list[str], tgt: list[str]) -> Sides:
    return src, random.Random(1).sample(tgt, len(tgt)) if split == "train" else tgt


def leak_and_swap(split: str, src: list[str], tgt: list[str]) -> Sides:
    """Half of the test text is in the training text; the validation files are exchanged."""
    known = [side[:50] for side in read_sample("test")]
    changed = {"train": (src + known[0], tgt + known[1]), "validation": (tgt, src)}
    return changed.get(split, (src, tgt))


def transliterate(split: str, src: list[str], tgt: list[str]) -> Sides:
    return [s.lower().translate(CYRILLIC) for s in src] if split == "test" else src, tgt


def halve(split: str, src: list[str], tgt: list[str]) -> Sides:
    halves = [" ".join(words[: (len(words) + 1) // 2]) for words in map(str.split, tgt)]
    return src, halves if split == "train" else tgt


def repeat(split: str, src: list[str], tgt: list[str]) -> Sides:
    repeated = [" ".join(f"{word} {word} {word}" for word in line.split()) for line in tgt]
    return src, repeated if split == "train" else tgt


def copy(split: str, src: list[str], tgt: list[str]) -> Sides:
    return src, src if split == "train" else tgt


def find_causes(
    folder: Path, change: Callable[[str, list[str], list[str]], Sides], steps: int, *settings: str
) -> set[str]:
    """Trains a small model on the changed sample; gives what stands first in each finding."""
    for split in ("train", "validation", "test"):
        for side, lines in zip(("de", "en"), change(split, *read_sample(split)), strict=True):
            (folder / f"{split}.{side}").write_text("".join(f"{line}\n" for line in lines))
    values = [f"data.path={folder}", f"data.prepared_dir={folder}/prepared"]
    values += ["model.d_model=64", "model.d_ff=128", "model.dropout=0.0", "train.precision=fp32"]
    values += ["optim.warmup_steps=150", f"train.max_steps={steps}", f"train.save_every={steps}"]
    train(load_config(ROOT / "configs" / "sample.toml", [*values, *settings]), folder / "run")
    return {finding.partition(":")[0] for finding in diagnose(folder / "run")}


@pytest.mark.parametrize("settings", [[], ["model.d_model=128", *SMALL[:2]]])
def test_nothing_is_found_in_a_healthy_run(tmp_path, settings):
    """Neither of two layers on each side, nor of a single one that is wider: 93 to 95 BLEU."""
    assert not find_causes(tmp_path, keep, 600, "valid.every=200", *settings)


@pytest.mark.parametrize(
    ("change", "steps", "settings", "causes"),
    [
        (shuffle, 500, ["valid.every=350"], {"sides do not match"}),
        (leak_and_swap, 20, [], {"known text", "wrong language", "too few steps"}),
        (transliterate, 20, [], {"wrong script", "unknown pieces"}),
        (keep, 300, [EVERY_50, "data.train=train[:300]", "vocab.size=500"], {"overfitting"}),
        (keep, 150, ["optim.lr_scale=50", "optim.max_grad_norm=0"], {"divergence"}),
        (halve, 200, [], {"too short"}),
        (repeat, 200, [], {"too long", "repeated words"}),
        (
            copy,
            300,
            [],
            {"untranslated text", "untranslated copies", "wrong language", "unknown pieces"},
        ),
    ],
)
def test_each_cause_is_found(tmp_path, change, steps, settings, causes):
    """And no other, but for what comes of a short training."""
    found = find_causes(tmp_path, change, steps, *SMALL, *settings)
    assert causes <= found <= causes | UNTRAINED
