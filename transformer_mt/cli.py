"""The command line: parse, call, print, exit code. No logic."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from transformer_mt import __version__
from transformer_mt.errors import DataError, Interrupted, TransformerMTError

# torch and datasets take seconds to import: commands import what needs them, so --help need not.
if TYPE_CHECKING:
    from transformer_mt.checkpoint import Checkpoint
    from transformer_mt.translator import Translator

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN_OR_CHECKPOINT", help="A run (its best checkpoint) or one checkpoint."
    ),
]


def main() -> None:
    """Runs the program; a user's mistake ends in one line on stderr and exit code 2."""
    try:
        app()
    except TransformerMTError as error:
        _fail(str(error))
    except Interrupted as stop:
        raise SystemExit(stop.exit_code) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _fail(message: str) -> None:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)


def _warn(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"transformer-mt {__version__}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train the Transformer on German-English, translate files with it, score it with sacreBLEU."""


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="A TOML file, such as configs/wmt16-base.toml.")],
    run: Annotated[
        Path | None, typer.Option(help="Run directory. Default: checkpoints/ and the file's name.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key; may be repeated."),
    ] = None,
) -> None:
    """Train a model. The same command again resumes where it stopped."""
    from transformer_mt.config import load_config

    settings = load_config(config, set_ or ())
    from transformer_mt.trainer import train as train_run

    run_dir = run or Path("checkpoints") / config.stem
    train_run(settings, run_dir)


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
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Translate text line by line: as many lines out as in."""
    if input_ is not None and not input_.is_file():
        raise DataError(f"{input_}: no such file")
    checkpoint, translator = _load(path, device)
    print(f"translating with {checkpoint.path}", file=sys.stderr)
    if input_ is None and sys.stdin.isatty():
        _prompt(translator, checkpoint.config.data.src_lang)
        return
    from transformer_mt.corpus import decode_lines

    source = input_.open("rb") if input_ else sys.stdin.buffer
    lines = decode_lines(source)
    if output is None:
        _write(translator.translate(lines), sys.stdout.buffer)
    else:
        beside = output.with_name(f".{output.name}.partial")
        try:
            with beside.open("wb") as file:
                _write(translator.translate(lines), file)
            beside.replace(output)
        finally:
            beside.unlink(missing_ok=True)
    if translator.lines_split:
        print(f"{translator.lines_split} over-long lines translated in parts", file=sys.stderr)


@app.command()
def evaluate(
    path: RunArgument,
    split: Annotated[
        str | None, typer.Option(help="Split of the configured corpus. Default: data.test.")
    ] = None,
    src: Annotated[Path | None, typer.Option(help="Source text, instead of a split.")] = None,
    ref: Annotated[Path | None, typer.Option(help="Reference translation of --src.")] = None,
    samples: Annotated[int, typer.Option(help="Sentences to show.")] = 0,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Translate a test set and score it with sacreBLEU."""
    if (src is None) != (ref is None):
        raise DataError("--src and --ref go together")
    checkpoint, translator = _load(path, device)
    import json

    from transformer_mt.corpus import RawPairs, load_split, load_text
    from transformer_mt.evaluator import evaluate as evaluate_set

    data = checkpoint.config.data
    pairs: RawPairs
    if src and ref:
        pairs = load_text(src, ref)
    else:
        names = {
            "train": data.train,
            "valid": data.valid,
            "validation": data.valid,
            "test": data.test,
        }
        pairs = load_split(data, names.get(split or "test", split or "test"))
    found = evaluate_set(translator, pairs)
    if json_:
        result = {
            "bleu": found.bleu.value,
            "bleu_signature": found.bleu.signature,
            "chrf": found.chrf.value,
            "chrf_signature": found.chrf.signature,
            "sentences": len(pairs),
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
    print(
        f"{len(pairs)} sentences in {found.seconds:.1f} s with {checkpoint.path}", file=sys.stderr
    )


def _load(path: Path, device: str) -> "tuple[Checkpoint, Translator]":
    from transformer_mt.checkpoint import find_checkpoint
    from transformer_mt.device import choose_device
    from transformer_mt.translator import Translator

    target = choose_device(device)
    checkpoint = find_checkpoint(path, _warn)
    model = checkpoint.build_model().to(target)
    return checkpoint, Translator(model, checkpoint.vocab, checkpoint.config.data.max_length)


def _write(lines: Iterator[str], stream: BinaryIO) -> None:
    for line in lines:
        stream.write(line.encode("utf-8") + b"\n")
    stream.flush()


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
