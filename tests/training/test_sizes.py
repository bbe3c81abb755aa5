"""What is counted of a text, and the sizes that are chosen for it and a machine."""

import re
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from simulated_cuda import SimulatedCuda

from transformer_mt.config.keys import VocabConfig
from transformer_mt.text.vocabulary import train_vocabulary
from transformer_mt.training.new_config import (
    TextStatistics,
    choose_sizes,
    measure_text,
    this_machine,
)

CONFIGS = Path(__file__).parents[2] / "configs"
CPU, GPU = False, True


def text_of(pairs: int, longest: int = 300) -> TextStatistics:
    """Makes statistics of a text with many words."""
    return TextStatistics(pairs, 0, 12.0, 12.0, longest, distinct_words=10**6, characters=100)


@pytest.mark.parametrize(
    ("pairs", "machine", "vocab_size", "d_model", "layers", "dropout", "held_out"),
    [
        (40, CPU, 2_000, 128, 2, 0.3, 2),
        (10_000, CPU, 4_000, 256, 3, 0.3, 500),
        (20_001, CPU, 6_000, 256, 3, 0.3, 1_000),
        (160_000, GPU, 10_000, 512, 6, 0.3, 1_000),
        (900_000, GPU, 16_000, 512, 6, 0.1, 1_000),
        (5_000_000, CPU, 8_000, 128, 4, 0.1, 1_000),
        (5_000_000, GPU, 37_000, 512, 6, 0.1, 1_000),
    ],
)
def test_sizes_by_pairs(pairs, machine, vocab_size, d_model, layers, dropout, held_out):
    """Sabotage: take the first row that fits, or one that needs a GPU on a CPU; count all lines."""
    text = text_of(pairs)
    sizes = choose_sizes(text, machine)
    chosen = sizes.vocab_size, sizes.d_model, sizes.layers, sizes.dropout
    assert chosen == (vocab_size, d_model, layers, dropout)
    assert (text.held_out, text.train_pairs) == (held_out, pairs - 2 * held_out)
    # Pairs without text give no larger model.
    with_empty = replace(text_of(pairs + 600_000), empty=600_000)
    assert choose_sizes(with_empty, machine) == sizes


@pytest.mark.parametrize(
    ("name", "pairs", "machine"),
    [("multi30k", 29_000, CPU), ("news-cpu", 300_000, CPU), ("wmt16-base", 4_500_000, GPU)],
)
def test_sizes_are_those_of_the_repository(name, pairs, machine):
    """Sabotage: change a size in the table or in the file."""
    values = tomllib.loads((CONFIGS / f"{name}.toml").read_text())
    preset = choose_sizes(text_of(pairs), machine)
    assert values["vocab"]["size"] == preset.vocab_size
    values = values["model"] | values["optim"] | values["train"]
    values = {"dropout": 0.1, "lr_scale": 1.0} | values
    for key in ("d_model", "d_ff", "n_heads", "dropout", "warmup_steps", "lr_scale"):
        assert values[key] == getattr(preset, key)
    assert values["batch_tokens"] == preset.batch_tokens
    assert values["encoder_layers"] == values["decoder_layers"] == preset.layers


@pytest.mark.parametrize(
    ("longest", "max_length"), [(1, 64), (192, 64), (193, 128), (768, 256), (5_000, 512)]
)
def test_length(longest, max_length):
    """By the bytes of the longest lines. Sabotage: divide by 4."""
    assert text_of(1_000, longest).max_length == max_length


TEXTS = {
    "one sentence": [("Das ist ein Haus .", "This is a house .")] * 30,
    "long words": [("Donaudampfschifffahrtsgesellschaft" * 3 + str(i), "x") for i in range(50)],
    "numbers": [(f"{i} 1.{i},{i}", f"{i}-{i}/{i}") for i in range(300)],
    "Chinese": [("".join(chr(0x4E00 + 7 * i + j) for j in range(40)), "a") for i in range(400)],
    "emoji": [("😀 😁 😂" + "😃" * i, "🙂") for i in range(25)],
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_vocabulary_of_that_size_can_be_learned(name):
    """From the part that is not held out. Sabotage: the size of the table for every text."""
    text = measure_text(TEXTS[name])
    sizes = choose_sizes(text, CPU)
    words = Counter(w for pair in TEXTS[name][: text.train_pairs] for s in pair for w in s.split())
    config = VocabConfig(size=sizes.vocab_size)
    assert train_vocabulary([words], config).src.size == sizes.vocab_size


def test_this_machine():
    """Threads and memory are those that training has; a GPU is named."""
    description, has_gpu = this_machine()
    assert re.fullmatch(r"[1-9]\d* CPU threads?, \d+\.\d GB of memory, no GPU", description)
    assert not has_gpu
    with SimulatedCuda():
        assert this_machine() == ("simulated with 1000.0 GB of memory", True)


PAIRS = [("ein Haus", "a house"), ("", "no source"), ("Grüße an Ögedei Ä", "a b"), ("a", "a")]


def test_counts():
    """A word is what white space separates; a pair has the bytes of its longer side.

    Sabotage: count characters instead of bytes, or the words of one side.
    """
    text = measure_text(PAIRS)
    assert (text.pairs, text.empty, text.src_words, text.tgt_words) == (4, 1, 7 / 4, 7 / 4)
    assert text.longest_bytes == len("Grüße an Ögedei Ä".encode())
    assert text.distinct_words == len({w for pair in PAIRS for side in pair for w in side.split()})
    assert text.characters == len(set("".join(map("".join, PAIRS))) - {" "})
    assert (text.src_problems, text.tgt_problems) == ("1 empty", "")
    assert measure_text([]) == TextStatistics(0, 0, 0.0, 0.0, 0, 0, 0)


def test_what_is_rare_is_not_counted():
    """Characters, which become bytes, and long lines. Sabotage: a coverage of 1; `<`, not `<=`."""
    assert measure_text([("a" * 9_000 + "b" * 1_000, "€")]).characters == 2
    for long_lines, longest in ((1, 3), (2, 50)):
        text = [("a", "abc")] * (1_000 - long_lines) + [("a" * 50, "b")] * long_lines
        assert measure_text(text).longest_bytes == longest
