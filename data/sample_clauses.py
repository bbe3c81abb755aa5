"""Random clauses: words that make sense together, in every tense, voice and mood.

A few restrictions keep the German unambiguous; each is explained where it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from sample_lexicon import ADJECTIVES, COPULA, NAMES, NOUNS, VERBS, Adverb, Determiner, Verb
from sample_tree import Clause, Name, Nominal, NounPhrase, Predicate, PrepositionalPhrase, Pronoun
from sample_words import (
    BARE,
    COMPANIONS,
    DEGREES,
    EVERY,
    FREQUENCIES,
    LOCATIONS,
    MODALS,
    NO,
    NUMERALS,
    POSSESSIVES,
    PREPOSITIONS,
    QUANTIFIERS,
    THE,
    THIS,
    TIMES,
    A,
)

PRONOUNS = [
    Pronoun("ich", "mich", "mir", "I", "me", person=1),
    Pronoun("du", "dich", "dir", "you", "you", person=2),
    Pronoun("er", "ihn", "ihm", "he", "him"),
    Pronoun("sie", "sie", "ihr", "she", "her"),
    Pronoun("wir", "uns", "uns", "we", "us", person=1, plural=True),
    Pronoun("sie", "sie", "ihnen", "they", "them", plural=True),
]
# The object "sie" would be both "her" and "them"; only the singular is an object here.
OBJECT_PRONOUNS = PRONOUNS[:5]

FRAME_WEIGHTS = {"direct": 9, "dative": 4, "double": 3, "oblique": 3, "bare": 3, "motion": 2}
PERSON = frozenset({"person"})
LIVING = frozenset({"person", "animal"})

Choice = TypeVar("Choice")


def content_word(nominal: Nominal) -> str:
    """The content word of a nominal, or "" for a pronoun."""
    if isinstance(nominal, NounPhrase):
        return nominal.noun.de
    return nominal.text if isinstance(nominal, Name) else ""


class Sampler:
    """Draws phrases and clauses from a source of random numbers."""

    def __init__(self, random: Random) -> None:
        """Keeps the source of random numbers."""
        self.random = random

    def chance(self, probability: float) -> bool:
        """Returns true with the given probability."""
        return self.random.random() < probability

    def pick(self, choices: Sequence[Choice], weights: Sequence[float]) -> Choice:
        """Draws one of the choices by weight."""
        return self.random.choices(choices, weights)[0]

    # --- noun phrases ---------------------------------------------------------------------------

    def _determiner(self, definite: bool, plural: bool, stranger: bool) -> Determiner:
        number = "p" if plural else "s"
        choices: list[tuple[Determiner, float]] = [(THE, 50), (THIS, 8)]
        if not stranger:  # "meine Frau" is "my wife", so "Frau" and its like go without
            choices += [(determiner, 4) for determiner in POSSESSIVES]
        if not definite:
            choices += [(A, 18), (EVERY, 3), (BARE, 6)]
            choices += [(determiner, 4) for determiner in QUANTIFIERS]
            choices += [(determiner, 2.5) for determiner in NUMERALS]
        fitting = [(choice, weight) for choice, weight in choices if number in choice.numbers]
        return self.pick([choice for choice, _ in fitting], [weight for _, weight in fitting])

    def noun_phrase(
        self,
        kinds: frozenset[str],
        avoid: Iterable[Nominal] = (),
        definite: bool = False,
        simple: bool = False,
        number: str = "sp",
    ) -> NounPhrase:
        """Draws a noun phrase; a simple one has no adjective and no owner."""
        used = {content_word(nominal) for nominal in avoid}
        noun = self.random.choice([n for n in NOUNS if n.kinds & kinds and n.de not in used])
        plural = "p" in number and self.chance(0.28)
        determiner = self._determiner(definite, plural, "stranger" in noun.kinds)
        phrase = NounPhrase(noun, determiner, plural)
        if simple:
            return phrase
        if self.chance(0.3):
            adjectives = [a for a in ADJECTIVES if a.kinds & noun.kinds]
            if adjectives:
                phrase = replace(phrase, adjective=self.random.choice(adjectives))
        if "own" in noun.kinds and determiner is THE and self.chance(0.2):
            # Owners are singular persons and what they own is not, so that a feminine genitive
            # is never taken for a dative object.
            owner: NounPhrase | Name = self.name()
            if self.chance(0.5):
                owner = NounPhrase(self.random.choice([n for n in NOUNS if n.kinds & PERSON]))
            if content_word(owner) not in used:
                phrase = replace(phrase, owner=owner)
        return phrase

    def name(self) -> Name:
        """Draws a name."""
        return Name(self.random.choice(NAMES))

    def subject(self, kinds: frozenset[str], definite: bool = False) -> Nominal:
        """Draws a subject."""
        draw = self.random.random()
        if "person" in kinds and draw < 0.2:
            return self.random.choice(PRONOUNS)
        if "person" in kinds and draw < 0.38:
            return self.name()
        return self.noun_phrase(kinds, definite=definite)

    def object(
        self, kinds: frozenset[str], avoid: list[Nominal], definite: bool = False
    ) -> Nominal:
        """Draws an object."""
        draw = self.random.random()
        if kinds <= LIVING and draw < 0.14:
            subject = avoid[0]
            pronouns = [p for p in OBJECT_PRONOUNS if not self._reflexive(subject, p)]
            return self.random.choice(pronouns)
        if "person" in kinds and draw < 0.25:
            return Name(self.random.choice([n for n in NAMES if n not in map(content_word, avoid)]))
        return self.noun_phrase(kinds, avoid, definite)

    @staticmethod
    def _reflexive(subject: Nominal, pronoun: Pronoun) -> bool:
        """Whether subject and object would be the same first or second person ("ich ... mich")."""
        return (
            isinstance(subject, Pronoun)
            and subject.person == pronoun.person
            and (pronoun.person != 3 or subject == pronoun)
        )

    # --- clauses --------------------------------------------------------------------------------

    def verb(self, *frames: str) -> Verb:
        """Draws a verb of one of the frames."""
        weights = [FRAME_WEIGHTS.get(frame, 1) for frame in frames]
        frame = self.pick(frames, weights)
        return self.random.choice([verb for verb in VERBS if verb.frame == frame])

    def clause(
        self,
        *frames: str,
        tenses: str = "present past future",
        modals: bool = True,
        subject: Nominal | None = None,
        negation: float = 0.0,
        adverbs: bool = False,
    ) -> Clause:
        """Draws a clause around a verb of one of the frames (of any frame if none is given)."""
        verb = self.verb(*(frames or FRAME_WEIGHTS))
        negated = self.chance(negation)
        if subject is None:
            subject = self.subject(verb.subjects, definite=negated)
        # "Everyone does not" and "does not help a man" have two readings: what is denied is known.
        tense = self.random.choice(tenses.split())
        if tense == "future" and self.chance(0.4):  # it is the rarest of the three in speech
            tense = "present"
        clause = Clause(verb, subject, tense, negated=negated)
        fitting = [m for m in MODALS if m.tense == tense and (m.negatable or not negated)]
        if modals and fitting and self.chance(0.25):
            clause = replace(clause, modal=self.random.choice(fitting))
        clause = self._complete(clause)
        return self._with_adverbs(clause) if adverbs and not negated else clause

    def _complete(self, clause: Clause) -> Clause:
        """Adds the complements that the verb requires."""
        verb, negated, used = clause.verb, clause.negated, [clause.subject]
        if verb.frame in ("dative", "double"):
            kinds = PERSON if verb.frame == "double" else verb.objects
            dative = self.object(kinds, used, definite=negated)
            clause = replace(clause, dative=dative)
            used.append(dative)
        if verb.frame == "double":
            clause = replace(clause, direct=self.noun_phrase(verb.objects, used, negated))
        if verb.frame == "direct":
            clause = replace(clause, direct=self.object(verb.objects, used, negated))
        if negated and isinstance(clause.direct, NounPhrase) and self.chance(0.5):
            direct = replace(clause.direct, determiner=NO, owner=None)
            clause = replace(clause, direct=direct)
        if verb.frame == "oblique":
            preposition = PREPOSITIONS[verb.preposition]
            phrase = self.object(verb.objects, used, definite=negated)
            clause = replace(clause, oblique=PrepositionalPhrase(preposition, phrase))
        if verb.frame == "motion":
            preposition = PREPOSITIONS[self.random.choice(verb.preposition.split())]
            goal = self.noun_phrase(verb.objects, used, definite=True)
            clause = replace(clause, oblique=PrepositionalPhrase(preposition, goal))
        return clause

    def _with_adverbs(self, clause: Clause) -> Clause:
        """Adds up to two of: time or frequency, place, companion."""
        if self.chance(0.3):
            clause = replace(clause, time=self.time(clause))
        elif clause.tense != "future" and not clause.modal and self.chance(0.2):
            clause = replace(clause, frequency=self.random.choice(FREQUENCIES))
        if clause.oblique:
            return clause
        if self.takes_place(clause) and self.chance(0.25):
            return self.with_place(clause)
        if clause.verb.frame in ("direct", "bare") and self.chance(0.2):
            bare = clause.verb.frame == "bare"
            preposition = self.random.choice(COMPANIONS[:2] if bare else COMPANIONS[1:])
            used = [phrase for _, phrase in clause.nominals()]
            companion = self.noun_phrase(PERSON, used, definite=True)
            return replace(clause, oblique=PrepositionalPhrase(preposition, companion))
        return clause

    @staticmethod
    def takes_place(clause: Clause) -> bool:
        """Whether a place makes sense: not after a direction, nor for buying a park in a church."""
        elsewhere = isinstance(clause.direct, NounPhrase) and "place" in clause.direct.noun.kinds
        return not clause.oblique and not elsewhere and clause.verb.frame != "double"

    def with_place(self, clause: Clause) -> Clause:
        """Adds a place."""
        used = [phrase for _, phrase in clause.nominals()]
        place = self.noun_phrase(frozenset({"place"}), used, definite=True, number="s")
        return replace(clause, place=PrepositionalPhrase(self.random.choice(LOCATIONS), place))

    def time(self, clause: Clause) -> Adverb:
        """Draws a time that suits the tense."""
        return self.random.choice([time for time in TIMES if clause.tense in time.tenses])

    def predicate_clause(
        self,
        subject: Nominal | None = None,
        tenses: str = "present past",
        compare: float = 0.35,
    ) -> Clause:
        """Draws a clause like "das Haus ist alt" or "das Haus ist älter als die Kirche"."""
        if subject is None:
            noun = self.random.choice(NOUNS)
            kinds = noun.kinds - {"own", "stranger", "opening", "device", "work"}
            subject = self.subject(kinds, definite=True)
        kinds = subject.noun.kinds if isinstance(subject, NounPhrase) else PERSON
        adjective = self.random.choice([a for a in ADJECTIVES if a.kinds & kinds])
        if isinstance(subject, NounPhrase):  # "das alte Haus ist alt" says little
            subject = replace(subject, adjective=None)
        clause = Clause(COPULA, subject, self.random.choice(tenses.split()))
        if adjective.de_comparative and self.chance(compare):
            standard = self.noun_phrase(adjective.kinds & kinds, [subject], definite=True)
            standard = replace(standard, adjective=None)
            predicate = Predicate(adjective, standard=standard, equal=self.chance(0.4))
            return replace(clause, predicate=predicate)
        degree = self.random.choice(DEGREES)
        negated = self.chance(0.2) and not degree[0]
        return replace(clause, negated=negated, predicate=Predicate(adjective, degree))

    def any_clause(self, **options: Any) -> Clause:
        """Draws a clause of any frame, sometimes one with a predicate adjective."""
        if self.chance(0.15):
            tenses = options.get("tenses", "present past").replace("future", "").strip()
            return self.predicate_clause(tenses=tenses, compare=0.15)
        return self.clause(**options)
