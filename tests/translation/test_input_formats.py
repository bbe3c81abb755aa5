"""Tables and subtitles: what is translated changes, all else stays byte for byte."""

import contextlib
import csv
import io
import json
import re
import time
from pathlib import Path

import pytest
from conftest import assert_one_error, refuses, translate_options
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_mt.errors import ConfigError, DataError
from transformer_mt.system.outputs import check_output
from transformer_mt.translation.file_translation import translate_file
from transformer_mt.translation.formats import choose_format
from transformer_mt.translation.inputs import FilePair, output_name
from transformer_mt.translation.options import InputOptions
from transformer_mt.translation.translator import Translation


def translated(kind: str, data: bytes, *columns, translate=str.upper) -> bytes:
    options = translate_options(input=InputOptions(kind, *columns))
    text_format = choose_format(Path("in"), options)
    lines = io.BytesIO(data).readlines()
    chunks = list(text_format.chunks(iter([lines[i : i + 2] for i in range(0, len(lines), 2)])))
    assert len(chunks) in ((len(lines) + 1) // 2, (len(lines) + 1) // 2 + 1)
    rows = [[[Translation(translate(x), -1.0)] for x in chunk.texts] for chunk in chunks]
    text = "".join(chunk.write(ranked) for chunk, ranked in zip(chunks, rows, strict=True))
    return text.encode("utf-8", "surrogateescape")


@given(st.binary(), st.sampled_from(["tsv", "csv", "jsonl", "srt", "vtt"]))
def test_any_bytes_survive(data, kind):
    """What is no row or cue is kept: only texts change, here to one of as many letters."""
    data = data.replace(b" ", b"-->")
    columns = [] if kind in ("srt", "vtt") else ["1"]
    try:
        changed = translated(kind, data, *columns, translate=lambda text: re.sub("[^ ]", "x", text))
    except DataError:  # no row or cue at all
        return
    if kind == "tsv":
        assert changed.count(b"\n") == data.count(b"\n")
    elif kind in ("srt", "vtt"):
        assert changed.count(b"-->") == data.count(b"-->")


CELLS = st.text(st.sampled_from('aä",;\n\r\t 5'))


@given(
    st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", '[",\r\n]']),
    st.booleans(),
)
def test_csv_is_what_python_reads(rows, line_end, needs_quotes, has_mark):
    """A column changes, or is new. Sabotage: end a row at any line feed; do not double quotes."""

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


KEYS = st.text(max_size=3)
VALUES = st.none() | st.floats() | KEYS | st.lists(KEYS, max_size=2) | st.dictionaries(KEYS, KEYS)


@settings(max_examples=50)
@given(st.dictionaries(KEYS, VALUES, max_size=3), st.text(), st.booleans(), st.booleans())
def test_jsonl_is_what_python_reads(others, text, ascii_only, spaces):
    """A new key comes last in its object. Sabotage: look for the key anywhere in the line."""
    row = {**others, "x": {"y": text, "z": [1]}}
    line = json.dumps(row, ensure_ascii=ascii_only, separators=None if spaces else (",", ":"))
    data = f" {line} \r\n".encode()
    upper = translated("jsonl", data, "x.y", "x.new")
    x = {"y": text, "z": [1], "new": re.sub("[^\n\r]+", lambda line: line[0].upper(), text)}
    assert repr(json.loads(upper)) == repr({**row, "x": x})
    assert upper.startswith(data[: data.rindex(b"[1]")])
    assert len(json.loads(translated("jsonl", data, "x.y"))) == len(row)


ROWS = b"""\xef\xbb\xbfid;"de";n\xff\r
1;ein ;"a;""x"
2;"zwei, ""zwei""

drei";\xe4\r
3;;
4;"offen;c
5;f\xc3nf;\xc3;zu viel

6;"";'
7;s\xc3;\xc3"""
UPPER = ROWS.replace(b"ein", b"EIN").replace(b'zwei, ""zwei""', b'ZWEI, ""ZWEI""')
UPPER = UPPER.replace(b"drei", b"DREI").replace(b"s\xc3;", b"S\xef\xbf\xbd;")

