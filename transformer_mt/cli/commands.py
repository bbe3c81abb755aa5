"""The commands but `evaluate` and those that draw: check what was typed, call, print.

Commands import what they need themselves: torch takes seconds to import, and --help must not.
"""

from pathlib import Path
from typing import Annotated

from transformer_mt.cli.options import (
    FILES,
    BatchOption,
    BeamOption,
    ConfigArgument,
    DeviceOption,
    EnsembleOption,
    LengthOption,
    OverwriteOption,
    PenaltyOption,
    PrecisionOption,
    QuantizationOption,
    QuietOption,
    RawOption,
    RunArgument,
    SampleOption,
    SeedOption,
    SetOption,
    TemperatureOption,
    TopKOption,
    argument,
    choose_length_penalty,
    choose_sampling,
    file_option,
    flag,
    option,
    search_option,
)
from transformer_mt.errors import ConfigError
from transformer_mt.system.console import show_messages
from transformer_mt.system.launcher import is_main_process, require_single_process
from transformer_mt.translation.options import (
    ExportFormat,
    FileOptions,
    LoadOptions,
    OutputFormat,
    OutputOptions,
    SearchOptions,
    Split,
    TranslateOptions,
)


def init(
    name: Annotated[Path, argument("NAME", "Name of the configuration: NAME.toml is written.")],
    src: Annotated[
        Path, option("FILE", "Text to translate from, one sentence per line; also .gz, .xz, .zst.")
    ],
    tgt: Annotated[Path, option("FILE", "Its translation, line by line.")],
    src_lang: Annotated[
        str | None, option("NAME", "Language of --src, such as de. Default: its ending.")
    ] = None,
    tgt_lang: Annotated[str | None, option("NAME", "Language of --tgt, likewise.")] = None,
    quiet: QuietOption = False,
) -> None:
    """Write a configuration for two files of text.

    Its sizes suit the text and this machine; comments say why.

    \b
    transformer-mt init mytext --src mytext/train.de --tgt mytext/train.en
    """
    require_single_process("init")
    from transformer_mt.training.new_config import write_config

    show_messages(quiet)
    print(write_config(name, src, tgt, src_lang, tgt_lang))


