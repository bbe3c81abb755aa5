"""German: inflection and word order."""

from __future__ import annotations

from sample_lexicon import Case, Modal, Preposition, Verb
from sample_tree import (
    Clause,
    Name,
    Nominal,
    NounPhrase,
    Predicate,
    PrepositionalPhrase,
    Pronoun,
    Relative,
)
from sample_words import NO

NOM, ACC, DAT, GEN = Case.NOM, Case.ACC, Case.DAT, Case.GEN

# Each row is masculine, feminine, neuter, plural; "-" is no ending.
_DEFINITE = {NOM: "der die das die", ACC: "den die das die", DAT: "dem der dem den",
             GEN: "des der des der"}  # fmt: skip
_RELATIVE = {NOM: "der die das die", ACC: "den die das die", DAT: "dem der dem denen"}
_ENDINGS = {
    "der": {NOM: "er e es e", ACC: "en e es e", DAT: "em er em en", GEN: "es er es er"},
    "ein": {NOM: "- e - e", ACC: "en e - e", DAT: "em er em en", GEN: "es er es er"},
    "weak": {NOM: "e e e en", ACC: "en e e en", DAT: "en en en en", GEN: "en en en en"},
    "mixed": {NOM: "er e es en", ACC: "en e es en", DAT: "en en en en", GEN: "en en en en"},
    "strong": {NOM: "er e es e", ACC: "en e es e", DAT: "em er em en", GEN: "en er en er"},
}
_CONTRACTIONS = {
    "in dem": "im",
    "in das": "ins",
    "zu dem": "zum",
    "zu der": "zur",
    "von dem": "vom",
}

_HABEN = ("habe", "hast", "hat", "haben")
_HATTE = ("hatte", "hattest", "hatte", "hatten")
_SEIN = ("bin", "bist", "ist", "sind")
_WAR = ("war", "warst", "war", "waren")
_WERDEN = ("werde", "wirst", "wird", "werden")
_WURDE = ("wurde", "wurdest", "wurde", "wurden")


def _cell(row: str, gender: str, plural: bool) -> str:
    """Picks the entry of a paradigm row for a gender, or for the plural."""
    ending = row.split()[3 if plural else "mfn".index(gender)]
    return "" if ending == "-" else ending


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


# --- noun phrases -------------------------------------------------------------------------------


def _noun(phrase: NounPhrase, case: Case) -> str:
    noun = phrase.noun
    if phrase.plural:
        takes_n = case is DAT and not noun.de_plural.endswith(("n", "s"))
        return noun.de_plural + "n" * takes_n
    if case is GEN or (noun.weak and case is not NOM):
        return noun.genitive
    return noun.de


def _determiner(phrase: NounPhrase, case: Case) -> str:
    determiner, gender = phrase.determiner, phrase.noun.gender
    if determiner.inflection == "definite":
        return _cell(_DEFINITE[case], gender, phrase.plural)
    if determiner.inflection == "fixed":
        return determiner.de
    endings = _ENDINGS[determiner.inflection]
    return determiner.de + _cell(endings[case], gender, phrase.plural)


def nominal(phrase: Nominal, case: Case) -> str:
    """Declines a noun phrase, name or pronoun; a relative clause brings its own commas."""
    if isinstance(phrase, Pronoun):
        return {NOM: phrase.nominative, ACC: phrase.accusative, DAT: phrase.dative}[case]
    if isinstance(phrase, Name):
        return phrase.text + ("s" if case is GEN else "")
    # "Annas altes Haus": a name in front replaces the determiner and leaves the adjective strong.
    name = phrase.owner if isinstance(phrase.owner, Name) else None
    first = nominal(name, GEN) if name else _determiner(phrase, case)
    adjective = ""
    if phrase.adjective:
        declension = _ENDINGS["strong" if name else phrase.determiner.adjective]
        ending = _cell(declension[case], phrase.noun.gender, phrase.plural)
        adjective = phrase.adjective.stem + ending
    genitive = nominal(phrase.owner, GEN) if phrase.owner and not name else ""
    text = _join(first, adjective, _noun(phrase, case), genitive)
    return f"{text}, {_relative(phrase, phrase.relative)}," if phrase.relative else text


def prepositional(phrase: PrepositionalPhrase) -> str:
    """Renders a prepositional phrase, contracting "in dem" to "im" and the like."""
    text = f"{phrase.preposition.de} {nominal(phrase.nominal, phrase.preposition.case)}"
    for full, short in _CONTRACTIONS.items():
        if text.startswith(full + " "):
            return short + text.removeprefix(full)
    return text


def _relative(head: NounPhrase, relative: Relative) -> str:
    clause, role = relative.clause, relative.role
    preposition: Preposition | None = None
    case = {"subject": NOM, "direct": ACC, "dative": DAT}.get(role)
    if case is None:
        assert clause.oblique is not None
        preposition = clause.oblique.preposition
        case = preposition.case
    pronoun = _cell(_RELATIVE[case], head.noun.gender, head.plural)
    introducer = f"{preposition.de} {pronoun}" if preposition else pronoun
    return subordinate(clause, introducer, gap=role)


# --- verbs --------------------------------------------------------------------------------------


