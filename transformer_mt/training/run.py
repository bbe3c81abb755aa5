"""Starts a run from its configuration, or resumes it from its newest checkpoint."""

import logging
import math
import os
import shlex
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transformer_mt.checkpoints.checkpoint import TEXTS, Checkpoint, Progress
from transformer_mt.checkpoints.layout import METRICS, RUN_FILE, STATE, TRAINING, checkpoint_path
from transformer_mt.checkpoints.run_directory import (
    list_checkpoints,
    load_newest,
    write_description,
)
from transformer_mt.config.changes import keep_normalization, without_folders
from transformer_mt.config.keys import Config, flat_values
from transformer_mt.config.loading import PATH_KEYS
from transformer_mt.errors import CheckpointError, ConfigError
from transformer_mt.evaluation.scoring import choose_metrics
from transformer_mt.system.console import PACKAGE_LOGGER
from transformer_mt.system.device import choose_device, choose_precision, count_numa_nodes
from transformer_mt.system.extras import require_package
from transformer_mt.system.files import MANIFEST, locked, restore_replaced
from transformer_mt.system.launcher import is_launched
from transformer_mt.system.processes import ALONE, Processes, join_processes
from transformer_mt.system.worker_threads import MAX_WORKERS
from transformer_mt.text.batching import Lengths
from transformer_mt.text.cleaning import warn_of_held_out
from transformer_mt.text.corpus import load_split
from transformer_mt.text.prepared import prepare
from transformer_mt.text.trained_here import remember_text
from transformer_mt.training.engine import Engine
from transformer_mt.training.environment import (
    COMPILE_FAILED,
    CUT_BY,
    describe_software,
    numeric_environment,
    numeric_software,
    reasons_against_bit_equality,
)
from transformer_mt.training.fit import StepFitter, require_memory
from transformer_mt.training.initial_weights import describe_initial, initial_checkpoint
from transformer_mt.training.run_log import RunLog
from transformer_mt.training.saving import TENSOR_FILES
from transformer_mt.training.trainer import Trainer

logger = logging.getLogger(__name__)

_BINS = 40
_MANY_THREADS = 16


def train(config: Config, run_dir: Path) -> Progress:
    """Trains a run to its end, from its newest checkpoint if there is one.

    Args:
        config: The configuration; must agree with the run's own if the run exists.
        run_dir: Where logs and checkpoints go.

    Raises:
        ConfigError: If the corpus does not fit the configuration.
        CheckpointError: If the run has another configuration, all its checkpoints are damaged,
            or its directory cannot be written.
        DeviceError: If the device or precision is not available, or memory runs out.
        TrainingError: If the numbers stay non-finite.
        Interrupted: After SIGINT or SIGTERM, once the step is finished and saved.
    """
    with join_processes(choose_device(config.train.device).type) as processes:
        if processes.is_main:
            return _train_main(config, run_dir, processes)
        trainer = build_trainer(config, run_dir, processes=processes)
        trainer.run(log=None)
        return trainer.progress


def _train_main(config: Config, run_dir: Path, processes: Processes) -> Progress:
    """Trains as the process that owns the run directory; the others touch no file of the run."""
    require_writable(run_dir)
    with ExitStack() as stack:
        # What is reported before train.log is open.
        early_messages = MemoryHandler(capacity=0)
        PACKAGE_LOGGER.addHandler(early_messages)
        stack.callback(PACKAGE_LOGGER.removeHandler, early_messages)
        existed = run_dir.is_dir()
        if existed:  # a new directory appears only once everything it needs is there
            is_own = stack.enter_context(_lock_run(run_dir))
            restore_replaced(run_dir)
        trainer = build_trainer(config, run_dir, processes=processes)
        if not list_checkpoints(run_dir) and (run_dir / METRICS).exists():
            logger.warning("%s: has no checkpoint, so training starts at step 1 again", run_dir)
        if not existed:
            run_dir.mkdir(parents=True, exist_ok=True)
            is_own = stack.enter_context(_lock_run(run_dir))
            if list_checkpoints(run_dir):
                raise CheckpointError(f"{run_dir}: another process has just started this run")
        log = stack.enter_context(RunLog(run_dir, trainer.progress, config.train.tensorboard))
        PACKAGE_LOGGER.removeHandler(early_messages)
        environment = numeric_environment(trainer.fitter)
        _log_start(log, trainer, environment)
        early_messages.setTarget(log)
        early_messages.flush()
        _write_description(trainer, environment)
        remember_text(config.data)
        trainer.run(log, is_own)
        _write_description(trainer, environment, complete=True)
        return trainer.progress


