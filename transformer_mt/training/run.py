"""Starts a run from its configuration, or resumes it from its newest checkpoint."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from logging.handlers import MemoryHandler
from pathlib import Path

from torch import Tensor

from transformer_mt.checkpoints.checkpoint import TEXTS, Checkpoint, Progress
from transformer_mt.checkpoints.evaluations import delete_evaluations
from transformer_mt.checkpoints.layout import LOCK, METRICS, RUN_DIFF, RUN_FILE, STATE
from transformer_mt.checkpoints.run_directory import list_checkpoints, load_newest, lock_run
from transformer_mt.config.changes import without_folders
from transformer_mt.config.keys import Config, flat_values
from transformer_mt.config.loading import PATH_KEYS
from transformer_mt.errors import CheckpointError, ConfigError, DataError
from transformer_mt.evaluation.scoring import choose_metrics
from transformer_mt.system.console import logger
from transformer_mt.system.device import choose_device, choose_precision
from transformer_mt.system.extras import require_package
from transformer_mt.system.files import is_utf8, require_directory, restore_replaced
from transformer_mt.system.manifest import MANIFEST
from transformer_mt.system.processes import ALONE, Processes, join_processes
from transformer_mt.text.cleaning import warn_of_held_out
from transformer_mt.text.corpus import RawPairs, load_split
from transformer_mt.text.prepared import PreparedCorpus, prepare, warn_of_trained_pairs
from transformer_mt.text.trained_here import readable_corpus, remember_text
from transformer_mt.training.description import compare_with, describe_run, log_start
from transformer_mt.training.engine import Engine
from transformer_mt.training.environment import numeric_software
from transformer_mt.training.fit import StepFitter, require_memory
from transformer_mt.training.run_log import RunLog
from transformer_mt.training.starting_state import begin_from, initial_checkpoint, resume
from transformer_mt.training.trainer import Trainer


def train(config: Config, run_dir: str | Path, first_dir: Path | None = None) -> Progress:
    """Trains a run to its end, from its newest checkpoint if there is one.

        config = load_config("configs/sample.toml", ["train.max_steps=500"])
        train(config, "checkpoints/sample")

    Messages go to `logging`. Settings of the process are the caller's: the program calls
    `system.process_settings.configure_libraries` before torch is imported, which on a CPU saves
    memory. In the main thread, SIGINT and SIGTERM are caught meanwhile.

    Args:
        config: The configuration; must agree with the run's own if the run exists.
        run_dir: Where logs and checkpoints go.
        first_dir: The run that is repeated, if any; differences from it are reported.

    Returns:
        Where the run stands.

    Raises:
        ConfigError: If the corpus does not fit the configuration.
        CheckpointError: If the run has another configuration, all its checkpoints are damaged,
            or its directory cannot be written.
        DeviceError: If the device or precision is not available, or memory runs out.
        TrainingError: If the numbers stay non-finite.
        Interrupted: After SIGINT or SIGTERM, once the step is finished and saved.
    """
    run_dir = Path(run_dir)
    with join_processes(choose_device(config.train.device).type) as processes:
        if processes.is_main:
            return _train_main(config, run_dir, first_dir, processes)
        trainer = build_trainer(config, run_dir, processes=processes)
        trainer.run(log=None)
        return trainer.progress


def _train_main(
    config: Config, run_dir: Path, first_dir: Path | None, processes: Processes
) -> Progress:
    """Trains as the process that owns the run directory; the others touch no file of the run."""
    require_writable(run_dir)
    with ExitStack() as stack:
        # What is reported before train.log is open.
        early_messages = MemoryHandler(capacity=0)
        logger.addHandler(early_messages)
        stack.callback(logger.removeHandler, early_messages)
        existed = run_dir.is_dir()
        if existed:  # a new directory appears only once everything it needs is there
            is_own = stack.enter_context(lock_run(run_dir))
            restore_replaced(run_dir)
        trainer = build_trainer(config, run_dir, processes=processes)
        if not list_checkpoints(run_dir) and (run_dir / METRICS).exists():
            logger.warning("%s: has no checkpoint, so training starts at step 1 again", run_dir)
            delete_evaluations(run_dir)  # of weights that are gone
        if not existed:
            run_dir.mkdir(parents=True, exist_ok=True)
            is_own = stack.enter_context(lock_run(run_dir))
            if list_checkpoints(run_dir):
                raise CheckpointError(f"{run_dir}: another process has just started this run")
        log = RunLog(run_dir, trainer.progress, config.train.tensorboard, is_own)
        stack.enter_context(log)
        logger.removeHandler(early_messages)
        log_start(log, trainer)
        early_messages.setTarget(log)
        early_messages.flush()
        compare_with(first_dir, trainer)
        was_finished = trainer.is_finished
        describe_run(trainer)
        remember_text(config.data)
        trainer.run(log)
        if not was_finished:
            describe_run(trainer, at_end=True)
        return trainer.progress


@contextmanager
def _advising_without_old_text(is_possible: bool, place: str = "") -> Iterator[None]:
    """Adds to an error how to train without the run that training started from, or its text.

    `place` says before it whose text that is: data.path is not the one of this configuration.
    """
    try:
        yield
    except (CheckpointError, ConfigError, DataError) as error:
        if not is_possible:
            raise
        raise type(error)(f"{place}{error}; or set valid.old_text = false") from None


def _load_old_text(initial: Checkpoint) -> RawPairs:
    data = initial.config.data
    with _advising_without_old_text(True, f"the validation text of {initial.path}: "):
        text = load_split(readable_corpus(data, data.valid), data.valid)
    if text.digest() != initial.progress.valid_digest:
        logger.warning(
            "valid.old_text: is not the text that %s was validated with; its scores cannot be"
            " compared with earlier ones",
            initial.path,
        )
    return text


def build_trainer(
    config: Config, run_dir: Path, scratch: Path | None = None, processes: Processes = ALONE
) -> Trainer:
    """Loads or prepares everything that a run needs, without writing to its directory.

    Only the main process reads the directory; the others get everything from that process. A corpus
    that is not prepared yet is prepared in `scratch`; None is `data.prepared_dir`.
    """
    _require_packages(config)
    device = choose_device(config.train.device)
    require_memory(config.model, device)
    checkpoint = initial = old_text = None
    if processes.is_main:
        if checkpoint := load_newest(run_dir):
            checkpoint.require_config(config)
        if checkpoint is None or config.valid.old_text:
            with _advising_without_old_text(checkpoint is not None):
                initial = initial_checkpoint(config)
        if initial and config.valid.old_text:
            old_text = _load_old_text(initial)
    checkpoint, initial, old_text = processes.broadcast((checkpoint, initial, old_text))
    previous = checkpoint.progress.precision if checkpoint else None
    precision = choose_precision(config.train.precision, device, previous)
    valid = load_split(config.data, config.data.valid)
    name, form = f"data.valid = {config.data.valid}", config.data.normalize
    warn_of_held_out(name, valid.src, valid.tgt, form=form)
    origin = checkpoint or initial
    corpus = prepare(config, origin.vocab if origin else None, scratch)
    corpus = replace(corpus, known_sources=origin.sources if origin else None)
    warn_of_trained_pairs(name, valid, corpus)
    if processes.is_main:
        _warn_of_trained_test(config, corpus)
    progress = Progress(
        precision=precision, corpus_digest=corpus.digest, valid_digest=valid.digest()
    )
    _require_same_everywhere(config, progress, processes)
    src_size, tgt_size = corpus.vocab.src.size, corpus.vocab.tgt.size
    engine = Engine(config, src_size, tgt_size, device, precision, processes)
    fitter = StepFitter(engine)
    limit = config.train.micro_batch_tokens
    if limit == "auto":
        limit = fitter.find_micro_batch_tokens()
    progress = replace(progress, micro_batch_tokens=limit)
    if checkpoint and processes.is_main:
        progress = resume(fitter, checkpoint, progress, initial)
    elif initial and processes.is_main:
        progress = begin_from(initial, engine, progress)
    progress = processes.broadcast(progress)
    _share_state(engine)
    return Trainer(run_dir, corpus, valid, fitter, progress, checkpoint is not None, old_text)


def _warn_of_trained_test(config: Config, corpus: PreparedCorpus) -> None:
    """Warns if pairs of the test text are training pairs, unless there is no test text yet."""
    with suppress(DataError, OSError):  # `evaluate` says what is wrong with it
        test = load_split(config.data, config.data.test)
        warn_of_trained_pairs(f"data.test = {config.data.test}", test, corpus)


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
    for part, values in state.items():  # one at a time, to need less memory
        on_cpu = {k: v.cpu() if isinstance(v, Tensor) else v for k, v in values.items()}
        state[part] = processes.broadcast(on_cpu)
    if not processes.is_main:
        engine.load_state_dict(state)


def require_writable(run_dir: Path) -> None:
    """Checks before hours of work, not after, that the run can be saved.

    A run inside a checkpoint would be deleted with it.
    """
    if not is_utf8(run_dir.absolute()):
        raise CheckpointError(f"{run_dir}: not UTF-8; name another --run directory")
    require_directory(run_dir, "--run")
    foreign = [name for name in (RUN_FILE, METRICS, RUN_DIFF) if (run_dir / name).exists()]
    if foreign and not (list_checkpoints(run_dir) or (run_dir / LOCK).exists()):
        raise CheckpointError(
            f"{run_dir / foreign[0]}: would be replaced, and there is no checkpoint to resume from;"
            " name another --run directory"
        )
    place = run_dir.resolve()
    for folder in (place, *place.parents):
        if (folder / MANIFEST).exists() and (folder / STATE).exists():
            raise CheckpointError(f"{folder}: is a checkpoint; name another --run directory")
