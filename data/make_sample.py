"""Writes the sample corpus: German-English pairs expanded from a small synchronous grammar.

    python data/make_sample.py            rewrites data/sample/, byte for byte the same every time
    python data/make_sample.py --nearest  prints how far the nearest training source gets on test

The split is by derivation. Every sentence carries the set of combinations it is made of: verb and
object, subject and verb, construction and verb, adjective and noun, and so on. A hash assigns each
combination to one split for good. Training takes only sentences whose combinations are all its
own; the test set takes sentences with at least one combination that training never shows.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from sample_grammar import Derivation, Grammar

FOLDER = Path(__file__).parent / "sample"
SEED = 1706
SIZES = {"train": 12_000, "validation": 500, "test": 500}
# Out of a thousand combinations, how many belong to the test and the validation set.
SHARES = {"test": 30, "validation": 20}
MIN_WORDS, MAX_WORDS = 4, 16
MIN_COUNT = 5  # how often training must show every word form of a held-out sentence

Corpus = dict[str, list[Derivation]]


def owner(combination: str) -> str:
    """Returns the split that a combination belongs to; Python's own hash changes between runs."""
    bucket = int.from_bytes(hashlib.sha256(combination.encode()).digest()[:8], "big") % 1000
    for split, share in SHARES.items():
        if bucket < share:
            return split
        bucket -= share
    return "train"


def split_of(derivation: Derivation) -> str | None:
    """Returns the split a derivation may join, or None where it would have to join two."""
    held_out = {owner(combination) for combination in derivation.combinations} - {"train"}
    if len(held_out) > 1:
        return None
    return held_out.pop() if held_out else "train"


def words(text: str) -> list[str]:
    """Splits a sentence into word forms, without its punctuation."""
    return re.findall(r"[\w']+", text)


def fill(
    corpus: Corpus, grammar: Grammar, splits: Iterable[str], accept: Callable[[Derivation], bool]
) -> None:
    """Draws derivations until the splits are full; no sentence appears twice in the corpus.

    Within training two German orders may share an English sentence; across splits none is shared.
    """
    wanted = set(splits)
    sources = {d.source for part in corpus.values() for d in part}
    targets = {d.target: split for split, part in corpus.items() for d in part}
    while wanted:
        derivation = grammar.derive()
        split = split_of(derivation)
        if split not in wanted or derivation.source in sources or not accept(derivation):
            continue
        if targets.setdefault(derivation.target, split) != split:
            continue
        sources.add(derivation.source)
        corpus[split].append(derivation)
        if len(corpus[split]) == SIZES[split]:
            wanted.remove(split)


def generate() -> Corpus:
    """Returns the whole corpus: training first, then held-out sentences made of its words."""
    grammar = Grammar(random.Random(SEED))
    corpus: Corpus = {split: [] for split in SIZES}

    def fits(derivation: Derivation) -> bool:
        return MIN_WORDS <= len(words(derivation.source)) <= MAX_WORDS

    fill(corpus, grammar, ["train"], fits)
    counts = Counter(w for d in corpus["train"] for w in words(d.source) + words(d.target))

    def known(derivation: Derivation) -> bool:
        forms = words(derivation.source) + words(derivation.target)
        return fits(derivation) and all(counts[form] >= MIN_COUNT for form in forms)

    fill(corpus, grammar, SHARES, known)
    return corpus


def render(corpus: Corpus) -> dict[str, bytes]:
    """Returns the files of the corpus by name."""
    files = {}
    for split, derivations in corpus.items():
        files[f"{split}.de"] = "".join(f"{d.source}\n" for d in derivations).encode()
        files[f"{split}.en"] = "".join(f"{d.target}\n" for d in derivations).encode()
    return files


def ngrams(text: str, longest: int = 6) -> Counter[str]:
    """Counts the character n-grams of a sentence, spaces included, up to a length."""
    padded = f" {text} "
    return Counter(
        padded[start : start + size]
        for size in range(1, longest + 1)
        for start in range(len(padded) - size + 1)
    )


def nearest(queries: list[str], sources: list[str]) -> list[int]:
    """Returns for each query the index of the source with the greatest n-gram overlap.

    Overlap is the cosine of n-gram counts weighted by inverse document frequency. Plain counts,
    shorter n-grams and Dice overlap all find neighbours whose translations score lower.
    """
    import numpy as np

    postings: dict[str, list[tuple[int, int]]] = {}
    for index, source in enumerate(sources):
        for gram, count in ngrams(source).items():
            postings.setdefault(gram, []).append((index, count))
    columns = {}
    squares = np.zeros(len(sources))
    for gram, posting in postings.items():
        indices, counts = np.array(posting).T
        weight = math.log(len(sources) / len(posting)) + 1
        squares[indices] += (counts * weight) ** 2
        columns[gram] = indices, counts * weight**2
    lengths = np.sqrt(squares)
    found = []
    for query in queries:
        products = np.zeros(len(sources))
        for gram, count in ngrams(query).items():
            if gram in columns:
                indices, values = columns[gram]
                products[indices] += count * values
        found.append(int(np.argmax(products / lengths)))
    return found


def nearest_bleu(corpus: Corpus) -> tuple[float, str]:
    """Returns the BLEU of answering test sources from their nearest neighbours, and its signature.

    The score is what looking up memorised sentences would earn; a program that beats it by far
    has put known words and constructions together in new ways.
    """
    from sacrebleu.metrics.bleu import BLEU

    train, test = corpus["train"], corpus["test"]
    indices = nearest([d.source for d in test], [d.source for d in train])
    bleu = BLEU()
    answers = [train[index].target for index in indices]
    score = bleu.corpus_score(answers, [[d.target for d in test]]).score
    return score, str(bleu.get_signature())


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description="Write data/sample/, or measure it.")
    parser.add_argument(
        "--nearest",
        action="store_true",
        help="print the BLEU of answering from the nearest training source instead of writing",
    )
    arguments = parser.parse_args()
    corpus = generate()
    if arguments.nearest:
        score, signature = nearest_bleu(corpus)
        print(f"nearest training source: {score:.1f} BLEU ({signature})")
        return
    FOLDER.mkdir(exist_ok=True)
    for name, content in render(corpus).items():
        (FOLDER / name).write_bytes(content)
    print(f"wrote {', '.join(f'{len(part)} {split}' for split, part in corpus.items())} pairs")


if __name__ == "__main__":
    main()
