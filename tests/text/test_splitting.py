"""Where lines are split: ends of sentences in German and English, limits, time."""

import time
from collections import Counter

import numpy as np
import pytest
from conftest import LETTERS, learn_elsewhere
from hypothesis import given
from hypothesis import strategies as st

from transformer_mt.config.keys import DataConfig, VocabConfig
from transformer_mt.text.splitting import LineSplitter, SourceStatistics, has_words, split_sentences
from transformer_mt.text.vocabulary import Vocabulary, train_vocabulary

SINGLE, SEVERAL = 0.0, 0.01
"""Shares of training lines with several sentences, below and at the limit."""


def split(vocab, line: str, statistics=None, max_length=None, limit=12, mode="auto") -> list[str]:
    data = DataConfig(path="none", max_length=limit)
    [parts] = LineSplitter(vocab.src, data, statistics, max_length, mode).split([line])
    return vocab.src.decode(parts)


@pytest.mark.parametrize(
    ("language", "marked"),
    [
        ("de", "Ein Mann läuft. |Eine Frau sitzt! |Wo? |Da."),
        ("de", "z. B. im Sommer. |Dr. Müller und Prof. Dr. Meier kamen, d. h. fast alle."),
        ("de", "Er kam am 3. Mai in den 2. Stock. |Der 1. Preis war 1999. |Dann ging er."),
        ("de", "Herr K. Meier von der Fa. Schmidt kostet 5 Mio. Euro. |Die GmbH zahlt 1.50."),
        ("de_AT", "Am 3. Mai. |3 Leute kamen am 40. Tag."),
        ("de", "Äpfel, Birnen usw. |Dann Ja… |Nein."),
        ("de", "„Komm her. |Ich warte!“ |Er kam. |(Das war gut.) |»Ja.« |Ende."),
        ("de", "„Halt!“, rief er und lief. |Was? rief sie."),
        ("de", "ein mann läuft. |eine frau sitzt z. b. dort. |der 2. mann"),
        ("de", "1. Einleitung"),
        ("de", "Dieser Art. |Nach Art. 5 gilt es. |König Karl II. Stuart starb."),
        ("en", "1. Introduction. |He left. |2. See No. 5. |It closes at 5 p.m. |Then I left."),
        ("de", "Siehe www.Beispiel.de oder Kap.3. |Ende"),
        ("en", "Mr. Smith went to Washington. |He met J. R. R. Tolkien, e.g. on Jan. 5. |OK."),
        ("en", 'He said, "Go. |Now!" |"What?" she said. |It\'s I. |You stay… |Or not, etc. |So.'),
        ("de", "Er hat Hepatitis B. |Die Leber ist krank, z. B. Der Test zeigt es."),
        ("en", "We take plan B. |It is best. |A. It rains. |J. It wrote for Martin L. King."),
        ("fr", "« Il part. » |Elle reste. |Elle crie : « Au secours ! » |Il vient."),
        ("en", "George W. Bush of the U.S. Army paid $1.50. |Then Ph.D. Jones left."),
        ("fr", "Il en a 5. |Elle aussi."),
        ("fr", "Il part. |« Je reviens », dit-il. |« Quand ? » |— « Demain. » |Elle attend."),
        ("zh", "“你好。”|他说。|我"),
        ("zh", "no capitals. |here。|But here. not"),
        ("xx", "An unknown language. |Is split."),
        # Abbreviations, and the last parts of compounds
        ("de", "Sie arbeitet bei Meyer & Co. KG. |Der ehem. Leiter der Hauptstr. 12 ging."),
        ("de", "Bis zu max. Tempo 30, mind. Zwei Stück, lt. § 5 Abs. 2 und Nr. 7 bzw. Ziff. 3."),
        ("de", "Dipl.-Ing. Anna Groß, Dr. med. Vogel und Dr. rer. nat. Adler. |Und St.-Nr. 4."),
        ("de", "Im 18. Jh. Erbaut, im 19. Jh. zerstört. |Sein 350. Bundesliga-Spiel, EUR (rd. 9)."),
        ("de", "Es hat ca. Fünf Zi. u. a. Bad, vgl. Seite S. 12, evtl. Keller, z. T. Garten."),
        ("de", "DR. MÜLLER KOMMT. |ER IST DA."),
        ("en", "Rep. Jane Doe met Col. Ian Roe at Acme Inc. Headquarters, Main St. Station."),
        ("en", "They sell pens, ink, etc. Online. |Yahoo! & Co. paid. |See Sec. 4, approx. Half."),
        # They end a sentence before a word that begins one.
        ("de", "Er lebte im 18. Jh. |Sie auch. |Es waren 5 Mio. |Da war es usw. |Ich bin Max. |Er"),
        ("de", "Er wurde 55. |Das war alt. |Er kam am 3. |Die anderen am 4. Mai."),
        ("en", "He left the U.S. |The plane was from Acme Inc. |It left. |She has MS. |He knows."),
        ("en", "They bought it for Martin Jr. |And never mind. |Peter left."),
        # What has no words stays with the sentence before it, or else with the next one.
        ("de", "Ein Hund läuft. 😀"),
        ("de", "Ein Hund läuft. |(1) Eine Katze. ***"),
        ("de", "Danke! ♪ ♪"),
        ("de", "Wo? |16 : 12. Da ist es. |2019. Gut. https://example.com/Haus"),
        ("de", "😀 ! 1. Ein Hund. |2. Eine Katze. 3."),
        ("en", "Oh no ! |1 ) Go . |Stop . ”"),
        ("zh", "1。你好。2。。|再见。……"),
        # What stands between or is attached to them.
        ("de", "Er geht. |– Sie kommt? |- Nein. ” |Ja. ) |Gut. « Wer? »"),
        ("de", "Er geht. :) |Sie kommt! ;-) |Er rennt. |+++ Sie sitzt. |• § 1 gilt. |* Ende."),
        ("de", "Mo. – Fr. von 9 bis 5 Uhr. |Jan. – März, 9. – 12. |Er ging. |– Sie kam, `.` Ende."),
        ("en", "9 a.m. – 5 p.m. daily. |$ 5 were lost. |— Ann came."),
        ("de", "Er geht.¹ |Sie kommt.[12] |Er rennt!* |Sie <b>sitzt.</b> |Er steht!😀 |Ende⁉ |So."),
        ("de", "Er rief: „Komm!“ , Paul ging. |Ja! & Co. kam, Zürich.ch Haus."),
        ("hi", "वह घर गया। |मैं यहाँ रहा।।|क्या"),
        ("ar", "ماذا تفعل؟ |أنا هنا."),
        ("ur", "میں گیا۔ |وہ آیا۔"),
        ("fa", "چرا؟! |«کجا؟» |(کجا؟) |او رفت."),
        ("hi", 'वह बोला, "मैं आऊँगा।" |वह गया।'),
        ("zh", "【注意！】|《你好！》|好。"),
        ("en", "i like it. |you too? |see https://t.co/aB3 @Ann. |ok #NeverGiveUp"),
        ("ka", "NATO მოვა. |შენ რჩები."),
        ("hy", "Ես գնում եմ։ |Դու մնում ես։"),
        ("am", "ትቀራለህ፧ |እሺ።"),
        ("mn", "ᠪᠢ ᠶᠠᠪᠤᠨ᠎ᠠ᠃ |ᠴᠢ ᠰᠠᠭᠤᠨ᠎ᠠ᠃"),
        ("sat", "ᱤᱧ ᱪᱟᱞᱟᱜ ᱠᱟᱱᱟ᱾ |ᱟᱢ ᱛᱟᱦᱮᱸᱱ ᱢᱮ᱾"),
        ("zh", "你好!|走吧?|好的! |Hello! 3!4"),
        ("it", "È morto due anni fa. |Suo figlio vive a Roma."),
        ("de", "Ich danke Dir. |Wir gehen. |Der Verein e.V. |Der ist alt, u.a. Bonn."),
        ("en", "He ran 5 m. |Then he ate 3 g. Sugar and Sen. Smith."),
        ("en", "A. It rains... |– 5 drops! |Plan B? |Read e.g. The Times!"),
        ("fr", "Il est 5 h. |Elle part avec Mme. Roux et 2 M. Blanc."),
        ("zh", "他说：“去！”，然后走了。|好。"),
        ("ja", "「本当？」と彼は尋ねた。|「行く！」|はい。"),
        ("th", "กทม. ประกาศ ดร. สมชาย"),
        ("ko", "비가 와. |우산을 줘. |가. 첫째."),
        ("ur", "قیمت 1۔5 ارب ہے۔ |اچھا۔"),
        ("PL", "Było to 3. Maja. |Tak."),
        ("pol", "Było to 3. Maja. |Tak."),
        ("el", "Πού είσαι; |«Εδώ;» |Έλα! |Τι; |1; Ναι."),
        ("my", "သူလာသည်။ငါ".replace("။", "။|")),
        ("ja", "来た．|３．５を見た｡|終わり．"),
        ("de", ""),
    ],
)
def test_ends_of_sentences(language, marked):
    """Abbreviations, ordinals, initials, quotations and names are not; a number is no sentence."""
    assert "|".join(split_sentences(marked.replace("|", ""), language)) == marked


