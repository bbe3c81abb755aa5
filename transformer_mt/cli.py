"""The command line: parse, call, print, exit code. No logic.

Commands import what they need themselves: torch takes seconds to import, and --help must not.
"""

import json
import logging
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from transformer_mt.errors import ConfigError, Interrupted, TransformerMTError
from transformer_mt.system.outputs import check_output
from transformer_mt.system.process_settings import exit_on_closed_stdout, limit_kernel_caches
from transformer_mt.system.signals import interrupt_on_signals
from transformer_mt.system.streams import require_input
from transformer_mt.translation.options import (
    DEFAULT_LOAD,
    DEFAULT_OUTPUT,
    DEFAULT_SEARCH,
    FileOptions,
    LoadOptions,
    OutputFormat,
    OutputOptions,
    SearchOptions,
    TranslateOptions,
)
from transformer_mt.version import __version__

logger = logging.getLogger(__name__)

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)

ConfigArgument = Annotated[
    Path, typer.Argument(help="A TOML file, such as configs/wmt16-base.toml.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key; may be repeated."),
]
RunsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN_OR_CHECKPOINT...",
        help="A run (its best checkpoint) or one checkpoint; several decode as an ensemble.",
    ),
]
BeamOption = Annotated[int, typer.Option(min=1, help="Beam size; 1 is greedy search.")]
PenaltyOption = Annotated[
    float, typer.Option(min=0.0, help="Exponent of the length penalty of beam search.")
]
PrecisionOption = Annotated[str, typer.Option(help="fp32, bf16 or fp16.")]
BatchOption = Annotated[
    int | None, typer.Option(min=1, help="Source pieces decoded at once, times the beam size.")
]
LengthOption = Annotated[
    int | None,
    typer.Option(min=1, help="Pieces after which a line is split. Default: data.max_length."),
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
RawOption = Annotated[
    bool,
    typer.Option(
        "--raw", help="Use the trained weights, not their moving average if there is one."
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Only warnings and errors on stderr.")]


def main() -> None:
    """Runs the program; a user's mistake ends in one line on stderr and exit code 2."""
    limit_kernel_caches()
    try:
        # Typer returns the exit code of an interruption; commands return None.
        if code := app(sys.argv[1:] or ["--help"], "transformer-mt", standalone_mode=False):
            raise SystemExit(code)
    except typer.TyperException as error:
        _fail(f"{error.format_message()} (see transformer-mt --help)")
    except TransformerMTError as error:
        _fail(str(error))
    except Interrupted as stop:
        raise SystemExit(stop.exit_code) from None
    except OSError as error:
        # Python flushes stdout when it exits, and would fail again.
        sys.stdout = sys.__stdout__ = None  # type: ignore[misc]
        _fail(f"{error.filename or 'output'}: {error.strerror or error}")
    except (RuntimeError, MemoryError) as error:
        from transformer_mt.system.device import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        _fail(f"out of memory: lower --beam-size, train.micro_batch_tokens or the model ({error})")


def _fail(message: str) -> None:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)


def _print_version(requested: bool) -> None:
    if requested:
        import torch

        cuda = torch.cuda.is_available()
        device = torch.cuda.get_device_name() if cuda else f"cpu, {torch.get_num_threads()} threads"
        print(f"transformer-mt {__version__} (torch {torch.__version__}, {device})")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the versions."
        ),
    ] = False,
) -> None:
    """Train the Transformer on German-English, translate with it, and score it with sacreBLEU.

    \b
    transformer-mt train configs/wmt16-base.toml
    transformer-mt translate checkpoints/wmt16-base --input in.de --output out.en
    transformer-mt evaluate checkpoints/wmt16-base
    """