FILM = """WEBVTT - ein Film\r\n\r\nNOTE a\nb\n\n1\n00:01.000 --> 00:03.200 align:start
Die Königin geht\r\num zu danken.\r\n\r\n2\n00:03,400 --> 00:05,000\n<i>Sie haben</i>\n
00:05.500 --> 00:07.000\n- Wo?\n{\\an8}- Er ist hier.\n3\n00:08.000 --> 00:09.000
<v Eva>Ja,\nja</v>\n\n00:09.500 --> 00:09.600\n<i></i>\n<b>zu</b>\n"""
NEW_FILM = """WEBVTT - ein Film\r\n\r\nNOTE a\nb\n\n1\n00:01.000 --> 00:03.200 align:start
DIE KÖNIGIN GEHT\r\nUM ZU DANKEN.\r\n\r\n2\n00:03,400 --> 00:05,000\n<i>SIE HABEN</i>\n
00:05.500 --> 00:07.000\n- WO?\n{\\an8}- ER IST HIER.\n3\n00:08.000 --> 00:09.000
<v Eva>JA,\nJA</v>\n\n00:09.500 --> 00:09.600\n<i></i>\n<b>ZU</b>\n"""


def test_rows_that_cannot_be_translated_are_kept(caplog):
    """And reported. Sabotage: give up all after an open quote; count rows instead of lines."""
    assert translated("csv", ROWS, "de") == UPPER
    problems = "not parsed, another number of cells, or no text in the column"
    assert caplog.messages == [f"in: rows not translated ({problems}): 2, in line 7, 8"]
    message = "^in: --column 1 is a number, so --output-column"
    refuses(ConfigError, message, translated, "csv", ROWS, "1", "de")
    refuses(DataError, "^in: no column 'DE'; columns: id, de, n", translated, "csv", ROWS, "DE")
    assert translated("csv", b"a,b\n1,2", "b", "1") == b"a,b,1\n1,2,2"
    assert translated("tsv", b'a\t"b\r\n\nc', "2", "3") == b'a\t"b\t"B\r\n\nc'
    assert translated("tsv", b"a\tb\tc\na\n", "1", "4") == b"a\tb\tc\tA\na\n"
    assert translated("tsv", b"a\nb\tc\n", "1", "2") == b"a\tA\nb\tc\n"
    assert translated("csv", b"a, b, c;d\ne;f\n", "1", "2") == b"a, b, c;A, B, C\ne;E\n"
    assert translated("csv", b'a, "b ""c"\n', "2") == b'a, "B ""C"\n'
    assert translated("csv", b'"a, b, c";d\n2\n', "2") == b'"a, b, c";D\n2\n'
    refuses(DataError, ": 1, in line 1$", translated, "tsv", b"a\tb\n", "1", "4")
    refuses(DataError, "^in: 2 columns are named de; ", translated, "csv", b"de,de\n1,2\n", "de")
    bad = b"1\n" * 5 + b'"1"1,1\n'
    assert translated("csv", bad + b"1,a\n", "2") == bad + b"1,A\n"
    assert caplog.messages[-1].endswith(": 6, in line 1, 2, 3, 4, 5, ...")


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        ("jsonl", b' \n{"de": "a"}\n', "rows not translated .*: 1, in line 2"),
        ("csv", b"a,b\nc,d\n", "rows not translated .*: 2, in line 1, 2"),
        ("vtt", b"WEBVTT\n\n00:01.000 -> 00:02.000\nab\n", "has no cues; to translate its lines, "),
        ("srt", b"1\r00:01,0 --> 00:02,0\rab\r", "has no cues; to translate its lines, add "),
    ],
)
def test_a_file_without_any_text_is_of_another_format(kind, data, message):
    """A copy of it would count as its translation; a table without rows, or cues, is one."""
    columns = {"jsonl": ["xx"], "csv": ["7"]}.get(kind, [])
    refuses(DataError, f"^in: {message}", translated, kind, data, *columns)
    assert translated(kind, b"", *columns) == b"" and translated("csv", b"de\n", "de") == b"de\n"
    assert translated("vtt", b"WEBVTT\n") == b"WEBVTT\n"


def test_lines_outside_of_cues_are_reported(caplog):
    """After an empty line, or false times; a .vtt may have notes there. Sabotage: look at none."""
    film = b"1\n0:01 --> 0:02\nab\n\ncd\n\n2\n0:03 -> 0:04\nef\n"
    assert translated("srt", film) == film.replace(b"ab", b"AB")
    without_number = film.replace(b"1\n", b"\xef\xbb\xbf", 1)
    assert translated("srt", without_number) == without_number.replace(b"ab", b"AB")
    film = b"WEBVTT\n\nNOTE a\n\nb\n" + film.replace(b"1\n", b"")
    assert translated("vtt", film) == film.replace(b"ab", b"AB")
    message = "in: lines outside of cues, not translated: "
    assert caplog.messages == [f"{message}2", f"{message}2", f"{message}1"]


