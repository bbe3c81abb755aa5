"""Vocabularies: ids, round trips, and text that was not in the training text."""

import random
import re
from collections import Counter

import pytest
import sentencepiece
from conftest import ALPHABET, learn_elsewhere, refuses
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transformer_mt.config.keys import VocabConfig
from transformer_mt.errors import DataError
from transformer_mt.text.vocabulary import Vocabulary, train_vocabulary


def lines(seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join("".join(rng.choices(ALPHABET, k=4)) for _ in range(5)) for _ in range(200)]


def learn(**changes) -> Vocabulary:
    config = VocabConfig(size=320, **changes)
    sides = [Counter(" ".join(lines(seed)).split()) for seed in (1, 2)]
    return train_vocabulary([sides[0] + sides[1]] if config.shared else sides, config)


@pytest.fixture(scope="module")
def vocab() -> Vocabulary:
    return learn()


SPACES = st.text(st.sampled_from("ab\u00ad \t\n\r\x1c\u00a0\u2009\u2028\u3000"))


@settings(max_examples=100)
@example(" a\t\u00a0b\u2028\x0c\x85c \r\n")
@example("Größe ½ … ² ﬁ Å 日本語 и \U0001f600 a\u200bb x\x00y")
@given(SPACES | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581")))
def test_any_text_comes_back_with_white_space_folded(vocab, text):
    """All but SentencePiece's mark of a space, as pieces or bytes: no id is a special one."""
    (ids,) = vocab.src.encode([text])
    assert vocab.tgt.decode([ids]) == [vocab.src.fold(text)] == [" ".join(text.split())]
    assert all(i > 3 for i in ids)


def test_a_hypothesis_is_one_line(vocab):
    byte_ids = [4 + ord(character) for character in "\n\r\t"]
    assert vocab.src.pieces(byte_ids) == ["<0x0A>", "<0x0D>", "<0x09>"]
    (ids,) = vocab.tgt.encode(["ab"])
    assert vocab.tgt.decode([[*ids, *byte_ids, *ids]]) == ["ab    ab"]
    assert vocab.tgt.decode([]) == []
    assert vocab.src.encode(["a \ud800 b"]) == vocab.src.encode(["a ? b"])  # a lone surrogate


def test_vocabularies_that_cannot_be_used(tmp_path, vocab):
    for name in ("src.model", "tgt.model"):
        missing = f"^{tmp_path}/{name}: cannot read a vocabulary: No such file or directory$"
        refuses(DataError, missing, Vocabulary.load, tmp_path)
        (tmp_path / name).write_bytes(b"nonsense")
    message = "not a SentencePiece model$"
    no_text = vocab.src_model.replace("▁".encode(), b"\xff" * 3)
    for name, data in (("src.model", vocab.src_model), ("tgt.model", no_text), ("tgt.model", b"")):
        refuses(DataError, f"^{tmp_path}/{name}: {message}", Vocabulary.load, tmp_path)
        (tmp_path / name).write_bytes(data)


@pytest.mark.parametrize(("shared", "names"), [(True, ["vocab"]), (False, ["src", "tgt"])])
def test_what_was_saved_is_loaded(tmp_path, shared, names):
    vocab = learn(shared=shared)
    assert vocab.save(tmp_path) == [tmp_path / f"{name}.model" for name in names]
    loaded = Vocabulary.load(tmp_path, "nfc")
    assert loaded.src.form == loaded.tgt.form == "nfc"
    assert loaded.has_same_ids(vocab) and loaded.shared == shared
    assert Vocabulary(vocab.tgt_model, vocab.src_model).has_same_ids(vocab) == shared
    assert loaded.tgt.pieces(range(320)) == vocab.tgt.pieces(range(320))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("size", [5, 10**8])
def test_an_unsuitable_size_is_reported_with_one_that_works(kind, size):
    counts = Counter(" ".join(lines(1)).split())
    pattern = r"vocab.size = (\d+) is too (large|small) for this text: .*?(\d+) or (less|more)$"
    with pytest.raises(DataError, match=pattern) as error:
        train_vocabulary([counts], VocabConfig(kind=kind, size=size))
    given, adjective, limit, direction = re.match(pattern, str(error.value)).groups()
    assert int(given) == size
    assert (adjective, direction) == (("small", "more") if size < 99 else ("large", "less"))
    assert train_vocabulary([counts], VocabConfig(kind=kind, size=int(limit))).src.size
    beyond = VocabConfig(kind=kind, size=int(limit) + (1 if adjective == "large" else -1))
    message = f"too {adjective}.* {limit} or {direction}"
    refuses(DataError, message, train_vocabulary, [counts], beyond)


def test_the_side_that_is_unsuitable_is_named():
    nothing = "^vocab.size = 300: SentencePiece cannot learn from the target text: .+$"
    for target, message in (
        ({"ab": 1}, "^vocab.size = 300 is too large for the target text: set it to 266 or less$"),
        ({}, nothing),
        ({"\u2581": 3}, nothing),
    ):
        sides = [Counter(" ".join(lines(1)).split()), Counter(target)]
        refuses(DataError, message, train_vocabulary, sides, VocabConfig(size=300, shared=False))


def test_long_words_are_learned_from():
    """As those of text without spaces. Sabotage: leave out SentencePiece's limit of 4,192 bytes."""
    long = Counter({"äöü" * 1_500: 9, "ab": 1})
    assert "äöü" in train_vocabulary([long], VocabConfig(size=275)).src.table().ids


def test_words_and_characters():
    """Each is a piece, others are unknown, and there may be fewer than `size`."""
    assert learn(kind="word").src.size == 320 and learn(kind="word", shared=False).src.size <= 320
    counts = Counter({"ab": 9, "cd": 9, "ef": 9})
    few = train_vocabulary([counts], VocabConfig(kind="word", size=320))
    assert few.src.size == 4 + 3
    (ids,) = few.tgt.encode(["ef xy ab"])
    assert ids[1] == 1 and len(ids) == 3 and few.src.pieces(ids)[::2] == ["▁ef", "▁ab"]
    characters = learn(kind="char")
    assert characters.src.size == 4 + 1 + len(ALPHABET)
    (ids,) = characters.tgt.encode(["abc xyz"])
    assert len(ids) == 8 and characters.tgt.decode([ids]) == ["abc xyz"]
    rare = train_vocabulary([Counter({"a": 99_999, "z": 1})], VocabConfig(kind="char", size=99))
    assert rare.src.pieces(rare.src.encode(["z"])[0]) == ["▁", "z"]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "char"])
