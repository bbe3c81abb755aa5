"""Training speed: ours beside its peers, on the same pairs and sizes.

    python benchmarks/train.py --text FOLDER [--joeynmt DIR]      # small and base, for a CPU
    python benchmarks/train.py [--steps 50]                       # base and big, for a GPU

Options of both: `--quick` and `--neighbours 1`. On a GPU `--profile` shows the kernels in which our
steps spend their time, and measures nothing else.

With the text of `configs/multi30k.toml` in FOLDER: its model (3+3 layers, 256) and the paper's base
(6+6, 512) on its vocabulary and batches. The peers, in fp32: `nn.Transformer` with Adam and
cross-entropy over all logits, on random batches of 128 padded sentences as most tutorials write
it, on our batches, and on 32 (base: 8) sentences padded to 500 positions; and JoeyNMT 2.3.0, for
which an environment is made in DIR once, before and after the others.

Without: base and big with 37,000 pieces on made pairs of WMT16's lengths (gamma-distributed, a mean
of 32 pieces a side), steps of 25,000 tokens, eager and compiled.

On a CPU the sides take turns, a step each; on a GPU they follow each other, so that each has the
memory for itself. Medians count, after two steps to warm up. The share of the peak is that of
`docs/training.md`.
"""

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from load import Load, describe_share, neighbours
from peers import JoeyNMT, Step, Tutorial, tutorial

from transformer_mt.checkpoints.checkpoint import Progress
from transformer_mt.config.keys import Config
from transformer_mt.config.loading import load_config
from transformer_mt.errors import DeviceError
from transformer_mt.system.device import choose_device, compute_settings, supports
from transformer_mt.text.batching import EncodedLines, EncodedPairs, Indices, plan_epoch
from transformer_mt.text.prepared import prepare
from transformer_mt.training.engine import Engine
from transformer_mt.training.fit import StepFitter
from transformer_mt.training.flops import flops_per_token, measure_peak_flops

CONFIGS = Path(__file__).parents[1] / "configs"
PAPER = {"d_model": 512, "d_ff": 2048, "n_heads": 8, "encoder_layers": 6, "decoder_layers": 6}
RANDOM_SENTENCES, FIXED_LENGTH = 128, 500
WARM_UP = 2
GB = 1e9


@dataclass(frozen=True)
class Extent:
    """How much is measured.

    Attributes:
        steps: Steps of each side, after those to warm up.
        updates: Steps that JoeyNMT logs, before and after the others, by model.
        fixed_sentences: Sentences padded to a fixed length, by model; 32 need more than 24 GiB
            with base.
        all_gpu_sides: Whether a GPU also computes in fp32 and with smaller micro-batches.
    """

    steps: int
    updates: dict[str, int]
    fixed_sentences: dict[str, int]
    all_gpu_sides: bool


FULL = Extent(10, {"small": 60, "base": 18}, {"small": 32, "base": 8}, True)
QUICK = Extent(2, {"small": 18, "base": 6}, {"small": 8, "base": 2}, False)


@dataclass
class Task:
    """What all sides are given."""

    config: Config
    pairs: EncodedPairs
    vocab: int
    device: torch.device

    def plan(self) -> list[Indices]:
        """Gives the steps of an epoch."""
        return plan_epoch(self.pairs.lengths, self.config.train.batch_tokens, 1, 0)


@dataclass
class Contender:
    """One program under test and what was measured of it."""

    name: str
    precision: str
    make: Callable[[], Step]
    rates: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    first_seconds: float = 0.0
    gigabytes: float | None = None
    peak: float = 0.0
    load: Load = field(default_factory=Load)

    def row(self) -> dict[str, Any]:
        """Gives its medians."""
        return {
            "side": self.name,
            "tokens_per_second": statistics.median(self.rates) if self.rates else None,
            "share_of_peak": statistics.median(self.shares) if self.shares else None,
            "first_step_seconds": self.first_seconds,
            "gigabytes": self.gigabytes,
            "peak": self.peak,
            "others_share": self.load.share,
        }


def ours(task: Task, precision: str, limit: int | None, fuse: bool) -> Step:
    """Gives a step of our training, with a bound on micro-batches or what is found for it."""
    train = task.config.train.model_copy(update={"compile": fuse})
    config = task.config.model_copy(update={"train": train})
    engine = Engine(config, task.vocab, task.vocab, task.device, precision)
    fitter, steps = StepFitter(engine), task.plan()
    bound = Progress(micro_batch_tokens=limit or fitter.find_micro_batch_tokens())
    ends: list[torch.cuda.Event] = []

    def step(i: int) -> tuple[int, int]:
        with compute_settings(task.device, tf32=True):
            fitter.fit_step(replace(bound, step=i), task.pairs, steps[i])
        if task.device.type == "cuda":  # as in training, the next step is made ready meanwhile
            ends.append(torch.cuda.Event())
            ends[-1].record()
            ends[max(0, len(ends) - 2)].synchronize()
        tokens = task.pairs.count_tokens(steps[i])
        return tokens.src_tokens, tokens.tgt_tokens

    return step