def _person(forms: tuple[str, ...], subject: Nominal) -> str:
    """Picks from (ich, du, er, wir); in the German plural "wir" and "sie" agree alike."""
    return forms[3] if subject.plural else forms[subject.person - 1]


def _present(verb: Verb) -> tuple[str, str, str, str]:
    if verb.de == "sein":
        return _SEIN
    if not verb.third.endswith("t"):  # wissen: ich weiß, du weißt, er weiß
        return verb.third, verb.third + "t", verb.third, verb.de
    stem = verb.third.removesuffix("t")
    second = stem + ("t" if stem.endswith(("s", "ß", "z")) else "st")
    return verb.de.removesuffix("en") + "e", second, verb.third, verb.de


def _modal(modal: Modal) -> tuple[str, str, str, str]:
    first, second, plural = modal.de
    return first, second, first, plural


def _verb_group(clause: Clause) -> tuple[str, str]:
    """Returns the finite verb and what closes the clause (particle, participle, infinitive)."""
    verb, tense = clause.verb, clause.tense
    infinitive = verb.particle + verb.de
    if clause.passive:
        forms, tail = (_WERDEN if tense == "present" else _WURDE), verb.participle
    elif clause.modal:
        forms, tail = _modal(clause.modal), infinitive
    elif tense == "future":
        forms, tail = _WERDEN, infinitive
    elif tense == "present":
        forms, tail = _present(verb), verb.particle
    elif verb.de == "sein":  # everyday German keeps the simple past for "sein"
        forms, tail = _WAR, ""
    else:
        auxiliaries = (_HATTE, _WAR) if tense == "pluperfect" else (_HABEN, _SEIN)
        forms, tail = auxiliaries[verb.auxiliary == "sein"], verb.participle
    return _person(forms, clause.subject), tail


# --- clauses ------------------------------------------------------------------------------------


def _predicate(predicate: Predicate) -> str:
    adjective = predicate.adjective
    if predicate.standard is None:
        return _join(predicate.degree[0], adjective.de)
    return f"so {adjective.de}" if predicate.equal else adjective.de_comparative


def _standard(clause: Clause) -> str:
    """The standard of a comparison, which follows even a final verb ("... älter ist als er")."""
    predicate = clause.predicate
    if predicate is None or predicate.standard is None:
        return ""
    return f"{'wie' if predicate.equal else 'als'} {nominal(predicate.standard, NOM)}"


def _objects(clause: Clause) -> tuple[list[tuple[str, str]], ...]:
    """Groups the objects by where they stand: pronouns, definite phrases, the others."""
    pronouns, definite, rest = [], [], []
    for role, case, phrase in (("dative", DAT, clause.dative), ("direct", ACC, clause.direct)):
        if phrase is None:
            continue
        part = (role, nominal(phrase, case))
        if isinstance(phrase, Pronoun) or clause.verb.frame == "double" and role == "dative":
            pronouns.append(part)
        elif isinstance(phrase, Name) or phrase.definite:
            definite.append(part)
        else:
            rest.append(part)
    return pronouns, definite, rest


def _middle(clause: Clause) -> list[tuple[str, str]]:
    """Orders the parts between the two halves of the verb, each with its role."""
    pronouns, definite, rest = _objects(clause)
    parts = [("subject", nominal(clause.subject, NOM)), *pronouns]
    if clause.time:
        parts.append(("time", clause.time.de))
    parts += definite
    if clause.frequency:
        parts.append(("frequency", clause.frequency.de))
    parts += rest
    has_kein = isinstance(clause.direct, NounPhrase) and clause.direct.determiner is NO
    if clause.negated and not has_kein:
        parts.append(("negation", "nicht"))
    if clause.oblique:
        parts.append(("oblique", prepositional(clause.oblique)))
    if clause.place:
        parts.append(("place", prepositional(clause.place)))
    if clause.predicate:
        parts.append(("predicate", _predicate(clause.predicate)))
    return parts


def _without(parts: list[tuple[str, str]], gap: str) -> str:
    return _join(*(text for role, text in parts if role != gap))


def statement(clause: Clause, front: str = "subject") -> str:
    """Verb second: the part with role `front` comes first, then the finite verb."""
    parts = _middle(clause)
    finite, tail = _verb_group(clause)
    return _join(dict(parts)[front], finite, _without(parts, front), tail, _standard(clause))


def question(clause: Clause, word: str = "", gap: str = "") -> str:
    """Verb first, or second after a question word that fills the `gap`."""
    finite, tail = _verb_group(clause)
    return _join(word, finite, _without(_middle(clause), gap), tail, _standard(clause))


def subordinate(clause: Clause, introducer: str, gap: str = "") -> str:
    """Verb last; a separable particle joins its verb again ("weil er anruft")."""
    finite, tail = _verb_group(clause)
    joined = tail and tail == clause.verb.particle
    end = tail + finite if joined else _join(tail, finite)
    return _join(introducer, _without(_middle(clause), gap), end, _standard(clause))


def infinitive(clause: Clause, introducer: str = "") -> str:
    """An infinitive clause with "zu", which goes inside a separable verb ("anzurufen")."""
    verb = clause.verb
    end = f"{verb.particle}zu{verb.de}" if verb.particle else f"zu {verb.de}"
    return _join(introducer, _without(_middle(clause), "subject"), end)
