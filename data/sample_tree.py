"""The abstract syntax that German and English share.

A sentence is built once, as a tree of these dataclasses, and then spoken twice: `sample_german`
and `sample_english` each turn the same tree into text by the rules of their language. That is what
makes the grammar synchronous.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sample_lexicon import Adjective, Adverb, Determiner, Modal, Noun, Preposition, Verb
from sample_words import POSSESSIVES, THE, THIS, WHICH


@dataclass(frozen=True)
class Pronoun:
    """A personal pronoun in the cases it needs."""

    nominative: str
    accusative: str
    dative: str
    en: str
    en_object: str
    person: int = 3
    plural: bool = False


@dataclass(frozen=True)
class Name:
    """A person's name."""

    text: str
    person: int = 3
    plural: bool = False


@dataclass(frozen=True)
class NounPhrase:
    """A noun with its determiner and modifiers; an `owner` is a genitive."""

    noun: Noun
    determiner: Determiner = THE
    plural: bool = False
    adjective: Adjective | None = None
    owner: NounPhrase | Name | None = None
    relative: Relative | None = None
    person: int = 3

    @property
    def definite(self) -> bool:
        """Whether the phrase names something known, which moves it left in German."""
        return self.owner is not None or self.determiner in (THE, THIS, WHICH, *POSSESSIVES)


Nominal = NounPhrase | Name | Pronoun


@dataclass(frozen=True)
class PrepositionalPhrase:
    """A preposition and what it governs."""

    preposition: Preposition
    nominal: Nominal


@dataclass(frozen=True)
class Predicate:
    """A predicate adjective, with a degree ("sehr", "very") or a standard of comparison."""

    adjective: Adjective
    degree: tuple[str, str] = ("", "")
    standard: Nominal | None = None
    equal: bool = False  # "so alt wie" rather than "älter als"


@dataclass(frozen=True)
class Clause:
    """A verb with everything around it; each language chooses the order."""

    verb: Verb
    subject: Nominal
    tense: str = "present"  # present, past, future or pluperfect
    modal: Modal | None = None
    passive: bool = False
    negated: bool = False
    direct: Nominal | None = None
    dative: Nominal | None = None
    oblique: PrepositionalPhrase | None = None
    predicate: Predicate | None = None
    place: PrepositionalPhrase | None = None
    time: Adverb | None = None
    frequency: Adverb | None = None

    def nominals(self) -> Iterator[tuple[str, Nominal]]:
        """Yields every noun phrase, name and pronoun of the clause with its role."""
        yield "subject", self.subject
        if self.direct:
            yield "direct", self.direct
        if self.dative:
            yield "dative", self.dative
        if self.oblique:
            yield "oblique", self.oblique.nominal
        if self.predicate and self.predicate.standard:
            yield "standard", self.predicate.standard
        if self.place:
            yield "place", self.place.nominal


@dataclass(frozen=True)
class Relative:
    """A relative clause in which the head plays `role`; the clause's own phrase there is unsaid."""

    clause: Clause
    role: str


def is_person(nominal: Nominal) -> bool:
    """Whether the phrase is spoken of as "who" rather than "that"."""
    return not isinstance(nominal, NounPhrase) or "person" in nominal.noun.kinds
