"""The command `translate`: check what was typed, call."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_mt.cli.options import (
    OVERWRITE,
    QUIET,
    ModelGroup,
    SearchGroup,
    argument,
    file_flag,
    file_option,
    search_flag,
    search_option,
    values_of,
    with_groups,
)
from transformer_mt.errors import ConfigError
from transformer_mt.translation.options import (
    FileOptions,
    LoadOptions,
    OutputFormat,
    OutputOptions,
    Sampling,
    SearchOptions,
    Split,
    TranslateOptions,
)

MODELS = argument(
    "RUN_OR_CHECKPOINT...",
    "A run (its best checkpoint), a checkpoint, or what `export` wrote for CTranslate2; several"
    " runs with --ensemble.",
)
SPLIT = search_option(
    values_of(Split),
    "Which lines to translate in parts. auto: as the training text asks for; long: longer than"
    " nearly all of it; never: longer than data.max_length or --max-length.",
    default=LoadOptions.split,
)


@dataclass(frozen=True)
class FileGroup:
    """What is read and written."""

    input_: list[Path] | None = file_option(
        "FILE",
        "Text, one sentence per line; also compressed by gzip, xz or zstd; may be repeated with"
        " --output-dir. Default: stdin.",
        "-i",
        "--input",
    )
    output: Path | None = file_option(
        "FILE", "File for the translation. Default: stdout (also -).", "-o", "--output"
    )
    output_dir: Path | None = file_option(
        "DIR", "Folder for the translation of each --input: a.de.gz gives a.en.gz."
    )
    overwrite: bool = OVERWRITE

    def options(self) -> FileOptions:
        """Refuses files that do not belong together."""
        inputs = self.input_ or []
        if self.output and self.output_dir:
            raise ConfigError("--output and --output-dir: choose one")
        if self.output_dir and (not inputs or Path("-") in inputs):
            raise ConfigError("--output-dir needs files as --input")
        if len(inputs) > 1 and not self.output_dir:
            raise ConfigError("several --input options need --output-dir")
        return FileOptions(inputs, self.output, self.output_dir, self.overwrite)


@dataclass(frozen=True)
class LineGroup:
    """What is written for each line."""

    n_best: int = file_option(
        "N",
        "Translations per line, the best first; at most the beam size.",
        default=SearchOptions.n_best,
        min=1,
    )
    scores: bool = file_flag("Write score and tab before each translation.", "--scores")
    format_: OutputFormat = file_option(
        values_of(OutputFormat),
        "jsonl: one object with line, rank, score, text, parts and status each.",
        "--format",
        default=OutputOptions.format,
    )


@dataclass(frozen=True)
class SamplingGroup:
    """How to draw translations; what is not given has the default of `Sampling`."""

    sample: bool = search_flag("Sample translations from the model's distribution.", "--sample")
    top_k: int | None = search_option(
        "K", "With --sample: draw from the K most probable pieces. Default: all.", min=1
    )
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
        """Gives None without --sample; refuses options that have no effect."""
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
    lines: LineGroup,
    search: SearchGroup,
    draws: SamplingGroup,
    model: ModelGroup,
    split: Split = SPLIT,
    quiet: bool = QUIET,
) -> None:
    """Translate text line by line.

    As many lines come out as go in, or --n-best times as many. With --input and --output or
    --output-dir, the same command again continues a stopped one.

    \b
    transformer-mt translate checkpoints/wmt16-base --input in.de --output out.en
    transformer-mt translate checkpoints/wmt16-base --beam-size 4 < in.de > out.en
    transformer-mt translate checkpoints/wmt16-base --input a.de --input b.de.gz --output-dir out
    """
    if len(paths) > 1 and not search.ensemble:
        raise ConfigError(
            f"translate takes one run: add --ensemble to decode with several, or --input to"
            f" translate the text in {paths[1]}"
        )
    beam_size, n_best = search.beam_size, lines.n_best
    sampling = draws.options(max(beam_size, n_best))
    if n_best > beam_size:
        raise ConfigError(f"--n-best {n_best} needs --beam-size {n_best} or more")
    file_options = files.options()
    with_scores = lines.scores or lines.format_ == "jsonl"
    penalty = search.length_penalty
    search.warn_of_length_penalty(with_scores)
    options = TranslateOptions(
        LoadOptions(model.device, model.precision, model.max_length, model.raw, split),
        SearchOptions(beam_size, penalty, with_scores, n_best, model.batch_tokens, sampling),
        OutputOptions(lines.scores, lines.format_),
    )
    from transformer_mt.translation import run as runs

    runs.translate(paths, file_options, options)
