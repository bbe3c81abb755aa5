"""A run from its configuration: started or resumed, or only tried out."""

import logging
import os
import resource
import sys
import tempfile
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from transformer_mt.checkpoints.checkpoint import (
    Checkpoint,
    TrainState,
    find_checkpoint,
    list_checkpoints,
    load_newest,
)
from transformer_mt.config import Config, flat_values
from transformer_mt.errors import CheckpointError, ConfigError
from transformer_mt.system.device import choose_device, choose_precision
from transformer_mt.system.files import locked
from transformer_mt.text.batching import (
    Indices,
    cut_micro_batches,
    largest_micro_batch,
    padded_size,
    plan_epoch,
)
from transformer_mt.text.corpus import RawPairs, load_split
from transformer_mt.text.prepared import PreparedCorpus, prepare
from transformer_mt.training.engine import Engine
from transformer_mt.training.flops import measure_peak_flops
from transformer_mt.training.run_log import RunLog, describe_environment
from transformer_mt.training.trainer import Trainer

logger = logging.getLogger(__name__)

_WARM_UP, _TIMED_STEPS = 2, 3


@dataclass(frozen=True)
class Start:
    """Everything a run begins with.

    Attributes:
        corpus: Vocabulary and training pairs.
        valid: Raw validation text.
        state: Where the run stands.
        engine: The model as it was there.
        resumed: Whether there was a checkpoint.
    """

    corpus: PreparedCorpus
    valid: RawPairs
    state: TrainState
    engine: Engine
    resumed: bool


def train(config: Config, run_dir: Path) -> TrainState:
    """Trains a run to its end, from wherever its newest checkpoint left it.

    Args:
        config: What to train; must agree with the run's own if the run exists.
        run_dir: Where logs and checkpoints go.

    Returns:
        The state at the end.

    Raises:
        ConfigError: If the corpus does not fit the configuration.
        CheckpointError: If the run is of another configuration, all its checkpoints are damaged,
            or its directory cannot be written.
        DeviceError: If the device or precision asked for is absent, or memory is too small.
        TrainingError: If the numbers stay non-finite.
        Interrupted: After SIGINT or SIGTERM, once the step is finished and saved.
    """
    _require_writable(run_dir)
    with ExitStack() as held:
        existed = run_dir.is_dir()
        if existed:  # a new directory appears only when everything that it needs is there
            held.enter_context(_alone(run_dir))
        start = _start(config, run_dir)
        if not existed:
            run_dir.mkdir(parents=True, exist_ok=True)
            held.enter_context(_alone(run_dir))
            if list_checkpoints(run_dir):
                raise CheckpointError(f"{run_dir}: another process began this run just now")
        log = held.enter_context(RunLog(run_dir, start.state.step, config.train.max_steps))
        _introduce(log, config, start)
        trainer = Trainer(
            config, run_dir, start.corpus, start.valid, start.state, start.engine, log
        )
        trainer.run(saved_step=start.state.step if start.resumed else -1)
        return trainer.state


def dry_run(config: Config, run_dir: Path) -> str:
    """Takes a few steps without keeping anything, and reports what a training would be.

    Args:
        config: What would be trained.
        run_dir: The run that would be started or resumed.

    Returns:
        Several lines: configuration, sizes, statistics, and estimates of memory and time.

    Raises:
        TransformerMTError: Whatever would end the training at its start.
    """
    _require_writable(run_dir)
    with tempfile.TemporaryDirectory() as scratch:
        start = _start(config, run_dir, Path(scratch))
    lines = [f"{key} = {value}" for key, value in flat_values(config).items()]
    lines += ["", *_describe(config, start), *_try(config, start)]
    return "\n".join(lines)


def _start(config: Config, run_dir: Path, scratch: Path | None = None) -> Start:
    checkpoint = load_newest(run_dir)
    if checkpoint:
        checkpoint.require_config(config)
    device = choose_device(config.train.device)
    kept = checkpoint.state.precision if checkpoint else None
    precision = choose_precision(config.train.precision, device, kept)
    origin = checkpoint or _origin(config)
    valid = load_split(config.data, config.data.valid)
    corpus = prepare(config, origin.vocab if origin else None, scratch)
    state = TrainState(precision=precision, corpus=corpus.digest)
    sizes = corpus.vocab.src_size, corpus.vocab.tgt_size
    engine = Engine(config, *sizes, device, precision)
    if checkpoint:
        if checkpoint.state.corpus != corpus.digest:
            raise CheckpointError(
                f"{run_dir}: the training text has changed since; train it as a new run with"
                " another --run directory"
            )
        state = checkpoint.state
        checkpoint.restore(engine)
    elif origin:
        engine.begin_from(origin.build_model())
    return Start(corpus, valid, state, engine, checkpoint is not None)


def _origin(config: Config) -> Checkpoint | None:
    """Finds what `train.init_from` names, and compares what weights depend on."""
    name = config.train.init_from
    if name is None:
        return None
    checkpoint = find_checkpoint(Path(name))
    theirs, ours = checkpoint.config.model.model_dump(), config.model.model_dump()
    differing = [
        f"model.{key} = {theirs[key]}, not {ours[key]}"
        for key in ours
        if theirs[key] != ours[key] and not key.endswith("dropout")
    ]
    if differing:
        raise ConfigError(f"train.init_from = {name}: it has {', '.join(differing)}")
    return checkpoint


