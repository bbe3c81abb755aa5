"""The command `translate`: check what was typed, call."""

import os
from pathlib import Path
from typing import Any

from transformer_mt.checkpoints.layout import RUN_FILE
from transformer_mt.cli.options import (
    QUIET,
    ModelGroup,
    OptionGroup,
    SearchGroup,
    argument,
    file_flag,
    file_option,
    search_flag,
    search_option,
    with_groups,
)
from transformer_mt.errors import ConfigError
from transformer_mt.system.manifest import MANIFEST
from transformer_mt.translation.options import (
    FileOptions,
    InputFormat,
    InputOptions,
    LoadOptions,
    OutputFormat,
    OutputOptions,
    Sampling,
    SearchOptions,
    Split,
    TranslateOptions,
)

MODELS = argument(
    "RUN_OR_CHECKPOINT... [FILE...]",
    "A run (its best checkpoint), a checkpoint, or what `export` wrote for CTranslate2; several"
    " runs with --ensemble. Then files to translate, as with --input.",
)
SPLIT = search_option(
    Split,
    "Which lines to translate in parts. auto: depends on the training text; long: longer than"
    " nearly all of its lines; never: longer than data.max_length or --max-length.",
    default=LoadOptions.split,
)


class FileGroup(OptionGroup):
    """What is read and written."""

    input_: list[Path] | None = file_option("FILE_OR_DIR", None, "-i", "--input")
    """Text, one sentence per line; also compressed by gzip, xz or zstd. With --output-dir it may be
    repeated, and a folder stands for all text in it. Default: stdin."""
    files_from: Path | None = file_option("FILE")
    """Translate the files that this file (- for stdin) names, one per line or each ended by a zero
    byte, as from find -print0."""
    output: Path | None = file_option("FILE", None, "-o", "--output")
    """File for the translation. Default: stdout (also -)."""
    output_dir: Path | None = file_option("DIR")
    """Folder for the translation of each file: a.de.gz gives a.en.gz; below it are the folders of
    an --input folder or of --files-from."""
    overwrite: bool = file_flag(None, "--overwrite")
    """Translate all anew, and replace what others wrote in --output-dir."""
    summary: Path | None = file_option("FILE")
    """Write a summary of the job, as JSON."""
    input_format: InputFormat = file_option(InputFormat, default=InputOptions.format)
    """auto: by the ending of --input, such as a.csv or a.srt.gz; text for others and stdin."""
    column: str | None = file_option("NAME_OR_NUMBER", None, "--column", "--key")
    """Column of a table: a name in its first row, a number if it has no names, or a JSON key."""
    output_column: str | None = file_option(
        "NAME_OR_NUMBER", None, "--output-column", "--output-key"
    )
    """Column or key for the translation, a new one if there is none. Default: --column."""

    n_best: int = file_option("N", default=SearchOptions.n_best, min=1)
    """Translations per line, the best first; at most the beam size."""
    scores: bool = file_flag(None, "--scores")
    """Write score and tab before each translation."""
    format_: OutputFormat = file_option(
        OutputFormat, None, "--format", default=OutputOptions.format
    )
    """jsonl: one object with file, line, rank, score, text, parts and status each."""

    def options(self, texts: list[Path]) -> FileOptions:
        """Adds files that were named without an option; refuses what does not belong together."""
        inputs = [*texts, *(self.input_ or [])]
        if self.output and self.output_dir:
            raise ConfigError("--output and --output-dir: choose one")
        if self.output_dir and (Path("-") in inputs or not (inputs or self.files_from)):
            raise ConfigError("--output-dir needs files as --input or --files-from")
        if self.overwrite and not self.output_dir:
            raise ConfigError("--overwrite needs --output-dir; what --output names is replaced")
        if (len(inputs) > 1 or self.files_from) and not self.output_dir:
            raise ConfigError("several inputs need --output-dir")
        return FileOptions(
            inputs, self.files_from, self.output, self.output_dir, self.overwrite, self.summary
        )


