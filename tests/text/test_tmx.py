"""Translation memories: which segments are taken, what of them is text, and broken files."""

from pathlib import Path

import pytest
from conftest import assert_one_error, peak_memory, refuses
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transformer_mt.config.keys import DataConfig
from transformer_mt.errors import DataError
from transformer_mt.system.streams import compress
from transformer_mt.text.corpus import load_split
from transformer_mt.text.test_sets import load_test_set
from transformer_mt.text.tmx import read_tmx
from transformer_mt.text.trained_here import remember_text

HEAD = '<?xml version="1.0"?>\n<!DOCTYPE tmx SYSTEM "a.dtd">\n<tmx version="1.4"><header/><body>\n'
TAIL = "</body></tmx>\n"


def unit(**segments: str) -> str:
    """Gives a translation unit; languages are written with _ for the hyphen."""
    tuvs = ""
    for code, text in segments.items():
        tuvs += f'<tuv xml:lang="{code.replace("_", "-")}"><note>n</note><seg>{text}</seg></tuv>'
    return f"<tu><prop>p</prop>{tuvs}</tu>\n"


def write(path: Path, *units: str, head: str = HEAD, tail: str = TAIL) -> Path:
    path.write_text(head + "".join(units) + tail, encoding="utf-8")
    return path


def read(path: Path, src: str = "de", tgt: str = "en") -> list[tuple[str, str]]:
    return list(read_tmx(path, src, tgt))


@pytest.mark.parametrize(
    ("segment", "text"),
    [
        (" Ein\n  Hund\t&amp;\u2028Katze&#10;", "Ein Hund & Katze"),
        ('Ein <bpt i="1">&lt;b></bpt>Hund<ept i="1">&lt;/b></ept>.', "Ein Hund."),
        ('<it pos="begin">x</it>a<ut>y</ut>b<ph x="1"/>', "ab"),
        ("Affen<ph>{\\footnote <sub>Sie <hi>sind</hi> groß.</sub>}</ph> laufen.", "Affen laufen."),
        ("Ein <hi>großer <hi>Hund</hi></hi>", "Ein großer Hund"),
        ("<![CDATA[a < b]]><!-- c --><?d e?>", "a < b"),
        ("", ""),
    ],
)
def test_what_is_text(tmp_path, segment, text):
    """Codes are not, and a footnote in them would interrupt the sentence; highlighted text is."""
    assert read(write(tmp_path / "a.tmx", unit(de=segment, en="x"))) == [(text, "x")]
    assert read(tmp_path / "a.tmx", "en", "de") == [("x", text)]


def test_languages_are_matched_by_code(tmp_path, caplog):
    """In any case, a region too, the language itself and the first first; others count once."""
    old = ""
    for code, text in (("DE", "old"), ("EN_us", "older"), ("DE", "again")):
        old += f'<tuv lang="{code}"><seg>{text}</seg></tuv>'
    good = [unit(EN_gb="2", fr="f", De_de="1")]
    good.append(unit(de_AT="4", de="3", en_US="5", en_GB="6", de_DE="7"))
    bad = [unit(den="x", en="y"), unit(de="z"), "<tu/>"]
    path = write(tmp_path / "a.tmx", *good, f"<tu>{old}</tu>", *bad)
    for _ in range(2):
        assert read(path) == [("1", "2"), ("3", "5"), ("old", "older")]
    assert caplog.messages == [f"{path}: skipped 3 of 6 units, without segments in de and en"]
    assert read(tmp_path / "a.tmx", "de-AT", "en-gb") == [("4", "6")]
    same = write(tmp_path / "b.tmx", unit(pt_BR="a", en="b"))  # is no pair of one segment
    refuses(DataError, "no unit has segments in pt and pt-BR", read, same, "pt", "pt-BR")
    listed = "EN-gb, fr, De-de, de-AT, de, en-US, en-GB, de-DE"  # no more of the others
    message = f"a.tmx: no unit has segments in de and pl; its languages are {listed}$"
    refuses(DataError, message, read, path, "de", "pl")