def _alone(run_dir: Path) -> AbstractContextManager[None]:
    """Keeps other trainers off a run."""

    def refuse(holder: str) -> None:
        raise CheckpointError(
            f"{run_dir}: process {holder} trains this run; stop it, or name another --run directory"
        )

    return locked(run_dir / ".lock", refuse)


def _require_writable(run_dir: Path) -> None:
    """Finds out before hours of work, not after, that nothing can be saved."""
    there = next(path for path in (run_dir, *run_dir.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        what = "not writable" if there.is_dir() else "not a folder"
        raise CheckpointError(f"{there}: {what}; name another --run directory")


def _introduce(log: RunLog, config: Config, start: Start) -> None:
    log.note(f"command: {' '.join(sys.argv)}")
    log.note(f"configuration: {config.model_dump_json()}")
    log.note(f"made with: {describe_environment()}")
    state, report = start.state, start.corpus.report
    logger.info(
        f"{report['kept']} training pairs of {report['pairs']} (dropped: {start.corpus.dropped});"
        f" {start.engine.device.type}, {state.precision}"
    )
    if state.step:
        logger.info(f"resuming at step {state.step}, epoch {state.epoch}")


def _describe(config: Config, start: Start) -> list[str]:
    parameters = sum(p.numel() for p in start.engine.model.parameters())
    vocab, report, lengths = start.corpus.vocab, start.corpus.report, start.corpus.pairs.lengths
    sizes = f"{vocab.src_size} pieces"
    if not vocab.shared:
        sizes = f"{vocab.src_size} source and {vocab.tgt_size} target pieces"
    src, tgt = (int(side.sum()) for side in lengths)
    steps = _plan(config, start)
    parts = [part for step in steps for part in _cut(config, start, step)]
    padding = 1 - (src + tgt) / sum(padded_size(part, *lengths) for part in parts)
    return [
        f"model       {parameters / 1e6:.1f} million parameters, {sizes}",
        f"corpus      {report['kept']} pairs of {report['pairs']}"
        f" (dropped: {start.corpus.dropped})",
        f"            {src} source and {tgt} target tokens, end marks included",
        f"epoch       {len(steps)} steps, {len(parts)} micro-batches,"
        f" {padding:.1%} of positions are padding",
    ]


def _plan(config: Config, start: Start) -> list[Indices]:
    """Gives the steps of the epoch the run is in."""
    train, lengths = config.train, start.corpus.pairs.lengths
    return plan_epoch(*lengths, train.batch_tokens, train.seed, start.state.epoch)


def _cut(config: Config, start: Start, step: Indices) -> list[Indices]:
    return cut_micro_batches(step, *start.corpus.pairs.lengths, config.train.micro_batch_tokens)


def _try(config: Config, start: Start) -> list[str]:
    """Takes steps as training would, and measures them."""
    engine, pairs, steps = start.engine, start.corpus.pairs, _plan(config, start)
    limit = config.train.micro_batch_tokens
    engine.try_memory(pairs.batch(largest_micro_batch(steps, *pairs.lengths, limit)))
    tried = steps[: _WARM_UP + _TIMED_STEPS]
    engine.new_window()
    for number, step in enumerate(tried, 1):
        parts = _cut(config, start, step)
        engine.train_step(start.state.step + 1, [pairs.batch(part) for part in parts])
        if number == min(_WARM_UP, len(tried) - 1):
            engine.read_window()  # waits for the device
            engine.new_window()
    window, count = engine.read_window(), max(1, len(tried) - _WARM_UP)
    memory = _peak_gigabytes(engine.device)
    peak = measure_peak_flops(engine.device, engine.precision)
    a_step = window.seconds / count
    left, until = _steps_left(config, start.state, len(steps), a_step)
    return [
        f"speed       {window.tokens / window.seconds:,.0f} target tokens/s, {a_step:.3g} s a step,"
        f" {window.flops / window.seconds / peak:.0%} of peak"
        f" ({count} steps on {engine.device.type} in {engine.precision})",
        f"memory      {memory:.1f} GB at the peak, largest batch included",
        f"time        {tqdm.format_interval(left * a_step)} for {left} steps, until {until},"
        " validation not counted",
    ]


def _steps_left(
    config: Config, state: TrainState, steps_an_epoch: int, seconds: float
) -> tuple[int, str]:
    """Finds the limit that will end training first."""
    train = config.train
    limits = [(train.max_steps - state.step, f"train.max_steps = {train.max_steps}")]
    if train.max_epochs:
        left = (train.max_epochs - state.epoch) * steps_an_epoch - state.index
        limits.append((left, f"train.max_epochs = {train.max_epochs}"))
    if train.max_minutes:
        left = int((60 * train.max_minutes - state.seconds) / seconds)
        limits.append((left, f"train.max_minutes = {train.max_minutes:g}"))
    steps, until = min(limits)
    return max(steps, 0), until


def _peak_gigabytes(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9  # kilobytes on Linux
