"""The command line: parse, call, print, exit code. No logic."""

import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from transformer_mt import __version__
from transformer_mt.errors import ConfigError, DataError, Interrupted, TransformerMTError

# torch and datasets take seconds to import: commands import what needs them, so --help need not.
if TYPE_CHECKING:
    from transformer_mt.checkpoint import Checkpoint
    from transformer_mt.corpus import RawPairs
    from transformer_mt.translator import Translator

app = typer.Typer(
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

ConfigArgument = Annotated[
    Path, typer.Argument(help="A TOML file, such as configs/wmt16-base.toml.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key; may be repeated."),
]
RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN_OR_CHECKPOINT", help="A run (its best checkpoint) or one checkpoint."
    ),
]


DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
BeamOption = Annotated[int, typer.Option(min=1, help="Beam size; 1 is greedy search.")]
PenaltyOption = Annotated[
    float, typer.Option(min=0.0, help="Exponent of the length penalty of a beam.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Only warnings and errors on stderr.")]
RawOption = Annotated[
    bool, typer.Option("--raw", help="The weights themselves, where a moving average is kept too.")
]


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
        from transformer_mt.device import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        _fail(f"out of memory: choose a smaller --beam-size, or --device cpu ({error})")


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
    from transformer_mt import run as runs

    run_dir = run or Path("checkpoints") / config.stem
    if dry_run:
        print(runs.dry_run(settings, run_dir))
    else:
        runs.train(settings, run_dir, quiet)


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
    from transformer_mt.prepared import prepare as prepare_corpus
    from transformer_mt.run_log import Talk

    print(prepare_corpus(settings, Talk(quiet)).path)


@app.command()
def translate(
    path: RunArgument,
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
    device: DeviceOption = "auto",
    raw: RawOption = False,
    quiet: QuietOption = False,
) -> None:
    """Translate text line by line: as many lines out as in, or --n-best times as many.

    \b
    transformer-mt translate checkpoints/wmt16-base < in.de > out.en
    transformer-mt translate checkpoints/wmt16-base --beam-size 4 --input in.de --output out.en
    """
    if input_ is not None and not input_.is_file():
        raise DataError(f"{input_}: no such file")
    if n_best > beam_size:
        raise ConfigError(f"--n-best {n_best} needs --beam-size {n_best} or more")
    checkpoint, translator = _load(path, device, raw, beam_size, length_penalty, scores)
    from transformer_mt.corpus import decode_lines
    from transformer_mt.run_log import Talk

    talk = Talk(quiet)
    talk.say(f"translating with {checkpoint.path}")
    if input_ is None and sys.stdin.isatty():
        _prompt(translator, checkpoint.config.data.src_lang)
        return
    began = time.monotonic()
    with input_.open("rb") if input_ else sys.stdin.buffer as source:
        found = translator.n_best(decode_lines(source))
        lines = (line.show(scores) for some in found for line in some[:n_best])
        count = _write(lines, output) // n_best
    seconds = time.monotonic() - began
    talk.say(f"{count} lines in {seconds:.1f} s, {count / max(seconds, 1e-9):,.0f} a second")
    if translator.lines_split:
        talk.say(f"{translator.lines_split} over-long lines translated in parts")


@app.command()
def evaluate(
    path: RunArgument,
    split: Annotated[
        str | None, typer.Option(help="Split of the configured corpus. Default: data.test.")
    ] = None,
    src: Annotated[Path | None, typer.Option(help="Source text, instead of a split.")] = None,
    ref: Annotated[Path | None, typer.Option(help="Reference translation of --src.")] = None,
    beam_size: BeamOption = 1,
    length_penalty: PenaltyOption = 0.6,
    samples: Annotated[int, typer.Option(min=0, help="Sentences to show.")] = 0,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    device: DeviceOption = "auto",
    raw: RawOption = False,
) -> None:
    """Translate a test set and score it with sacreBLEU.

    \b
    transformer-mt evaluate checkpoints/wmt16-base
    transformer-mt evaluate checkpoints/wmt16-base --src in.de --ref ref.en --json
    """
    if (src is None) != (ref is None):
        raise DataError("--src and --ref go together")
    checkpoint, translator = _load(path, device, raw, beam_size, length_penalty)
    import json

    from transformer_mt.corpus import load_text
    from transformer_mt.evaluator import evaluate as evaluate_set
    from transformer_mt.run_log import Talk

    pairs = load_text(src, ref) if src and ref else _split(checkpoint, split or "test")
    found = evaluate_set(translator, pairs)
    if json_:
        result = {
            "bleu": found.bleu.value,
            "bleu_signature": found.bleu.signature,
            "chrf": found.chrf.value,
            "chrf_signature": found.chrf.signature,
            "sentences": len(pairs),
            "beam_size": beam_size,
            "seconds": round(found.seconds, 3),
            "checkpoint": str(checkpoint.path),
        }
        print(json.dumps(result))
        return
    for i in range(min(samples, len(pairs))):
        print(f"source      {pairs.src[i]}")
        print(f"reference   {pairs.tgt[i]}")
        print(f"hypothesis  {found.hypotheses[i]}\n")
    print(found.bleu.text)
    print(found.chrf.text)
    Talk().say(f"{len(pairs)} sentences in {found.seconds:.1f} s with {checkpoint.path}")


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
    from transformer_mt.averaging import average as average_run

    print(average_run(run, last, output))


def _load(
    path: Path, device: str, raw: bool, beam_size: int, length_penalty: float, scored: bool = False
) -> "tuple[Checkpoint, Translator]":
    from transformer_mt.checkpoint import find_checkpoint
    from transformer_mt.device import choose_device
    from transformer_mt.run_log import Talk
    from transformer_mt.translator import Translator

    target = choose_device(device)
    checkpoint = find_checkpoint(path, Talk().warn)
    model = checkpoint.build_model(raw).to(target)
    longest = checkpoint.config.data.max_length
    translator = Translator(model, checkpoint.vocab, longest, beam_size, length_penalty, scored)
    return checkpoint, translator


def _split(checkpoint: "Checkpoint", name: str) -> "RawPairs":
    from transformer_mt.corpus import load_split

    data = checkpoint.config.data
    names = {"train": data.train, "valid": data.valid, "validation": data.valid, "test": data.test}
    return load_split(data, names.get(name, name))


def _write(lines: Iterable[str], output: Path | None) -> int:
    """Writes lines to stdout, or to a file that appears when it is whole; counts them."""
    if output is None:
        # When the reader has what it wants, as `head` has, end as other tools do.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        return _write_to(sys.stdout.buffer, lines)
    beside = output.with_name(f".{output.name}.partial")
    try:
        with beside.open("wb") as file:
            count = _write_to(file, lines)
        beside.replace(output)
    finally:
        beside.unlink(missing_ok=True)
    return count


def _write_to(stream: BinaryIO, lines: Iterable[str]) -> int:
    count = 0
    for line in lines:
        stream.write(line.encode("utf-8") + b"\n")
        count += 1
    stream.flush()
    return count


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