def our_sides(task: Task, all_gpu_sides: bool) -> list[Contender]:
    """Gives ours in each precision; on a GPU also in eager mode and in little memory."""
    sides, on_gpu = [], task.device.type == "cuda"
    for precision in ("bf16", "fp32") if all_gpu_sides or not on_gpu else ("bf16",):
        if supports(precision, task.device):
            make = lambda p=precision: ours(task, p, None, True)  # noqa: E731
            sides.append(Contender(f"ours, {precision}", precision, make))
    if on_gpu:
        sides.append(Contender("eager", "bf16", lambda: ours(task, "bf16", None, False)))
    if on_gpu and all_gpu_sides:
        for size in (2 * task.config.train.batch_tokens, 4096, 2048):
            name = f"micro-batches of {size}"
            make = lambda s=size: ours(task, "bf16", s, True)  # noqa: E731
            sides.append(Contender(name, "bf16", make))
    return sides


def loops(task: Task) -> list[Contender]:
    """Gives the loops around `nn.Transformer`."""
    order = np.random.default_rng(1).permutation(len(task.pairs))
    steps = task.plan()

    def loop(batches: Callable[[int], Indices]) -> Step:
        return tutorial(Tutorial(task.config, task.vocab).to(task.device), task.pairs, batches)

    def at_random(size: int) -> Callable[[int], Indices]:
        return lambda i: order[i * size : (i + 1) * size]

    return [
        Contender(
            f"nn.Transformer, {RANDOM_SENTENCES} random sentences",
            "fp32",
            lambda: loop(at_random(RANDOM_SENTENCES)),
        ),
        Contender("nn.Transformer, our batches", "fp32", lambda: loop(steps.__getitem__)),
    ]


def report(progress: str) -> None:
    """Prints a line on stderr."""
    print(progress, file=sys.stderr, flush=True)


def fixed(task: Task, sentences: int) -> Contender:
    """Measures one step of sentences padded to a fixed length, which takes long enough."""
    side = Contender(f"padded to {FIXED_LENGTH}, {sentences} sentences", "fp32", lambda: 0)
    lines = np.arange(sentences)
    model = Tutorial(task.config, task.vocab).to(task.device)
    step = tutorial(model, task.pairs, lambda i: lines, FIXED_LENGTH)
    with side.load.watch():
        began = time.perf_counter()
        side.rates.append(step(0)[1] / (time.perf_counter() - began))
    report(f"{side.name}: {side.rates[0]:,.0f} target tokens/s")
    return side


def measure(task: Task, sides: list[Contender], steps: int) -> None:
    """Takes steps with some sides in turn."""
    with compute_settings(task.device, tf32=True):
        for side in sides:
            side.peak = measure_peak_flops(task.device, side.precision)
    running = [side.make() for side in sides]
    for i in range(steps + WARM_UP):
        for side, step in zip(sides, running, strict=True):
            load = side.load if i >= WARM_UP else Load()
            with load.watch():
                began = time.perf_counter()
                src, tgt = step(i)
                took = time.perf_counter() - began
            side.first_seconds = side.first_seconds or took
            if i >= WARM_UP:
                per_src, per_tgt = flops_per_token(task.config.model, task.vocab)
                done = src * per_src + tgt * per_tgt
                side.rates.append(tgt / took)
                side.shares.append(done / took / side.peak)
            number = f"step {i + 1} of {steps + WARM_UP}"
            report(f"{number}: {side.name}: {tgt / took:,.0f} target tokens/s")


def measure_alone(task: Task, side: Contender, steps: int) -> None:
    """Takes steps with one side, compiled afresh, and measures its memory, on a GPU."""
    torch.compiler.reset()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    try:
        measure(task, [side], steps)
    except (DeviceError, torch.OutOfMemoryError) as error:
        side.name += " (out of memory)"
        report(str(error))
    side.gigabytes = torch.cuda.max_memory_reserved() / GB


def profile(task: Task, steps: int) -> None:
    """Prints the kernels in which our steps spend the most time on a GPU."""
    torch.compiler.reset()
    step = ours(task, "bf16", None, True)
    for i in range(WARM_UP):
        step(i)
    with torch.profiler.profile() as profiler:
        for i in range(WARM_UP, WARM_UP + steps):
            step(i)
    kernels = profiler.key_averages()
    print(kernels.table("self_device_time_total", row_limit=40, max_name_column_width=80))


