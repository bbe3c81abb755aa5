"""Several processes: how well a step's micro-batches occupy them, and two of them on a CPU.

    python benchmarks/scaling.py plan CONFIG [--pairs 4500000]
    python benchmarks/scaling.py cpu CONFIG [--neighbours 1] [--env NAME=VALUE]

`plan` takes the lengths of CONFIG's training text, which it prepares if necessary, drawn with
replacement until there are `--pairs` of them, and prints how much of their time 8 and 64 GPUs wait
for the one with the most work in a step: its padded positions, or its floating-point operations.
Communication is ignored. `cpu` trains in turn with one process of two threads; with the same and
each `--env`; and with two processes of one thread. It prints target tokens per second, each the
median of the steps after the first few, and the ratio to the first.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from load import neighbours

from transformer_mt.config.loading import load_config
from transformer_mt.text.batching import (
    Indices,
    Lengths,
    cut_micro_batches,
    deal_micro_batches,
    padded_size,
    plan_epoch,
)
from transformer_mt.text.prepared import prepare
from transformer_mt.training.flops import flops_per_token

WARM_UP = 6
SAMPLE_STEPS = 200
LIMIT = 8192
"""Bound on micro-batches, which with 8 GPUs a step of 25,000 tokens does not reach."""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "--")
ONE, TWO = "1 process x 2 threads", "2 processes x 1 thread"

app = typer.Typer(help=__doc__, pretty_exceptions_enable=False)


@app.command()
def plan(
    config: Path,
    pairs: int = 4_500_000,
    set_: Annotated[list[str], typer.Option("--set")] = [],  # noqa: B006  Typer copies it
) -> None:
    """Prints how long an epoch takes to plan, and idle shares."""
    settings = load_config(config, set_)
    corpus = prepare(settings)
    drawn = np.random.default_rng(1).integers(0, len(corpus.pairs), pairs)
    lengths = corpus.pairs.lengths[:, drawn]
    began = time.monotonic()
    steps = plan_epoch(lengths, settings.train.batch_tokens, settings.train.seed, 0)
    seconds = time.monotonic() - began
    print(f"{len(steps):,} steps planned in {seconds:.1f} s")
    src_flops, tgt_flops = flops_per_token(settings.model, corpus.vocab.tgt.size)

    def flops(pairs: Indices) -> int:
        src, tgt = lengths[:, pairs].max(axis=1).tolist()
        return len(pairs) * (src * src_flops + tgt * tgt_flops)

    measures = {"positions": lambda pairs: padded_size(pairs, lengths), "flops": flops}
    shares = {}
    for gpus in (8, 64):
        shares[gpus] = idle_shares(steps, lengths, gpus, measures)
        shown = ", ".join(f"{share:.1%} by {name}" for name, share in shares[gpus].items())
        print(f"{gpus} GPUs are idle {shown}")
    print(json.dumps({"seconds": seconds, "steps": len(steps), "idle": shares}))


def idle_shares(
    steps: list[Indices], lengths: Lengths, gpus: int, measures: dict[str, Callable[[Indices], int]]
) -> dict[str, float]:
    """Computes the share of time that GPUs wait in a sample of steps, by each measure of work."""
    longest, total = Counter[str](), Counter[str]()
    for step in np.unique(np.linspace(0, len(steps) - 1, SAMPLE_STEPS, dtype=int)):
        parts = cut_micro_batches(steps[step], lengths, LIMIT, gpus)
        dealt = deal_micro_batches([padded_size(pairs, lengths) for pairs in parts], gpus)
        for name, work in measures.items():
            work_of = [sum(work(parts[number]) for number in numbers) for numbers in dealt]
            longest[name] += max(work_of)
            total[name] += sum(work_of)
    return {name: 1 - total[name] / (longest[name] * gpus) for name in measures}


@app.command()
def cpu(
    config: Path,
    steps: int = 30,
    repeats: int = 2,
    busy: Annotated[int, typer.Option("--neighbours")] = 0,
    env: list[str] = [],  # noqa: B006  Typer copies it
    set_: Annotated[list[str], typer.Option("--set")] = [],  # noqa: B006  Typer copies it
) -> None:
    """Prints the speed of one process of two threads, and of the alternatives."""
    prepare(load_config(config, set_))
    sides = [ONE, *env, TWO]
    speeds: dict[str, list[float]] = {side: [] for side in sides}
    with neighbours(busy):
        for side in sides * repeats:
            speeds[side].append(train(side, config, steps, set_))
            print(f"{side}: {speeds[side][-1]:,.0f} target tokens/s", flush=True)
    medians = {side: statistics.median(values) for side, values in speeds.items()}
    for side, median in medians.items():
        print(f"{side:40}{median:8,.0f}{median / medians[ONE]:7.2f}")
    print(json.dumps({"neighbours": busy, "speeds": speeds}))


def train(side: str, config: Path, steps: int, changes: list[str]) -> float:
    """Trains some steps; gives the median of target tokens per second."""
    threads, launcher = ("1", TORCHRUN) if side == TWO else ("2", ("-m",))
    environment = {**os.environ, "OMP_NUM_THREADS": threads}
    if "=" in side:
        name, _, value = side.partition("=")
        environment[name] = value
    limits = (f"train.max_steps={steps}", "train.log_every=1", f"valid.every={10 * steps}")
    words = [word for change in (*changes, *limits) for word in ("--set", change)]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = (sys.executable, *launcher, "transformer_mt", "train", str(config), "--quiet")
        subprocess.run([*command, "--run", str(run), *words], check=True, env=environment)
        lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        speeds = [line["tokens_per_second"] for line in lines if line["kind"] == "train"]
    return statistics.median(speeds[WARM_UP:])


if __name__ == "__main__":
    app()
