"""Tables and subtitles: what is translated changes, all else stays byte for byte."""

import csv
import io
import json
import logging
import re
from pathlib import Path

import pytest
from conftest import assert_one_error
from hypothesis import given
from hypothesis import strategies as st

from transformer_mt.errors import ConfigError, DataError
from transformer_mt.system.outputs import check_output
from transformer_mt.translation.formats import choose_format
from transformer_mt.translation.options import InputOptions, OutputOptions
from transformer_mt.translation.run import FilePair, output_name, translate_file
from transformer_mt.translation.translator import Translation


class UpperCase:
    """Stands for a translator: takes chunks ahead, and may be killed after some."""

    chunk_lines = first_chunk_lines = 2

    def __init__(self, translate=str.upper, kill_after=None):
        self.translate, self.kill_after = translate, kill_after

    def translate_chunks(self, chunks, advance, first_line):
        for number, texts in enumerate(list(chunks)):
            if number == self.kill_after:
                raise KeyboardInterrupt
            assert not any(re.search("[\n\r\ud800-\udfff]", text) for text in texts)
            yield [[Translation(self.translate(text), -1.0)] for text in texts]


def translated(kind: str, data: bytes, *columns, translate=str.upper) -> bytes:
    """Gives the translation of what a file holds."""
    text_format = choose_format(Path("in"), InputOptions(kind, *columns), OutputOptions())
    lines = io.BytesIO(data).readlines()
    chunks = list(text_format.chunks(iter([lines[i : i + 2] for i in range(0, len(lines), 2)])))
    assert len(chunks) in ((len(lines) + 1) // 2, (len(lines) + 1) // 2 + 1)
    text = "".join(
        chunk.write([[Translation(translate(text), -1.0)] for text in chunk.texts])
        for chunk in chunks
    )
    return text.encode("utf-8", "surrogateescape")


@given(st.binary(), st.sampled_from(["tsv", "csv", "jsonl", "srt", "vtt"]))
def test_any_bytes_survive(data, kind):
    """Whether they can be parsed or not; no line or byte is lost."""
    columns = [] if kind in ("srt", "vtt") else ["1"]
    assert translated(kind, data, *columns, translate=lambda text: text) is not None


CELLS = st.text(st.sampled_from('aä",;\n\r\t 5'))


@given(
    st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", '[",\r\n]']),
    st.booleans(),
)
def test_csv_is_what_python_reads(rows, line_end, needs_quotes, has_mark):
    """Only the column changes, and a new one is what a reader of CSV sees there.

    Sabotage: end a row at any line feed; do not double the quotes.
    """

    def encode(text: str) -> str:
        doubled = text.replace('"', '""')
        return f'"{doubled}"' if re.search(needs_quotes, text) else text

    lines = [",".join(map(encode, row)) + line_end for row in [("a", "b", "c"), *rows]]
    data = "".join(["\ufeff" * has_mark, *lines]).encode()
    assert translated("csv", data, "b", translate=str) == data
    for columns, expected in (
        (["b"], [[a, b.upper(), c] for a, b, c in rows]),
        (["b", "a"], [[b.upper(), b, c] for a, b, c in rows]),
        (["b", "new,"], [[a, b, c, b.upper()] for a, b, c in rows]),
    ):
        text = translated("csv", data, *columns).decode().removeprefix("\ufeff")
        names, *actual = csv.reader(io.StringIO(text, newline=""), strict=True)
        assert names == ["a", "b", "c", "new,"][: len(actual[0])] and actual == expected


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.dictionaries(st.text(), VALUES), st.text(), st.booleans(), st.sampled_from([None, 2]))
def test_jsonl_as_python_writes_and_reads_it(others, text, ascii_only, indent):
    """Only the value changes; a new key comes last in its object."""
    row = {**others, "x": {"y": text, "z": [1]}}
    line = json.dumps(row, ensure_ascii=ascii_only, separators=(",", ":") if indent else None)
    data = f" {line} \r\n".encode("utf-8", "surrogateescape")
    upper = translated("jsonl", data, "x.y", "x.new")
    x = {"y": text, "z": [1], "new": re.sub("[^\n\r]+", lambda line: line[0].upper(), text)}
    assert repr(json.loads(upper)) == repr({**row, "x": x})
    assert upper.startswith(data[: data.rindex(b"[1]")])
    assert len(json.loads(translated("jsonl", data, "x.y"))) == len(row)
