"""Runs the program with small chunks of lines and sends itself a signal at a chosen place.

stop_at.py [--place PLACE:N] [--signal NUMBER] [--fake LOG] CHUNK_LINES ARGUMENTS...

Places: `translated`, when the Nth chunk of this process is translated and not yet written;
`written`, when it is written; `code`, before the Nth line of code that runs while chunks are
written and files are completed. With --fake, a chunk is not translated but reversed, in 20 ms, and
its first line is added to LOG.
"""

import argparse
import os
import signal
import sys
import time

from transformer_mt.cli import program
from transformer_mt.system import files, outputs
from transformer_mt.translation import translator
from transformer_mt.translation.translator import Translation, Translator

OPTIONS = argparse.ArgumentParser()
OPTIONS.add_argument("--place", default="none:0")
OPTIONS.add_argument("--signal", type=int, default=signal.SIGKILL)
OPTIONS.add_argument("--fake")
OPTIONS.add_argument("chunk_lines", type=int)
OPTIONS.add_argument("arguments", nargs=argparse.REMAINDER)


class Stop:
    """Counts what happens at a place and sends the signal at the Nth time."""

    def __init__(self, place: str, number: int) -> None:
        place, limit = place.split(":")
        self.place, self.left, self.number = place, int(limit), number

    def count(self, place: str) -> None:
        if place == self.place:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), self.number)

    def after(self, place: str, function):
        def wrapped(*arguments, **options):
            result = function(*arguments, **options)
            self.count(place)
            return result

        return wrapped

    def trace(self, frame, event, argument):
        """Counts lines of code of the modules that write."""
        if frame.f_code.co_filename not in {m.__file__ for m in (files, outputs)}:
            return None

        def on_line(frame, event, argument):
            if event == "line":
                self.count("code")
            return on_line

        return on_line


def fake(log: str):
    def translate_chunk(self, lines, advance):
        time.sleep(0.02)
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{lines[0]}\n")
        advance(len(lines))
        return [[Translation(line[::-1], -len(line))] for line in lines]

    return translate_chunk


def install(set_, chunk_lines: int, place: str, number: int, log: str | None = None) -> None:
    """Patches the program.

    Args:
        set_: `setattr`, or a fixture's that is undone.
        chunk_lines: Lines in a chunk.
        place: Where to stop.
        number: The signal to stop with.
        log: See `--fake`.
    """
    stop = Stop(place, number)
    translate_chunk = fake(log) if log else Translator.translate_chunk
    set_(translator, "CHUNK_LINES", chunk_lines)
    set_(Translator, "translate_chunk", stop.after("translated", translate_chunk))
    writer = outputs.ChunkWriter
    set_(writer, "write", stop.after("written", writer.write))
    if stop.place == "code":
        sys.settrace(stop.trace)


def main() -> None:
    """Patches the program and runs its command line."""
    options = OPTIONS.parse_args()
    install(setattr, options.chunk_lines, options.place, options.signal, options.fake)
    sys.argv = ["transformer-mt", *options.arguments]
    program.main()


if __name__ == "__main__":
    main()
