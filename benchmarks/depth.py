"""Decoding speed of the base model and of a deep encoder with a shallow decoder.

    python benchmarks/depth.py [--sentences 128] [--beam-size 4] [--device cuda]

Random weights, an end mark that never comes: every model translates the same sources to the same
lengths, so only the layers differ. The lengths are drawn like newstest2016's, 27 pieces a sentence
on average. Prints a table and, as its last line, one JSON object.
"""

import json
import statistics
import time
from typing import Annotated

import numpy as np
import torch
import typer

from transformer_mt.config.keys import ModelConfig
from transformer_mt.model.transformer import Transformer
from transformer_mt.text.batching import flatten
from transformer_mt.translation.search import beam_search, greedy

MODELS = {"6+6": (6, 6), "12+1": (12, 1), "6+1": (6, 1)}
VOCABULARY = 37_000
BATCH = 64
ROUNDS = 3


def draw_sources(sentences: int) -> list[list[int]]:
    """Draws sentences, sorted by length as a translator sorts them."""
    rng = np.random.default_rng(1)
    lengths = np.sort(np.clip(rng.gamma(3.0, 9.0, sentences).astype(int), 2, 128))
    return [rng.integers(4, VOCABULARY, length).tolist() for length in lengths]


@torch.no_grad()
def decode(model: Transformer, sources: list[list[int]], beam_size: int) -> float:
    """Translates everything once; gives the seconds it took."""
    device, began = model.device, time.perf_counter()
    for start in range(0, len(sources), BATCH):
        batch = sources[start : start + BATCH]
        src = flatten(batch).gather(np.arange(len(batch)), begin=False, end=False)
        lengths = torch.tensor([len(source) for source in batch], device=device)
        state = model.begin_decoding(src.to(device), int(lengths.max()))
        if beam_size == 1:
            greedy(model.next_logits, state, lengths, 2, -1)
        else:
            beam_search(model.next_logits, state, lengths, 2, -1, beam_size, 0.6)
    return time.perf_counter() - began


def main(
    sentences: Annotated[int, typer.Option(help="How many to translate.")] = 128,
    beam_size: Annotated[int, typer.Option(help="Compared with greedy search.")] = 4,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Measures every model, greedily and with a beam."""
    sources = draw_sources(sentences)
    tokens = sum(map(len, sources))
    models = {}
    for name, (encoder, decoder) in MODELS.items():
        config = ModelConfig(encoder_layers=encoder, decoder_layers=decoder, norm="pre")
        models[name] = Transformer(config, VOCABULARY, VOCABULARY, 0).to(device).eval()
    results = []
    for beam in (1, beam_size):
        seconds: dict[str, list[float]] = {name: [] for name in models}
        for model in models.values():  # a first round to warm up
            decode(model, sources[:BATCH], beam)
        for _ in range(ROUNDS):
            for name, model in models.items():
                seconds[name].append(decode(model, sources, beam))
        reference = statistics.median(seconds["6+6"])
        for name, model in models.items():
            median = statistics.median(seconds[name])
            results.append(
                {
                    "layers": name,
                    "beam_size": beam,
                    "million_parameters": sum(p.numel() for p in model.parameters()) / 1e6,
                    "sentences_per_second": sentences / median,
                    "tokens_per_second": tokens / median,
                    "speed_up": reference / median,
                }
            )
    print("layers  beam  parameters  sentences/s  tokens/s  against 6+6")
    for row in results:
        print(
            f"{row['layers']:>6}  {row['beam_size']:4}  {row['million_parameters']:8.1f} M"
            f"  {row['sentences_per_second']:11.1f}  {row['tokens_per_second']:8.0f}"
            f"  {row['speed_up']:10.2f}x"
        )
    print(json.dumps({"benchmark": "decoding", "device": device, "results": results}))


if __name__ == "__main__":
    typer.run(main)