def made_pairs(vocab: int, seed: int = 1, count: int = 200_000) -> EncodedPairs:
    """Makes pairs of random ids with lengths like those of WMT16 in pieces."""
    rng = np.random.default_rng(seed)
    src = np.clip(rng.gamma(2.2, 32 / 2.2, count), 2, 250)
    tgt = np.clip(src * rng.lognormal(0.0, 0.2, count), 2, 250)
    sides = []
    for lengths in (src, tgt):
        offsets = np.concatenate(([0], np.cumsum(lengths.astype(np.int64))))
        ids = rng.integers(4, vocab, int(offsets[-1]), dtype=np.int32)
        sides.append(EncodedLines(ids, offsets))
    return EncodedPairs(*sides)


def table(title: str, rows: list[dict[str, Any]]) -> None:
    """Prints rows, and how many times as fast the first is."""
    print(f"\n{title:38}{'tokens/s':>10}{'ours is':>9}{'of peak':>9}{'first':>8}{'GB':>6}")
    for row in rows:
        rate = row["tokens_per_second"] or math.nan
        share, memory = row["share_of_peak"], row["gigabytes"]
        ratio = (rows[0]["tokens_per_second"] or math.nan) / rate
        shown = f"{share:9.1%}" if share else " " * 9
        first = f"{row['first_step_seconds']:7.1f}s" if row["first_step_seconds"] else " " * 8
        used = f"{memory:6.1f}" if memory else " " * 6
        line = f"{row['side']:38}{rate:10,.0f}{ratio:8.1f}x{shown}{first}{used}"
        print(f"{line}  {describe_share(row['others_share'])}".rstrip())


def compare(
    task: Task, size: str, extent: Extent, joeynmt: Callable[[int], float] | None
) -> list[dict[str, Any]]:
    """Measures all sides of one model.

    Args:
        task: What they are given.
        size: Name of the model.
        extent: How much is measured.
        joeynmt: Trains with JoeyNMT for some updates and gives its target tokens/s.
    """
    joey = Contender("JoeyNMT 2.3.0", "fp32", lambda: 0)

    def add_joey() -> None:
        with joey.load.watch():
            joey.rates.append(joeynmt(extent.updates[size]))
        report(f"{joey.name}: {joey.rates[-1]:,.0f} target tokens/s")

    if joeynmt:
        add_joey()
    sides = our_sides(task, extent.all_gpu_sides) + loops(task)
    if task.device.type == "cuda":
        for side in sides:
            measure_alone(task, side, extent.steps)
    else:
        measure(task, sides, extent.steps)
        sides.append(fixed(task, extent.fixed_sentences[size]))
    if joeynmt:
        add_joey()
        sides.append(joey)
    return [side.row() for side in sides]


def main(
    text: Annotated[Path | None, typer.Option(help="The corpus of Multi30k.")] = None,
    joeynmt: Annotated[Path | None, typer.Option(help="JoeyNMT's environment.")] = None,
    steps: Annotated[int, typer.Option(help="Steps of each side, after two to warm up.")] = 10,
    busy: Annotated[int, typer.Option("--neighbours", help="Busy processes beside it.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer steps or sides.")] = False,
    profiled: Annotated[bool, typer.Option("--profile", help="On a GPU, its kernels.")] = False,
) -> None:
    """Measures every side."""
    # The first step shall really compile. The environment was read when torch was imported.
    torch.compiler.config.force_disable_caches = True
    device = choose_device("auto")
    if joeynmt and device.type == "cuda":
        raise typer.BadParameter("JoeyNMT is measured on a CPU; leave --joeynmt out")
    if not text and device.type == "cpu":
        raise typer.BadParameter("on a CPU, give --text")
    if profiled and device.type == "cpu":
        raise typer.BadParameter("--profile needs a GPU; on a CPU it would miss most threads")
    peer = JoeyNMT(joeynmt) if joeynmt else None
    extent = QUICK if quick else FULL
    if device.type == "cuda" or not quick:
        extent = replace(extent, steps=steps)
    results = {}
    with neighbours(busy):
        for size in ("small", "base") if text else ("base", "big"):
            report(f"{size}:")
            joey = None
            if text:
                changes = [f"model.{key}={value}" for key, value in PAPER.items() if size == "base"]
                changes += [f"data.path={text}", "optim.muon=false"]  # the peers have Adam
                config = load_config(CONFIGS / "multi30k.toml", changes)
                prepared = prepare(config)
                task = Task(config, prepared.pairs, prepared.vocab.tgt.size, device)
                if peer:
                    joey = partial(peer.rate, config, prepared)
            else:
                config = load_config(CONFIGS / f"wmt16-{size}.toml")
                task = Task(config, made_pairs(config.vocab.size), config.vocab.size, device)
            if profiled:
                profile(task, extent.steps)
                continue
            results[size] = compare(task, size, extent, joey)
            table(f"{size}, quick" if quick else size, results[size])
    if profiled:
        return
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"{os.cpu_count()} cores"
    machine = {"device": name, "torch": torch.__version__}
    result = {"benchmark": "train", "quick": quick, "neighbours": busy, "sizes": results}
    print(json.dumps(result | machine))


if __name__ == "__main__":
    typer.run(main)
