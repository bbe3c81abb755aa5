"""The function words of the sample: determiners, prepositions, modals and adverbs."""

from __future__ import annotations

from sample_lexicon import Adverb, Case, Determiner, Modal, Preposition

THE = Determiner("", "definite", "weak", "the", "the", "sp")
A = Determiner("ein", "ein", "mixed", "a", "", "s")
BARE = Determiner("", "fixed", "strong", "", "", "p")
NO = Determiner("kein", "ein", "mixed", "a", "any", "sp")  # English negates the verb instead
WHICH = Determiner("welch", "der", "weak", "which", "which", "sp")
THIS = Determiner("dies", "der", "weak", "this", "these", "sp")
EVERY = Determiner("jed", "der", "weak", "every", "", "s")
POSSESSIVES = [
    Determiner(de, "ein", "mixed", en, en, "sp")
    for de, en in (("mein", "my"), ("dein", "your"), ("unser", "our"))
]
QUANTIFIERS = [
    Determiner("viel", "der", "strong", "", "many", "p"),
    Determiner("einig", "der", "strong", "", "some", "p"),
]
NUMERALS = [
    Determiner(de, "fixed", "strong", "", en, "p")
    for de, en in (
        ("zwei", "two"),
        ("drei", "three"),
        ("vier", "four"),
        ("fünf", "five"),
        ("sechs", "six"),
        ("zehn", "ten"),
        ("zwölf", "twelve"),
        ("zwanzig", "twenty"),
    )
]

PREPOSITIONS = {
    "auf": Preposition("auf", Case.ACC, "for"),  # with "warten" only
    "an": Preposition("an", Case.ACC, "of"),  # with "denken" only
    "mit": Preposition("mit", Case.DAT, "with"),
    "von": Preposition("von", Case.DAT, "of"),  # with "träumen" only
    "über": Preposition("über", Case.ACC, "at"),  # with "lachen" only
    "in": Preposition("in", Case.ACC, "into"),
    "durch": Preposition("durch", Case.ACC, "through"),
    "zu": Preposition("zu", Case.DAT, "to"),
    "aus": Preposition("aus", Case.DAT, "out of"),
}
BY = Preposition("von", Case.DAT, "by")  # the agent of a passive
LOCATIONS = [
    Preposition("in", Case.DAT, "in"),
    Preposition("vor", Case.DAT, "in front of"),
    Preposition("hinter", Case.DAT, "behind"),
    Preposition("neben", Case.DAT, "next to"),
]
COMPANIONS = [
    Preposition("mit", Case.DAT, "with"),
    Preposition("ohne", Case.ACC, "without"),
    Preposition("für", Case.ACC, "for"),
]

MODALS = [
    Modal(("kann", "kannst", "können"), "can", "present", True),
    Modal(("muss", "musst", "müssen"), "must", "present", False),
    Modal(("will", "willst", "wollen"), "want to", "present", True),
    Modal(("soll", "sollst", "sollen"), "should", "present", True),
    Modal(("konnte", "konntest", "konnten"), "could", "past", True),
    Modal(("musste", "musstest", "mussten"), "had to", "past", False),
    Modal(("wollte", "wolltest", "wollten"), "wanted to", "past", True),
]

_ANY = frozenset({"present", "past", "future"})
TIMES = [
    Adverb("heute", "today", _ANY),
    Adverb("am Abend", "in the evening", _ANY),
    Adverb("am Sonntag", "on Sunday", _ANY),
    Adverb("am Montag", "on Monday", _ANY),
    Adverb("jeden Tag", "every day", frozenset({"present", "past"})),
    Adverb("im Sommer", "in summer", _ANY),
    Adverb("gestern", "yesterday", frozenset({"past"})),
    Adverb("letzte Woche", "last week", frozenset({"past"})),
    Adverb("morgen", "tomorrow", frozenset({"future"})),
    Adverb("nächste Woche", "next week", frozenset({"future"})),
]
FREQUENCIES = [
    Adverb("oft", "often", _ANY),
    Adverb("immer", "always", _ANY),
    Adverb("nie", "never", _ANY),
    Adverb("manchmal", "sometimes", _ANY),
]
DEGREES = [("", ""), ("sehr", "very"), ("zu", "too")]
