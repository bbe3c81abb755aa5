"""The command line: parse, call, print, exit code. No logic."""

import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_mt import __version__
from transformer_mt.errors import ConfigError, DataError, Interrupted, TransformerMTError

# torch and datasets take seconds to import: commands import what needs them, so --help need not.
if TYPE_CHECKING:
    from transformer_mt.checkpoints.checkpoint import Checkpoint
    from transformer_mt.translation.translator import Translator

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
    float, typer.Option(min=0.0, help="Exponent of the length penalty of a beam.")
]
PrecisionOption = Annotated[str, typer.Option(help="fp32, bf16 or fp16.")]
BatchOption = Annotated[
    int | None, typer.Option(min=1, help="Source pieces decoded at once, times the beam.")
]
LengthOption = Annotated[
    int | None,
    typer.Option(min=1, help="Pieces after which a line is split. Default: data.max_length."),
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
RawOption = Annotated[
    bool, typer.Option("--raw", help="The weights themselves, where a moving average is kept too.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Only warnings and errors on stderr.")]


def main() -> None:
    """Runs the program; a user's mistake ends in one line on stderr and exit code 2."""
    try:
        # Typer gives the exit code of an interruption; a command itself gives none.
        if code := app(sys.argv[1:] or ["--help"], "transformer-mt", standalone_mode=False):
            raise SystemExit(code)
    except typer.TyperException as error:
        _fail(f"{error.format_message()} (see transformer-mt --help)")
    except TransformerMTError as error:
        _fail(str(error))
    except Interrupted as stop:
        raise SystemExit(stop.exit_code) from None
    except OSError as error:
        # Python would flush at its exit what nobody takes, and fail again.
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


def _version(wanted: bool) -> None:
    if wanted:
        import torch

        cuda = torch.cuda.is_available()
        device = torch.cuda.get_device_name() if cuda else f"cpu, {torch.get_num_threads()} threads"
        print(f"transformer-mt {__version__} (torch {torch.__version__}, {device})")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the versions."),
    ] = False,
) -> None:
    """Train the Transformer on German-English, translate files with it, score it with sacreBLEU.

    \b
    transformer-mt train configs/wmt16-base.toml
    transformer-mt translate checkpoints/wmt16-base < in.de > out.en
    transformer-mt evaluate checkpoints/wmt16-base
    """


