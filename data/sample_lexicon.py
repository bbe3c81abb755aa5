"""The lexicon of the sample: nouns, verbs, adjectives and function words in both languages.

The tables are text because a table is the easiest form to proof-read; `parse` functions below turn
each row into a frozen dataclass. Every German entry has exactly one English translation, so that
the English of a sentence is a function of the German.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Case(Enum):
    """The German cases."""

    NOM = "nominative"
    ACC = "accusative"
    DAT = "dative"
    GEN = "genitive"


@dataclass(frozen=True)
class Noun:
    """A countable noun; `gender` is m, f or n and `kinds` says where its meaning lets it stand."""

    kinds: frozenset[str]
    gender: str
    de: str
    de_plural: str
    genitive: str
    en: str
    en_plural: str

    @property
    def weak(self) -> bool:
        """Whether the noun takes -n in every case but the nominative (der Junge, den Jungen)."""
        return self.gender == "m" and self.genitive.endswith("n") and self.de != self.genitive


@dataclass(frozen=True)
class Verb:
    """A verb with its German and English principal parts and the kinds of noun it combines with.

    `frame` names the complements: direct (accusative), dative, double (dative and accusative),
    oblique (prepositional object), bare (none), motion (direction), that, whether, to (clauses).
    """

    frame: str
    particle: str
    de: str
    third: str
    participle: str
    auxiliary: str
    en: str
    en_past: str
    en_participle: str
    subjects: frozenset[str]
    objects: frozenset[str]
    preposition: str = ""
    passive: bool = False


@dataclass(frozen=True)
class Adjective:
    """An adjective: `stem` takes the endings, `de` and the comparatives stand in predicates."""

    kinds: frozenset[str]
    de: str
    stem: str
    de_comparative: str
    en: str
    en_comparative: str


@dataclass(frozen=True)
class Determiner:
    """A determiner; `inflection` is definite, der, ein or fixed, `adjective` the class after it."""

    de: str
    inflection: str
    adjective: str
    en: str
    en_plural: str
    numbers: str  # "s" and/or "p": the numbers it can stand in


@dataclass(frozen=True)
class Preposition:
    """A preposition in one meaning, with the case it governs in that meaning."""

    de: str
    case: Case
    en: str


@dataclass(frozen=True)
class Modal:
    """A modal in one tense; `en` with a final " to" is an ordinary verb, otherwise an auxiliary."""

    de: tuple[str, str, str]  # first and third person singular, second singular, plural
    en: str
    tense: str
    negatable: bool  # "muss nicht" is not "must not", so that pair is left out


@dataclass(frozen=True)
class Adverb:
    """An adverb of time or frequency; `tenses` limits those that name a time."""

    de: str
    en: str
    tenses: frozenset[str]


_NOUNS = """
person stranger      | der Mann, Männer, Mannes              | man, men
person stranger      | die Frau, Frauen, Frau                | woman, women
person               | das Kind, Kinder, Kindes              | child, children
person stranger      | das Mädchen, Mädchen, Mädchens        | girl
person stranger      | der Junge, Jungen, Jungen             | boy
person               | der Lehrer, Lehrer, Lehrers           | teacher
person               | die Ärztin, Ärztinnen, Ärztin         | doctor
person               | der Nachbar, Nachbarn, Nachbarn       | neighbour
person               | der Student, Studenten, Studenten     | student
person               | der Kollege, Kollegen, Kollegen       | colleague
person               | die Freundin, Freundinnen, Freundin   | friend
person               | der Bäcker, Bäcker, Bäckers           | baker
person               | der Gärtner, Gärtner, Gärtners        | gardener
person               | die Königin, Königinnen, Königin      | queen
person               | der Soldat, Soldaten, Soldaten        | soldier
person               | die Schwester, Schwestern, Schwester  | sister
person               | der Bruder, Brüder, Bruders           | brother
person               | die Mutter, Mütter, Mutter            | mother
person               | der Vater, Väter, Vaters              | father
person               | die Tochter, Töchter, Tochter         | daughter
person               | der Sohn, Söhne, Sohnes               | son
person               | der Gast, Gäste, Gastes               | guest
person               | die Sängerin, Sängerinnen, Sängerin   | singer
person               | die Richterin, Richterinnen, Richterin | judge
animal own           | der Hund, Hunde, Hundes               | dog
animal own           | die Katze, Katzen, Katze              | cat
animal own           | das Pferd, Pferde, Pferdes            | horse
animal own           | der Vogel, Vögel, Vogels              | bird
food own             | der Apfel, Äpfel, Apfels              | apple
food own             | die Suppe, Suppen, Suppe              | soup
food own             | der Kuchen, Kuchen, Kuchens           | cake
food own             | das Ei, Eier, Eies                    | egg
food own             | die Birne, Birnen, Birne              | pear
food own             | die Tomate, Tomaten, Tomate           | tomato, tomatoes
text work own        | das Buch, Bücher, Buches              | book
text work own        | der Brief, Briefe, Briefes            | letter
text own             | die Zeitung, Zeitungen, Zeitung       | newspaper
text work own        | der Roman, Romane, Romans             | novel
text work own        | das Gedicht, Gedichte, Gedichtes      | poem
thing own            | der Schlüssel, Schlüssel, Schlüssels  | key
thing opening own    | die Tasche, Taschen, Tasche           | bag
thing device own     | der Stuhl, Stühle, Stuhles            | chair
thing device own     | die Lampe, Lampen, Lampe              | lamp
thing own            | das Bild, Bilder, Bildes              | picture
thing device own     | die Uhr, Uhren, Uhr                   | clock
thing opening own    | der Koffer, Koffer, Koffers           | suitcase
thing opening own    | die Flasche, Flaschen, Flasche        | bottle
thing own            | das Messer, Messer, Messers           | knife, knives
thing own            | der Ball, Bälle, Balles               | ball
clothing own         | der Mantel, Mäntel, Mantels           | coat
clothing own         | der Hut, Hüte, Hutes                  | hat
clothing own         | das Kleid, Kleider, Kleides           | dress
clothing own         | das Hemd, Hemden, Hemdes              | shirt
fixture opening device | das Fenster, Fenster, Fensters      | window
fixture opening device | die Tür, Türen, Tür                 | door
vehicle device own   | das Auto, Autos, Autos                | car
vehicle device own   | das Fahrrad, Fahrräder, Fahrrades     | bicycle
place                | der Garten, Gärten, Gartens           | garden
place                | die Küche, Küchen, Küche              | kitchen
place                | der Park, Parks, Parks                | park
place                | die Schule, Schulen, Schule           | school
place                | die Kirche, Kirchen, Kirche           | church
place                | das Museum, Museen, Museums           | museum
place                | der Bahnhof, Bahnhöfe, Bahnhofs       | station
place                | das Haus, Häuser, Hauses              | house
place                | der Wald, Wälder, Waldes              | forest
place                | das Hotel, Hotels, Hotels             | hotel
"""

# frame | infinitive (particle split off), third person, participle | auxiliary
#       | English base[, past, participle] | subjects | objects | preposition or "passive"
_VERBS = """
direct | kaufen, kauft, gekauft             | haben | buy, bought, bought   | person | food text thing clothing vehicle animal | passive
direct | verkaufen, verkauft, verkauft      | haben | sell, sold, sold      | person | food text thing clothing vehicle animal | passive
direct | suchen, sucht, gesucht             | haben | look for              | person animal | person animal thing text clothing place |
direct | finden, findet, gefunden           | haben | find, found, found    | person animal | person animal thing text clothing place | passive
direct | sehen, sieht, gesehen              | haben | see, saw, seen        | person animal | person animal thing vehicle place fixture | passive
direct | malen, malt, gemalt                | haben | paint                 | person | person animal thing place vehicle | passive
direct | lesen, liest, gelesen              | haben | read, read, read      | person | text | passive
direct | schreiben, schreibt, geschrieben   | haben | write, wrote, written | person | work | passive
direct | essen, isst, gegessen              | haben | eat, ate, eaten       | person | food | passive
direct | probieren, probiert, probiert      | haben | taste                 | person | food |
direct | öffnen, öffnet, geöffnet           | haben | open                  | person | opening | passive
direct | schließen, schließt, geschlossen   | haben | close                 | person | opening | passive
direct | tragen, trägt, getragen            | haben | wear, wore, worn      | person | clothing | passive
direct | waschen, wäscht, gewaschen         | haben | wash                  | person | clothing vehicle animal | passive
direct | besuchen, besucht, besucht         | haben | visit                 | person | person place | passive
direct | kennen, kennt, gekannt             | haben | know, knew, known     | person | person place text |
direct | lieben, liebt, geliebt             | haben | love                  | person | person animal place |
direct | begrüßen, begrüßt, begrüßt         | haben | greet                 | person | person | passive
direct | reparieren, repariert, repariert   | haben | repair                | person | device | passive
direct | brauchen, braucht, gebraucht       | haben | need                  | person | food thing text clothing vehicle |
direct | verlieren, verliert, verloren      | haben | lose, lost, lost      | person | thing text clothing |
direct | an rufen, ruft, angerufen          | haben | call                  | person | person | passive
direct | ein laden, lädt, eingeladen        | haben | invite                | person | person | passive
direct | ab holen, holt, abgeholt           | haben | collect               | person | person thing vehicle | passive
direct | an ziehen, zieht, angezogen        | haben | put on, put on, put on | person | clothing |
direct | weg werfen, wirft, weggeworfen     | haben | throw away, threw away, thrown away | person | food text thing | passive
direct | ein packen, packt, eingepackt      | haben | pack                  | person | clothing thing text | passive
dative | helfen, hilft, geholfen            | haben | help                  | person | person animal |
dative | danken, dankt, gedankt             | haben | thank                 | person | person |
dative | folgen, folgt, gefolgt             | sein  | follow                | person animal | person animal |
dative | vertrauen, vertraut, vertraut      | haben | trust                 | person | person |
dative | zu hören, hört, zugehört           | haben | listen to             | person | person |
dative | antworten, antwortet, geantwortet  | haben | answer                | person | person |
double | geben, gibt, gegeben               | haben | give, gave, given     | person | food text thing clothing |
double | zeigen, zeigt, gezeigt             | haben | show, showed, shown   | person | text thing clothing vehicle animal place |
double | schicken, schickt, geschickt       | haben | send, sent, sent      | person | text thing clothing |
double | bringen, bringt, gebracht          | haben | bring, brought, brought | person | food text thing clothing |
oblique | warten, wartet, gewartet          | haben | wait                  | person animal | person | auf
oblique | denken, denkt, gedacht            | haben | think, thought, thought | person | person animal place | an
oblique | sprechen, spricht, gesprochen     | haben | speak, spoke, spoken  | person | person | mit
oblique | träumen, träumt, geträumt         | haben | dream                 | person | person animal place vehicle | von
oblique | lachen, lacht, gelacht            | haben | laugh                 | person | person animal | über
bare   | schlafen, schläft, geschlafen      | haben | sleep, slept, slept   | person animal | |
bare   | arbeiten, arbeitet, gearbeitet     | haben | work                  | person | |
bare   | tanzen, tanzt, getanzt             | haben | dance                 | person | |
bare   | singen, singt, gesungen            | haben | sing, sang, sung      | person | |
bare   | auf stehen, steht, aufgestanden    | sein  | get up, got up, got up | person | |
bare   | ein schlafen, schläft, eingeschlafen | sein | fall asleep, fell asleep, fallen asleep | person animal | |
motion | gehen, geht, gegangen              | sein  | go, went, gone        | person | place | in durch zu
motion | laufen, läuft, gelaufen            | sein  | run, ran, run         | person animal | place | in durch zu
motion | kommen, kommt, gekommen            | sein  | come, came, come      | person animal | place | aus
that   | wissen, weiß, gewusst              | haben | know, knew, known     | person | |
that   | glauben, glaubt, geglaubt          | haben | believe               | person | |
that   | sagen, sagt, gesagt                | haben | say, said, said       | person | |
whether | fragen, fragt, gefragt            | haben | ask                   | person | |
to     | versuchen, versucht, versucht      | haben | try                   | person | |
to     | vergessen, vergisst, vergessen     | haben | forget, forgot, forgotten | person | |
to     | beschließen, beschließt, beschlossen | haben | decide              | person | |
"""  # noqa: E501

_ADJECTIVES = """
person animal thing text clothing place vehicle | alt, älter             | old, older
person animal                                   | jung, jünger           | young, younger
person animal thing food clothing place vehicle fixture | klein, kleiner | small, smaller
person animal thing food clothing place vehicle fixture | groß, größer   | big, bigger
thing text clothing vehicle place fixture       | neu, neuer             | new, newer
thing clothing place vehicle animal             | schön, schöner         | beautiful, more beautiful
thing clothing vehicle food text                | teuer, teurer          | expensive, more expensive
thing clothing vehicle food text                | billig, billiger       | cheap, cheaper
thing clothing vehicle fixture                  | rot                    | red
thing clothing vehicle fixture                  | blau                   | blue
animal thing clothing vehicle                   | schwarz                | black
animal clothing fixture                         | weiß                   | white
person animal                                   | müde, müder            | tired, more tired
person                                          | glücklich, glücklicher | happy, happier
person                                          | traurig, trauriger     | sad, sadder
person                                          | freundlich, freundlicher | friendly, friendlier
person animal                                   | klug, klüger           | clever, cleverer
person animal                                   | stark, stärker         | strong, stronger
person                                          | reich, reicher         | rich, richer
person                                          | arm, ärmer             | poor, poorer
person animal                                   | krank                  | sick
text                                            | lang, länger           | long, longer
text                                            | kurz, kürzer           | short, shorter
food                                            | frisch, frischer       | fresh, fresher
"""

_GENDERS = {"der": "m", "die": "f", "das": "n"}
_ADJECTIVE_STEMS = {"teuer": "teur", "müde": "müd"}


def _rows(table: str) -> list[list[str]]:
    """Splits a table into rows of stripped cells."""
    return [[cell.strip() for cell in line.split("|")] for line in table.strip().splitlines()]


def _kinds(cell: str) -> frozenset[str]:
    return frozenset(cell.split())


def _list(cell: str) -> list[str]:
    return [item.strip() for item in cell.split(",")]


def _past(en: str) -> str:
    """Regular English past tense; of a phrasal verb, the first word changes."""
    head, *rest = en.split()
    if head.endswith("e"):
        head += "d"
    elif head.endswith("y") and head[-2] not in "aeiou":
        head = head[:-1] + "ied"
    else:
        head += "ed"
    return " ".join([head, *rest])


def _parse_noun(row: list[str]) -> Noun:
    german, english = row[1], _list(row[2])
    article, forms = german.split(maxsplit=1)
    singular, plural, genitive = _list(forms)
    en_plural = english[1] if len(english) > 1 else _add_s(english[0])
    return Noun(
        _kinds(row[0]), _GENDERS[article], singular, plural, genitive, english[0], en_plural
    )


def _add_s(en: str) -> str:
    """Regular English plural (also the third person singular of verbs)."""
    if en.endswith(("s", "sh", "ch", "x", "z", "o")):
        return en + "es"
    if en.endswith("y") and en[-2] not in "aeiou":
        return en[:-1] + "ies"
    return en + "s"


third_person = _add_s


def _parse_verb(row: list[str]) -> Verb:
    frame, german, auxiliary, english, subjects, objects, *extra = row
    infinitive, third, participle = _list(german)
    particle, _, stem = infinitive.rpartition(" ")
    parts = _list(english)
    past, past_participle = parts[1:] if len(parts) == 3 else [_past(parts[0])] * 2
    note = extra[0] if extra else ""
    return Verb(
        frame,
        particle,
        stem,
        third,
        participle,
        auxiliary,
        parts[0],
        past,
        past_participle,
        _kinds(subjects),
        _kinds(objects),
        "" if note == "passive" else note,
        note == "passive",
    )


def _parse_adjective(row: list[str]) -> Adjective:
    german, english = _list(row[1]), _list(row[2])
    comparative = german[1] if len(german) > 1 else ""
    en_comparative = english[1] if len(english) > 1 else ""
    stem = _ADJECTIVE_STEMS.get(german[0], german[0])
    return Adjective(_kinds(row[0]), german[0], stem, comparative, english[0], en_comparative)


NOUNS = [_parse_noun(row) for row in _rows(_NOUNS)]
VERBS = [_parse_verb(row) for row in _rows(_VERBS)]
ADJECTIVES = [_parse_adjective(row) for row in _rows(_ADJECTIVES)]
NAMES = ["Anna", "Clara", "David", "Eva", "Julia", "Lena", "Martin", "Paul", "Peter", "Simon"]

COPULA = Verb(
    "predicate", "", "sein", "ist", "gewesen", "sein", "be", "was", "been", frozenset(), frozenset()
)
