"""Translation quality by sacreBLEU; every value comes with its signature.

Hypotheses are detokenised text, one line per sentence; references are one or more reference
translations, each raw text with one line per sentence.
"""

import json
import operator
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result

from transformer_mt.checkpoints.evaluations import Score
from transformer_mt.errors import ConfigError
from transformer_mt.system.console import logger
from transformer_mt.text.cleaning import EAST_ASIAN, WITHOUT_SPACES, usual_script
from transformer_mt.text.languages import language_code

_WITH_TOKENIZER = "zh", "ja", "ko"
"""Languages written without spaces, or with few, for which sacreBLEU has a tokenizer."""

_MOST_UNEQUAL = 15
"""The bound on p for so many lines is below the lowest that 10,000 exchanges can give."""
_RESAMPLES = 1000
"""Resamples of the test set for a confidence interval, as many as sacreBLEU's program takes."""


@dataclass(frozen=True)
class Difference:
    """The values of one metric for a system and a baseline, named as columns of a table.

    `p` is the probability of a larger difference, in either direction, if both were equally good;
    as sacreBLEU counts, equal ones are left out, so that it is too small for very few sentences.
    """

    score: str
    system: float
    baseline: float
    difference: float
    p: float
    signature: str


def choose_metrics(
    tgt_lang: str,
    tokenizer: str | None = None,
    ter: bool = False,
    references: Sequence[Sequence[str]] = (),
    configured: str = "auto",
    chrf_plus_plus: bool = False,
    lowercase: bool = False,
    confidence: bool = False,
) -> list[Metric]:
    """Chooses BLEU, chrF2 and, if requested, chrF2++ and TER, in that order.

    BLEU's tokenizer is by default that of the language. If sacreBLEU has none for it, and the
    references are in a script that hardly separates words, it is `char`.

    Args:
        tgt_lang: The target language.
        tokenizer: sacreBLEU's name of another tokenizer for BLEU, from the command line.
        ter: Whether to compute TER as well.
        references: What will be scored against.
        configured: The run's `valid.tokenize`, used without `tokenizer`.
        chrf_plus_plus: Whether to compute chrF2++, which is chrF++ in most papers, as well.
        lowercase: Whether BLEU is that of lower-cased text.
        confidence: Whether `corpus_score` computes confidence intervals as well.

    Raises:
        ConfigError: If the tokenizer is unknown or not installed, or SACREBLEU_SEED is no number.
    """
    cause = f"--tokenize {tokenizer}" if tokenizer else f"valid.tokenize = {configured}"
    name, names = tokenizer or configured, [*BLEU.TOKENIZERS, "auto"]
    if name not in names:
        raise ConfigError(f"{cause}: choose {', '.join(names)}")
    language = language_code(tgt_lang)
    script = usual_script(references[0]) if references else ""
    if name == "auto":
        name = ""
        cause = f"the language {tgt_lang}" if tgt_lang else "an unknown language (--tgt-lang)"
        if script in WITHOUT_SPACES and language not in _WITH_TOKENIZER:
            name = "char"
            logger.info(
                f"BLEU is by characters: sacreBLEU has no tokenizer for {cause}, and {script}"
                " script hardly separates words; valid.tokenize or --tokenize chooses another"
            )
    bleu = _make_bleu(cause, lowercase, name or None, "" if name else language)
    metrics: list[Metric] = [bleu, CHRF()]
    metrics += [CHRF(word_order=2)] if chrf_plus_plus else []
    metrics += [_make_ter(script)] if ter else []
    for metric in metrics:
        metric.n_bootstrap = _RESAMPLES if confidence else None
    return metrics


def _make_ter(script: str) -> TER:
    """Counts characters of Chinese and Japanese, where a whole sentence would be one word."""
    is_asian = script == EAST_ASIAN
    return TER(normalized=is_asian, asian_support=is_asian)


def _check_seed() -> None:
    seed = os.environ.get("SACREBLEU_SEED", "0")
    if not re.fullmatch(r"[0-9]{1,9}|none", seed, re.IGNORECASE):
        raise ConfigError(f"SACREBLEU_SEED = {seed}: set a number of at most nine digits, or none")


def _make_bleu(cause: str, lowercase: bool, tokenizer: str | None, language: str) -> BLEU:
    """Makes BLEU with a tokenizer or that of a language; `cause` is what chose it."""
    _check_seed()
    try:
        # With both, sacreBLEU would warn that the tokenizer is not the language's. `force` only
        # drops a warning about text that looks tokenised, as that of a young model does.
        return BLEU(lowercase, tokenize=tokenizer, trg_lang=language, force=True)
    except (RuntimeError, ImportError, OSError, SystemExit) as error:
        package = re.search(r"sacrebleu\[\w+\]", str(error))
        advice = f"pip install -c constraints.txt '{package[0]}'" if package else error
        raise ConfigError(f"{cause}: cannot load sacreBLEU's tokenizer: {advice}") from None


def corpus_score(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], metric: Metric
) -> Score:
    """Scores detokenised hypotheses against one or more raw references.

    Raises:
        ConfigError: If too few hypotheses have text for a confidence interval.
    """
    try:
        result = metric.corpus_score(hypotheses, references, metric.n_bootstrap or 1)
    except TypeError:  # sacreBLEU's, if a resample has no text
        if not metric.n_bootstrap:
            raise
        raise ConfigError("--confidence: too few translations have text; leave it out") from None
    signature = metric.get_signature().format()
    values = json.loads(result.format(width=4, signature=signature, is_json=True))
    interval, text = values.get("confidence_var"), result.format(signature=signature)
    name = result.name.lower().replace("chrf2", "chrf")
    return Score(name, result.score, signature, interval, text)


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
    named = {str(i): metric for i, metric in enumerate(metrics)}  # in the results as sacreBLEU does
    signatures, results = PairedTest(systems, named, references, test_type="ar")()
    differences = []
    for (title, signature), metric in zip(signatures.items(), metrics, strict=True):
        # sacreBLEU counts only larger differences. Of the 2^n ways to exchange n translations that
        # are not the same, at least those that exchange none and all have an equal one.
        unequal = _count_unequal(hypotheses, baseline, references, metric)
        smallest = min(1.0, 2.0 ** (1 - unequal))
        signature.update("bs", None)  # the resamples of confidence intervals
        old, new = cast(list[Result], results[title])
        gain = float(new.score - old.score)
        p = max(smallest, float(new.p_value or 0.0)) if gain else 1.0
        scores, line = (float(new.score), float(old.score)), signature.format()
        title = Score("bleu", new.score, line).title if title == "BLEU" else title
        differences.append(Difference(title, *scores, gain, p, line))
    return differences


def _count_unequal(
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    references: Sequence[Sequence[str]],
    metric: Metric,
) -> int:
    """Counts the lines that are not the same to a metric, up to as many as decide a p-value."""
    statistics = metric._extract_corpus_statistics  # noqa: SLF001  # only their sums are public
    lines = zip(hypotheses, baseline, *references, strict=True)
    unequal = (
        operator.ne(*(statistics([line], [[text] for text in texts]) for line in (new, old)))
        for new, old, *texts in lines
        if new != old
    )
    return sum(islice(filter(None, unequal), _MOST_UNEQUAL))


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Computes chrF2 of each sentence; BLEU is unreliable on single sentences.

    Returns:
        One value from 0 to 100 per sentence; with several references, that of the best match.
    """
    metric, lines = CHRF(), zip(hypotheses, *references, strict=True)
    return [metric.sentence_score(hypothesis, texts).score for hypothesis, *texts in lines]