@app.command()
def train(
    config: ConfigArgument,
    run: Annotated[
        Path | None, typer.Option(help="Run directory. Default: checkpoints/ and the file's name.")
    ] = None,
    set_: SetOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report sizes, speed, memory and time; keep nothing.")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Train a model. The same command again resumes where it stopped.

    \b
    transformer-mt train configs/wmt16-base.toml --dry-run
    transformer-mt train configs/wmt16-base.toml --set train.max_steps=50000
    """
    from transformer_mt.config import load_config

    settings = load_config(config, set_ or ())
    from transformer_mt.system.console import show_messages
    from transformer_mt.training import run as runs

    show_messages(quiet)

    run_dir = run or Path("checkpoints") / config.stem
    if dry_run:
        from transformer_mt.training.dry_run import dry_run as run_dry

        print(run_dry(settings, run_dir))
    else:
        runs.train(settings, run_dir)


@app.command()
def prepare(
    config: ConfigArgument,
    set_: SetOption = None,
    quiet: QuietOption = False,
) -> None:
    """Turn the training text of a configuration into ids, for all runs that want the same.

    \b
    transformer-mt prepare configs/wmt16-base.toml
    """
    from transformer_mt.config import load_config

    settings = load_config(config, set_ or ())
    from transformer_mt.system.console import show_messages
    from transformer_mt.text.prepared import prepare as prepare_corpus

    show_messages(quiet)
    print(prepare_corpus(settings).path)


@app.command()
def translate(
    paths: RunsArgument,
    input_: Annotated[
        Path | None,
        typer.Option("--input", help="Text to translate, a sentence a line. Default: stdin."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Where to put the translation. Default: stdout.")
    ] = None,
    beam_size: BeamOption = 1,
    length_penalty: PenaltyOption = 0.6,
    n_best: Annotated[
        int, typer.Option(min=1, help="Translations of each line, the best first; up to the beam.")
    ] = 1,
    scores: Annotated[
        bool, typer.Option("--scores", help="Put score and tab before each translation.")
    ] = False,
    precision: PrecisionOption = "fp32",
    batch_tokens: BatchOption = None,
    max_length: LengthOption = None,
    device: DeviceOption = "auto",
    raw: RawOption = False,
    quiet: QuietOption = False,
) -> None:
    """Translate text line by line: as many lines out as in, or --n-best times as many.

    \b
    transformer-mt translate checkpoints/wmt16-base < in.de > out.en
    transformer-mt translate checkpoints/wmt16-base --beam-size 4 --input in.de --output out.en
    """
    if input_ is not None and (not input_.exists() or input_.is_dir()):  # a pipe is welcome
        raise DataError(f"{input_}: no such file")
    if n_best > beam_size:
        raise ConfigError(f"--n-best {n_best} needs --beam-size {n_best} or more")
    from transformer_mt.system.console import progress_bar, show_messages, shows_bars
    from transformer_mt.system.streams import LineReader, count_lines, write_lines
    from transformer_mt.translation.loading import load_translator
    from transformer_mt.translation.translator import CHUNK_LINES, SearchOptions

    show_messages(quiet)
    search = SearchOptions(beam_size, length_penalty, scores, batch_tokens)
    checkpoints, translator = load_translator(paths, search, device, precision, max_length, raw)
    logger.info(f"translating with {' and '.join(str(some.path) for some in checkpoints)}")
    if input_ is None and sys.stdin.isatty():
        _prompt(translator, checkpoints[0].config.data.src_lang)
        return
    began = time.monotonic()
    hidden = output is None and sys.stdout.isatty()  # the bar would run into the lines
    counts = shows_bars() and not hidden
    total = count_lines(input_) if input_ and input_.is_file() and counts else None
    with (
        input_.open("rb") if input_ else sys.stdin.buffer as source,
        progress_bar("translating", "lines", total, hidden=hidden) as bar,
    ):
        reader = LineReader(source)

        def translated() -> Iterator[list[str]]:
            for chunk in reader.chunks(CHUNK_LINES):
                found = translator.translate_chunk(chunk, bar.update)
                yield [line.show(scores) for some in found for line in some[:n_best]]

        count = write_lines(translated(), output) // n_best
    seconds = time.monotonic() - began
    logger.info(f"{count} lines in {seconds:.1f} s, {count / max(seconds, 1e-9):,.0f} a second")
    if translator.lines_split:
        logger.info(f"{translator.lines_split} over-long lines translated in parts")
    if reader.replaced:
        logger.warning(f"{reader.replaced} lines were not UTF-8; what was not became U+FFFD")


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
        str | None, typer.Option(help="sacreBLEU's name of a set, such as wmt16, instead.")
    ] = None,
    src: Annotated[Path | None, typer.Option(help="Source text, instead of a split.")] = None,
    ref: Annotated[Path | None, typer.Option(help="Reference translation of --src.")] = None,
    hypotheses: Annotated[
        Path | None, typer.Option(help="Score this translation instead of making one.")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Where to keep the translation.")] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="RUN_OR_FILE", help="Compare with this run or translation."),
    ] = None,
    ter: Annotated[bool, typer.Option("--ter", help="Count TER too.")] = False,
    samples: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Sentences to show. Default: 0; with --baseline the 3 best and worst changes.",
        ),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    beam_size: BeamOption = 1,
    length_penalty: PenaltyOption = 0.6,
    precision: PrecisionOption = "fp32",
    batch_tokens: BatchOption = None,
    max_length: LengthOption = None,
    device: DeviceOption = "auto",
    raw: RawOption = False,
    quiet: QuietOption = False,
) -> None:
    """Translate a test set, score it with sacreBLEU, and compare it with a baseline.

    \b
    transformer-mt evaluate checkpoints/wmt16-base
    transformer-mt evaluate checkpoints/wmt16-base --test-set wmt14 --beam-size 4 --save hyp.en
    transformer-mt evaluate checkpoints/wmt16-base --baseline checkpoints/wmt16-small
    transformer-mt evaluate --hypotheses hyp.en --src in.de --ref ref.en --json
    """
    if not paths and (hypotheses is None or not (src or test_set)):
        raise ConfigError("name a run, or --hypotheses with --src and --ref or with --test-set")
    if hypotheses is not None and not hypotheses.is_file():
        raise DataError(f"{hypotheses}: no such file")
    from dataclasses import asdict

    from transformer_mt.checkpoints.run_directory import find_checkpoint
    from transformer_mt.config import DataConfig
    from transformer_mt.evaluation.comparison import compare, show
    from transformer_mt.evaluation.scoring import score_all
    from transformer_mt.system.console import show_messages
    from transformer_mt.system.streams import write_lines
    from transformer_mt.text.test_sets import load_test_set
    from transformer_mt.translation.loading import load_translator, obtain
    from transformer_mt.translation.translator import SearchOptions

    show_messages(quiet)
    search = SearchOptions(beam_size, length_penalty, False, batch_tokens)
    how = search, device, precision, max_length, raw

    def load(some: Sequence[Path]) -> "tuple[list[Checkpoint], Translator]":
        return load_translator(some, *how)

    data = find_checkpoint(paths[0]).config.data if paths else DataConfig(path="none")
    pairs = load_test_set(data, split, src, ref, test_set)
    ours = obtain([hypotheses] if hypotheses else paths or [], pairs.src, load)
    if save:  # before anything else can fail
        write_lines([ours.lines], save)
    theirs = obtain([baseline], pairs.src, load) if baseline else None
    scores = score_all(ours.lines, pairs.tgt, ter)
    found = compare(pairs, ours.lines, theirs.lines, ter) if theirs else None
    if json_:
        result: dict[str, object] = {"sentences": len(pairs), "beam_size": beam_size}
        for score in scores:
            result |= {score.name: score.value, f"{score.name}_signature": score.signature}
        result |= {"seconds": round(ours.seconds, 3), "checkpoint": ours.name}
        if theirs and found:
            result |= {"baseline": theirs.name, **asdict(found)}
        print(json.dumps(result))
        return
    for i in range(min(0 if theirs else samples or 0, len(pairs))):
        print(f"source      {pairs.src[i]}")
        print(f"reference   {pairs.tgt[i]}")
        print(f"hypothesis  {ours.lines[i]}\n")
    for score in scores:
        print(score.text)
    if theirs and found:
        print(f"\nagainst {theirs.name}\n")
        print(show(found, pairs, ours.lines, theirs.lines, 3 if samples is None else samples))
    logger.info(f"{len(pairs)} sentences in {ours.seconds:.1f} s with {ours.name}")


@app.command()
def average(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    last: Annotated[int, typer.Option(min=1, help="How many of its newest checkpoints.")] = 5,
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
    output: Annotated[Path, typer.Option("-o", "--output", help="The directory to make.")],
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


def _prompt(translator: "Translator", language: str) -> None:
    print("Type a sentence; Ctrl-D or quit leaves.", file=sys.stderr)
    while True:
        try:
            line = input(f"{language}> ")
        except EOFError:
            print(file=sys.stderr)
            return
        if line.strip() == "quit":
            return
        print(next(translator.translate([line])))
