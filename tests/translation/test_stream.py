"""Translation of files, from a function with plain arguments."""

import logging

import pytest
from conftest import copy_lines

from transformer_mt import load
from transformer_mt.errors import DataError
from transformer_mt.system.outputs import check_output
from transformer_mt.system.streams import require_input
from transformer_mt.translation.chunks import ChunkTranslator, translate_stream
from transformer_mt.translation.options import OutputOptions, SearchOptions, TranslateOptions

LINES = copy_lines(10, 4)


@pytest.fixture(scope="module")
def model(copy_run):
    """Gives a model that copies."""
    return load(copy_run)


def test_counts_of_a_file(model, tmp_path, caplog):
    """Lines read, split and repaired, although several translations of each are written."""
    long = " ".join(LINES).encode()
    (tmp_path / "in").write_bytes(b"ab\xff\n" + long + b"\n\n" + b"cd")
    written = OutputOptions(n_best=2, with_scores=True)
    options = TranslateOptions(search=SearchOptions(beam_size=2), output=written)
    translator, output = ChunkTranslator(model, options), check_output(tmp_path / "out")
    with caplog.at_level(logging.INFO, "transformer_mt"):
        counts = translate_stream(translator, tmp_path / "in", output)
    assert (counts.lines, counts.lines_split, counts.lines_replaced) == (4, 1, 1)
    assert counts.seconds > 0
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0].startswith("4 lines in ") and len(messages) == 3
    lines = (tmp_path / "out").read_text().splitlines()
    assert len(lines) == 8 and lines[4:6] == ["0.0000\t", "0.0000\t"]
    best, second = (float(line.split("\t")[0]) for line in lines[6:])
    assert best >= second
    # Counts are those of one stream, not of all that a translator has seen.
    (tmp_path / "in").write_text("ab\n")
    assert translate_stream(translator, tmp_path / "in", output).lines_split == 0


def test_one_translation_per_line(model, tmp_path):
    """The same text as that of the model, in order, without scores."""
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in LINES))
    translator = ChunkTranslator(model, TranslateOptions())
    translate_stream(translator, tmp_path / "in", check_output(tmp_path / "out"))
    assert (tmp_path / "out").read_text().splitlines() == model.translate(LINES)


def test_a_missing_input(tmp_path):
    """A file that does not exist, or a directory."""
    for path in (tmp_path, tmp_path / "nope"):
        with pytest.raises(DataError, match=f"{path}: (no such file|is a directory; name a file)"):
            require_input(path)
    require_input(None)
