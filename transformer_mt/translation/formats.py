"""STUB"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from transformer_mt.translation.translator import format_lines


class Chunk(NamedTuple):
    texts: list[str]
    write: Callable[[Sequence[Sequence[Any]]], str]


class PlainText:
    lines_replaced = 0

    def __init__(self, options: Any) -> None:
        self._options, self._line = options, 1

    def chunks(self, lines: Iterator[list[str]]) -> Iterator[Chunk]:
        for chunk in lines:
            yield Chunk(chunk, partial(format_lines, first_line=self._line, options=self._options))
            self._line += len(chunk)


def choose_format(path: Any, options: Any) -> Any:
    return PlainText(options.output)
