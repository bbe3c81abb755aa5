"""The commands but `translate`, `evaluate` and those that draw: check what was typed, call, print.

Commands import what they need themselves: torch takes seconds to import, and --help must not.
"""

from pathlib import Path

from transformer_mt.cli.options import CONFIG, MODEL, QUIET, RAW, RUN, SET, argument, flag, option
from transformer_mt.system.launcher import is_main_process
from transformer_mt.translation.options import DEFAULT_EXPORT_FORMAT, ExportFormat, Quantization


def init(
    name: Path = argument("NAME", "Name of the configuration: NAME.toml is written."),
    src: Path = option(
        "FILE", "Text to translate from, one sentence per line; also .gz, .xz, .zst.", default=...
    ),
    tgt: Path = option("FILE", "Its translation, line by line.", default=...),
    src_lang: str | None = option("NAME", "Language of --src, such as de. Default: its ending."),
    tgt_lang: str | None = option("NAME", "Language of --tgt, likewise."),
    run: Path | None = option("RUN", "Fine-tune this run or checkpoint on the text.", "--from"),
    quiet: bool = QUIET,
) -> None:
    """Write a configuration for two files of text.

    Its sizes suit the text and this machine; comments say why.

    \b
    transformer-mt init mytext --src mytext/train.de --tgt mytext/train.en
    transformer-mt init tuned --src own.de --tgt own.en --from checkpoints/wmt16-base
    """
    from transformer_mt.training.new_config import write_config

    print(write_config(name, src, tgt, src_lang, tgt_lang, run=run))


def train(
    config: Path = CONFIG,
    run: Path | None = option("DIR", "Run directory. Default: checkpoints/NAME for NAME.toml."),
    set_: list[str] | None = SET,
    dry_run: bool = flag("Take a few steps; report sizes, speed, memory and time.", "--dry-run"),
    quiet: bool = QUIET,
) -> None:
    """Train a model. To resume an interrupted run, repeat the command, or name the run instead.

    \b
    transformer-mt train configs/wmt16-base.toml --dry-run
    transformer-mt train configs/wmt16-base.toml --set train.max_steps=50000
    transformer-mt train checkpoints/wmt16-base --run checkpoints/again
    """
    from transformer_mt.checkpoints.layout import find_config
    from transformer_mt.config.loading import load_config

    config, run_dir = find_config(config, run)
    settings = load_config(config, set_ or ())  # before torch, so that a mistake shows at once
    from transformer_mt.training import dry_run as dry_runs
    from transformer_mt.training import run as runs

    if dry_run:
        estimate = dry_runs.dry_run(settings, run_dir)
        if is_main_process():
            print(estimate)
    else:
        runs.train(settings, run_dir, first_dir=config.parent)


def prepare(config: Path = CONFIG, set_: list[str] | None = SET, quiet: bool = QUIET) -> None:
    """Clean and encode the training text of a configuration.

    It is done once for all runs that use the same text; `train` does it too.

    \b
    transformer-mt prepare configs/wmt16-base.toml
    """
    from transformer_mt.checkpoints.layout import find_config
    from transformer_mt.config.loading import load_config

    settings = load_config(find_config(config, None)[0], set_ or ())
    from transformer_mt.text.prepared import prepare as prepare_corpus
    from transformer_mt.training.starting_state import initial_checkpoint

    initial = initial_checkpoint(settings)
    print(prepare_corpus(settings, initial.vocab if initial else None).path)


def config(
    key: str | None = argument(
        "[KEY]", "A key or section: optim.lr_scale or optim, for example.", default=None
    ),
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
    run: Path = RUN,
    last: int = option("N", "Number of newest checkpoints.", default=5, min=1),
    output: Path | None = option(
        "DIR", "Directory to create. Default: averaged-N in the run.", "-o", "--output"
    ),
) -> None:
    """Average the weights of a run's newest checkpoints.

    \b
    transformer-mt average checkpoints/wmt16-base --last 5
    transformer-mt evaluate checkpoints/wmt16-base/averaged-5 --beam-size 4
    """
    from transformer_mt.checkpoints.averaging import average as average_run

    print(average_run(run, last, output))


def export(
    path: Path = MODEL,
    output: Path = option("DIR", "Directory to create.", "-o", "--output", default=...),
    format: ExportFormat = option(
        ExportFormat, "Library that will load it.", default=DEFAULT_EXPORT_FORMAT
    ),
    quantization: Quantization | None = option(
        Quantization, "Type in which CTranslate2 stores the weights. Default: float32."
    ),
    license: str | None = option(
        "ID", "Licence for the model card, such as cc-by-4.0. Default: none."
    ),
    raw: bool = RAW,
) -> None:
    """Write a checkpoint as a model for CTranslate2 or transformers.

    \b
    transformer-mt export checkpoints/wmt16-base -o wmt16-ct2 --quantization int8
    transformer-mt export checkpoints/wmt16-base -o wmt16-hf --format transformers
    """
    from transformer_mt.checkpoints.run_directory import find_checkpoint
    from transformer_mt.translation.export import export as export_checkpoint

    print(export_checkpoint(find_checkpoint(path), output, quantization, raw, format, license))