def test_the_kind_is_that_of_the_model(kind):
    """Also with a symbol and words of one letter. Sabotage: call all other kinds words."""
    symbols = [] if kind == "word" else ["<bt>"]
    counts = Counter(" ".join(lines(1)).split())
    vocab = train_vocabulary([counts], VocabConfig(kind=kind, size=320, symbols=symbols))
    assert vocab.tgt.kind == kind


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize(
    "special",
    [
        {},  # SentencePiece's defaults: no padding
        {"unk_id": 1, "bos_id": -1, "eos_id": 0},  # Marian
        {"bos_id": 0, "pad_id": 1, "eos_id": 2, "unk_id": 3},  # fairseq
        {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},  # T5
        {"unk_id": 9, "eos_id": 300, "bos_id": 20, "user_defined_symbols": ["<pad>", "<s> "]},
    ],
)
def test_a_vocabulary_with_other_special_ids(tmp_path, kind, special):
    options = {"byte_fallback": True, "normalization_rule_name": "identity", "minloglevel": 2}
    model = learn_elsewhere(lines(1), model_type=kind, vocab_size=320, **options, **special)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    (tmp_path / "spm.model").write_bytes(model)
    vocab = Vocabulary.load(tmp_path / "spm.model").src
    ids = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
    pieces = vocab.pieces(range(vocab.size))
    others = [processor.id_to_piece(i) for i in range(320) if i not in ids]
    assert pieces[4:] == others and len(set(pieces)) == len(pieces) == 320 + ids.count(-1)
    assert pieces[1:4] == ["<unk>", "<s>", "</s>"]
    text = [*lines(1), "日本 ab", ""]
    rows = vocab.encode(text)
    assert [vocab.pieces(row) for row in rows] == processor.encode(text, out_type=str)
    assert vocab.decode(rows) == text and min(map(min, rows[:-1])) > 3
    assert vocab.decode([[0, 2, *rows[0], 3]]) == text[:1]  # a model may produce any id
    table = vocab.table()
    assert vocab.kind == kind and table.texts[:4] == [""] * 4
    assert all(text in ("", piece) for text, piece in zip(table.texts, pieces, strict=True))
    assert set(table.ids) == {piece for piece in others if piece[0] != "<"}
    for text, i in table.ids.items():
        assert table.scores[i] == processor.get_score(processor.piece_to_id(text))


@pytest.mark.parametrize(("field", "ids"), [(45, r"\(-1, -1, 1, 2\)"), (47, r"\(-1, 0, 1, 1\)")])
def test_special_pieces_that_cannot_be_used(tmp_path, field, ids):
    model = learn_elsewhere(lines(1), vocab_size=60, minloglevel=2)
    # Protobuf messages are joined by concatenation: field 2 describes how it was trained.
    model += bytes([0x12, 6, (field << 3 | 2) & 0x7F | 0x80, field >> 4, 3]) + b"<s>"
    (tmp_path / "spm.model").write_bytes(model)
    message = f"spm.model: the ids of pad, unk, bos and eos are {ids}"
    refuses(DataError, message, Vocabulary.load, tmp_path / "spm.model")


def test_what_is_learned_from():
    """Counts of the most frequent words, and 99.99% of the characters, in any order."""
    options = {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity"}
    options |= {"character_coverage": 0.9999, "pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}
    model = learn_elsewhere(lines(1) + lines(2), vocab_size=320, minloglevel=2, **options)
    from_text = sentencepiece.SentencePieceProcessor(model_proto=model)
    assert learn().src.pieces(range(320)) == [from_text.id_to_piece(i) for i in range(320)]
    counts = Counter({"rare": 1, "often": 9, "always": 20})
    vocab = train_vocabulary([counts], VocabConfig(kind="word", size=99, max_words=2))
    assert vocab.src.pieces(range(4, vocab.src.size)) == ["▁always", "▁often"]
    counts = Counter(dict.fromkeys("abcdefgh", 1))  # of equal counts not the first in the alphabet
    vocab = train_vocabulary([counts], VocabConfig(kind="word", size=99, max_words=4))
    assert vocab.src.pieces(range(4, vocab.src.size)) != ["▁a", "▁b", "▁c", "▁d"]
    counts = Counter({"ab" * 10: 49, "q" * 10: 1, "z": 1})  # 1,030 letters with the spaces
    config, backwards = VocabConfig(size=266, kind="unigram"), dict(reversed(counts.items()))
    vocab = train_vocabulary([counts], config)
    assert vocab.has_same_ids(train_vocabulary([Counter(backwards)], config))
    assert {"q", "z"} <= set(vocab.src.table().ids)


def test_sentencepiece_says_nothing_while_it_learns(capfd):
    """Its usual level of messages is restored, after an error too."""
    learn()
    refuses(DataError, "", train_vocabulary, [Counter()], VocabConfig(size=300))
    assert capfd.readouterr() == ("", "")
    learn_elsewhere(lines(1), vocab_size=60)
    assert capfd.readouterr().err
