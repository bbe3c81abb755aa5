"""What validation and evaluation score."""

from transformer_mt.evaluation.evaluator import evaluate
from transformer_mt.evaluation.scoring import bleu
from transformer_mt.text.corpus import RawPairs


class ReversingTranslator:
    """Stands for a translator: gives the words of a line in reverse."""

    def translate(self, lines, advance=None):
        return [" ".join(reversed(line.split())) for line in lines]


def test_translations_of_the_source_are_scored_against_the_references():
    """Sabotage: exchange the two sides."""
    pairs = RawPairs(["e d c b a", "x y z"], ["a b c d e", "x y z w"])
    hypotheses, score = evaluate(ReversingTranslator(), pairs)
    assert hypotheses == ["a b c d e", "z y x"]
    assert score == bleu(hypotheses, [pairs.tgt])
    assert 10 < score.value < 99
