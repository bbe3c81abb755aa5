"""Translation quality by sacreBLEU; every value comes with its signature.

Hypotheses are detokenised text, one line per sentence; references are one or more reference
translations, each raw text with one line per sentence.
"""

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result

from transformer_mt.checkpoints.evaluations import Score
from transformer_mt.errors import ConfigError

_TWO_LETTERS = {"zho": "zh", "chi": "zh", "cmn": "zh", "jpn": "ja", "kor": "ko"}
"""Two-letter codes of the languages for which sacreBLEU has a tokenizer, by three-letter ones."""


@dataclass(frozen=True)
class Difference:
    """The values of one metric for a system and a baseline.

    `p_value` is the probability of a difference at least as large, in either direction, if both
    were equally good.
    """

    name: str
    value: float
    baseline: float
    p_value: float
    signature: str


def choose_metrics(tgt_lang: str, tokenizer: str | None = None, ter: bool = False) -> list[Metric]:
    """Chooses BLEU, chrF2 and, if requested, TER, in that order.

    Args:
        tgt_lang: The target language, for which sacreBLEU has a tokenizer.
        tokenizer: sacreBLEU's name of another tokenizer for BLEU.
        ter: Whether to compute TER as well.

    Raises:
        ConfigError: If the tokenizer is unknown, or needs something that is not installed.
    """
    if tokenizer not in (None, *BLEU.TOKENIZERS):
        raise ConfigError(f"--tokenize {tokenizer}: choose {', '.join(BLEU.TOKENIZERS)}")
    language = re.split("[-_]", tgt_lang.lower())[0]  # zh of zh_CN
    language = _TWO_LETTERS.get(language, language)
    try:
        # With both, sacreBLEU would warn that the tokenizer is not the language's. `force` only
        # drops a warning about text that looks tokenised, as that of a young model does.
        bleu = BLEU(tokenize=tokenizer, trg_lang="" if tokenizer else language, force=True)
    except (RuntimeError, ImportError, OSError, SystemExit) as error:
        cause = f"--tokenize {tokenizer}" if tokenizer else f"data.tgt_lang = {tgt_lang}"
        package = re.search(r"sacrebleu\[\w+\]", str(error))
        advice = f"pip install -c constraints.txt '{package[0]}'" if package else error
        raise ConfigError(f"{cause}: cannot load sacreBLEU's tokenizer: {advice}") from None
    return [bleu, CHRF(), TER()] if ter else [bleu, CHRF()]


def corpus_score(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], metric: Metric
) -> Score:
    """Scores detokenised hypotheses against one or more raw references."""
    result = metric.corpus_score(hypotheses, references)
    signature = metric.get_signature().format()
    text = result.format(signature=signature)
    return Score(type(metric).__name__.lower(), result.score, signature, text)


def compare_scores(
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[Metric],
) -> list[Difference]:
    """Compares two systems by approximate randomisation, as `sacrebleu --paired-ar` does.

    Its bootstrap test gives about half the probability, that of a difference in one direction.

    Reference:
        Riezler and Maxwell 2005, On Some Pitfalls in Automatic Evaluation and Significance Testing
        for MT.
    """
    systems = [("baseline", baseline), ("system", hypotheses)]
    named = {type(metric).__name__: metric for metric in metrics}
    signatures, results = PairedTest(systems, named, references, test_type="ar")()
    # sacreBLEU counts only larger differences. Of the 2^n ways to exchange n translations that are
    # not the same, at least those that exchange none and all have an equal one.
    unequal = sum(map(operator.ne, hypotheses, baseline))
    smallest = min(1.0, 2.0 ** (1 - unequal))
    differences = []
    for name, signature in signatures.items():
        old, new = cast(list[Result], results[name])
        p_value = 1.0 if new.score == old.score else max(smallest, float(new.p_value or 0.0))
        scores = float(new.score), float(old.score)
        differences.append(Difference(name, *scores, p_value, signature.format()))
    return differences


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Computes chrF2 of each sentence; BLEU is unreliable on single sentences.

    Returns:
        One value from 0 to 100 per sentence; with several references, that of the best match.
    """
    metric = CHRF()
    alternatives = zip(*references, strict=True)
    return [
        metric.sentence_score(hypothesis, texts).score
        for hypothesis, texts in zip(hypotheses, alternatives, strict=True)
    ]
