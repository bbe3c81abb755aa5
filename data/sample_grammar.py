"""The constructions: random derivations of whole sentences.

`Grammar.derive` draws a construction, fills it with clauses, and returns a `Derivation`: the
sentence in both languages and the combinations of words and constructions that went into it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import combinations
from random import Random

import sample_english as english
import sample_german as german
from sample_clauses import LIVING, PERSON, Sampler, content_word
from sample_lexicon import COPULA, VERBS, Case
from sample_tree import (
    Clause,
    Nominal,
    NounPhrase,
    PrepositionalPhrase,
    Pronoun,
    Relative,
    is_person,
)
from sample_words import BY, THE, THIS, WHICH

DEEDS = ("direct", "dative", "double", "oblique", "bare")


@dataclass(frozen=True)
class Derivation:
    """A sentence in both languages and what it is made of."""

    construction: str
    source: str
    target: str
    combinations: frozenset[str]


def finish(text: str, mark: str) -> str:
    """Capitalises a sentence and closes it; a comma left open by a relative clause goes."""
    text = text.removesuffix(",").replace(",,", ",")
    return text[0].upper() + text[1:] + mark


def masculine_singular(nominal: Nominal | None) -> bool:
    """Whether the article alone shows the case ("den", "dem")."""
    return (
        isinstance(nominal, NounPhrase)
        and nominal.noun.gender == "m"
        and not nominal.plural
        and nominal.determiner in (THE, THIS)
        and nominal.owner is None
    )


def as_head(phrase: NounPhrase) -> NounPhrase:
    """Prepares a phrase for a restrictive relative clause, which wants a plain "the" or "this"."""
    determiner = phrase.determiner if phrase.determiner is THIS else THE
    return replace(phrase, determiner=determiner, adjective=None, owner=None)


def _modifiers(nominal: Nominal) -> Iterable[str]:
    if not isinstance(nominal, NounPhrase):
        return
    if nominal.adjective:
        yield f"adjective {nominal.adjective.de} + noun {nominal.noun.de}"
    if nominal.owner:
        yield f"owner {content_word(nominal.owner)} + noun {nominal.noun.de}"


def clause_combinations(construction: str, clause: Clause) -> set[str]:
    """Names the pairs of choices in a clause that can be held out.

    Each content word in its role is paired with the verb, with each other content word, and with
    the construction, whose name includes the tense or modal, voice and polarity.
    """
    modal = clause.modal.en if clause.modal else ""
    details = [clause.tense, modal, "passive" * clause.passive, "negated" * clause.negated]
    form = "/".join([construction, *(detail for detail in details if detail)])
    verb = f"verb {clause.verb.particle}{clause.verb.de}"
    if clause.predicate:
        verb = f"adjective {clause.predicate.adjective.de}"
    words = [verb]
    words += [
        f"{role} {content_word(phrase)}"
        for role, phrase in clause.nominals()
        if content_word(phrase)
    ]
    found = {f"form {form} + {verb}"}
    found.update(f"{first} + {second}" for first, second in combinations(words, 2))
    for _, phrase in clause.nominals():
        found.update(_modifiers(phrase))
    return found


class Grammar(Sampler):
    """Draws derivations from a source of random numbers."""

    def __init__(self, random: Random) -> None:
        """Prepares the table of constructions."""
        super().__init__(random)
        self.constructions: dict[Callable[[], Derivation | None], int] = {
            self.statement: 24,
            self.fronted_adverbial: 12,
            self.fronted_object: 5,
            self.yes_no_question: 8,
            self.adverb_question: 5,
            self.subject_question: 3,
            self.object_question: 6,
            self.which_question: 3,
            self.predicate: 8,
            self.passive: 7,
            self.subordinate_last: 10,
            self.subordinate_first: 7,
            self.after_clause: 3,
            self.that_clause: 8,
            self.subject_relative: 7,
            self.object_relative: 6,
            self.relative_at_end: 4,
            self.infinitive_clause: 5,
            self.purpose_clause: 4,
            self.coordination: 4,
        }

    def derive(self) -> Derivation:
        """Returns one derivation, drawing again where a construction found nothing to fill it."""
        choices, weights = list(self.constructions), list(self.constructions.values())
        while True:
            derivation = self.pick(choices, weights)()
            if derivation is not None:
                return derivation

    # --- sentences ------------------------------------------------------------------------------

    def _derivation(
        self, name: str, source: str, target: str, *clauses: Clause, mark: str = "."
    ) -> Derivation:
        found: set[str] = set()
        for index, clause in enumerate(clauses):
            found |= clause_combinations(f"{name} {index}", clause)
        return Derivation(name, finish(source, mark), finish(target, mark), frozenset(found))

    def statement(self) -> Derivation | None:
        """Verb second, subject first: "Der Mann kauft heute einen Hut."."""
        clause = self.clause(negation=0.2, adverbs=True)
        source, target = german.statement(clause), english.statement(clause)
        return self._derivation("statement", source, target, clause)

    def fronted_adverbial(self) -> Derivation | None:
        """Verb second, time or place first: "Heute kauft der Mann einen Hut."."""
        clause = self.clause(negation=0.2)
        front = "time"
        if not clause.negated and self.takes_place(clause) and self.chance(0.4):
            clause, front = self.with_place(clause), "place"
        else:
            clause = replace(clause, time=self.time(clause))
        source, target = german.statement(clause, front), english.statement(clause, front)
        return self._derivation(f"fronted {front}", source, target, clause)

    def fronted_object(self) -> Derivation | None:
        """Verb second, object first: "Den Hut kauft der Mann."; only where the article tells."""
        clause = self.clause("direct", "dative")
        front = "direct" if clause.direct else "dative"
        if not masculine_singular(clause.direct or clause.dative):
            return None
        source, target = german.statement(clause, front), english.statement(clause, front)
        return self._derivation("fronted object", source, target, clause)

    def yes_no_question(self) -> Derivation | None:
        """Verb first: "Kauft der Mann einen Hut?"."""
        clause = self.clause(adverbs=True)
        source, target = german.question(clause), english.question(clause)
        return self._derivation("question", source, target, clause, mark="?")

    def adverb_question(self) -> Derivation | None:
        """Why, when and where questions."""
        words = [("warum", "why"), ("wann", "when"), ("wo", "where")]
        word, en_word = self.random.choice(words)
        clause = self.clause(modals=word != "wo")
        if word == "wo" and not self.takes_place(clause):
            return None
        source, target = german.question(clause, word), english.question(clause, en_word)
        return self._derivation(f"{en_word} question", source, target, clause, mark="?")

    def subject_question(self) -> Derivation | None:
        """Who questions; the subject of the clause only lends the verb its person."""
        clause = self.clause(subject=Pronoun("wer", "", "", "who", ""))
        source = german.question(clause, "wer", gap="subject")
        target = english.question(clause, "who", gap="subject")
        return self._derivation("who question", source, target, clause, mark="?")

    def object_question(self) -> Derivation | None:
        """What and whom questions, after the accusative and the dative."""
        clause = self.clause("direct", "dative")
        if clause.dative:
            word, en_word, role = "wem", "whom", "dative"
        elif clause.verb.objects & PERSON:
            word, en_word, role = "wen", "whom", "direct"
        else:
            word, en_word, role = "was", "what", "direct"
        # The object itself is unsaid, so it must not count as part of the derivation.
        unsaid = Pronoun("", "", "", "", "")
        if role == "dative":
            clause = replace(clause, dative=unsaid)
        else:
            clause = replace(clause, direct=unsaid)
        source = german.question(clause, word, gap=role)
        target = english.question(clause, en_word, gap=role)
        return self._derivation(f"{word} question", source, target, clause, mark="?")

    def which_question(self) -> Derivation | None:
        """Which questions about things, which cannot be taken for the subject."""
        clause = self.clause("direct")
        if not isinstance(clause.direct, NounPhrase) or clause.direct.noun.kinds & LIVING:
            return None
        direct = replace(clause.direct, determiner=WHICH, owner=None)
        clause = replace(clause, direct=direct)
        word = german.nominal(direct, Case.ACC)
        en_word = english.nominal(direct)
        source = german.question(clause, word, gap="direct")
        target = english.question(clause, en_word, gap="direct")
        return self._derivation("which question", source, target, clause, mark="?")

    def predicate(self) -> Derivation | None:
        """Predicate adjectives and comparisons."""
        clause = self.predicate_clause(compare=0.5)
        source, target = german.statement(clause), english.statement(clause)
        return self._derivation("predicate", source, target, clause)

    def passive(self) -> Derivation | None:
        """The passive with its agent, as statement, question or subordinate clause."""
        verb = self.random.choice([verb for verb in VERBS if verb.passive])
        tense = self.random.choice(["present", "past"])
        subject = self.noun_phrase(verb.objects, definite=True)
        agent = self.name() if self.chance(0.25) else self.noun_phrase(PERSON, [subject])
        by = PrepositionalPhrase(BY, agent)
        clause = Clause(verb, subject, tense, passive=True, oblique=by)
        if self.chance(0.2):
            source, target = german.question(clause), english.question(clause)
            return self._derivation("question", source, target, clause, mark="?")
        if self.chance(0.4):
            clause = replace(clause, time=self.time(clause))
            source, target = german.statement(clause, "time"), english.statement(clause, "time")
            return self._derivation("fronted time", source, target, clause)
        source, target = german.statement(clause), english.statement(clause)
        return self._derivation("statement", source, target, clause)

    def _two_clauses(self) -> tuple[str, str, Clause, Clause]:
        """Draws a conjunction and two short clauses in a tense that suits both."""
        conjunctions = [("weil", "because"), ("obwohl", "although"), ("wenn", "if"),
                        ("bevor", "before")]  # fmt: skip
        word, en_word = self.random.choice(conjunctions)
        tense = "present" if word == "wenn" else self.random.choice(["present", "past"])
        negation = 0.0 if word == "bevor" else 0.12
        modals = word not in ("bevor", "wenn")  # "if he should come" would say something else
        inner = self.any_clause(tenses=tense, negation=negation, modals=modals)
        if word == "bevor" and inner.verb is COPULA:
            inner = self.clause(tenses=tense, modals=False)
        outer = self.clause(tenses=tense, negation=0.1)
        return word, en_word, outer, inner

    def subordinate_last(self) -> Derivation | None:
        """Verb last in the subordinate clause: "..., weil der Mann einen Hut kauft."."""
        word, en_word, outer, inner = self._two_clauses()
        source = f"{german.statement(outer)}, {german.subordinate(inner, word)}"
        target = f"{english.statement(outer)} {english.subordinate(inner, en_word)}"
        return self._derivation(f"{en_word} last", source, target, outer, inner)

    def subordinate_first(self) -> Derivation | None:
        """The subordinate clause takes first place, so the main verb follows it at once."""
        word, en_word, outer, inner = self._two_clauses()
        source = f"{german.subordinate(inner, word)}, {german.question(outer)}"
        target = f"{english.subordinate(inner, en_word)}, {english.statement(outer)}"
        return self._derivation(f"{en_word} first", source, target, outer, inner)

    def after_clause(self) -> Derivation | None:
        """The pluperfect: "Nachdem der Mann gegessen hatte, ..."."""
        inner = self.clause(tenses="pluperfect", modals=False)
        outer = self.clause(tenses="past", modals=False)
        source = f"{german.subordinate(inner, 'nachdem')}, {german.question(outer)}"
        target = f"{english.subordinate(inner, 'after')}, {english.statement(outer)}"
        return self._derivation("after first", source, target, outer, inner)

    def that_clause(self) -> Derivation | None:
        """Object clauses: "Anna glaubt, dass ...", "Anna fragt, ob ..."."""
        outer = self.clause("that", "that", "whether", tenses="present", modals=False)
        inner = self.any_clause(negation=0.1)
        word, en_word = ("dass", "that") if outer.verb.frame == "that" else ("ob", "whether")
        source = f"{german.statement(outer)}, {german.subordinate(inner, word)}"
        target = f"{english.statement(outer)} {english.subordinate(inner, en_word)}"
        return self._derivation(en_word, source, target, outer, inner)

    def infinitive_clause(self) -> Derivation | None:
        """Infinitives: "Der Mann versucht, seine Tante anzurufen."."""
        outer = self.clause("to", tenses="present past", modals=False)
        inner = self.clause(tenses="present", modals=False, subject=outer.subject)
        source = f"{german.statement(outer)}, {german.infinitive(inner)}"
        target = f"{english.statement(outer)} {english.infinitive(inner)}"
        return self._derivation("infinitive", source, target, outer, inner)

    def purpose_clause(self) -> Derivation | None:
        """Purposes: "Der Mann geht in den Park, um zu schlafen."."""
        outer = self.clause("motion", tenses="present past", modals=False)
        if not is_person(outer.subject):
            return None
        inner = self.clause(*DEEDS, tenses="present", modals=False, subject=outer.subject)
        if inner.verb.de in ("verlieren", "brauchen", "kennen"):  # no one does these on purpose
            return None
        source = f"{german.statement(outer)}, {german.infinitive(inner, 'um')}"
        target = f"{english.statement(outer)} {english.infinitive(inner, 'in order')}"
        return self._derivation("purpose", source, target, outer, inner)

    def coordination(self) -> Derivation | None:
        """Two main clauses joined by "und" or "aber"."""
        word, en_word = self.random.choice([("und", "and"), ("aber", "but")])
        tense = self.random.choice(["present", "past"])
        first, second = self.clause(tenses=tense), self.any_clause(tenses=tense)
        source = f"{german.statement(first)}, {word} {german.statement(second)}"
        target = f"{english.statement(first)}, {en_word} {english.statement(second)}"
        return self._derivation(f"{en_word}", source, target, first, second)

    # --- relative clauses -----------------------------------------------------------------------

    def _person_head(self) -> NounPhrase:
        return as_head(self.noun_phrase(PERSON, simple=True))

    def _main_of(self, head: NounPhrase) -> Clause:
        """Draws a short main clause about a head noun."""
        if "person" in head.noun.kinds and self.chance(0.55):
            return self.clause(subject=head, tenses="present past", modals=False)
        return self.predicate_clause(head, compare=0.2)

    def _with_relative(self, name: str, head: NounPhrase, relative: Relative) -> Derivation:
        """Builds the sentence whose subject is the head with its relative clause."""
        main = self._main_of(head)
        full = replace(main, subject=replace(head, relative=relative))
        source, target = german.statement(full), english.statement(full)
        return self._derivation(name, source, target, main, relative.clause)

    def subject_relative(self) -> Derivation | None:
        """The head is the subject of the relative clause, and a person."""
        head = self._person_head()
        inner = self.clause(subject=head, tenses="present past", negation=0.1)
        return self._with_relative("subject relative", head, Relative(inner, "subject"))

    def object_relative(self) -> Derivation | None:
        """The head is an object of the relative clause.

        After the accusative it is a thing or masculine, since "die Frau, die das Kind sieht" does
        not say who sees whom; the dative and the prepositions always tell.
        """
        inner = self.clause("direct", "dative", "oblique", tenses="present past")
        heads = {"direct": inner.direct, "dative": inner.dative}
        if inner.oblique:
            heads["oblique"] = inner.oblique.nominal
        role, head = next((role, head) for role, head in heads.items() if head)
        if not isinstance(head, NounPhrase) or not head.definite:
            return None
        head = as_head(head)
        if role != "direct" and not head.noun.kinds & PERSON:
            return None
        if role == "direct" and head.noun.kinds & LIVING and not masculine_singular(head):
            return None
        return self._with_relative(f"{role} relative", head, Relative(inner, role))

    def relative_at_end(self) -> Derivation | None:
        """The relative clause follows a thing at the end: "Er kauft das Buch, das wir lesen."."""
        inner = self.clause("direct", tenses="present past", modals=False)
        outer = self.clause("direct", tenses="present", modals=False)
        head = outer.direct
        if outer.verb.particle or not isinstance(head, NounPhrase) or head.noun.kinds & LIVING:
            return None
        if not head.definite or not head.noun.kinds & inner.verb.objects:
            return None
        head = as_head(head)
        inner = replace(inner, direct=head)
        outer_full = replace(outer, direct=replace(head, relative=Relative(inner, "direct")))
        source, target = german.statement(outer_full), english.statement(outer_full)
        return self._derivation("relative last", source, target, outer, inner)