def test_tags_within_a_text_are_dropped():
    """As those that time the words of web videos, whose lines may also be blank."""
    times = b"00:01.000 --> 00:02.000\n"
    old = times + b" \nab<00:00:00.480><c> cd</c>\n\n" + times + b"<i>a <b>b</b>\nc</i>\n"
    assert translated("vtt", old) == times + b" \nAB CD\n\n" + times + b"A\nB C\n"
    texts = []
    no_speakers = b"<v Eva-Maria>a</v>\n<v Eva-Maria>b</v>"
    for text in (b"5 < 6 > {a}", b"a\\Nb<br>c<br/>d<v Al>e{\\i1}f", no_speakers):
        translated("vtt", times + text, translate=lambda text: texts.append(text) or text)
    assert texts == ["5 < 6 > {a}", "a b c def", "a b"]


def test_each_speaker_of_a_cue_has_a_text():
    """A dash begins it, that of the first may be missing. Sabotage: join lines unless all do."""
    times = "0:01 --> 0:02\n"
    cue = f"{times}ab cd\nef?\n- gh\n\n{times}- a\nb\n- c\n"
    new = f"{times}AB CD\nEF?\n- GH\n\n{times}- A\nB\n- C\n"
    assert translated("srt", cue.encode()).decode() == new
    cue = f"{times}\u202b- ab.\u202c\n\u202b<i>\u200f- cd?</i>\u202c\n"  # as in Arabic and Hebrew
    assert translated("srt", cue.encode()).decode() == f"{times}- AB.\n<i>- CD?</i>\n"
    cue = f"WEBVTT\n\n{times}&rlm;- ab.&rlm;\n&rlm;- &lrm;cd?\n"
    assert translated("vtt", cue.encode()).decode() == f"WEBVTT\n\n{times}- AB.\n- CD?\n"
    cue = f"{times}\u2010 ab\n\u2010 cd ef\n\n{times}\uff0da\n\uff0db c\n"
    assert translated("srt", cue.encode()).decode() == cue.upper()
    cue = f"{times}ab cd ef\n-\ng\n"  # a dash alone
    assert translated("srt", cue.encode()).decode() == cue.upper()
    cue = f"{times}- a\nb\n"  # a single word is its first line
    assert translated("srt", cue.encode(), translate=lambda _: "c").decode() == f"{times}- c\n"


@pytest.mark.parametrize("blank", [" ", "<i>", "&nbsp;"])
def test_many_blanks_within_a_line_take_linear_time(blank):
    """Sabotage: at each of them, look whether the line ends with blanks."""
    cue = f"0:01 --> 0:02\na{10_000 * blank}b\n".encode()
    began = time.process_time()
    assert translated("srt", cue).startswith(b"0:01 --> 0:02\nA")
    assert time.process_time() - began < 1


def test_characters_that_webvtt_writes_as_html_does():
    """A space that is no text, too. Sabotage: translate their names; decode them in a .srt."""
    times, texts = b"0:01 --> 0:02\n", []
    film = b"WEBVTT\n\n" + times + b"&nbsp;\n\n" + times + b"<i>a&nbsp;&amp; b &lt; &#x22;</i>\n"
    new = translated("vtt", film, translate=lambda text: texts.append(text) or text.upper())
    assert texts == ['a\xa0& b < "']
    assert new == film.replace(b"a&nbsp;&amp; b &lt; &#x22;", b'A &amp; B &lt; "')
    film = times + b"a &amp; b\n"
    assert translated("srt", film, translate=str) == film


def test_json_objects():
    """Only the text changes; a pair that is cut in half is no text that a model could read."""
    data = b"""{"a": {"b" : "\\u00e4\\n\\ud83d", "c":1.0}}\n\n[1]\n{"a": {}}\n{"a": {"b": null}}"""
    new = '{"a": {"b" : "Ä\\n\ufffd", "c":1.0}}'.encode()
    assert translated("jsonl", data, "a.b") == data.replace(data.split(b"\n")[0], new)
    new = b'{"x": "y", "z": ["x"], "e": "Y"}'
    assert translated("jsonl", b'{"x": "y", "z": ["x"]}', "x", "e") == new
    new = b'{"x": "y", "a": {"b": {"c": "Y"}}}'
    assert translated("jsonl", b'{"x": "y"}', "x", "a.b.c") == new
    assert translated("jsonl", b'{"x": "y", "a": {}}', "x", "a.b") == b'{"x": "y", "a": {"b": "Y"}}'


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r\r\n"])
def test_subtitles(line_end):
    """Two lines are one text, but not of two speakers. Sabotage: take a cue's number for text."""
    film, new = (re.sub("\r?\n", line_end, "\ufeff" + each).encode() for each in (FILM, NEW_FILM))
    assert translated("srt", film) == new
    texts = []
    translated("vtt", film, translate=lambda text: texts.append(text) or text)
    assert texts[:4] == ["Die Königin geht um zu danken.", "Sie haben", "Wo?", "Er ist hier."]
    cue = b"1:0 --> 1:1\na\nb\n\n"
    for new, written in (("", ""), (" ", ""), ("a ", "a\n")):
        expected = f"1:0 --> 1:1\n{written}\n" * 2
        assert translated("srt", cue * 2, translate={"a b": new}.get).decode() == expected