def build_trainer(
    config: Config, run_dir: Path, scratch: Path | None = None, processes: Processes = ALONE
) -> Trainer:
    """Loads or prepares everything that a run needs, without writing to its directory.

    Only the main process reads the directory; the others get everything from that process. A corpus
    that is not prepared yet is prepared in `scratch`; None is `data.prepared_dir`.
    """
    checkpoint = load_newest(run_dir) if processes.is_main else None
    if checkpoint:
        checkpoint.require_config(config)
    _require_packages(config)
    device = choose_device(config.train.device)
    require_memory(config.model, device)
    initial = checkpoint or (initial_checkpoint(config) if processes.is_main else None)
    vocab, known = (initial.vocab, initial.sources) if initial else (None, None)
    previous = checkpoint.progress.precision if checkpoint else None
    # A run that continued without torch.compile stays so.
    old_environment = checkpoint.state.environment if checkpoint else {}
    compile_failed = old_environment.get("torch.compile") == COMPILE_FAILED
    vocab, known, previous, compile_failed = processes.broadcast(
        (vocab, known, previous, compile_failed)
    )
    if vocab:
        config = keep_normalization(config, vocab.form)
    precision = choose_precision(config.train.precision, device, previous)
    valid = load_split(config.data, config.data.valid)
    warn_of_held_out(
        f"data.valid = {config.data.valid}", valid.src, valid.tgt, form=config.data.normalize
    )
    corpus = replace(prepare(config, vocab, scratch), known_sources=known)
    progress = Progress(
        precision=precision, corpus_digest=corpus.digest, valid_digest=valid.digest()
    )
    _require_same_everywhere(config, progress, processes)
    sizes = corpus.vocab.src.size, corpus.vocab.tgt.size
    engine = Engine(config, *sizes, device, precision, processes)
    fitter = StepFitter(engine, compile_failed)
    limit = config.train.micro_batch_tokens
    if limit == "auto":
        limit = fitter.find_micro_batch_tokens()
    progress = replace(progress, micro_batch_tokens=limit)
    if checkpoint:
        progress = _resume(fitter, checkpoint, run_dir, progress)
    elif initial:
        weights = initial.build_model().state_dict()
        engine.load_state_dict({"model": weights, "ema": weights, "optimizer": {}, "counters": {}})
        progress = describe_initial(initial, progress, config)
    progress, is_saved = processes.broadcast((progress, checkpoint is not None))
    _share_state(engine)
    return Trainer(run_dir, corpus, valid, fitter, progress, is_saved)


def _resume(fitter: StepFitter, checkpoint: Checkpoint, run_dir: Path, new: Progress) -> Progress:
    """Restores the engine, and says what has changed since; `new` is the progress of a new run.

    Returns:
        The progress to continue from.
    """
    config = fitter.engine.config
    _warn_of_unused(checkpoint.config, config)
    _require_same_text(run_dir, checkpoint.progress, new)
    restore_engine(fitter.engine, checkpoint)
    environment = numeric_environment(fitter)
    changes = reasons_against_bit_equality(checkpoint, config, environment)
    if changes:
        logger.warning(
            "from here on the run is not bit-equal to an uninterrupted one: %s",
            ", ".join(changes.values()),
        )
    progress = replace(_forget_missing_best(run_dir, checkpoint.progress), precision=new.precision)
    if progress.micro_batch_tokens and CUT_BY.isdisjoint(changes):
        return progress
    return replace(progress, micro_batch_tokens=new.micro_batch_tokens, finer_step=0)