@app.command()
def train(
    config: ConfigArgument,
    run: Annotated[
        Path | None, typer.Option(help="Run directory. Default: checkpoints/NAME of NAME.toml.")
    ] = None,
    set_: SetOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report sizes, speed, memory and time; save nothing.")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Train a model. The same command again resumes an interrupted run.

    \b
    transformer-mt train configs/wmt16-base.toml --dry-run
    transformer-mt train configs/wmt16-base.toml --set train.max_steps=50000
    """
    from transformer_mt.config_loading import load_config

    settings = load_config(config, set_ or ())  # before torch, so that a mistake shows at once
    from transformer_mt.system.console import show_messages
    from transformer_mt.training import dry_run as dry_runs
    from transformer_mt.training import run as runs

    show_messages(quiet)
    run_dir = run or Path("checkpoints") / config.stem
    if dry_run:
        print(dry_runs.dry_run(settings, run_dir))
    else:
        runs.train(settings, run_dir)


@app.command()
def prepare(
    config: ConfigArgument,
    set_: SetOption = None,
    quiet: QuietOption = False,
) -> None:
    """Clean and encode the training text of a configuration once, for all runs that use it.

    \b
    transformer-mt prepare configs/wmt16-base.toml
    """
    from transformer_mt.config_loading import load_config

    settings = load_config(config, set_ or ())
    from transformer_mt.system.console import show_messages
    from transformer_mt.text.prepared import prepare as prepare_corpus

    show_messages(quiet)
    print(prepare_corpus(settings).path)


@app.command()
def translate(
    paths: RunsArgument,
    input_: Annotated[
        list[Path] | None,
        typer.Option(
            "--input",
            help="Text, one sentence per line; also .gz, .xz, .zst; may be repeated with"
            " --output-dir. Default: stdin.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="File for the translation. Default: stdout, also as -."),
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(help="Folder for the translation of each --input: a.de.gz gives a.en.gz."),
    ] = None,
    beam_size: BeamOption = DEFAULT_SEARCH.beam_size,
    length_penalty: PenaltyOption = DEFAULT_SEARCH.length_penalty,
    n_best: Annotated[
        int,
        typer.Option(min=1, help="Translations per line, the best first; at most the beam size."),
    ] = 1,
    scores: Annotated[
        bool, typer.Option("--scores", help="Write score and tab before each translation.")
    ] = False,
    format_: Annotated[
        OutputFormat,
        typer.Option("--format", help="jsonl: one object with line, rank, score and text each."),
    ] = DEFAULT_OUTPUT.format,
    precision: PrecisionOption = DEFAULT_LOAD.precision,
    batch_tokens: BatchOption = None,
    max_length: LengthOption = None,
    device: DeviceOption = DEFAULT_LOAD.device,
    raw: RawOption = False,
    quiet: QuietOption = False,
) -> None:
    """Translate text line by line: as many lines out as in, or --n-best times as many.

    With --input and --output or --output-dir, the same command again continues a stopped one.

    \b
    transformer-mt translate checkpoints/wmt16-base --input in.de --output out.en
    transformer-mt translate checkpoints/wmt16-base --beam-size 4 < in.de > out.en
    transformer-mt translate checkpoints/wmt16-base --input a.de --input b.de.gz --output-dir out
    """
    if n_best > beam_size:
        raise ConfigError(f"--n-best {n_best} needs --beam-size {n_best} or more")
    file_options = FileOptions(input_ or [], output, output_dir)
    written = OutputOptions(n_best, scores, format_)
    search = SearchOptions(beam_size, length_penalty, written.needs_scores, batch_tokens)
    options = TranslateOptions(LoadOptions(device, precision, max_length, raw), search, written)
    from transformer_mt.system.console import show_messages
    from transformer_mt.translation import files, loading, prompt

    show_messages(quiet)
    interactive = prompt.reads_from_prompt(file_options)
    checkpoints = loading.find_checkpoints(paths)
    data = checkpoints[0].config.data
    with (
        interrupt_on_signals(),
        files.plan_files(file_options, data.src_lang, data.tgt_lang) as plan,
    ):
        if any(pair.output.target is None for pair in plan.pairs):
            exit_on_closed_stdout()
        model = loading.build_translation_model(checkpoints, options.load)
        logger.info(f"translating with {model.name}")
        if interactive:
            prompt.translate_interactively(model.translator(search), data.src_lang, written)
        else:
            files.translate_files(model, plan, options)


@app.command()
def evaluate(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN_OR_CHECKPOINT...]",
            help="As for translate. Not needed for --hypotheses with --ref or --test-set.",
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Split of the configured corpus. Default: data.test.")
    ] = None,
    test_set: Annotated[
        str | None,
        typer.Option(help="sacreBLEU's name of a test set, such as wmt16, instead of a split."),
    ] = None,
    src: Annotated[Path | None, typer.Option(help="Source text, instead of a split.")] = None,
    ref: Annotated[
        list[Path] | None,
        typer.Option(help="Reference translation; may be repeated for several references."),
    ] = None,
    hypotheses: Annotated[
        Path | None, typer.Option(help="Score this translation instead of making one.")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="File to save the translation to.")] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="RUN_OR_FILE", help="Compare with this run or translation."),
    ] = None,
    ter: Annotated[bool, typer.Option("--ter", help="Compute TER too.")] = False,
    samples: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Sentences to show. Default: 0; with --baseline the 3 best and worst changes.",
        ),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    beam_size: BeamOption = DEFAULT_SEARCH.beam_size,
    length_penalty: PenaltyOption = DEFAULT_SEARCH.length_penalty,
    precision: PrecisionOption = DEFAULT_LOAD.precision,
    batch_tokens: BatchOption = None,
    max_length: LengthOption = None,
    device: DeviceOption = DEFAULT_LOAD.device,
    raw: RawOption = False,
    quiet: QuietOption = False,
) -> None:
    """Translate a test set, score it with sacreBLEU, and compare it with a baseline.

    \b
    transformer-mt evaluate checkpoints/wmt16-base
    transformer-mt evaluate checkpoints/wmt16-base --test-set wmt14 --beam-size 4 --save hyp.en
    transformer-mt evaluate checkpoints/wmt16-base --baseline checkpoints/wmt16-small
    transformer-mt evaluate --hypotheses hyp.en --ref ref.en --json
    """
    if not paths and (hypotheses is None or not (ref or test_set)):
        raise ConfigError("name a run, or --hypotheses with --ref or --test-set")
    require_input(hypotheses)
    output = check_output(save, [src, *(ref or ()), hypotheses, baseline]) if save else None
    from transformer_mt.evaluation.report import evaluate_system
    from transformer_mt.system.console import show_messages
    from transformer_mt.text.test_sets import load_test_set

    show_messages(quiet)
    report = evaluate_system(
        paths=paths or [],
        hypotheses=hypotheses,
        baseline=baseline,
        load_test_set=partial(
            load_test_set, split=split, src=src, refs=ref or (), test_set=test_set
        ),
        search=SearchOptions(beam_size, length_penalty, batch_tokens=batch_tokens),
        load=LoadOptions(device, precision, max_length, raw),
        ter=ter,
        save=output,
    )
    print(json.dumps(report.to_dict()) if json_ else report.format(samples))
    if seconds := report.system.seconds:
        logger.info(
            f"{len(report.test_set)} sentences in {seconds:.1f} s with {report.system.name}"
        )


@app.command()
def average(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    last: Annotated[int, typer.Option(min=1, help="Number of newest checkpoints.")] = 5,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Default: averaged-N in the run.")
    ] = None,
) -> None:
    """Average the weights of a run's newest checkpoints into one checkpoint.

    \b
    transformer-mt average checkpoints/wmt16-base --last 5
    transformer-mt evaluate checkpoints/wmt16-base/averaged-5 --beam-size 4
    """
    from transformer_mt.checkpoints.averaging import average as average_run

    print(average_run(run, last, output))


@app.command()
def export(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_CHECKPOINT", help="A run (its best checkpoint) or one checkpoint."
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory to create.")],
    quantization: Annotated[
        str, typer.Option(help="float32, float16, bfloat16, int16 or int8.")
    ] = "float32",
    raw: RawOption = False,
) -> None:
    """Write a checkpoint as a CTranslate2 model, for translating without PyTorch.

    \b
    transformer-mt export checkpoints/wmt16-base -o wmt16-ct2 --quantization int8
    """
    from transformer_mt.checkpoints.run_directory import find_checkpoint
    from transformer_mt.system.console import show_messages
    from transformer_mt.translation.export import export as export_checkpoint

    show_messages()
    print(export_checkpoint(find_checkpoint(path), output, quantization, raw))
