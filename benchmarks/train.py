"""Training speed: ours beside loops as tutorials write them, on the same corpus and sizes.

    python benchmarks/train.py FOLDER [--config configs/multi30k.toml] [--steps 10]

FOLDER holds the corpus. The peers are `nn.Transformer` with tied sizes, Adam and cross-entropy
over all logits, in fp32: on random batches of 128 padded sentences, on our batches, and on 32
sentences padded to 500 positions. The sides take turns, a step each; medians count. The share of
the peak is that of a 2,048-cube product in the same precision. Prints a table and, as its last
line, one JSON object.
"""

import json
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

from transformer_mt.batching import Indices, cut_micro_batches, plan_epoch
from transformer_mt.config import Config, load_config
from transformer_mt.device import supports
from transformer_mt.learner import Learner
from transformer_mt.linear import product
from transformer_mt.model import sinusoid
from transformer_mt.prepared import Prepared, prepare
from transformer_mt.run_log import Talk
from transformer_mt.vocab import PAD_ID

Step = Callable[[int], tuple[int, int]]
"""Takes step i; gives its source and target tokens."""
SENTENCES, FIXED_SENTENCES, FIXED_LENGTH = 128, 32, 500


class Tutorial(nn.Module):
    """What most tutorials build around `nn.Transformer`."""

    def __init__(self, config: Config, vocab: int) -> None:
        """Takes the sizes of a configuration."""
        super().__init__()
        sizes = config.model
        self.embedding = nn.Embedding(vocab, sizes.d_model)
        self.register_buffer("positions", sinusoid(torch.arange(512), sizes.d_model))
        self.dropout = nn.Dropout(sizes.dropout)
        self.transformer = nn.Transformer(
            sizes.d_model,
            sizes.n_heads,
            sizes.encoder_layers,
            sizes.decoder_layers,
            sizes.d_ff,
            sizes.dropout,
            batch_first=True,
        )
        self.out = nn.Linear(sizes.d_model, vocab)

    def embed(self, ids: Tensor) -> Tensor:
        """Embeds ids, (B, L) to (B, L, D)."""
        scaled = self.embedding(ids) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(scaled + self.positions[: ids.size(1)])

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Computes logits, (B, T, V)."""
        causal = nn.Transformer.generate_square_subsequent_mask(tgt.size(1), dtype=torch.bool)
        hidden = self.transformer(
            self.embed(src),
            self.embed(tgt),
            tgt_mask=causal,
            src_key_padding_mask=src == PAD_ID,
            tgt_key_padding_mask=tgt == PAD_ID,
            memory_key_padding_mask=src == PAD_ID,
            tgt_is_causal=True,
        )
        return self.out(hidden)


def tutorial(
    config: Config, prepared: Prepared, batches: Callable[[int], Indices], length: int = 0
) -> Step:
    """Gives a step of the plain loop, padded to a fixed length if one is given."""
    model = Tutorial(config, prepared.vocab.tgt_size).train()
    adam = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step(i: int) -> tuple[int, int]:
        lines = batches(i)
        batch = prepared.pairs.batch(lines)
        parts = batch.src, batch.tgt_in, batch.tgt_out
        if length:
            parts = tuple(F.pad(part, (0, length - part.size(1)), value=PAD_ID) for part in parts)
        src, tgt_in, tgt_out = parts
        logits = model(src, tgt_in)
        adam.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), tgt_out.flatten(), ignore_index=PAD_ID).backward()
        adam.step()
        return tuple(int(side[lines].sum()) for side in prepared.pairs.lengths)

    return step


def ours(config: Config, prepared: Prepared, steps: list[Indices], precision: str) -> Step:
    """Gives a step of our training."""
    vocab, lengths = prepared.vocab, prepared.pairs.lengths
    device = torch.device("cpu")
    learner = Learner(config, vocab.src_size, vocab.tgt_size, device, precision)

    def step(i: int) -> tuple[int, int]:
        parts = cut_micro_batches(steps[i], *lengths, config.train.micro_batch_tokens)
        learner.train_step(i + 1, [prepared.pairs.batch(part) for part in parts])
        return tuple(int(side[steps[i]].sum()) for side in lengths)

    return step


def operations(config: Config, vocab: int, src: int, tgt: int) -> float:
    """Counts the floating-point operations of the matrix products of a step, attention left out."""
    sizes = config.model
    square, inner = sizes.d_model**2, 2 * sizes.d_model * sizes.d_ff
    encoder = sizes.encoder_layers * (4 * square + inner) + sizes.decoder_layers * 2 * square
    decoder = sizes.decoder_layers * (6 * square + inner) + vocab * sizes.d_model
    return 6.0 * (src * encoder + tgt * decoder)  # forward, and twice as much backward


def peak(dtype: torch.dtype) -> float:
    """Measures a 2,048-cube product, in operations a second."""
    matrix = torch.randn(2048, 2048).to(dtype)
    times = []
    for _ in range(6):
        began = time.perf_counter()
        product(matrix, matrix)
        times.append(time.perf_counter() - began)
    return 2 * 2048**3 / min(times)


def main(
    folder: Annotated[Path, typer.Argument(help="The corpus.")],
    config: Annotated[Path, typer.Option(help="Sizes and batches.")] = Path(
        "configs/multi30k.toml"
    ),
    steps: Annotated[int, typer.Option(help="Steps of each side, after two to warm up.")] = 10,
) -> None:
    """Measures every side."""
    settings = load_config(config, [f"data.path={folder}"])
    prepared = prepare(settings, Talk())
    lengths, vocab = prepared.pairs.lengths, prepared.vocab.tgt_size
    plan = plan_epoch(*lengths, settings.train.batch_tokens, 1, 0)
    rng = np.random.default_rng(1)
    order = rng.permutation(len(prepared.pairs))
    sides: dict[str, tuple[str, Step]] = {}
    for precision in ("bf16", "fp32"):
        if supports(precision, torch.device("cpu")):
            sides[f"ours, {precision}"] = precision, ours(settings, prepared, plan, precision)
    random = tutorial(settings, prepared, lambda i: order[i * SENTENCES : (i + 1) * SENTENCES])
    sides["nn.Transformer, 128 random sentences"] = "fp32", random
    sides["nn.Transformer, our batches"] = "fp32", tutorial(settings, prepared, plan.__getitem__)
    fixed = tutorial(
        settings,
        prepared,
        lambda i: order[i * FIXED_SENTENCES : (i + 1) * FIXED_SENTENCES],
        FIXED_LENGTH,
    )
    rates: dict[str, list[float]] = {side: [] for side in sides}
    shares: dict[str, list[float]] = {side: [] for side in sides}
    peaks = {"fp32": peak(torch.float32), "bf16": peak(torch.bfloat16)}
    for i in range(steps + 2):
        for side, (precision, step) in sides.items():
            began = time.perf_counter()
            src, tgt = step(i)
            took = time.perf_counter() - began
            if i >= 2:
                rates[side].append(tgt / took)
                done = operations(settings, vocab, src, tgt)
                shares[side].append(done / took / peaks[precision])
    began = time.perf_counter()
    rates["fixed length, 32 x 500"] = [fixed(0)[1] / (time.perf_counter() - began)]
    best = statistics.median(rates[next(iter(sides))])
    print(f"{'':38}{'target tokens/s':>16}{'ours is':>9}{'of peak':>9}")
    rows = []
    for side, some in rates.items():
        rate = statistics.median(some)
        share = statistics.median(shares[side]) if side in shares else None
        shown = f"{share:9.1%}" if share else ""
        print(f"{side:38}{rate:16,.0f}{best / rate:8.1f}x{shown}")
        rows.append({"side": side, "tokens_per_second": rate, "share_of_peak": share})
    machine = {"cores": os.cpu_count(), "torch": torch.__version__, "peaks": peaks}
    print(json.dumps({"benchmark": "train", "config": config.stem, "rows": rows} | machine))


if __name__ == "__main__":
    typer.run(main)