def _require_packages(config: Config) -> None:
    """Checks, before any work, that packages are installed which are needed only later."""
    choose_metrics(config.data.tgt_lang, configured=config.valid.tokenize)  # a tokenizer
    if config.train.tensorboard:
        require_package("TensorBoard", "tensorboard", "train.tensorboard")


def _require_same_everywhere(config: Config, progress: Progress, processes: Processes) -> None:
    """Refuses to train with a process that has different text, keys, precision or software."""
    values = {name: getattr(progress, key) for key, name in TEXTS.items()}
    keys = flat_values(config).items()
    values |= {key: str(without_folders(value)) for key, value in keys if key not in PATH_KEYS}
    values |= {"precision": progress.precision, **numeric_software()}
    main, *others = processes.gather(values)
    for rank, other in enumerate(others, 1):
        names = sorted(main.keys() | other.keys())  # other versions have others
        if different := [name for name in names if main.get(name) != other.get(name)]:
            raise ConfigError(
                f"process {rank} differs from process 0 in {', '.join(different)}; all machines"
                " need the same data, configuration and software"
            )


def _share_state(engine: Engine) -> None:
    """Copies the state of the main process's engine to the engines of all processes."""
    processes = engine.processes
    if processes.world_size == 1:
        return
    state = engine.state_dict()
    counters = processes.broadcast(state.pop("counters"))
    own = {(part, name): tensor for part in state for name, tensor in state[part].items()}
    copies: dict[str, dict[str, Tensor | None]] = {part: {} for part in state}
    for part, name in processes.broadcast(list(own)):  # only a restored optimizer has moments
        tensor = own[part, name].cpu() if processes.is_main else None
        copies[part][name] = processes.broadcast(tensor)  # one at a time, to need little memory
    if not processes.is_main:
        engine.load_state_dict({**copies, "counters": counters})


def _forget_missing_best(run_dir: Path, progress: Progress) -> Progress:
    """Makes the next validation the best if the best checkpoint has been deleted."""
    if progress.best_bleu < 0 or checkpoint_path(run_dir, progress.best_step).exists():
        return progress
    logger.warning(
        f"{run_dir}: its best checkpoint (step {progress.best_step}) is missing; the next"
        " validation counts as the best"
    )
    return replace(progress, best_bleu=-1.0, best_step=0)


def _warn_of_unused(old: Config, new: Config) -> None:
    """Warns if a resumed run is given a different value of a key that only a new run reads."""
    old_values, new_values = flat_values(old), flat_values(new)
    for key in ("vocab.path", "train.init_from"):
        if new_values[key] not in (old_values[key], None):
            logger.warning("%s = %s is not used: the run is resumed", key, new_values[key])


def _require_same_text(run_dir: Path, old: Progress, new: Progress) -> None:
    """Refuses to resume with different text; its location does not matter."""
    for name, text in TEXTS.items():
        if getattr(old, name) != getattr(new, name):
            raise CheckpointError(
                f"{run_dir}: the {text} has changed since the run began; restore it, or start a new"
                " run with another --run directory"
            )


