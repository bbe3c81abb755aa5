"""What only a CUDA device can show: `python -m pytest -m gpu`."""

import pytest
import torch
from conftest import losses, tiny_config

from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.text.corpus import load_split
from transformer_mt.training.run import train
from transformer_mt.translation.options import LoadOptions
from transformer_mt.translation.translation_model import build_translation_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    # PyTorch's own while it compiles.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(torch|triton)"),
]


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize(
    ("precision", "muon", "tolerance"),
    [("fp32", False, 1e-3), ("bf16", False, 0.02), ("fp16", False, 0.02), ("bf16", True, 0.02)],
)
def test_every_precision_follows_the_cpu(corpus_dir, tmp_path, precision, muon, tolerance, packs):
    """Without dropout, and resumed: the losses are the CPU's, up to the precision."""
    recipe = {"model__dropout": 0.0, "model__n_heads": 1, "optim__muon": muon}
    train(tiny_config(corpus_dir, **recipe), tmp_path / "cpu")
    for steps in (10, 20):
        device = {"train__device": "cuda", "train__precision": precision, "train__compile": packs}
        config = tiny_config(corpus_dir, train__max_steps=steps, **device, **recipe)
        train(config, tmp_path / "cuda")
    assert losses(tmp_path / "cuda") == pytest.approx(losses(tmp_path / "cpu"), rel=tolerance)
    log = (tmp_path / "cuda" / "train.log").read_text()
    assert ("packs of" in log) == packs and "torch.compile failed" not in log


def test_dropout_of_packs_is_a_function_of_seed_and_step(corpus_dir, tmp_path):
    """Two runs are equal, resumed or not; another seed differs."""
    recipe = {"model__dropout": 0.3, "model__n_heads": 1, "train__device": "cuda"}
    for name, ends, seed in (("whole", (20,), 1), ("parts", (10, 20), 1), ("other", (20,), 2)):
        for steps in ends:
            changes = {"train__max_steps": steps, "train__seed": seed, **recipe}
            train(tiny_config(corpus_dir, **changes), tmp_path / name)
    whole, parts, other = (losses(tmp_path / name) for name in ("whole", "parts", "other"))
    assert whole == pytest.approx(parts, rel=1e-3) and whole != pytest.approx(other, rel=1e-3)


def test_translation_is_the_cpus(copy_run):
    """Greedy fp32 on either device gives the same text, near-ties aside."""
    checkpoint = find_checkpoint(copy_run)
    pairs, texts = load_split(checkpoint.config.data, "test"), []
    for device in ("cpu", "cuda"):
        translator = build_translation_model([checkpoint], LoadOptions(device)).translator()
        texts.append(translator.translate(pairs.src))
    same = sum(cpu == cuda for cpu, cuda in zip(*texts, strict=True))
    assert same >= 0.95 * len(pairs)
