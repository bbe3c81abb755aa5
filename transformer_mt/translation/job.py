"""The command `translate`: a prompt, one file or stream, or all files of a job."""

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from transformer_mt.errors import ConfigError, DataError, OutputError
from transformer_mt.system.console import logger
from transformer_mt.system.launcher import attempt, require_single_process
from transformer_mt.system.output_record import OutputRecord
from transformer_mt.system.outputs import Fingerprint, naming_output
from transformer_mt.system.streams import CHUNK_BYTES
from transformer_mt.translation.file_translation import translate_file
from transformer_mt.translation.formats import choose_format
from transformer_mt.translation.inputs import FilePair, plan_folder, plan_single
from transformer_mt.translation.options import FileOptions, InputOptions, TranslateOptions
from transformer_mt.translation.prompt import translate_interactively
from transformer_mt.translation.sharing import LoadModels, share_work
from transformer_mt.translation.small_files import SmallFiles
from transformer_mt.translation.summary import Summary, check_summary, written_summary
from transformer_mt.translation.translation_model import SavedModels, TranslationModel, find_models
from transformer_mt.translation.translator import Translator


@dataclass(frozen=True)
class _Job:
    """A command that translates files or stdin.

    Attributes:
        models: What to translate with.
        files: The files to read and write.
        options: How to translate.
        load: Loads the models.
        summary: Takes what becomes of the files.
    """

    models: SavedModels
    files: FileOptions
    options: TranslateOptions
    load: LoadModels
    summary: Summary

    def translate_single(self) -> None:
        """Translates a file or stdin."""
        try:
            self._translate_pair(plan_single(self.files))
        except (DataError, OutputError) as error:
            named = [str(path) for path in self.files.inputs if str(path) != "-"]
            self.summary.add_failure(named[0] if named else "stdin", error)
            raise

    def _translate_pair(self, pair: FilePair) -> None:
        # Here wrong options are noticed before the model is loaded.
        is_table = "columns" in choose_format(pair.input, self.options).fingerprint
        has_columns = self.options.input.column or self.options.input.output_column
        if has_columns and not is_table:
            raise ConfigError(f"{pair.name}: not a table; add --input-format tsv, csv or jsonl")
        if not pair.is_resumable:
            _require_first_attempt(pair.output.name)
        with pair.output.lock():
            translator, made_from = self._load_translator()
            self.summary.add_file(translate_file(translator, pair, self.options, made_from))

    def translate_folder(self, folder: Path) -> None:
        """Translates files into a folder; one that cannot be translated does not stop the others.

        Raises:
            FailedFilesError: At the end, if there are such files.
        """
        if self.files.files_from and not self.files.files_from.is_file():
            _require_first_attempt(f"--files-from {self.files.files_from}")
        record, data = OutputRecord(folder, self.files.overwrite), self.models[0].config.data
        pairs = plan_folder(self.files, record, (data.src_lang, data.tgt_lang), self.summary)
        if pairs:
            record.require_writable()
            translator, made_from = self._load_translator()
            small = SmallFiles(translator, self.options, made_from, record, self.summary)
            for pair in small.translate(pairs):
                with self.summary.one_file(pair.name, pair.skips_binary), pair.output.lock():
                    counts = translate_file(translator, pair, self.options, made_from, record)
                    self.summary.add_file(counts)
        self.summary.report()

    def _load_translator(self) -> tuple[Translator, Fingerprint]:
        model = self.load(self.models, self.options.load)
        logger.info(f"translating with {model.name}")
        self.summary.models = [checkpoint.digest for checkpoint in model.checkpoints]
        translator = model.translator(self.options.search)
        return translator, _fingerprint(model, translator, self.options)


def _require_first_attempt(stream: str) -> None:
    """Raises OutputError if an earlier attempt may have read a stream, or written to it."""
    if attempt() != "0":
        raise OutputError(
            f"{stream}: several machines, and processes that were restarted, cannot translate a"
            " stream, since it cannot be read again; name files instead"
        )


def translate(paths: Sequence[Path], files: FileOptions, options: TranslateOptions) -> None:
    """Translates the user's input, with all processes that `torchrun` started.

    Args:
        paths: Each is a run or a checkpoint, and several form an ensemble; or an exported model.
        files: The files to read and write; without an input, lines typed at a terminal are read.
        options: How to translate.

    Raises:
        TransformerMTError: If a path or an option is wrong, or a file cannot be read or written.
        OSError: If a stream cannot be written.
    """
    with share_work(paths, options.load.device) as load:
        if load and not files.inputs and not files.files_from and sys.stdin.isatty():
            _translate_prompt(paths, files, options, load)
        elif load:
            if files.output_dir:
                if files.output_dir.is_file():
                    raise OutputError(f"{files.output_dir}: is a file; name a folder")
                with naming_output(files.output_dir):
                    files.output_dir.mkdir(parents=True, exist_ok=True)
                if not os.access(files.output_dir, os.W_OK):  # nothing in it could be recorded
                    raise OutputError(f"{files.output_dir}: not writable")
            with written_summary(check_summary(files)) as summary:
                job = _Job(find_models(paths), files, options, load, summary)
                if files.output_dir:
                    job.translate_folder(files.output_dir)
                else:
                    job.translate_single()


def _translate_prompt(
    paths: Sequence[Path], files: FileOptions, options: TranslateOptions, load: LoadModels
) -> None:
    has_output = files.output and str(files.output) != "-"
    if has_output or files.summary or options.input != InputOptions():
        raise ConfigError(
            "at a prompt, --output, --summary and options of tables have no effect: name a file as"
            " --input, or redirect stdin (< in.de)"
        )
    require_single_process("a prompt")
    checkpoints = find_models(paths)
    model = load(checkpoints, options.load)
    logger.info(f"translating with {model.name}")
    src_lang = checkpoints[0].config.data.src_lang
    translate_interactively(model.translator(options.search), src_lang, options.output)


def _fingerprint(
    model: TranslationModel, translator: Translator, options: TranslateOptions
) -> Fingerprint:
    """Lists what the bytes of an output depend on beside its input.

    Not the batch size, which only decides between equally likely translations: a machine with more
    or less memory can continue. The chunks of a GPU have other lines than those of a CPU.
    """
    return {
        "checkpoint": [checkpoint.digest for checkpoint in model.checkpoints],
        **asdict(replace(options.load, device="auto")),
        **asdict(replace(options.search, batch_tokens=None)),
        **asdict(options.output),
        "precision": model.runtime.precision,
        "chunk_size": [translator.first_chunk_lines, translator.chunk_lines, CHUNK_BYTES],
    }
