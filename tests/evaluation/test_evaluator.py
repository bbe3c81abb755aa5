"""What validation and evaluation score."""

import logging

from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.evaluation.evaluator import SystemTranslator, evaluate, read_output
from transformer_mt.evaluation.scoring import bleu
from transformer_mt.text.corpus import RawPairs
from transformer_mt.translation.options import DEFAULT_LOAD, DEFAULT_SEARCH


class ReversingTranslator:
    """Stands for a translator: gives the words of a line in reverse."""

    def translate(self, lines, advance=None):
        return (" ".join(reversed(line.split())) for line in lines)


def test_translations_of_the_source_are_scored_against_the_references():
    """Sabotage: exchange the two sides."""
    pairs = RawPairs(["e d c b a", "x y z"], ["a b c d e", "x y z w"])
    hypotheses, score = evaluate(ReversingTranslator(), pairs)
    assert hypotheses == ["a b c d e", "z y x"]
    assert score == bleu(hypotheses, [pairs.tgt])
    assert 10 < score.value < 99


def test_a_translated_test_set_says_how_long_it_took(copy_run, caplog):
    """And by which checkpoints it was translated."""
    checkpoint = find_checkpoint(copy_run)
    systems = SystemTranslator(DEFAULT_SEARCH, DEFAULT_LOAD)
    with caplog.at_level(logging.INFO, "transformer_mt"):
        output = systems.translate([checkpoint], ["ab cd", ""])
    assert (output.lines, output.name) == (["ab cd", ""], str(checkpoint.path))
    assert 0 < output.seconds < 60
    assert caplog.records[-1].getMessage().startswith("2 sentences in ")


def test_a_translation_from_a_file_takes_no_time(tmp_path):
    """Only line feeds end a line, as everywhere."""
    (tmp_path / "hypotheses").write_bytes("a\u2028b\n\nc".encode())
    output = read_output(tmp_path / "hypotheses")
    assert (output.lines, output.seconds) == (["a\u2028b", "", "c"], 0.0)
    assert output.name == str(tmp_path / "hypotheses")