class SamplingGroup(OptionGroup):
    """How to draw translations; what is not given has the default of `Sampling`."""

    sample: bool = search_flag(None, "--sample")
    """Sample translations from the model's distribution."""
    top_k: int | None = search_option("K", min=1)
    """With --sample: draw from the K most probable pieces. Default: all."""
    temperature: float | None = search_option(
        "T",
        "With --sample: divisor of the logits, above 0 and at most 100; below 1, probable pieces"
        f" are drawn more often. Default: {Sampling.temperature:g}.",
    )
    seed: int | None = search_option(
        "N",
        "With --sample: what is drawn for a line depends on this and on the line's number."
        f" Default: {Sampling.seed}.",
        min=0,
    )

    def options(self, hypotheses: int) -> Sampling | None:
        """Returns None without --sample; refuses options that have no effect."""
        values = {"top_k": self.top_k, "temperature": self.temperature, "seed": self.seed}
        given: dict[str, Any] = {name: x for name, x in values.items() if x is not None}
        if given and not self.sample:
            name = next(iter(given)).replace("_", "-")
            raise ConfigError(f"--{name} has an effect only on sampling: add --sample")
        if self.sample and hypotheses > 1:
            raise ConfigError(
                "--sample draws one translation per line, without a beam: leave out --beam-size and"
                " --n-best"
            )
        return Sampling(**given) if self.sample else None


@with_groups
def translate(
    paths: list[Path] = MODELS,
    *,
    files: FileGroup,
    search: SearchGroup,
    draws: SamplingGroup,
    model: ModelGroup,
    split: Split = SPLIT,
    quiet: bool = QUIET,
) -> None:
    """Translate text line by line.

    As many lines come out as go in, or --n-best times as many. With --input and --output or
    --output-dir, the same command again continues a stopped one. The exit code is 3 if files
    of --output-dir could not be translated.

    \b
    transformer-mt translate checkpoints/wmt16-base --input in.de --output out.en
    transformer-mt translate checkpoints/wmt16-base --beam-size 4 < in.de > out.en
    transformer-mt translate checkpoints/wmt16-base *.de --output-dir out
    """
    models, texts = _split_arguments(paths, search.ensemble)
    beam_size, n_best = search.beam_size, files.n_best
    sampling = draws.options(max(beam_size, n_best))
    if n_best > beam_size:
        raise ConfigError(f"--n-best {n_best} needs --beam-size {n_best} or more")
    file_options = files.options(texts)
    with_scores = files.scores or files.format_ == "jsonl"
    penalty = search.length_penalty
    search.warn_of_length_penalty(with_scores, draws.sample)
    options = TranslateOptions(
        LoadOptions(model.device, model.precision, model.max_length, model.raw, split),
        SearchOptions(beam_size, penalty, with_scores, n_best, model.batch_tokens, sampling),
        OutputOptions(files.scores, files.format_),
        InputOptions(files.input_format, files.column, files.output_column),
    )
    from transformer_mt.translation import job

    job.translate(models, file_options, options)


def _split_arguments(paths: list[Path], ensemble: bool) -> tuple[list[Path], list[Path]]:
    """Tells models, which are the first argument and further runs, from files to translate."""
    models = [
        path
        for path in paths[1:]
        if (ensemble and not os.path.isfile(path))
        or any(os.path.exists(path / name) for name in (RUN_FILE, MANIFEST))
    ]
    if models and not (ensemble or os.path.isdir(paths[0])):
        raise ConfigError(f"{paths[0]}: no such run or checkpoint; name the run first")
    if models and not ensemble:
        raise ConfigError(
            "translate takes one run: add --ensemble to decode with several, or --input to"
            f" translate the text in {models[0]}"
        )
    return [paths[0], *models], [path for path in paths[1:] if path not in models]