@given(st.text(st.sampled_from('aB1. !?…„“"»«(。😀-:।[]')), st.sampled_from(["de", "en", "zh"]))
def test_sentences_joined_give_the_text(text, language):
    """Each of several has words."""
    sentences = split_sentences(text, language)
    assert "".join(sentences) == text and (all(sentences) or not text)
    assert len(sentences) <= 1 or all(map(has_words, sentences))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", True),
        ("中", True),
        ("1 2,5 € --- 12:30 --> ½ 😀 №", False),
        ("", False),
        ("https://example.com/ein/Weg?x=ä www.Beispiel.de, (info@firma.de)", False),
        ("mailto:a.b+c@d.org; HTTP://X.Y", False),
        ("„https://a.de“ «https://a.de» https://t.co/aB3… www.a.de😀 www.a.vn/Việt", False),
        ("siehe https://example.com", True),
        ("https://ru.wikipedia.org/wiki/Москва https://el.wikipedia.org/wiki/Αθήνα", False),
        ("www.example.com请看", True),
        ("@name #tag", True),
        ("5 km", True),
    ],
)
def test_what_has_words(text, expected):
    """A letter that belongs to no address."""
    assert has_words(text) == expected


@given(st.text(st.sampled_from("ab1. ,;:：、!-。"), max_size=60), st.sampled_from(["long", "auto"]))
def test_every_part_has_pieces_and_words(vocab, text, mode):
    """However short the limit: what has no words stays with its neighbour, or is copied."""
    statistics, data = SourceStatistics(9, 7, SINGLE), DataConfig(path="none", max_length=9)
    [parts] = LineSplitter(vocab.src, data, statistics, split=mode).split([text])
    assert all(parts) and bool(parts) == bool(text.split())
    letters = []
    for part in parts:
        shown = part if isinstance(part, str) else vocab.src.decode([part])[0]
        has_unknown = not set(vocab.src.unknown_ids()).isdisjoint(part)
        assert has_words(shown) == isinstance(part, list) or has_unknown
        letters += filter(str.isalpha, shown)
    assert letters == list(filter(str.isalpha, text))


