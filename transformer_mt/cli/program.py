"""The program: its commands, their help, and what an error becomes: a line and an exit code."""

import errno
import os
import re
import sys
from collections import Counter
from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from transformer_mt.cli.commands import average, config, export, init, prepare, train
from transformer_mt.cli.evaluate import evaluate, tune
from transformer_mt.cli.figures import compare, diagnose, plot, report
from transformer_mt.cli.translate import translate
from transformer_mt.errors import ConfigError, Interrupted, TransformerMTError
from transformer_mt.system.console import escape_controls, show_messages
from transformer_mt.system.launcher import exit_process, exit_with_error, require_single_process
from transformer_mt.system.process_settings import configure_process
from transformer_mt.system.signals import end_by_broken_pipe, interrupt_on_signals
from transformer_mt.version import __version__

app = typer.Typer(
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Runs the program; a user's mistake ends in one line on stderr and exit code 2."""
    configure_process()
    try:
        show_messages()  # a command with --quiet then shows fewer
        _require_current_folder()
        with interrupt_on_signals():
            app(sys.argv[1:] or ["--help"], "transformer-mt", standalone_mode=False)
            with end_by_broken_pipe():
                sys.stdout.flush()  # a full disk shows here, not when Python exits
    except typer.TyperException as error:
        message = error.format_message().replace("Value error, ", "")  # Typer's own for a choice
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "transformer-mt"
        _fail(f"{message} (see {command} --help)")
    except TransformerMTError as error:
        _fail(str(error), error.exit_code)
    except Interrupted as stop:
        exit_process(stop.exit_code)
    except OSError as error:
        # Python flushes stdout when it exits, and would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        _fail(f"{error.filename or 'output'}: {error.strerror or error}")
    except ImportError as error:
        _fail(f"cannot load a library: {error}")  # or there is too little memory for it
    except MemoryError:  # there may be too little for the import below, too
        _fail("out of memory: free memory, or read less text or smaller batches at once")
    except RuntimeError as error:
        _fail(_describe_shortage(error))


def _require_current_folder() -> None:
    """Raises ConfigError if it was deleted; MKL would say that PyTorch is damaged."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the current folder was deleted: change to another") from None


def _describe_shortage(error: RuntimeError) -> str:
    """Says whether threads or memory ran out, and what to do; raises any other error again."""
    # Python's words, and SentencePiece's for EAGAIN.
    if str(error) in ("can't start new thread", os.strerror(errno.EAGAIN)):
        return "cannot start a thread: raise the process limit (ulimit -u), or end other programs"
    from transformer_mt.system.device import OUT_OF_MEMORY_ADVICE, is_out_of_memory

    if not is_out_of_memory(error):
        raise error
    reason, *_ = str(error).split("\n")  # CUDA's goes on with advice for programmers
    return f"out of memory: {OUT_OF_MEMORY_ADVICE} ({reason})"


def _fail(message: str, code: int = TransformerMTError.exit_code) -> None:
    exit_with_error(f"error: {escape_controls(' '.join(message.split()))}", code)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"transformer-mt {__version__} (torch {metadata.version('torch')})")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool,
        typer.Option(
            "-V", "--version", callback=_print_version, is_eager=True, help="Print the versions."
        ),
    ] = False,
) -> None:
    """Train the Transformer for translation, translate with it, and score it with sacreBLEU.

    \b
    transformer-mt train configs/wmt16-base.toml
    transformer-mt translate checkpoints/wmt16-base --input in.de --output out.en
    transformer-mt evaluate checkpoints/wmt16-base
    """


_IN_SEVERAL_PROCESSES = "train", "translate", "evaluate", "tune"
"""Commands that `torchrun` may start."""


class GroupedCommand(TyperCommand):
    """A command whose help lists the options under the names of their groups.

    Typer draws groups (`rich_help_panel`) with Rich alone, which breaks the lines of examples.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuses a second value for an option that names one file, and names that are empty.

        Typer drops the first of two values. Other options may be repeated, since a later one
        replaces that of a script. An empty name, as of a variable that is not set, would be the
        current folder.
        """
        values, _, given = self.make_parser(ctx).parse_args(list(args))
        for parameter, times in Counter(given).items():
            is_option = parameter.param_type_name == "option"
            name = parameter.opts[-1] if is_option else "an argument"
            is_path = re.search("FILE|DIR|RUN", str(parameter.metavar))
            value = values[parameter.name]
            if not is_path or ctx.resilient_parsing:
                continue
            if times > 1 and not parameter.multiple:
                ctx.fail(f"{name} takes one value, but was given {times} times")
            if "" in (value if isinstance(value, (list, tuple)) else [value]):
                ctx.fail(f"{name} is empty: name a file or folder")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Runs the command, unless it works in one process and there are several."""
        name = ctx.command_path.split()[1]
        if name not in _IN_SEVERAL_PROCESSES:
            require_single_process(name)
        with end_by_broken_pipe():  # here, since Typer makes it exit code 1
            return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Names the arguments as their help does."""
        arguments = [p for p in self.get_params(ctx) if p.param_type_name == "argument"]
        return ["[OPTIONS]", *(str(argument.metavar) for argument in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes one section per group, in the order of the first option of each."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            group = getattr(parameter, "rich_help_panel", None) or "Options"
            record = parameter.get_help_record(ctx)
            if parameter.param_type_name == "argument":
                # The usage line tells which are required.
                record = str(parameter.metavar), getattr(parameter, "help", "")
            if record:
                groups.setdefault(group, []).append(record)
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records)


COMMANDS = init, train, prepare, translate, evaluate, tune, config, average, export
"""In the order of --help, before the commands that show runs."""
for command in (*COMMANDS, diagnose, report, compare):
    app.command()(command)
app.add_typer(plot, name="plot")
for info in (*app.registered_commands, *plot.registered_commands):
    info.cls = GroupedCommand