def train(
    config: ConfigArgument,
    run: Annotated[
        Path | None, option("DIR", "Run directory. Default: checkpoints/NAME of NAME.toml.")
    ] = None,
    set_: SetOption = None,
    dry_run: Annotated[
        bool, flag("Take a few steps; report sizes, speed, memory and time.", "--dry-run")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Train a model. The same command again resumes an interrupted run.

    \b
    transformer-mt train configs/wmt16-base.toml --dry-run
    transformer-mt train configs/wmt16-base.toml --set train.max_steps=50000
    """
    from transformer_mt.config.loading import load_config

    settings = load_config(config, set_ or ())  # before torch, so that a mistake shows at once
    from transformer_mt.training import dry_run as dry_runs
    from transformer_mt.training import run as runs

    show_messages(quiet)
    run_dir = run or Path("checkpoints") / config.stem
    if dry_run:
        estimate = dry_runs.dry_run(settings, run_dir)
        if is_main_process():
            print(estimate)
    else:
        runs.train(settings, run_dir)


def prepare(config: ConfigArgument, set_: SetOption = None, quiet: QuietOption = False) -> None:
    """Clean and encode the training text of a configuration.

    It is done once for all runs that use the same text; `train` does it too.

    \b
    transformer-mt prepare configs/wmt16-base.toml
    """
    from transformer_mt.config.loading import load_config

    require_single_process("prepare")
    settings = load_config(config, set_ or ())
    from transformer_mt.text.prepared import prepare as prepare_corpus
    from transformer_mt.training.starting_state import initial_checkpoint

    show_messages(quiet)
    initial = initial_checkpoint(settings)
    print(prepare_corpus(settings, initial.vocab if initial else None).path)


def translate(
    paths: Annotated[
        list[Path],
        argument(
            "RUN_OR_CHECKPOINT...",
            "A run (its best checkpoint), a checkpoint, or what `export` wrote for CTranslate2;"
            " several runs with --ensemble.",
        ),
    ],
    input_: Annotated[
        list[Path] | None,
        file_option(
            "FILE",
            "Text, one sentence per line; also compressed by gzip, xz or zstd; may be repeated with"
            " --output-dir. Default: stdin.",
            "-i",
            "--input",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        file_option(
            "FILE", "File for the translation. Default: stdout (also -).", "-o", "--output"
        ),
    ] = None,
    output_dir: Annotated[
        Path | None,
        file_option("DIR", "Folder for the translation of each --input: a.de.gz gives a.en.gz."),
    ] = None,
    overwrite: OverwriteOption = False,
    ensemble: EnsembleOption = False,
    beam_size: BeamOption = SearchOptions.beam_size,
    length_penalty: PenaltyOption = None,
    sample: SampleOption = False,
    top_k: TopKOption = None,
    temperature: TemperatureOption = None,
    seed: SeedOption = None,
    n_best: Annotated[
        int,
        file_option("N", "Translations per line, the best first; at most the beam size.", min=1),
    ] = SearchOptions.n_best,
    scores: Annotated[
        bool, flag("Write score and tab before each translation.", "--scores", group=FILES)
    ] = False,
    format_: Annotated[
        OutputFormat,
        file_option(
            "[text|jsonl]",
            "jsonl: one object with line, rank, score, text, parts and status each.",
            "--format",
        ),
    ] = OutputOptions.format,
    precision: PrecisionOption = LoadOptions.precision,
    batch_tokens: BatchOption = None,
    max_length: LengthOption = None,
    split: Annotated[
        Split,
        search_option(
            "[auto|long|never]",
            "Which lines to translate in parts. auto: as the training text asks for; long: longer"
            " than nearly all of it; never: longer than data.max_length or --max-length.",
        ),
    ] = LoadOptions.split,
    device: DeviceOption = LoadOptions.device,
    raw: RawOption = False,
    quiet: QuietOption = False,
) -> None:
    """Translate text line by line.

    As many lines come out as go in, or --n-best times as many. With --input and --output or
    --output-dir, the same command again continues a stopped one.

    \b
    transformer-mt translate checkpoints/wmt16-base --input in.de --output out.en
    transformer-mt translate checkpoints/wmt16-base --beam-size 4 < in.de > out.en
    transformer-mt translate checkpoints/wmt16-base --input a.de --input b.de.gz --output-dir out
    """
    if len(paths) > 1 and not ensemble:
        raise ConfigError(
            f"translate takes one run: add --ensemble to decode with several, or --input to"
            f" translate the text in {paths[1]}"
        )
    sampling = choose_sampling(sample, top_k, temperature, seed, max(beam_size, n_best))
    if n_best > beam_size:
        raise ConfigError(f"--n-best {n_best} needs --beam-size {n_best} or more")
    inputs = input_ or []
    if output and output_dir:
        raise ConfigError("--output and --output-dir: choose one")
    if output_dir and (not inputs or Path("-") in inputs):
        raise ConfigError("--output-dir needs files as --input")
    if len(inputs) > 1 and not output_dir:
        raise ConfigError("several --input options need --output-dir")
    with_scores = scores or format_ == "jsonl"
    penalty = choose_length_penalty(length_penalty, beam_size, with_scores)
    search = SearchOptions(beam_size, penalty, with_scores, n_best, batch_tokens, sampling)
    written = OutputOptions(scores, format_)
    load = LoadOptions(device, precision, max_length, raw, split)
    options = TranslateOptions(load, search, written)
    from transformer_mt.translation import run as runs

    show_messages(quiet)
    runs.translate(paths, FileOptions(inputs, output, output_dir, overwrite), options)


def config(
    key: Annotated[
        str | None, argument("[KEY]", "A key or section, such as optim.lr_scale or optim.")
    ] = None,
) -> None:
    """List the keys of a configuration.

    Each is shown with its default, allowed values and meaning.

    \b
    transformer-mt config
    transformer-mt config optim.lr_scale
    """
    from transformer_mt.config.reference import describe_keys

    print(describe_keys(key))


def average(
    run: Annotated[Path, argument("RUN", "A run directory.")],
    last: Annotated[int, option("N", "Number of newest checkpoints.", min=1)] = 5,
    output: Annotated[
        Path | None,
        option("DIR", "Directory to create. Default: averaged-N in the run.", "-o", "--output"),
    ] = None,
) -> None:
    """Average the weights of a run's newest checkpoints.

    \b
    transformer-mt average checkpoints/wmt16-base --last 5
    transformer-mt evaluate checkpoints/wmt16-base/averaged-5 --beam-size 4
    """
    require_single_process("average")
    from transformer_mt.checkpoints.averaging import average as average_run

    print(average_run(run, last, output))


def export(
    path: RunArgument,
    output: Annotated[Path, option("DIR", "Directory to create.", "-o", "--output")],
    format: Annotated[
        ExportFormat, option("[ctranslate2|transformers]", "Library that is to load it.")
    ] = "ctranslate2",
    quantization: QuantizationOption = None,
    license: Annotated[
        str | None, option("ID", "Licence for the model card, such as cc-by-4.0. Default: none.")
    ] = None,
    raw: RawOption = False,
) -> None:
    """Write a checkpoint as a model for CTranslate2 or transformers.

    \b
    transformer-mt export checkpoints/wmt16-base -o wmt16-ct2 --quantization int8
    transformer-mt export checkpoints/wmt16-base -o wmt16-hf --format transformers
    """
    require_single_process("export")
    from transformer_mt.checkpoints.run_directory import find_checkpoint
    from transformer_mt.translation.export import export as export_checkpoint

    checkpoint = find_checkpoint(path)
    print(export_checkpoint(checkpoint, output, quantization, raw, format, license))
