"""What a run records when it starts: head of train.log, run.json, config.toml, source.diff."""

import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path

from transformer_mt.checkpoints.checkpoint import ORIGINS
from transformer_mt.checkpoints.layout import RUN_CONFIG, RUN_DIFF
from transformer_mt.checkpoints.run_description import (
    InitialWeights,
    RunDescription,
    SentenceLengths,
    ValidationText,
    VocabularySizes,
    read_description,
    write_description,
)
from transformer_mt.checkpoints.run_directory import description_if_sound
from transformer_mt.config.keys import Config
from transformer_mt.config.loading import format_config
from transformer_mt.errors import CheckpointError
from transformer_mt.system.console import escape_controls, logger
from transformer_mt.system.files import replace_file
from transformer_mt.training.environment import numeric_changes, numeric_environment
from transformer_mt.training.run_log import RunLog
from transformer_mt.training.trainer import Trainer
from transformer_mt.version import describe_software, source_state

_HEAD = "# `transformer-mt train RUN --run NEW` trains this again. It was trained with\n"
_COMMAND = "#     "


def log_start(log: RunLog, trainer: Trainer) -> None:
    """Logs what is trained, by which command and software, and from where it goes on."""
    progress, corpus = trainer.progress, trainer.corpus
    log.note(f"command: {shlex.join(sys.argv)}")
    log.note(f"software: {describe_software()}")
    log.note(f"numeric environment: {_environment(trainer)}")
    logger.info(f"{corpus.summary}; {trainer.engine.device.type}, {progress.precision}")
    if progress.step:
        logger.info("resuming at step %d, epoch %d", progress.step, progress.epoch)
    elif progress.init_digest:
        origin = f"{trainer.config.train.init_from} at step {progress.init_step}"
        logger.info("starting from %s (digest %s)", origin, progress.init_digest)


def _environment(trainer: Trainer) -> dict[str, str]:
    """Lists what bit-equality depends on, with how steps are cut, and when that last changed."""
    fitter, progress = trainer.fitter, trainer.progress
    changed = f"at step {progress.changed_step}" if progress.changed_step else "none"
    values = {"cut of a step": fitter.describe(progress), "last change on resume": changed}
    return {**numeric_environment(fitter), **values}


def describe_run(trainer: Trainer, at_end: bool = False) -> None:
    """Writes run.json when a run is started, resumed, or has reached one of its limits.

    Before it is trained, also config.toml, and source.diff if the program has uncommitted changes.
    If nothing is left to train, only where the text is now is recorded. Logs a warning if
    that fails.
    """
    try:
        _write_files(trainer, at_end)
    except OSError as error:
        path = error.filename2 or error.filename
        logger.warning("%s: cannot be written: %s", path, error.strerror)


def _write_files(trainer: Trainer, at_end: bool) -> None:
    run_dir = trainer.run_dir
    if trainer.is_finished and not at_end and (trained := _read_sound(run_dir)):
        # The text may have moved; a process may have been killed after its last checkpoint.
        config = trained.config.model_copy(update={"data": trainer.config.data})
        if not trained.complete or config != trained.config:
            write_description(run_dir, replace(trained, complete=True, config=config))
            _write_config(run_dir / RUN_CONFIG, config)
        return
    write_description(run_dir, _describe(trainer))
    if not at_end:
        _write_config(run_dir / RUN_CONFIG, trainer.config)
    if not trainer.is_finished:
        _write_diff(run_dir / RUN_DIFF)


def _read_sound(run_dir: Path) -> RunDescription | None:
    """Reads run.json; None if it is damaged, of which whoever read the checkpoint has warned."""
    try:
        return read_description(run_dir)
    except CheckpointError:
        return None


def _describe(trainer: Trainer) -> RunDescription:
    corpus, progress, vocab = trainer.corpus, trainer.progress, trainer.corpus.vocab
    sides = zip(("src", "tgt"), corpus.pairs.lengths, strict=True)
    initial = None
    if progress.init_digest:
        initial = InitialWeights(progress.init_step, progress.init_digest, **progress.init_names)
    return RunDescription(
        config=trainer.config,
        corpus=corpus.report,
        corpus_digest=corpus.digest,
        lengths=SentenceLengths({side: round(float(each.mean()), 2) for side, each in sides}),
        validation=ValidationText(len(trainer.valid), progress.valid_digest),
        init_from=initial,
        vocabulary=VocabularySizes(vocab.src.size, vocab.tgt.size, vocab.tgt.kind),
        complete=trainer.is_finished,
        parameters=sum(p.numel() for p in trainer.engine.model.parameters()),
        software=describe_software(),
        environment=_environment(trainer),
    )


def _write_config(path: Path, config: Config) -> None:
    """Writes config.toml, unless it says the same or was not written by the program."""
    before = path.read_text("utf-8", "replace") if path.exists() else _HEAD
    commands = _HEAD + "".join(x for x in before.splitlines(True) if x.startswith(_COMMAND))
    if before.startswith(_HEAD) and before != commands + format_config(config, commands):
        name = Path(sys.argv[0]).name.replace("__main__.py", "transformer-mt")  # python -m
        words = [name, *sys.argv[1:]]
        commands += f"{_COMMAND}{escape_controls(shlex.join(words))}\n"
        text = commands + format_config(config, commands)
        replace_file(path, text.encode(errors="replace"))


def _write_diff(path: Path) -> None:
    """Writes source.diff if there are changes, and deletes that of an earlier start."""
    path.unlink(missing_ok=True)
    if diff := source_state()[1]:
        replace_file(path, diff.encode())


def compare_with(first_dir: Path | None, trainer: Trainer) -> None:
    """Warns of what differs from another run that is repeated, if that has a run.json."""
    if first_dir is None or first_dir.resolve() == trainer.run_dir.resolve():
        return
    if first := description_if_sound(first_dir):
        config, environment, own = trainer.config, _environment(trainer), asdict(trainer.progress)
        changes = numeric_changes(first.config, first.environment, config, environment)
        texts = [f"the {text}" for key, text in ORIGINS.items() if first.digests[key] != own[key]]
        if differences := [*texts, *changes.values()]:
            logger.warning("differs from %s: %s", first_dir, ", ".join(differences))
