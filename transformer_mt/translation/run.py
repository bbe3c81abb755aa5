"""Translation of files, a stream or lines typed at a prompt, with one model."""

import logging
from collections.abc import Sequence
from pathlib import Path

from transformer_mt.errors import ConfigError, OutputError
from transformer_mt.system.device import choose_device
from transformer_mt.system.launcher import is_launched, may_have_restarted
from transformer_mt.system.process_settings import exit_on_closed_stdout
from transformer_mt.system.processes import Processes, join_processes
from transformer_mt.system.signals import interrupt_on_signals
from transformer_mt.translation.chunks import ChunkTranslator
from transformer_mt.translation.files import FilePlan, plan_files, translate_files
from transformer_mt.translation.loading import (
    build_translation_model,
    find_checkpoints,
    share_checkpoints,
)
from transformer_mt.translation.options import FileOptions, TranslateOptions
from transformer_mt.translation.prompt import reads_from_prompt, translate_interactively

logger = logging.getLogger(__name__)


def translate(paths: Sequence[Path], files: FileOptions, options: TranslateOptions) -> None:
    """Translates the user's input with all processes that `torchrun` started.

    Args:
        paths: Each is a run or a checkpoint; several form an ensemble.
        files: The files to read and write; without an input, lines typed at a terminal are read.
        options: How to translate.

    Raises:
        TransformerMTError: If a path or an option is wrong, or a file cannot be read or written.
        OSError: If a stream cannot be written.
        Interrupted: After SIGINT or SIGTERM; the finished part of a file is kept.
    """
    with (
        join_processes(choose_device(options.load.device).type) as processes,
        interrupt_on_signals(),
    ):
        if not processes.is_main:
            _translate_beside(options, processes)
        elif reads_from_prompt(files):
            _translate_prompt(paths, options)
        else:
            _translate_main(paths, files, options, processes)


def _translate_prompt(paths: Sequence[Path], options: TranslateOptions) -> None:
    if is_launched():
        raise ConfigError(
            "a prompt works in one process: start it without torchrun, or name files as --input"
        )
    exit_on_closed_stdout()
    checkpoints = find_checkpoints(paths)
    model = build_translation_model(checkpoints, options.load)
    logger.info(f"translating with {model.name}")
    src_lang = checkpoints[0].config.data.src_lang
    translate_interactively(model.translator(options.search), src_lang, options.output)


def _translate_main(
    paths: Sequence[Path],
    files: FileOptions,
    options: TranslateOptions,
    processes: Processes,
) -> None:
    """Translates as the process that reads and writes."""
    checkpoints = find_checkpoints(paths)
    data = checkpoints[0].config.data
    with plan_files(files, data.src_lang, data.tgt_lang) as plan:
        if any(pair.output.target is None for pair in plan.pairs):
            exit_on_closed_stdout()
        if may_have_restarted():
            _require_resumable(plan)
        share_checkpoints(checkpoints, processes)
        model = build_translation_model(checkpoints, options.load)
        logger.info(f"translating with {model.name}")
        processes.watch_peers()
        translate_files(model, plan, options, processes)


def _require_resumable(plan: FilePlan) -> None:
    """Refuses to continue a stream from which a lost process may have read lines."""
    for pair in plan.pairs:
        if not pair.is_resumable:
            raise OutputError(
                f"{pair.output.name}: several machines, and processes that were restarted, cannot"
                " translate a stream, since it cannot be read again; name files as --input and"
                " --output"
            )


def _translate_beside(options: TranslateOptions, processes: Processes) -> None:
    """Translates as one of the other processes, which read and write nothing."""
    model = build_translation_model(share_checkpoints([], processes), options.load)
    processes.watch_peers()
    ChunkTranslator(model, options, processes).serve()
