"""Translation of lines typed at a terminal."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType

from transformer_mt.errors import Interrupted
from transformer_mt.system.console import escape_controls
from transformer_mt.translation.options import OutputOptions
from transformer_mt.translation.translator import Translator, format_lines


def translate_interactively(translator: Translator, src_lang: str, options: OutputOptions) -> None:
    """Translates lines typed at a terminal until the end of input or `quit`.

    Translations go to stdout; the prompt, the source language, goes to the terminal, even if
    stdout is redirected. Ctrl-C drops a line that is half typed.

    Raises:
        Interrupted: After SIGTERM, or Ctrl-C otherwise.
    """
    with suppress(ImportError):  # Python can be built without it; lines are then not edited
        import readline  # noqa: F401  importing it gives input() line editing and a history
    print("Type a sentence. Ctrl-D or quit ends.", file=sys.stderr)
    prompt, line_number = f"{escape_controls(src_lang)}> ", 0
    try:
        while (typed := _read(prompt)) is not None and typed.strip() != "quit":
            lines = typed.split("\n")  # several lines can be pasted at once
            translations = translator.n_best(lines, first_line=line_number + 1)
            sys.stdout.write(format_lines(translations, line_number + 1, options))
            sys.stdout.flush()
            line_number += len(lines)
    except Interrupted:
        print(file=sys.stderr)
        raise


def _read(prompt: str) -> str | None:
    """Reads input up to Enter; None is the end of input."""
    readline, half_typed = sys.modules.get("readline"), ""
    while True:
        if readline:
            readline.set_startup_hook(partial(readline.insert_text, half_typed))
        half_typed, before = "", signal.signal(signal.SIGCONT, _stop_reading)
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCONT})
            with _stdout_at_terminal():
                return input(prompt)
        except InterruptedError:
            half_typed = readline.get_line_buffer() if readline else ""
        except EOFError:
            print(file=sys.stderr)
            return None
        except UnicodeDecodeError:
            print("not valid UTF-8; check the encoding of the terminal", file=sys.stderr)
        except Interrupted as stop:  # a Python without readline does not know what is half typed
            if stop.exit_code != 128 + signal.SIGINT or not (
                readline and readline.get_line_buffer()
            ):
                raise
            print(file=sys.stderr)
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
            signal.signal(signal.SIGCONT, before)


def _stop_reading(signum: int, frame: FrameType | None) -> None:
    """After Ctrl-Z and `fg`, when the shell has reset the terminal that readline had set up."""
    raise InterruptedError


@contextmanager
def _stdout_at_terminal() -> Iterator[None]:
    """Points the descriptor of a redirected stdout to the terminal.

    input() shows its prompt on stdout, and edits lines only if that is a terminal.
    """
    if sys.stdout.isatty() or not sys.stdin.isatty():
        yield
        return
    sys.stdout.flush()
    terminal = sys.stderr if sys.stderr.isatty() else sys.stdin
    stdout, redirected = sys.stdout.fileno(), os.dup(sys.stdout.fileno())
    os.dup2(terminal.fileno(), stdout)
    try:
        yield
    finally:
        os.dup2(redirected, stdout)
        os.close(redirected)
