"""A dry run: a few training steps that leave nothing behind, and estimates for the whole run."""

import resource
import sys
import time
from pathlib import Path

import torch
from tqdm import tqdm

from transformer_mt.config.keys import DEFAULTS, Config, flat_values
from transformer_mt.config.loading import format_value
from transformer_mt.system.console import escape_controls
from transformer_mt.system.device import choose_device, compute_settings, total_memory
from transformer_mt.system.files import scratch_directory
from transformer_mt.system.processes import join_processes
from transformer_mt.text.batching import Indices
from transformer_mt.training.engine import LogWindow
from transformer_mt.training.flops import measure_peak_flops
from transformer_mt.training.limits import describe_limit, steps_left
from transformer_mt.training.run import build_trainer, require_writable
from transformer_mt.training.trainer import Trainer

_WARM_UP_STEPS, _TIMED_STEPS = 2, 3


def dry_run(config: Config, run_dir: Path) -> str:
    """Takes a few steps that leave nothing behind, and estimates memory and time of the whole run.

    Returns lines with sizes, statistics and estimates, and then the configuration. Raises what
    would end training at its start.
    """
    require_writable(run_dir)
    device = choose_device(config.train.device)
    with scratch_directory() as scratch, join_processes(device.type) as processes:
        trainer = build_trainer(config, run_dir, scratch, processes)
        steps = trainer.start_epoch()
        with compute_settings(trainer.engine.device, tf32=True):
            trainer.progress = trainer.fitter.check_memory(trainer.progress, trainer.pairs, steps)
            lines = _describe(trainer, steps) + _estimate(trainer, steps)
        processes.finish()
    lines += ["", "configuration (keys that differ from the defaults):"]
    values = flat_values(config).items()
    lines += [f"{k} = {format_value(v)}" for k, v in values if v != DEFAULTS[k]]
    return "\n".join(map(escape_controls, lines))


def _describe(trainer: Trainer, steps: list[Indices]) -> list[str]:
    corpus = trainer.corpus
    parameters = sum(p.numel() for p in trainer.engine.model.parameters())
    fitter, pairs, progress = trainer.fitter, trainer.pairs, trainer.progress
    # The epoch's pairs may be reversed, joined, or segmented at random.
    src_tokens, tgt_tokens = (int(side.sum()) for side in corpus.pairs.lengths)
    micro_batches = [
        indices for step in steps for indices in fitter.cut_step(progress, pairs, step)
    ]
    positions = sum(fitter.count_positions(progress, pairs, part) for part in micro_batches)
    padding = 1 - int(pairs.lengths.sum()) / positions
    return [
        f"model       {parameters / 1e6:.1f} million parameters, {corpus.vocab.describe()}",
        f"corpus      {corpus.summary}",
        f"            {src_tokens:,} source and {tgt_tokens:,} target tokens, EOS included",
        f"epoch       {len(steps):,} steps, {len(micro_batches):,} micro-batches,"
        f" {padding:.1%} of positions are padding",
        f"            {fitter.describe(progress)}",
    ]


def _estimate(trainer: Trainer, steps: list[Indices]) -> list[str]:
    """Measures a few steps, and estimates speed, memory and time of the whole run."""
    config, progress, engine = trainer.config, trainer.progress, trainer.engine
    window, seconds, count = _time_steps(trainer, steps)
    peak_bytes, total_bytes = _peak_bytes(engine.device), total_memory(engine.device)
    peak_flops = measure_peak_flops(engine.device, engine.precision, engine.processes)
    mfu, step_seconds = window.flops / seconds / peak_flops, seconds / count
    left = steps_left(config, progress, progress.seconds, step_seconds, len(steps))
    limit = min(left, key=lambda key: left[key])
    return [
        f"speed       {window.tokens / seconds:,.0f} target tokens/s,"
        f" {step_seconds:.3g} s per step, {mfu:.0%} of peak ({count:,} steps on"
        f" {engine.device.type} in {engine.precision})",
        f"memory      {peak_bytes / 1e9:.1f} GB of {total_bytes / 1e9:.1f} GB at the peak",
        f"time        {tqdm.format_interval(left[limit] * step_seconds)} for {left[limit]:,} steps,"
        f" until {describe_limit(config, limit)}, validation not counted",
    ]


def _time_steps(trainer: Trainer, steps: list[Indices]) -> tuple[LogWindow, float, int]:
    """Takes a few steps; returns the sums over those after the warm-up, their time and number."""
    engine, trial = trainer.engine, steps[: _WARM_UP_STEPS + _TIMED_STEPS]
    warm_up = min(_WARM_UP_STEPS, len(trial) - 1)
    for step_pairs in trial[:warm_up]:
        trainer.take_step(step_pairs)
    engine.read_window()  # waits for the device
    engine.start_window()
    began = time.monotonic()
    for step_pairs in trial[warm_up:]:
        trainer.take_step(step_pairs)
    window = engine.read_window()
    return window, time.monotonic() - began, len(trial) - warm_up


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    unit = 1 if sys.platform == "darwin" else 1024  # bytes on macOS, kilobytes on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
