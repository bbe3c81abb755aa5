"""Runs the program with small chunks of lines and sends itself a signal at a chosen place.

stop_at.py [--place PLACE:N] [--fake] CHUNK_LINES ARGUMENTS...

Places: `translated`, when the Nth round of chunks of this process is translated and not yet
written; `written`, when it is written. With --fake, lines are reversed instead of translated.
"""

import argparse
import os
import signal
import sys

from transformer_mt.cli import program
from transformer_mt.system.outputs import ChunkWriter
from transformer_mt.translation.translator import Translation, Translator

OPTIONS = argparse.ArgumentParser()
OPTIONS.add_argument("--place", default="none:0")
OPTIONS.add_argument("--fake", action="store_true")
OPTIONS.add_argument("chunk_lines", type=int)
OPTIONS.add_argument("arguments", nargs=argparse.REMAINDER)


def reverse(self, lines, advance):
    """Stands for a translation."""
    advance(len(lines))
    return [[Translation(line[::-1], -len(line))] for line in lines]


def install(set_, chunk_lines: int, place: str, number: int, fake: bool = False) -> None:
    """Patches the program.

    Args:
        set_: `setattr`, or a fixture's that is undone.
        chunk_lines: Lines in a chunk.
        place: Where to stop.
        number: The signal to stop with.
        fake: Whether lines are reversed instead of translated.
    """
    place, left = place.split(":")[0], [int(place.split(":")[1])]

    def stop_after(name: str, function):
        def wrapped(*arguments):
            result = function(*arguments)
            left[0] -= name == place
            if name == place and left[0] == 0:
                os.kill(os.getpid(), number)
            return result

        return wrapped

    set_(Translator, "chunk_lines", chunk_lines)
    set_(Translator, "n_best", stop_after("translated", reverse if fake else Translator.n_best))
    set_(ChunkWriter, "write", stop_after("written", ChunkWriter.write))


def main() -> None:
    """Patches the program and runs its command line."""
    options = OPTIONS.parse_args()
    install(setattr, options.chunk_lines, options.place, signal.SIGKILL, options.fake)
    sys.argv = ["transformer-mt", *options.arguments]
    program.main()


if __name__ == "__main__":
    main()
