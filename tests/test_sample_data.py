"""The committed sample corpus is what its script makes, and its test set is truly held out."""

import importlib.util
import random
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

DATA = Path(__file__).parent.parent / "data"


def load(name):
    """Imports a module from data/, which is no package."""
    if str(DATA) not in sys.path:
        sys.path.insert(0, str(DATA))
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, DATA / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


make_sample = load("make_sample")
lexicon = load("sample_lexicon")
function_words = load("sample_words")
tree = load("sample_tree")
german = load("sample_german")
english = load("sample_english")
clauses = load("sample_clauses")
grammar = load("sample_grammar")


@pytest.fixture(scope="module")
def corpus():
    """The corpus as derivations, generated anew."""
    return make_sample.generate()


@pytest.fixture(scope="module")
def committed():
    """The committed files by name."""
    return {path.name: path.read_bytes() for path in (DATA / "sample").iterdir()}


def forms(derivations):
    """Counts the word forms of both languages, apart."""
    source, target = Counter(), Counter()
    for derivation in derivations:
        source.update(make_sample.words(derivation.source))
        target.update(make_sample.words(derivation.target))
    return source, target


def test_regenerating_gives_the_committed_bytes(corpus, committed):
    """The committed files are exactly what the script writes, no file more or less."""
    assert make_sample.render(corpus) == committed


def test_files_are_aligned_text_of_modest_size(committed):
    """Each side has one sentence a line, and all files together stay under 3 MiB."""
    assert sum(map(len, committed.values())) < 3 * 2**20
    for split, size in make_sample.SIZES.items():
        for language in ("de", "en"):
            text = committed[f"{split}.{language}"].decode("utf-8")
            assert text.endswith("\n")
            lines = text.removesuffix("\n").split("\n")
            assert len(lines) == size
            assert all(re.fullmatch(r"[A-ZÄÖÜ][\w', ]*\w[.?]", line) for line in lines)
            assert not any("  " in line or " ," in line or ",," in line for line in lines)


def test_sizes_of_the_splits(corpus):
    assert {split: len(part) for split, part in corpus.items()} == {
        "train": 12_000,
        "validation": 500,
        "test": 500,
    }


def test_no_sentence_appears_twice(corpus):
    """Sources are distinct throughout, so no source has two translations or two splits."""
    sources = [d.source for part in corpus.values() for d in part]
    assert len(set(sources)) == len(sources)


def test_no_target_is_shared_between_splits(corpus):
    """A held-out translation never stands in training under another German word order."""
    targets = [{d.target for d in part} for part in corpus.values()]
    assert sum(map(len, targets)) == len(set().union(*targets))


def test_translation_is_a_function_of_the_german():
    """The grammar gives every German sentence one translation, beyond the committed ones too."""
    drawn = grammar.Grammar(random.Random(1))
    translations = {}
    for _ in range(10_000):
        derivation = drawn.derive()
        assert translations.setdefault(derivation.source, derivation.target) == derivation.target


def test_held_out_combinations_never_appear_in_training(corpus):
    """Every held-out sentence has a combination that no training sentence has."""
    seen = set().union(*(d.combinations for d in corpus["train"]))
    reserved = {split: set() for split in make_sample.SHARES}
    for split, combinations in reserved.items():
        for derivation in corpus[split]:
            own = {c for c in derivation.combinations if make_sample.owner(c) == split}
            assert own
            assert not own & seen
            combinations |= own
    assert not reserved["validation"] & reserved["test"]
    assert all(make_sample.owner(combination) == "train" for combination in seen)


def test_every_held_out_word_form_is_well_known(corpus):
    """Training shows each word form of validation and test, on its side, several times."""
    known = [forms(corpus["train"])[side] for side in range(2)]
    for split in make_sample.SHARES:
        for side, counts in enumerate(forms(corpus[split])):
            rare = {form for form in counts if known[side][form] < make_sample.MIN_COUNT}
            assert not rare


