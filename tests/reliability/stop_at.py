"""Runs the program with small chunks of lines: `stop_at.py CHUNK_LINES ARGUMENTS...`."""

import os
import sys

from transformer_mt.cli import program
from transformer_mt.system.outputs import ChunkWriter
from transformer_mt.translation.translator import Translation, Translator


def reverse(self, lines, advance):
    """Stands for a translation."""
    advance(len(lines))
    return [[Translation(line[::-1], -len(line))] for line in lines]


def install(set_, chunk_lines: int, place: str, number: int, fake: bool = False) -> None:
    """Patches the program, so that it sends itself a signal at a place.

    Args:
        set_: `setattr`, or a fixture's that is undone.
        chunk_lines: Lines in a chunk.
        place: `translated:N`, when the Nth round of chunks is translated and not yet written;
            `written:N`, when it is written.
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
    Translator.chunk_lines = int(sys.argv[1])
    sys.argv = ["transformer-mt", *sys.argv[2:]]
    program.main()


if __name__ == "__main__":
    main()