def restore_engine(engine: Engine, checkpoint: Checkpoint) -> None:
    """Restores an engine to the state of a checkpoint, which must have moments and fit it."""
    if TRAINING not in checkpoint.files:
        raise CheckpointError(
            f"{checkpoint.path}: has no {TRAINING}, so training cannot resume from it; start a new"
            f" run with train.init_from = {checkpoint.path}"
        )
    files = {key: file for key, file in TENSOR_FILES.items() if key != "ema" or engine.ema}
    tensors = {key: checkpoint.load_tensors(file) for key, file in files.items()}
    try:
        engine.load_state_dict({**tensors, "counters": checkpoint.state.counters})
    except (ValueError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{checkpoint.path / STATE}: counters: {reason}") from None


def _lock_run(run_dir: Path) -> AbstractContextManager[Callable[[], bool]]:
    """Holds the lock of a run; refuses if another trainer holds it."""

    def refuse(holder: str) -> None:
        raise CheckpointError(
            f"{run_dir}: process {holder} is training this run; stop it, or name another --run"
            " directory"
        )

    return locked(run_dir / ".lock", refuse)


def require_writable(run_dir: Path) -> None:
    """Checks before hours of work, not after, that the run can be saved.

    A run inside a checkpoint would be deleted with it.
    """
    try:
        str(run_dir.absolute()).encode()
    except UnicodeEncodeError:
        raise CheckpointError(f"{run_dir}: not UTF-8; name another --run directory") from None
    nearest = next(path for path in (run_dir, *run_dir.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        reason = "not writable" if nearest.is_dir() else "not a directory"
        raise CheckpointError(f"{nearest}: {reason}; name another --run directory")
    place = run_dir.resolve()
    for folder in (place, *place.parents):
        if (folder / MANIFEST).exists() and (folder / STATE).exists():
            raise CheckpointError(f"{folder}: is a checkpoint; name another --run directory")


def _log_start(log: RunLog, trainer: Trainer, environment: dict[str, str]) -> None:
    progress, corpus = trainer.progress, trainer.corpus
    log.note(f"command: {' '.join(sys.argv)}")
    log.note(f"configuration: {trainer.config.model_dump_json()}")
    log.note(f"software: {describe_software()}")
    log.note(f"numeric environment: {environment}")
    logger.info(f"{corpus.counts}; {trainer.engine.device.type}, {progress.precision}")
    if progress.step:
        logger.info("resuming at step %d, epoch %d", progress.step, progress.epoch)
    elif progress.init_digest:
        origin = f"{trainer.config.train.init_from} at step {progress.init_step}"
        logger.info("starting from %s (digest %s)", origin, progress.init_digest)
    if trainer.engine.device.type == "cpu" and not is_launched():
        _suggest_processes(torch.get_num_threads(), count_numa_nodes())


def _suggest_processes(threads: int, numa_nodes: int) -> None:
    """Names the command for several processes where one has more cores than worker threads."""
    if threads <= _MANY_THREADS and not 1 < numa_nodes <= threads:
        return
    count = max(numa_nodes, math.ceil(threads / MAX_WORKERS))
    logger.info(
        f"{threads} threads, NUMA nodes: {numa_nodes}; to train with several processes:"
        f" OMP_NUM_THREADS={threads // count} torchrun --nproc-per-node {count} -m --"
        f" transformer_mt {shlex.join(sys.argv[1:])}"
    )


def _write_description(
    trainer: Trainer, environment: dict[str, str], complete: bool = False
) -> None:
    """Writes run.json when a run is started, resumed, or has reached one of its limits.

    Logs a warning if that fails.
    """
    corpus, progress, vocab = trainer.corpus, trainer.progress, trainer.corpus.vocab
    initial = {"step": progress.init_step, "digest": progress.init_digest, **progress.init_names}
    description = {
        "config": trainer.config.model_dump(mode="json"),
        "corpus": {key: value for key, value in corpus.report.items() if key != "chunks"},
        "lengths": _count_lengths(*corpus.pairs.lengths),
        "validation": {"pairs": len(trainer.valid), "digest": progress.valid_digest},
        "init_from": initial if progress.init_digest else None,
        "vocabulary": {"src": vocab.src.size, "tgt": vocab.tgt.size, "kind": vocab.tgt.kind},
        "complete": complete,
        "parameters": sum(p.numel() for p in trainer.engine.model.parameters()),
        "precision": trainer.engine.precision,
        "software": describe_software(),
        "environment": environment,
    }
    try:
        write_description(trainer.run_dir, description)
    except OSError as error:
        path = trainer.run_dir / RUN_FILE
        logger.warning("%s: cannot be written: %s", path, error.strerror)


def _count_lengths(src: Lengths, tgt: Lengths) -> dict[str, Any]:
    """Counts sentences by their length in pieces, EOS included, (pairs,), in bins of one width."""
    width = -(-int(max(src.max(), tgt.max()) + 1) // _BINS)
    counts = {"src": src, "tgt": tgt}
    return {
        "width": width,
        "mean": {side: round(float(lengths.mean()), 2) for side, lengths in counts.items()},
        **{side: np.bincount(lengths // width).tolist() for side, lengths in counts.items()},
    }