def test_every_held_out_construction_is_known(corpus):
    """What is new in the test set is the combination, not the construction."""
    counts = Counter(d.construction for d in corpus["train"])
    for split in make_sample.SHARES:
        assert all(counts[d.construction] >= 50 for d in corpus[split])


def test_nearest_training_source_scores_as_the_readme_says(corpus):
    """Looking up the nearest training source stays far below 50 BLEU, at the published figure."""
    score, signature = make_sample.nearest_bleu(corpus)
    assert score < 50
    readme = (DATA / "README.md").read_text(encoding="utf-8")
    assert f"{score:.1f} BLEU" in readme
    assert signature.split("|version")[0] in readme


def noun(word):
    return next(noun for noun in lexicon.NOUNS if noun.de == word)


def verb(infinitive):
    return next(v for v in lexicon.VERBS if v.particle + v.de == infinitive)


def adjective(word):
    return next(adjective for adjective in lexicon.ADJECTIVES if adjective.de == word)


@pytest.mark.parametrize(
    ("word", "determiner", "plural", "case", "expected"),
    [
        ("Mann", "THE", False, "ACC", "den alten Mann"),
        ("Mann", "A", False, "NOM", "ein alter Mann"),
        ("Buch", "A", False, "ACC", "ein altes Buch"),
        ("Frau", "THIS", False, "DAT", "dieser alten Frau"),
        ("Kind", "THE", False, "GEN", "des alten Kindes"),
        ("Kind", "THE", True, "DAT", "den alten Kindern"),
        ("Kind", "BARE", True, "NOM", "alte Kinder"),
        ("Hund", "NO", True, "ACC", "keine alten Hunde"),
        ("Junge", "THE", False, "ACC", "den alten Jungen"),
        ("Student", "EVERY", False, "DAT", "jedem alten Studenten"),
        ("Auto", "THE", True, "DAT", "den alten Autos"),
    ],
)
def test_german_declension(word, determiner, plural, case, expected):
    """Determiner, adjective and noun agree in gender, number and case."""
    chosen = getattr(function_words, determiner)
    phrase = tree.NounPhrase(noun(word), chosen, plural, adjective("alt"))
    assert german.nominal(phrase, lexicon.Case[case]) == expected


def test_a_name_as_owner_leaves_the_adjective_strong():
    phrase = tree.NounPhrase(noun("Hund"), adjective=adjective("alt"), owner=tree.Name("Anna"))
    assert german.nominal(phrase, lexicon.Case.DAT) == "Annas altem Hund"
    assert english.nominal(phrase) == "Anna's old dog"


def test_separable_verb_in_every_order():
    """The particle parts from its verb in main clauses and joins it everywhere else."""
    clause = tree.Clause(
        verb("anrufen"), tree.NounPhrase(noun("Mann")), direct=tree.NounPhrase(noun("Frau"))
    )
    assert german.statement(clause) == "der Mann ruft die Frau an"
    assert german.question(clause) == "ruft der Mann die Frau an"
    assert german.subordinate(clause, "weil") == "weil der Mann die Frau anruft"
    assert german.infinitive(clause, "um") == "um die Frau anzurufen"
    assert english.question(clause) == "does the man call the woman"


@pytest.mark.parametrize(
    ("changes", "source", "target"),
    [
        ({}, "er liest das Buch", "he reads the book"),
        ({"tense": "past"}, "er hat das Buch gelesen", "he read the book"),
        ({"negated": True}, "er liest das Buch nicht", "he does not read the book"),
        ({"tense": "future"}, "er wird das Buch lesen", "he will read the book"),
        ({"tense": "pluperfect"}, "er hatte das Buch gelesen", "he had read the book"),
    ],
)
def test_tenses_in_both_languages(changes, source, target):
    he = next(pronoun for pronoun in clauses.PRONOUNS if pronoun.nominative == "er")
    clause = tree.Clause(verb("lesen"), he, direct=tree.NounPhrase(noun("Buch")), **changes)
    assert german.statement(clause) == source
    assert english.statement(clause) == target
