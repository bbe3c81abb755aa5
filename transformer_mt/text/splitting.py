"""Lines that are longer than a model's training sentences, split into parts that it can translate.

A model that was trained on single sentences translates one sentence of several, and leaves out the
others without a word.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache
from itertools import accumulate, chain, pairwise, takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from transformer_mt.config.keys import DataConfig
from transformer_mt.system.files import read_packaged
from transformer_mt.text.languages import language_code
from transformer_mt.text.vocabulary import WORD_MARK, SentencePieceModel

Part = list[int] | str  # ids to translate, or text to copy

_MOST_SYMBOLS = 8
"""Symbols of a line that are repeated before each of its parts."""
SINGLE_SENTENCES = 0.01
"""Below this share of training lines with several sentences, every sentence is a part."""
_RARE_SENTENCES, _RARE_LINES = 0.1, 5_000
"""Below this share, too, if there are fewer such lines: a model does not learn from 60 of 5,000 to
translate more than one sentence."""
CHANGED_WORDLESS = 0.001
"""Up to this share of training lines without words that change, such lines are copied."""
PERCENTILE = 99.9

_ENDS = ".!?…‼⁇⁈⁉"
_AFTER_END = re.compile(r"(?:\[\w{1,4}\]|</\w{1,9}>|[⁰¹²³⁴-⁹]|[^\w,;:\-–—/&+=%])*+")
"""What may be attached to the end of a sentence: quotes, brackets, notes, tags, smileys."""
_OPENING = "\"'„“‚‘»«‹([¿¡-–—"
_UNSPACED_ENDS = "。｡！？।॥။។៕።፧؟᠃᱾꯫"
"""No space need follow these, and they have no other meaning."""
_POINTS = "．۔։"
"""No space need follow these either, but between digits they belong to a number or a time."""
_KANA_HAN = "[\u3040-\u30ff\u3400-\u9fff]"
_POSSIBLE_END = re.compile(
    rf"[{_ENDS}][^{_ENDS} ]*+ |[{_UNSPACED_ENDS}{_POINTS}].|{_KANA_HAN}[!?]."
)
_UNSPACED_SENTENCE = re.compile(
    rf".*?(?:[{_UNSPACED_ENDS}]|(?<!\d)[{_POINTS}]|[{_POINTS}](?!\d)|(?<={_KANA_HAN})[!?]+)++"
    # A comma, or the particle of a Japanese quotation, goes on with the sentence.
    r"[.!?…”’»」』】）)\]}》〉]*+(?![，、；：,،؛])(?!(?<=[」』”])(?:と|って))"
    r"(?:[\"']+(?= |\Z))? ?|.+"
)
_QUOTED_END = re.compile(rf"[`'\"„“‚‘(\[{{]+[{_ENDS}]+")
_DASHES = "-", "--", "–", "—"
_CONTINUING = tuple(")]}.,:;!?&/+=%|")  # no sentence begins with these
_SIGN = re.compile(r"(?![,;:&+/=%]\Z|[«“‘]+\Z)[^\w.!?…‼⁇⁈⁉]+")
"""A dash, a smiley or other signs between two sentences, but no quote that may open or close."""
_CLOSING_SIGN = re.compile("[\"'”’»)\\]]+|[:;=].+|[\U0001f000-\U0001ffff☺❤♥\ufe0f\u200d]+")
"""Belongs to the sentence before it: a quote, a bracket, a smiley."""
_LETTERS = re.compile(r"(?!I$)[^\W\d_]|(?![ap]\.m$)[^\W\d_]{1,2}(\.[^\W\d_]{1,2})+")
"""An initial, but for the English "I", or letters with points, such as "z.B" and "U.S"."""
_HANGUL = re.compile("[가-힣]")
_THAI_POINT = re.compile("[\u0e01-\u0e4e]\\.\\Z")
_COMPOUND = re.compile(r"\A(?:.+-|.+(?=(?:str|nr)\Z))")
_ORDINAL_LANGUAGES = frozenset("bs cs da de et fi hr hu is lb lv nb nn no pl sk sl sr tr".split())
"""Languages in which "2." and "II." are ordinals."""
_LISTS = tomllib.loads(read_packaged(__package__, "abbreviations.toml"))
# Only Latin, Greek and Cyrillic letters: in other scripts a sentence may follow without a space.
_ADDRESS = re.compile(r"\W*+(\w++://|www\.|mailto:|[\w.+-]++@\w)[!-~À-ɏͰ-ԯḀ-ỿ\W]+", re.IGNORECASE)
_LATER_BYTE = re.compile("<0x[89AB][0-9A-F]>")
"""A byte of UTF-8 that begins no character."""
_CLAUSE_END = re.compile(r"(?<=[;:,،؛፣፤–—]\s)|(?<=[；：，、])")


@dataclass(frozen=True)
class SourceStatistics:
    """What the source side of a training text looks like; it decides how lines are split.

    Attributes:
        longest: Pieces of the longest line.
        percentile: Pieces that 99.9% of the lines do not exceed.
        several_sentences: Share of lines with the end of a sentence inside.
        changed_wordless: Share of lines without words whose translation differs; 0 if an earlier
            version made the checkpoint.
        lines: Number of lines; 0 likewise.
    """

    longest: int
    percentile: int
    several_sentences: float
    changed_wordless: float = 0.0
    lines: int = 0

    @classmethod
    def measure(
        cls, lengths: npt.NDArray[np.int64], several_sentences: int, changed_wordless: int
    ) -> "SourceStatistics":
        """Computes them from the pieces of each line, (N,), and the numbers of such lines."""
        n, percentile = len(lengths), int(np.percentile(lengths, PERCENTILE, method="higher"))
        return cls(int(lengths.max()), percentile, several_sentences / n, changed_wordless / n, n)

    @classmethod
    def combine(
        cls, choose: Callable[..., Any], texts: Iterable["SourceStatistics | None"]
    ) -> "SourceStatistics | None":
        """Chooses each value from those of several texts, by `max` or `min`, if any is known.

        The share of lines of several sentences and the number of lines are those of one text:
        chosen separately, they could say that the model has learned to translate such lines.
        """
        known = [text for text in texts if text]
        if not known:
            return None
        values = cls(*map(choose, zip(*map(astuple, known), strict=True)))
        text = choose(known, key=lambda x: (not x.is_single_sentences, x.several_sentences))
        return replace(values, several_sentences=text.several_sentences, lines=text.lines)

    @property
    def is_single_sentences(self) -> bool:
        """Whether a model trained on such lines may translate only one sentence of several."""
        share, count = self.several_sentences, self.several_sentences * self.lines
        is_rare = share < _RARE_SENTENCES and 0 < count < _RARE_LINES
        return is_rare or share < SINGLE_SENTENCES


def leading_symbols(symbols: Sequence[str]) -> re.Pattern[str]:
    """Makes a pattern of the symbols at the beginning of a line, up to the text after them.

    They are repeated before each part of a line, so more of them than a line needs are text.
    """
    any_symbol = "|".join(map(re.escape, symbols)) or "(?!)"
    return re.compile(rf"\A(?:\s*(?:{any_symbol})\s++(?=\S)){{1,{_MOST_SYMBOLS}}}")


def has_words(text: str) -> bool:
    """Returns whether a text has a letter outside of web and e-mail addresses."""
    words = (word for word in text.split() if any(map(str.isalpha, word)))
    return not all(map(_ADDRESS.fullmatch, words))


def split_sentences(text: str, language: str) -> list[str]:
    """Splits text into sentences, which joined give the text again, in linear time.

    What has no words is no sentence, but belongs to the one before it, or else to the next.

    Args:
        text: Words separated by single spaces.
        language: Code of the language, such as de.
    """
    code = language_code(language)
    if code == "el" and ";" in text:  # the question mark of Greek
        ends = accumulate(map(len, split_sentences(text.replace(";", "?"), language)), initial=0)
        return [text[begin:end] for begin, end in pairwise(ends)]
    if not _POSSIBLE_END.search(text):  # as in most lines
        return [text] if text else []
    parts = _UNSPACED_SENTENCE.findall(text)
    return _join_wordless(chain.from_iterable(_split_at_spaces(part, code) for part in parts))


def _split_at_spaces(text: str, language: str) -> list[str]:
    """Splits text into sentences that are separated by spaces, which stay at their ends.

    Whether a sentence ends at an end mark is decided at the next word that is more than a dash or
    other signs.
    """
    words = text.split(" ")
    # At the beginning of words: addresses, hashtags and names of users have others.
    has_capitals = any(word.lstrip(_OPENING)[:1].isupper() for word in words)
    # The sentence begins at words[start]. It may end with words[end - 1] if `last` is set, which is
    # that word up to its end mark.
    sentences, start, end, last, has_word = list[str](), 0, 0, "", False
    for place, word in enumerate(words):
        is_sign = _SIGN.fullmatch(word) or (word == "«" and language == "fr")
        if last and not is_sign:
            first = word.lstrip(_OPENING)[:1]
            # In a text without capitals, any word may begin a sentence, and in Georgian always.
            is_lower = has_capitals and first != first.title()
            begins = first and not is_lower and not word.startswith(_CONTINUING)
            before, signs = words[end - 2] if end > start + 1 else "", words[end:place]
            if begins and _is_end(before, last, word, language, signs):
                end += sum(1 for _ in takewhile(_CLOSING_SIGN.fullmatch, signs))
                sentences.append(" ".join(words[start:end]) + " ")
                start, has_word = end, False
            last = ""
        has_word = has_word or has_words(word)
        if has_word and (ending := _end_of(word)):
            last, end = ending, place + 1
    return [*sentences, " ".join(words[start:])]


def _end_of(word: str) -> str:
    """Returns a word up to its end mark, empty if it does not end in one."""
    end = max(map(word.rfind, _ENDS)) + 1
    is_quoted = word[end:] and _QUOTED_END.fullmatch(word, 0, end)
    return word[:end] if _AFTER_END.fullmatch(word, end) and not is_quoted else ""


def _is_end(before: str, word: str, following: str, language: str, signs: Sequence[str]) -> bool:
    """Returns whether a word with an end mark ends a sentence if what follows may begin another.

    Args:
        before: The word before it in the same sentence, if any.
        word: Ends in the mark.
        following: The next word.
        language: Its two letters.
        signs: What stands between them, such as a dash.
    """
    if not word.endswith(".") or word.endswith(".."):
        return True
    if _THAI_POINT.search(word):  # of an abbreviation
        return False
    stem, following = word[:-1].lstrip(_OPENING), following.lstrip(_OPENING)
    next_word = re.split(r"[\W\d_]", following, maxsplit=1)[0]
    # "MS" is not the title "Ms", except in text of capitals; of compounds, the last part counts.
    is_acronym = stem.isupper() and not next_word[1:].isupper()
    spellings = {stem} if is_acronym else {stem, stem.lower(), _COMPOUND.sub("", stem.lower())}
    is_word = before and _HANGUL.match(stem)  # at the beginning, a syllable numbers a list
    is_initial, starters = not is_word and _LETTERS.fullmatch(stem), _listed("starters", language)
    if len(stem) == 1 and stem.islower() and before[-1:].isdigit():  # a unit, such as "5 m."
        return next_word in starters or not starters
    if (
        (language in _ORDINAL_LANGUAGES and re.fullmatch(r"\d{1,3}|[IVX]+", stem))
        or (is_initial and stem[0].isupper() and ("." in stem or before[-1:] not in ("", ".")))
        or not spellings.isdisjoint(_listed("may_end", language))
    ):
        return next_word in starters
    never, is_range = _listed("within", language), "".join(signs) in _DASHES
    if following[0].isdigit() or is_range:
        never |= _listed("before_numbers", language)
    if is_range and (following[0].isdigit() or len(stem) < 3):  # "Mo. – Fr.", "a.m. – 5 p.m."
        return False
    return not is_initial and spellings.isdisjoint(never)


@cache
def _listed(name: str, language: str) -> frozenset[str]:
    """Returns the words of a list of abbreviations.toml that hold for a language."""
    return frozenset(f"{_LISTS[name].get('any', '')} {_LISTS[name].get(language, '')}".split())


def _join_wordless(texts: Iterable[str]) -> list[str]:
    """Joins each text without words to the one before it, and the first of them to the next."""
    joined, has_word = [list[str]()], False
    for text in texts:
        if has_words(text):
            if has_word:
                joined.append([])
            has_word = True
        joined[-1].append(text)
    return ["".join(each) for each in joined]


class LineSplitter:
    """Splits lines of text into the parts that a model translates, each a list of piece ids.

    A line is split at the end of every sentence if the training lines were single sentences.
    Otherwise, and if a sentence is longer than nearly all training lines, as few parts as
    possible are made: at ends of sentences, else of clauses. Text without such marks is split at
    words, and within a word if need be, but only above the length limit of training.

    What has no words is copied, not translated, unless the training text says otherwise.

    Args:
        model: The source vocabulary.
        data: Language and length limit of the training text.
        statistics: Those of the training text; None if an earlier version made the checkpoint.
        max_length: Replaces the limit of training and the usual length, in pieces.
        split: `auto`; `long` never splits what is shorter than nearly all training lines, `never`
            nothing within the length limit.
        symbols: Those at the beginning of a line, such as the language to translate to, stand
            before each of its parts.
    """

    def __init__(
        self,
        model: SentencePieceModel,
        data: DataConfig,
        statistics: SourceStatistics | None = None,
        max_length: int | None = None,
        split: str = "auto",
        symbols: Sequence[str] = (),
    ) -> None:
        self._symbols = leading_symbols(symbols)
        self._model, self._language = model, data.src_lang
        self._unknown = frozenset(model.unknown_ids())
        statistics = statistics or SourceStatistics(data.max_length, data.max_length, 1.0)
        # The longest line may be of text before this one.
        self.max_length = max_length or max(data.max_length, statistics.longest)
        usual = self.max_length if max_length or split == "never" else statistics.percentile
        self.usual_length = min(usual, self.max_length)
        self.splits_every_sentence = split == "auto" and statistics.is_single_sentences
        self.copies_wordless = statistics.changed_wordless <= CHANGED_WORDLESS

    def describe(self) -> str:
        """Says where lines are split, to complete "splits lines"."""
        usual = f"of more than {self.usual_length} pieces"
        sentences = (
            "after every sentence" if self.splits_every_sentence else f"{usual} into sentences"
        )
        return (
            f"{sentences}, a sentence {usual} into clauses, and what has more than"
            f" {self.max_length} pieces after a word"
        )

    def split(self, lines: Sequence[str]) -> list[list[Part]]:
        """Splits lines into parts; an empty line has none."""
        rests = [self._symbols.sub("", line) for line in lines]
        symbols = self._model.encode(
            [line.removesuffix(rest) for line, rest in zip(lines, rests, strict=True)]
        )
        parts = [
            split_sentences(self._model.fold(line), self._language)
            if self.splits_every_sentence and has_words(line)
            else [line]
            for line in rests
        ]
        encoded = iter(self._model.encode(list(chain.from_iterable(parts))))
        return [
            [
                part if isinstance(part, str) else before + part
                for text in line
                for part in self._shorten(text, next(encoded))
            ]
            for before, line in zip(symbols, parts, strict=True)
        ]

    def _shorten(self, text: str, ids: list[int]) -> list[Part]:
        """Splits a text longer than usual; copies one without words; an empty one has no parts."""
        if self.copies_wordless and ids and not has_words(text):
            return [re.sub(r"[\n\r\t]", " ", text.rstrip("\r\n"))]
        if len(ids) <= self.usual_length:
            return [ids] if ids else []
        sentences = self._join(split_sentences(self._model.fold(text), self._language))
        # A part of a few words lacks context.
        shortest = self.usual_length // 4
        parts = [
            part
            for sentence in sentences
            for part in self._join(_join_wordless(_CLAUSE_END.split(sentence)), shortest)
        ]
        encoded = filter(None, self._model.encode(parts))
        return [row for part_ids in encoded for row in self._cut(part_ids)]

    def _join(self, units: Sequence[str], shortest: int = 0) -> list[str]:
        """Joins neighbours into as few texts as keep within the usual length, if they can.

        No text but the last has fewer pieces than `shortest`.
        """
        texts, length = [list[str]()], 0
        for unit, ids in zip(units, self._model.encode(units), strict=True):
            if length + len(ids) > self.usual_length and length > shortest:
                texts.append([])
                length = 0
            texts[-1].append(unit)
            length += len(ids)
        return ["".join(text) for text in texts]

    def _cut(self, ids: list[int]) -> list[Part]:
        """Cuts ids at `max_length`: before a word, or between characters of one that is longer."""
        rows, start, pieces = list[list[int]](), 0, self._model.pieces(ids)
        while len(ids) - start > self.max_length:
            longest = start + self.max_length
            places = range(longest, start, -1)
            words = (i for i in places if pieces[i].startswith(WORD_MARK))
            characters = (i for i in places if not _LATER_BYTE.fullmatch(pieces[i]))
            end = next(chain(words, characters, [longest]))
            rows.append(ids[start:end])
            start = end
        rows.append(ids[start:])
        # Symbols, such as a row of dots, may fill rows of their own; bytes may have been cut apart.
        copies = self.copies_wordless
        return [
            text if copies and self._unknown.isdisjoint(row) and not has_words(text) else row
            for row, text in zip(rows, self._model.decode(rows), strict=True)
        ]