@pytest.mark.parametrize("ending", ["", ".gz", ".xz", ".zst"])
def test_where_it_can_be_named(tmp_path, ending, monkeypatch):
    units = (unit(de=f"d{i}", en=f"e{i}") for i in range(4))
    raw = write(tmp_path / "x", *units).read_bytes()
    (tmp_path / f"memory.tmx{ending}").write_bytes(compress(raw, ending))
    (tmp_path / "other.jsonl").touch()  # the folder is one of text all the same
    monkeypatch.setenv("HOME", str(tmp_path))
    name, config = f"memory.tmx{ending}", DataConfig(path=str(tmp_path))
    for split in (name, "memory"):
        assert load_split(config, split).src == ["d0", "d1", "d2", "d3"]
    assert load_split(config, [f"{name}[:1]", "memory[-1:]"]).tgt == ["e0", "e3"]
    hub = DataConfig(path="wmt/wmt16", test=f"~/{name}")
    remember_text(hub)
    assert load_test_set(hub).references == [["e0", "e1", "e2", "e3"]]
    refuses(DataError, "nope.tmx: no such file", load_split, config, "nope.tmx")


def test_it_is_not_read_as_lines(tmp_path, call):
    path = write(tmp_path / "a.tmx", unit(de="1", en="2"))
    config = DataConfig(path=str(tmp_path), train={"src": "a.tmx", "tgt": "a.tmx"})
    message = "a TMX file holds both languages; name it alone, such"
    refuses(DataError, message, load_split, config, config.train)
    refuses(DataError, message, load_test_set, config, refs=[path])
    files = ("--src", path, "--tgt", path, "--src-lang", "de", "--tgt-lang", "en")
    assert_one_error(call("init", tmp_path / "new", *files), message)


BOMB = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 10))
BOMB = f'<!DOCTYPE tmx [<!ENTITY l0 "{"x" * 100}">{BOMB}]>\n<tmx>'


@pytest.mark.parametrize(
    ("head", "body", "message"),
    [
        (HEAD, "<tu>\n<tuv></tu>", r"line 5: not XML \(mismatched tag\)$"),
        (HEAD, "<tu>&nbsp;</tu>", r"line 4: not XML \(undefined entity"),
        (HEAD, "\x00", r"line 4: not XML"),
        ("", "", r"line 1: not XML \(no element found\)"),
        ('<?xml version="1.0" encoding="klingon"?>', "", ": not XML"),
        ('<?xml version="1.0" encoding="utf-7"?>', "", ": not XML"),
        (BOMB, unit(de="&l9;", en="x"), "not XML .*limit on input amplification"),
        (HEAD, unit(de="<hi>" * 9999 + "</hi>" * 9999), ": not XML .*recur"),
        ("<html>", "</html>", "no unit has segments in de and en$"),
    ],
)
def test_a_broken_file(tmp_path, head, body, message):
    tail = "" if head != HEAD else TAIL
    path = write(tmp_path / "a.tmx", body, head=head, tail=tail)
    refuses(DataError, f"a.tmx.*{message}", read, path)


def test_memory_does_not_grow_with_the_file(tmp_path):
    path = write(tmp_path / "a.tmx", *[unit(de="d" * 100, en="e" * 100)] * 10_000)

    def read_all():
        assert sum(1 for _ in read_tmx(path, "de", "en")) == 10_000

    assert peak_memory(read_all) < 2e6 < path.stat().st_size


TAGS = "<tu> </tu> <tuv> </tuv> <seg> </seg> <ph> </ph> <sub/> </a> <!-- ]]> &lt;".split()
TAGS += ["<tuv xml:lang='de'>", "<tuv lang='EN'>", "<a xmlns='b'>", HEAD, TAIL]
PARTS = [*TAGS, "a", " \n", "\x00", "\xff"]
ENCODINGS = st.sampled_from(["utf-8", "utf-16", "latin-1"])


@settings(max_examples=100)
@given(st.lists(st.sampled_from(PARTS) | st.text(max_size=5)), ENCODINGS)
@example([HEAD, "<seg>a</seg><tu></tuv>"], "utf-8")
def test_any_input_gives_lines_or_one_error(corpus_dir, parts, encoding):
    path = corpus_dir.with_name("a.tmx")
    path.write_bytes("".join(parts).encode(encoding, "replace"))
    try:
        pairs = read(path)
    except DataError as error:
        assert str(error).startswith(str(path)) and "\n" not in str(error)
    else:
        assert all(" ".join(text.split()) == text for pair in pairs for text in pair)