def test_a_long_chunk_may_end_within_a_cue(monkeypatch):
    """Only what has no empty line for long is cut. Sabotage: compare the length of all text."""
    film = b"0:01 --> 0:02\n" + b"a" * 70 + b"\n\n0:03 --> 0:04\nb\n\n"
    monkeypatch.setattr("transformer_mt.translation.formats.MAX_INCOMPLETE", film.index(b"b"))
    assert translated("srt", film) == film.upper()


class Stopped:
    """Stands for a translator, of which the process is killed after some chunks."""

    chunk_lines = first_chunk_lines = 1

    def __init__(self, chunks=None):
        self.left, self.taken = chunks, 0

    def translate_chunks(self, chunks, advance, first_line):
        for texts in chunks:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left = self.left and self.left - 1
            self.taken += 1
            yield [[Translation(text.upper(), -1.0)] for text in texts]


@pytest.mark.parametrize(
    ("options", "data", "expected"),
    [
        (InputOptions("csv", "de"), ROWS, UPPER),
        (InputOptions("srt"), FILM.encode(), NEW_FILM.encode()),
    ],
)
def test_stopped_after_any_line_and_run_again(tmp_path, monkeypatch, options, data, expected):
    """Within a field, too. Sabotage: skip lines, not chunks; a fingerprint that JSON changes."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    (tmp_path / "in").write_bytes(data)
    whole, options = (0, 0), translate_options(input=options)
    for stop in range(data.count(b"\n")):
        pair = FilePair(tmp_path / "in", check_output(tmp_path / str(stop)))
        first, second = Stopped(stop), Stopped()
        with contextlib.suppress(KeyboardInterrupt):
            translate_file(first, pair, options, {})
        keeps_lines = pair.output.state.exists()
        counts = translate_file(second, pair, options, {})
        assert (tmp_path / str(stop)).read_bytes() == expected, stop
        whole = whole if stop else (second.taken, counts["lines"])
        assert whole == (second.taken + stop * keeps_lines, counts["lines"])
    assert keeps_lines


def test_names_of_outputs():
    names = "film.de.srt FILM.SRT t.de.csv.gz a.de.gz c.txt".split()
    expected = "film.en.srt FILM.en.SRT t.en.csv.gz a.en.gz c.txt.en".split()
    assert [output_name(Path(name), "de", "en") for name in names] == expected


def test_from_the_command_line(copy_run, tmp_path, call, monkeypatch):
    """A table, subtitles, and what is refused, each in one line that says what to add."""
    monkeypatch.setattr("transformer_mt.system.console.SECONDS_BETWEEN_LINES", 0)
    (tmp_path / "t.de.tsv").write_bytes(b"id\tde\n1\tab cd\r\n")
    (tmp_path / "f.srt").write_bytes(b"1\n0:01 --> 0:02\n<i>ab</i>\ncd\n")
    table, film = (["--input", tmp_path / name] for name in ("t.de.tsv", "f.srt"))
    into = ["--output-dir", tmp_path / "out"]
    columns = ["--column", "de", "--output-column", "en"]
    done = call("translate", copy_run, *table, *film, *columns, *into)
    assert done.code == 0, done.err
    assert (tmp_path / "out/t.en.tsv").read_bytes() == b"id\tde\ten\n1\tab cd\tab cd\r\n"
    assert (tmp_path / "out/f.en.srt").read_bytes() == (tmp_path / "f.srt").read_bytes()
    for arguments, message in (([*table, *columns], ": 1 of 2 lines, "), (film, ": 1 lines, ")):
        assert f"{arguments[1].name}{message}" in call("translate", copy_run, *arguments).err
    for arguments, message in (
        (table, "t.de.tsv: is a table (tsv): add --column NAME, or --column NUMBER if its first"),
        ([*film, "--scores"], "f.srt: --n-best, --scores and --format are not supported for srt;"),
        ([*table, "--column", "xx"], "t.de.tsv: no column 'xx'; columns: id, de"),
        (["--key", "a"], "stdin: not a table; add --input-format tsv, csv or jsonl"),
        (["--output-key", "a"], "stdin: not a table; add --input-format tsv, csv or jsonl"),
    ):
        assert_one_error(call("translate", copy_run, *arguments), message)
