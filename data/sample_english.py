"""English: inflection and word order, with the same entry points as `sample_german`."""

from __future__ import annotations

from sample_lexicon import third_person
from sample_tree import (
    Clause,
    Name,
    Nominal,
    NounPhrase,
    Predicate,
    PrepositionalPhrase,
    Pronoun,
    Relative,
    is_person,
)


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


# --- noun phrases -------------------------------------------------------------------------------


def _determiner(phrase: NounPhrase) -> str:
    if phrase.owner:
        return _possessive(phrase.owner)
    return phrase.determiner.en_plural if phrase.plural else phrase.determiner.en


def _possessive(owner: NounPhrase | Name) -> str:
    return nominal(owner) + ("'" if owner.plural else "'s")


def nominal(phrase: Nominal, role: str = "subject") -> str:
    """Renders a noun phrase, name or pronoun; only pronouns show their role."""
    if isinstance(phrase, Pronoun):
        return phrase.en if role == "subject" else phrase.en_object
    if isinstance(phrase, Name):
        return phrase.text
    noun = phrase.noun.en_plural if phrase.plural else phrase.noun.en
    rest = _join(phrase.adjective.en if phrase.adjective else "", noun)
    determiner = _determiner(phrase)
    if determiner == "a" and rest[0] in "aeiou":
        determiner = "an"
    relative = _relative(phrase, phrase.relative) if phrase.relative else ""
    return _join(determiner, rest, relative)


def prepositional(phrase: PrepositionalPhrase) -> str:
    """Renders a prepositional phrase."""
    return f"{phrase.preposition.en} {nominal(phrase.nominal, 'object')}"


def _relative(head: NounPhrase, relative: Relative) -> str:
    clause, role = relative.clause, relative.role
    if role == "oblique":
        assert clause.oblique is not None
        pronoun = f"{clause.oblique.preposition.en} {'whom' if is_person(head) else 'which'}"
    elif is_person(head):
        pronoun = "who" if role == "subject" else "whom"
    else:
        pronoun = "that"
    return subordinate(clause, pronoun, gap=role)


# --- verbs --------------------------------------------------------------------------------------


def _be(subject: Nominal, past: bool) -> str:
    if subject.plural or subject.person == 2:
        return "were" if past else "are"
    if past:
        return "was"
    return "am" if subject.person == 1 else "is"


def _agree(base: str, subject: Nominal) -> str:
    """Adds the -s of the third person singular, to the first word of a phrasal verb."""
    if subject.plural or subject.person != 3:
        return base
    head, *rest = base.split()
    return _join(third_person(head), *rest)


def _verb_group(clause: Clause) -> tuple[str, str]:
    """Returns the auxiliary, or "" where there is none, and the main verb."""
    verb, subject, past = clause.verb, clause.subject, clause.tense == "past"
    if clause.passive:
        return _be(subject, past), verb.en_participle
    if clause.modal:
        modal = clause.modal.en
        if not modal.endswith(" to"):
            return modal, verb.en
        finite = modal if clause.tense == "past" else _agree(modal, subject)
        return "", f"{finite} {verb.en}"
    if clause.tense == "future":
        return "will", verb.en
    if clause.tense == "pluperfect":
        return "had", verb.en_participle
    if verb.en == "be":
        return _be(subject, past), ""
    return "", verb.en_past if past else _agree(verb.en, subject)


_BARE_MODALS = {"had to": "have to", "wanted to": "want to"}


def _supported(clause: Clause) -> tuple[str, str]:
    """Like `_verb_group`, but with "do" where a question or negation needs an auxiliary."""
    auxiliary, main = _verb_group(clause)
    if auxiliary:
        return auxiliary, main
    auxiliary = "did" if clause.tense == "past" else _agree("do", clause.subject)
    main = clause.verb.en
    if clause.modal:
        main = f"{_BARE_MODALS.get(clause.modal.en, clause.modal.en)} {main}"
    return auxiliary, main


# --- clauses ------------------------------------------------------------------------------------


def _predicate(predicate: Predicate) -> str:
    adjective = predicate.adjective
    if predicate.standard is None:
        return _join(predicate.degree[1], adjective.en)
    standard = nominal(predicate.standard)
    if predicate.equal:
        return f"as {adjective.en} as {standard}"
    return f"{adjective.en_comparative} than {standard}"


def _complements(clause: Clause, gap: str) -> str:
    """Renders what follows the verb, except the part with role `gap`."""
    parts = [
        ("dative", nominal(clause.dative, "object") if clause.dative else ""),
        ("direct", nominal(clause.direct, "object") if clause.direct else ""),
        ("oblique", prepositional(clause.oblique) if clause.oblique else ""),
        ("predicate", _predicate(clause.predicate) if clause.predicate else ""),
        ("place", prepositional(clause.place) if clause.place else ""),
        ("time", clause.time.en if clause.time else ""),
    ]
    return _join(*(text for role, text in parts if role != gap))


def _body(clause: Clause, gap: str = "") -> str:
    """Subject, verb and complements in the order that every English clause but questions has."""
    frequency = clause.frequency.en if clause.frequency else ""
    subject = "" if gap == "subject" else nominal(clause.subject)
    if clause.negated:
        auxiliary, main = _supported(clause)
        negation = "cannot" if auxiliary == "can" else f"{auxiliary} not"
        verb = _join(negation, frequency, main)
    else:
        auxiliary, main = _verb_group(clause)
        verb = _join(auxiliary, frequency, main)
    return _join(subject, verb, _complements(clause, gap))


def statement(clause: Clause, front: str = "subject") -> str:
    """Subject first; only times and places can stand in front of it, as in German."""
    if front == "time" and clause.time:
        return _join(clause.time.en, _body(clause, gap="time"))
    if front == "place" and clause.place:
        return _join(prepositional(clause.place), _body(clause, gap="place"))
    return _body(clause)


def question(clause: Clause, word: str = "", gap: str = "") -> str:
    """Auxiliary before subject, except where the question word is the subject."""
    if gap == "subject":
        return _join(word, _body(clause, gap))
    auxiliary, main = _supported(clause)
    frequency = clause.frequency.en if clause.frequency else ""
    subject = nominal(clause.subject)
    return _join(word, auxiliary, subject, frequency, main, _complements(clause, gap))


def subordinate(clause: Clause, introducer: str, gap: str = "") -> str:
    """A subordinate clause keeps the order of a statement."""
    return _join(introducer, _body(clause, gap))


def infinitive(clause: Clause, introducer: str = "") -> str:
    """An infinitive clause with "to"."""
    return _join(introducer, "to", clause.verb.en, _complements(clause, ""))
