"""Translation of lines typed at a terminal."""

import signal
import sys
from contextlib import suppress

from transformer_mt.errors import Interrupted
from transformer_mt.system.console import escape_controls
from transformer_mt.translation.formats import format_lines
from transformer_mt.translation.options import OutputOptions
from transformer_mt.translation.translator import Translator


def translate_interactively(translator: Translator, src_lang: str, options: OutputOptions) -> None:
    """Translates lines typed at a terminal until the end of input or `quit`.

    Translations go to stdout; the prompt, the source language, to the terminal.

    Raises:
        Interrupted: After SIGTERM or Ctrl-C, which else drops a line that is half typed.
    """
    with suppress(ImportError):  # Python can be built without it; lines are then not edited
        import readline  # noqa: F401  importing it gives input() line editing and a history
    print("Type a sentence. Ctrl-D or quit ends.", file=sys.stderr)
    prompt, line_number = f"{escape_controls(src_lang)}> ", 0
    while (typed := _read(prompt)) is not None and typed.strip() != "quit":
        lines = typed.split("\n")  # several lines can be pasted at once
        translations = translator.n_best(lines, first_line=line_number + 1)
        sys.stdout.write(format_lines(translations, line_number + 1, options))
        sys.stdout.flush()
        line_number += len(lines)


def _read(prompt: str) -> str | None:
    """Reads input up to Enter; None is the end of input."""
    while True:
        try:
            if sys.stdout.isatty():
                return input(prompt)
            print(prompt, end="", file=sys.stderr, flush=True)  # input() would redirect it
            return input()
        except EOFError:
            print(file=sys.stderr)
            return None
        except UnicodeDecodeError:
            print("not valid UTF-8; check the encoding of the terminal", file=sys.stderr)
        except Interrupted as stop:
            print(file=sys.stderr)
            readline = sys.modules.get("readline")
            is_half_typed = readline and readline.get_line_buffer()
            if stop.exit_code != 128 + signal.SIGINT or not is_half_typed:
                raise