@pytest.mark.parametrize(
    "text",
    ["Ein Hund. ", "ein Hund ", "a", '("„', "1. ", "„Hund. ", "Hund, ", "Hund. - ", ".*", "। "],
    ids=repr,
)
def test_a_long_line_takes_linear_time(vocab, text):
    seconds = []
    for size in (10_000, 100_000):
        began = time.process_time()
        splitter = LineSplitter(vocab.src, DataConfig(path="none", max_length=50))
        splitter.split([text * (size // len(text))])
        seconds.append(time.process_time() - began)
    assert seconds[1] < 30 * seconds[0] + 0.2


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("abcdefghijk", ["abcdefghijk"]),  # twelve pieces with the space before it
        ("ab cd. ef gh ij", ["ab cd.", "ef gh ij"]),
        ("ab cd! ef gh ij", ["ab cd!", "ef gh ij"]),
        ("ab cd, ef gh ij", ["ab cd,", "ef gh ij"]),
        ("ab. cd, ef gh", ["ab.", "cd, ef gh"]),  # a sentence before a later clause
        ("ab. cd. ef gh", ["ab. cd.", "ef gh"]),  # as few parts as possible
        ("a, bcd efg hijk", ["a, bcd efg", "hijk"]),  # a clause of three pieces is too short
        ("abcdefghijk lm", ["abcdefghijk", "lm"]),  # a word that ends at the limit
        ("abc.def ghi jklm", ["abc.def ghi", "jklm"]),  # no space after the mark
        ("abcdefghijklmn", ["abcdefghijk", "lmn"]),  # within a word, if there is no other way
        ("a bcdefghijklmno", ["a", "bcdefghijkl", "mno"]),
        ("ab cd ef gh ij kl mn op qr", ["ab cd ef gh", "ij kl mn op", "qr"]),
        (" ", []),
    ],
)
def test_where_a_long_line_is_split(vocab, line, parts):
    """At most twelve pieces each, after a sentence, a clause or a word; no piece is lost."""
    assert split(vocab, line) == parts
    [rows] = LineSplitter(vocab.src, DataConfig(path="none", max_length=12)).split([line])
    assert sum(rows, []) == vocab.src.encode([line])[0] and max(map(len, rows), default=0) <= 12


def test_a_clause_ends_at_a_full_width_mark_and_has_pieces(vocab, tmp_path):
    """Nothing is a part after a mark at the end, nor where a vocabulary normalises q to nothing."""
    assert split(vocab, "ab cd，ef gh ij") == ["ab cd ⁇ ", "ef gh ij"]
    assert split(vocab, "ab cd، ef gh ij") == ["ab cd ⁇ ", "ef gh ij"]
    assert split(vocab, "ab cd efgh ij：") == ["ab cd efgh", "ij ⁇ "]
    (tmp_path / "rules.tsv").write_text("71\t\n")
    rules = {"normalization_rule_tsv": str(tmp_path / "rules.tsv")}
    model = learn_elsewhere([LETTERS], model_type="char", **rules)
    vocab = Vocabulary(model, model)
    assert split(vocab, "abcdefghijklmnop, qqqq") == ["abcdefghijk", "lmnop,"]
    assert split(vocab, "qqqq") == []


def parts_of(vocab, line: str, changed: float = 0.0, **options: object) -> list[list[int] | str]:
    statistics = SourceStatistics(15, 11, SINGLE, changed)
    data = DataConfig(path="none", max_length=20)
    [parts] = LineSplitter(vocab.src, data, statistics, **options).split([line])
    return parts


def test_what_has_no_words_is_copied(vocab):
    """As it is, but for tabs and a carriage return; a row of dots of a long line, too."""
    for line in ("12", " 1\u00a0€  5 ", "." * 99, ". ! . !", "\U0001f600"):
        for end in ("", "\r", "\n", "\r\n"):  # line feeds are those of a file opened in Python
            assert parts_of(vocab, line + end) == [line]
    assert parts_of(vocab, "ab cd efgh, !, !") == vocab.src.encode(["ab cd efgh, !, !"])
    assert parts_of(vocab, "1\t2\r") == ["1 2"] and parts_of(vocab, " \t\r") == []
    [ids, *copied] = parts_of(vocab, f"ab cd {'.' * 50}")
    assert vocab.src.decode([ids]) == ["ab cd"] and copied == ["." * 19, "." * 20, "." * 11]
    # A row of bytes is not copied, and no character is cut apart.
    with_bytes = train_vocabulary([Counter({LETTERS: 1})], VocabConfig(size=292))
    parts = parts_of(with_bytes, f"ab {chr(0x1F600) * 40}")
    assert len(parts) > 1 and all(isinstance(part, list) for part in parts)
    assert "".join(with_bytes.src.decode(parts)) == f"ab{chr(0x1F600) * 40}"
    # From one line in a thousand of the training text on, such lines are translated.
    assert parts_of(vocab, "...", changed=0.001) == ["..."]
    assert parts_of(vocab, "...", changed=0.0011) == vocab.src.encode(["..."])
    assert str not in map(type, parts_of(vocab, f"ab cd {'.' * 50}", changed=0.0011))


@pytest.mark.parametrize(
    ("options", "line", "parts"),
    [
        ({}, "ab. cd. ef", ["ab.", "cd.", "ef"]),
        ({}, "ab, cd, efghi, jkl", ["ab, cd,", "efghi, jkl"]),
        ({}, "op. ab, cd, efghi, jkl", ["op.", "ab, cd,", "efghi, jkl"]),
        ({}, "ab cd efghi jkl", ["ab cd efghi jkl"]),  # no mark: only above 20 pieces
        ({"share": SEVERAL}, "ab. cd. ef", ["ab. cd. ef"]),
        ({"share": SEVERAL}, "ab. cd. efghi. jkl", ["ab. cd.", "efghi. jkl"]),
        ({"share": SEVERAL}, "ab, cd, efghi, jkl", ["ab, cd,", "efghi, jkl"]),
        ({"share": SEVERAL}, "ab cd efghi jkl mno pq", ["ab cd efghi jkl mno", "pq"]),
        # It has seen longer lines, in earlier text, than `data.max_length` keeps.
        ({"share": SEVERAL, "seen": (30, 25)}, "abcd efghij klmno pqr", ["abcd efghij klmno pqr"]),
        ({"mode": "long"}, "ab. cd.", ["ab. cd."]),
        ({"mode": "long"}, "ab. cd. efghi. jkl", ["ab. cd.", "efghi. jkl"]),
        ({"mode": "never"}, "ab. cd. efghi. jkl", ["ab. cd. efghi. jkl"]),
        ({"mode": "never"}, "ab. cd. efghi. jkl. mno", ["ab. cd. efghi. jkl.", "mno"]),
        ({"share": SEVERAL, "max_length": 30}, "ab, cd. ef, gh ij", ["ab, cd. ef, gh ij"]),
        ({"share": SEVERAL, "max_length": 5}, "ab, cd. ef, gh", ["ab,", "cd.", "ef,", "gh"]),
        ({"share": 0.09, "lines": 50_000}, "ab. cd.", ["ab.", "cd."]),
        ({"share": 0.09, "lines": 60_000}, "ab. cd.", ["ab. cd."]),
        ({"share": 0.1, "lines": 60}, "ab. cd.", ["ab. cd."]),
    ],
)
def test_the_training_text_and_options_decide_where_lines_are_split(vocab, options, line, parts):
    """At each end if few had several sentences; else above the percentile of 11, or 20 pieces."""
    share, lines = options.get("share", SINGLE), options.get("lines", 0)
    statistics = SourceStatistics(*options.get("seen", (15, 11)), share, lines=lines)
    given = options.get("max_length"), 20, options.get("mode", "auto")
    assert split(vocab, line, statistics, *given) == parts


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
def test_every_part_of_a_line_has_the_symbols_at_its_beginning(kind):
    """Sabotage: none after the first part."""
    config = VocabConfig(kind=kind, size=273, symbols=["<2en>", "<2e"])
    model = train_vocabulary([Counter("ab cd. ef Gh 1".split())], config).src
    data, single = DataConfig(path="none", max_length=20), SourceStatistics(15, 11, 0.0)
    lines = [" <2en>  <2e ab cd. Ef gh.", "<2en> 1 - 1", "ab. <2en> Cd", "<2enab", "<2en>", "  1"]
    rows = LineSplitter(model, data, single, symbols=config.symbols).split(lines)
    assert rows[0] == model.encode(["<2en> <2e ab cd.", "<2en> <2e Ef gh."])
    assert rows[1:3] == [["1 - 1"], model.encode(["ab.", "<2en> Cd"])]
    assert rows[3:] == [*([each] for each in model.encode(lines[3:5])), ["  1"]]


@pytest.mark.parametrize("lines", [60_000, 4_500_000])
def test_two_texts_of_single_sentences_are_one(lines):
    """Though one is little. Sabotage: choose the largest share and the largest number of lines."""
    texts = (0.005, lines), (0.05, 300), (0.3, lines), (0.02, 9_000_000)
    large, little, taught, more = (SourceStatistics(9, 8, share, 0.0, n) for share, n in texts)
    assert SourceStatistics.combine(max, (large, little)).is_single_sentences
    for texts in ((large, taught), (little, more)):
        assert not SourceStatistics.combine(max, texts).is_single_sentences
    assert SourceStatistics.combine(min, (large, taught)).is_single_sentences


def test_statistics_by_hand():
    """The percentile is a length that occurs, and at least 99.9% are at most as long.

    Of several texts each value is chosen for itself; what is not known does not count.
    """
    texts = [SourceStatistics(9, 8, 0.25), None, SourceStatistics(7, 7, 0.5)]
    assert SourceStatistics.combine(max, texts) == SourceStatistics(9, 8, 0.5)
    assert SourceStatistics.combine(min, texts) == SourceStatistics(7, 7, 0.25)
    assert SourceStatistics.combine(max, [None]) is None
    lengths = np.array([*range(1, 1500), 5000, 7000])
    expected = SourceStatistics(7000, 5000, 9 / 1501, 2 / 1501, 1501)
    assert SourceStatistics.measure(lengths, 9, 2) == expected
    assert SourceStatistics.measure(lengths[2:3], 0, 0) == SourceStatistics(3, 3, 0.0, 0.0, 1)
